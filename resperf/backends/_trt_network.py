"""A whole network as an ONNX model for TensorRT: all weights inside, in a precision's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from resperf.backends._trt_copies import as_bytes, tensor
from resperf.backends._values import Array, network_input
from resperf.errors import UnsupportedError
from resperf.network.protos import data_type_of, dtype_name
from resperf.network.weights import materialise
from resperf.settings import HALF_TYPES

_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FLOAT32_INPUTS: Mapping[str, tuple[int, ...]] = {"Resize": (2,), "Upsample": (1,)}
"""Operator -> inputs that are float32 whatever its tensors are: scales."""


def network_model(
    path: Path,
    precision: str,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[bytes, dict[str, Array]]:
    """Read a network for TensorRT.

    Parameters
    ----------
    path : Path
    precision : str
        ``"fp16"`` and ``"bf16"`` replace float32, but for inputs and outputs, which are converted;
        ``"int8"`` is for networks with QuantizeLinear, which stay as they are.
    batch, shapes
        As in `resperf.network.read_network`.

    Returns
    -------
    model : bytes
        With all weights; those that the file lacks are made up.
    host : dict of str to array
        Values of the inputs.

    Raises
    ------
    NetworkError, UnsupportedError
        If the file cannot be read, has more than 2 GB of weights, or has no int8 operators.
    """
    model, weights = materialise(path, batch=batch, shapes=shapes)
    if precision == "int8" and not any(node.op_type in _QUANTIZERS for node in model.graph.node):
        raise UnsupportedError(
            f"{path.name} has no QuantizeLinear, which says what TensorRT computes in int8; "
            "quantise it first, or measure it with another precision"
        )
    for proto in model.graph.initializer:
        if proto.name in weights:
            proto.CopyFrom(numpy_helper.from_array(np.asarray(weights.pop(proto.name)), proto.name))
    if precision in HALF_TYPES:
        _halve(model.graph, HALF_TYPES[precision])
        _convert_ends(model.graph, data_type_of(HALF_TYPES[precision]))
    names = {proto.name for proto in model.graph.initializer}
    host = {proto.name: _value_of(proto) for proto in model.graph.input if proto.name not in names}
    return as_bytes(model, path.name), host


def _value_of(given: ValueInfoProto) -> Array:
    """Make up the values of an input."""
    kind = given.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    return network_input(given.name, shape, dtype_name(kind.elem_type))


def _halve(graph: GraphProto, dtype: str) -> None:
    """Replace float32 by a shorter type everywhere, but for the scales of resizes."""
    scales = {
        node.input[index]
        for node in graph.node
        for index in _FLOAT32_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    for proto in graph.initializer:
        if proto.data_type == TensorProto.FLOAT and proto.name not in scales:
            proto.CopyFrom(tensor(proto.name, numpy_helper.to_array(proto), dtype))
    # Types of tensors in between follow from their operators.
    del graph.value_info[:]
    for node in graph.node:
        if not scales.intersection(node.output):
            _halve_node(node, dtype)


def _convert_ends(graph: GraphProto, half: int) -> None:
    """Convert float32 inputs to a shorter type, and such outputs back, as users keep them."""
    weights = {proto.name for proto in graph.initializer}
    nodes = list(graph.node)
    for is_output, ends in ((False, graph.input), (True, graph.output)):
        for end in ends:
            if end.type.tensor_type.elem_type != TensorProto.FLOAT or end.name in weights:
                continue
            inside, end.name = end.name, f"{end.name}.float32"
            read, written = (inside, end.name) if is_output else (end.name, inside)
            to = TensorProto.FLOAT if is_output else half
            cast = helper.make_node("Cast", [read], [written], f"{written} cast", to=to)
            nodes.insert(len(nodes) if is_output else 0, cast)
    del graph.node[:]
    graph.node.extend(nodes)


def _halve_node(node: NodeProto, dtype: str) -> None:
    """Replace float32 in what a node makes by itself: conversions, constants, branches."""
    half = data_type_of(dtype)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _halve(attribute.g, dtype)
        elif attribute.type == AttributeProto.TENSOR:
            if attribute.t.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t)
                attribute.t.CopyFrom(tensor("", values, dtype))
        elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = half
        elif attribute.name in ("value_float", "value_floats"):
            values = np.array(helper.get_attribute_value(attribute), np.float32)
            constant = tensor("", values, dtype)
            attribute.CopyFrom(helper.make_attribute("value", constant))
