"""Small ONNX files of a layer for trtexec: one copy, and several.

The difference of their times is the marginal time. Copies are those of the backend
(`resperf.backends._trt_copies`): each has an input, weights and an output of its own, so that
TensorRT cannot merge them horizontally, joins none to another, and drops none; trtexec runs them on
one stream (``--maxAuxStreams=0``). That it is so is checked in the engine's layers when results are
read. Bindings have the campaign's and the layer's name, by which a file of another engine is known.

Weights are external data: slices of one file per type that all models share. It repeats a random
block of 4 MiB, which is all that the folder holds of it. Slices of one model begin at different
places of the block, so that no two copies have equal weights, which a builder could store once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from resperf.backends._trt_copies import bits, copies_proto, kernel_of, tensor
from resperf.copies import SHORTEST_MS, copies_of
from resperf.errors import UnsupportedError
from resperf.layers import Kernel, Layer, spread_indices
from resperf.network.protos import data_type_of
from resperf.units import DTYPE_BYTES

FEWEST_COPIES, MOST_COPIES = 2, 16
TENSORS_BYTES = 1 << 29
"""Limit on inputs and outputs of all copies, which trtexec keeps on the host as well."""
BLOCK_BYTES = 1 << 22
_PAGE = 4096
_EMBEDDED_BYTES = 1024
_MOST_INDICES_BYTES = 1 << 20
_SHARED = ("float32", "float16", "bfloat16", "int8")
_BINDING = re.compile(r"copy\d+\.(x|y|extra\d+)")
_POSITIVE = frozenset({"BatchNormalization"})
"""Operators whose weights must be positive: one of them is a variance."""


def copies_in(layer: Layer, one_ms: float) -> int:
    """Choose how many copies the larger model of a layer has, by an estimate of its time."""
    wanted = copies_of(max(one_ms, SHORTEST_MS), layer.weight_bytes)
    fitting = TENSORS_BYTES // max(layer.input_bytes + layer.output_bytes, 1)
    return max(FEWEST_COPIES, min(wanted, fitting, MOST_COPIES))


class SharedWeights:
    """Files of weights that models refer to; remembers how long each must be.

    Attributes
    ----------
    needed_bytes : dict of str to int
        Name of a file -> its size.
    """

    def __init__(self) -> None:
        self.needed_bytes: dict[str, int] = {}
        self._word, self._count = "", 0

    def model(self, layer: Layer, copies: int, name: str, *, int8: bool = False) -> ModelProto:
        """Build a model of copies of a layer.

        Parameters
        ----------
        layer : Layer
        copies : int
        name : str
            Ends the names of all bindings.
        int8 : bool
            Whether it computes in int8.

        Raises
        ------
        UnsupportedError
            If TensorRT has no operator for it, or trtexec no values.
        """
        kernel = kernel_of(layer, int8=int8)
        self._word, self._count = "positive" if kernel.op in _POSITIVE else "weights", 0
        model = copies_proto(kernel, copies, self._weight, int8=int8)
        if kernel.index_bound:
            _fix_indices(model, kernel, copies)
        _show_parts(model, len(kernel.output_shape))
        _name_bindings(model, name)
        return model

    def _weight(self, name: str, shape: Sequence[int], dtype: str, copy: int) -> TensorProto:
        size_bytes = math.prod(shape) * DTYPE_BYTES.get(dtype, 4)
        if dtype not in _SHARED or size_bytes <= _EMBEDDED_BYTES:
            return _small(name, shape, dtype, seed=copy, positive=self._word == "positive")
        file, start = f"{self._word}.{dtype}", _PAGE * self._count
        self._count += 1
        self.needed_bytes[file] = max(self.needed_bytes.get(file, 0), start + size_bytes)
        made = TensorProto(
            name=name, data_type=data_type_of(dtype), dims=shape, data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", file), ("offset", start), ("length", size_bytes)):
            made.external_data.add(key=key, value=str(value))
        return made

    def write_blocks(self, folder: Path) -> dict[str, int]:
        """Write the block of each file; return how often the file repeats it."""
        for file in self.needed_bytes:
            word, _, dtype = file.partition(".")
            count = BLOCK_BYTES // DTYPE_BYTES.get(dtype, 4)
            values = _values((count,), dtype, seed=0, positive=word == "positive")
            (folder / f"block.{file}").write_bytes(values.tobytes())
        return {file: -(-size // BLOCK_BYTES) for file, size in self.needed_bytes.items()}


def _values(shape: Sequence[int], dtype: str, *, seed: int, positive: bool) -> npt.NDArray[Any]:
    """Return random values; bfloat16 as its bits."""
    source = np.random.default_rng(seed)
    if dtype not in _SHARED[:3]:
        kind = np.dtype(dtype)
        # A single integer is a zero point, of which 0 is the most common.
        return source.integers(1, 9, shape).astype(kind) if len(shape) else np.zeros((), kind)
    drawn: npt.NDArray[np.float32] = np.asarray(source.standard_normal(shape, np.float32))
    drawn = np.abs(drawn) + np.float32(0.5) if positive else drawn * np.float32(0.05)
    return bits(drawn) if dtype == "bfloat16" else drawn.astype(dtype)


def _small(
    name: str, shape: Sequence[int], dtype: str, *, seed: int, positive: bool
) -> TensorProto:
    plain = "float32" if dtype == "bfloat16" else dtype
    return tensor(name, _values(shape, plain, seed=seed, positive=positive), dtype)


def _fix_indices(model: ModelProto, kernel: Kernel, copies: int) -> None:
    """Make indices a constant: random inputs of trtexec may point outside the table."""
    shape = kernel.extra_shapes[0]
    if math.prod(shape) * 8 > _MOST_INDICES_BYTES:
        raise UnsupportedError(
            f"indices of shape {shape} are too many for trtexec, which cannot make up valid ones: "
            f"files hold {_MOST_INDICES_BYTES} bytes of them at most"
        )
    indices = spread_indices(math.prod(shape), kernel.index_bound).reshape(shape)
    model.graph.initializer.append(tensor("indices", indices, "int64"))
    names = {f"copy{copy}.extra0" for copy in range(copies)}
    for place in reversed(range(len(model.graph.input))):
        if model.graph.input[place].name in names:
            del model.graph.input[place]
    for node in model.graph.node:
        node.input[:] = ["indices" if name in names else name for name in node.input]


def _show_parts(model: ModelProto, rank: int) -> None:
    """Make all parts of a split outputs: TensorRT would not write those that nobody reads."""
    types = {each.name: each.type.tensor_type.elem_type for each in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "Split":
            for name in node.output[1:]:
                part = helper.make_tensor_value_info(name, types[node.output[0]], [None] * rank)
                model.graph.output.append(part)


def _name_bindings(model: ModelProto, name: str) -> None:
    """Add a name to all inputs and outputs."""

    def renamed(given: str) -> str:
        return f"{given}.{name}" if _BINDING.fullmatch(given) else given

    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed(value.name)
    for node in model.graph.node:
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
