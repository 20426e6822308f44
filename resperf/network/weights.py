"""A network ready to run: weights from the file, from external data, or random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from resperf.errors import NetworkError
from resperf.network.assumed import Sizes, stated
from resperf.network.graph import all_tensors, names_read
from resperf.network.model import open_buffer, parse, strip_file
from resperf.network.protos import EXTERNAL, external_data, has_bytes, numpy_dtype
from resperf.network.reader import resolve
from resperf.network.wire import Buffer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

Array = npt.NDArray[Any]

_BLOCK_ELEMENTS = 1 << 18
_BIAS_SCALE = 0.01
# Operator -> inputs that must be positive: variances and quantisation scales.
_POSITIVE: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (1, 4),
    "DequantizeLinear": (1,),
    "QuantizeLinear": (1,),
}


def materialise(
    path: Path, *, seed: int = 0, overridable: bool = False, **sizes: Unpack[Sizes]
) -> tuple[ModelProto, dict[str, Array]]:
    """Return a network ready to run, and its large weights separately.

    Parameters
    ----------
    path : Path
        The ONNX file.
    seed : int
        Of random weights: the same seed gives the same values.
    overridable : bool
        Whether weights that are inputs of the file as well stay inputs, so that ONNX Runtime does
        not take them for constants.
    sizes
        As in `resperf.network.read_network`; set in the returned model.

    Returns
    -------
    model : ModelProto
        Small weights are inside. Every other initializer is marked as external data, for
        ``SessionOptions.add_external_initializers`` or to be filled in.
    weights : dict of str to ndarray
        Value of every initializer that the model marks as external. Values in the file or in
        external data inside the file's folder are real, others are random: normal with a
        variance that holds activations in range; variances and scales are positive.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`; also where external data exists, but is too short.
    """
    path = Path(path)
    weights: dict[str, Array] = {}
    with open_buffer(path) as buffer:
        stripped = strip_file(path, buffer, keep_attributes=True)
        model = parse(path, stripped)
        network = resolve(path, model, stated(**sizes))
        for start, end in stripped.weights:
            name, value = _embedded(path, buffer, start, end)
            weights[name] = value
    _release_constants(model.graph)
    # Only initializers of the main graph are filled in here; ONNX Runtime would open the files of
    # all others.
    others = islice(all_tensors(model.graph), len(model.graph.initializer), None)
    if any(tensor.data_location == EXTERNAL for tensor in others):
        raise NetworkError(
            f"{path}: a constant of an operator, or a subgraph, has weights in another file, "
            "which is not read for measuring; make them initializers of the main graph"
        )
    random_weight = _RandomWeights(seed, model.graph)
    read = set(names_read(model.graph))
    for proto in [*model.graph.initializer]:
        if proto.name not in read:
            # ONNX Runtime drops it before it looks for the values of external weights.
            weights.pop(proto.name, None)
            model.graph.initializer.remove(proto)
            continue
        if proto.name not in weights:
            if has_bytes(proto):
                continue
            external = external_data(path, proto)
            weights[proto.name] = random_weight(proto) if external is None else external
        proto.data_location = EXTERNAL
        del proto.external_data[:]
        proto.external_data.add(key="location", value="weights")
    if overridable and network.overridable:
        from onnx.helper import make_tensor_value_info

        model.graph.input.extend(
            make_tensor_value_info(proto.name, proto.data_type, proto.dims)
            for proto in model.graph.initializer
            if proto.name in network.overridable
        )
    return model, weights


def weights_of(path: Path, **sizes: Unpack[Sizes]) -> dict[str, Array]:
    """Return the value of every initializer, dummy values where the file has none."""
    from onnx import numpy_helper

    model, weights = materialise(path, **sizes)
    for proto in model.graph.initializer:
        if proto.name not in weights and proto.data_location != EXTERNAL:
            weights[proto.name] = numpy_helper.to_array(proto)
    return weights


def _release_constants(graph: GraphProto) -> None:
    """Turn Constant nodes whose bytes are not in the file into initializers."""
    nodes = []
    for node in graph.node:
        lacking = [
            attribute.t
            for attribute in node.attribute
            if node.op_type == "Constant"
            and attribute.name == "value"
            and not has_bytes(attribute.t)
        ]
        if not lacking:
            nodes.append(node)
            continue
        lacking[0].name = node.output[0]
        graph.initializer.append(lacking[0])
    if len(nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _embedded(path: Path, buffer: Buffer, start: int, end: int) -> tuple[str, Array]:
    from onnx import TensorProto, numpy_helper

    proto = TensorProto()
    try:
        proto.ParseFromString(buffer[start:end])
        return proto.name, numpy_helper.to_array(proto)
    except Exception as error:  # protobuf's own, and whatever numpy raised
        raise NetworkError(
            f"{path} is damaged: the bytes of weight {proto.name!r} do not fit its shape"
        ) from error


class _RandomWeights:
    """Weights from one random block, repeated: hundreds of megabytes in a fraction of a second."""

    def __init__(self, seed: int, graph: GraphProto) -> None:
        block = np.random.default_rng(seed).standard_normal(_BLOCK_ELEMENTS, dtype=np.float32)
        self._twice = np.concatenate([block, block])
        self._count = 0
        self._positive = {
            node.input[index]
            for node in graph.node
            for index in _POSITIVE.get(node.op_type, ())
            if index < len(node.input)
        }

    def __call__(self, proto: TensorProto) -> Array:
        dtype, shape = numpy_dtype(proto), tuple(proto.dims)
        # Integers may be indices, for which only 0 is always valid.
        if dtype.kind not in "fV":
            return np.zeros(shape, dtype)
        self._count += 1
        start = 7919 * self._count % _BLOCK_ELEMENTS
        block = self._twice[start : start + min(math.prod(shape), _BLOCK_ELEMENTS)]
        # Preserves the variance of activations (He et al., 2015).
        fan_in = max(shape) if len(shape) == 2 else math.prod(shape[1:])
        scale = math.sqrt(2 / max(1, fan_in)) if len(shape) > 1 else _BIAS_SCALE
        # Not near zero: products of many would become denormal, and slow.
        is_positive = proto.name in self._positive
        block = 0.5 + np.abs(block) if is_positive else block * np.float32(scale)
        return np.resize(block.astype(dtype), shape)
