"""Writes a network as TensorRT is asked about it: in its precision, by numbers, without weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from resperf.errors import UnsupportedError
from resperf.lowering._base import SINGLE, with_types
from resperf.lowering._proto import Skeleton, numpy_type, skeleton
from resperf.network import Network, Node, Tensor
from resperf.network.graph import inner_graphs, renamed
from resperf.network.protos import data_type_of
from resperf.platform import available_bytes
from resperf.settings import HALF_TYPES
from resperf.units import format_bytes

_VALUES = 1024
"""How many values of a weight are written; the others are zeros that take no space on disk."""
_MEMORY_PER_WEIGHT = 1.25
"""Bytes that TensorRT takes per byte of weights: it took 1.1 to 1.3 for networks of 1 to 4 GB."""
_ALIGNED = 64
_LARGEST_HALF = 65504.0
_IN_FLOAT32 = {"Resize": (1, 2), "Upsample": (1,), "NonMaxSuppression": (3, 4)}
"""Operators -> inputs that are float32 in networks of any type."""
_IN_INT8 = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators that run in int8 where a float network is asked for in int8."""
_SCALE = 0.1
"""Of all quantisations that the file does not state: kernels do not depend on it."""


def write_model(network: Network, precision: str, folder: Path) -> Path:
    """Write a network for TensorRT's parser; nodes are ``n0``, ``n1`` ... in their order.

    TensorRT keeps the types that a file states: a float32 network is converted before. int8 is
    where the file says so, else where products read weights; what is left is float16.

    Raises
    ------
    UnsupportedError
        If its weights do not fit into this machine's memory.
    """
    typed = _quantized(network) if precision == "int8" else network
    dtype = "float16" if precision == "int8" else HALF_TYPES.get(precision, "")
    model = _numbered(network, skeleton(_in_type(typed, dtype), keep_weights=True))
    needed = _MEMORY_PER_WEIGHT * sum(value.nbytes for value in model.weights.values())
    if needed > (available := available_bytes() or math.inf):
        raise UnsupportedError(
            f"to ask TensorRT about this network takes about {format_bytes(needed)} of memory, and "
            f"{format_bytes(available)} are free"
        )
    return _written(model, folder / "model.onnx")


def is_quantized(network: Network) -> bool:
    """Whether a file says itself what is int8."""
    return any("quantize" in node.op.lower() for node in network.nodes)


def _quantized(network: Network) -> Network:
    """Quantise what products with weights read, if the file quantises nothing."""
    if is_quantized(network):
        return network
    tensors, nodes = dict(network.tensors), list[Node]()
    scale = Tensor("any scale", (), SINGLE, np.asarray(_SCALE, np.float32), is_weight=True)
    zero = Tensor("zero point", (), "int8", np.asarray(0, np.int8), is_weight=True)
    tensors |= {scale.name: scale, zero.name: zero}

    def in_int8(name: str) -> str:
        stored, result = f"{name} in int8", f"{name} from int8"
        if result not in tensors:
            tensors[stored] = replace(tensors[name], name=stored, dtype="int8", value=None)
            tensors[result] = replace(tensors[name], name=result, value=None, is_weight=False)
            if not tensors[name].is_weight:
                inputs = (name, scale.name, zero.name)
                nodes.append(Node(stored, "QuantizeLinear", "", inputs, (stored,), {}))
            inputs = (stored, scale.name, zero.name)
            nodes.append(Node(result, "DequantizeLinear", "", inputs, (result,), {}))
        return result

    for node in network.nodes:
        operands = [network.tensors.get(name) for name in node.inputs[:2]]
        floats = [tensor for tensor in operands if tensor is not None and tensor.dtype == SINGLE]
        if node.op in _IN_INT8 and len(floats) == 2 and floats[1].is_weight:
            node = replace(node, inputs=(*map(in_int8, node.inputs[:2]), *node.inputs[2:]))
        nodes.append(node)
    return replace(network, nodes=tuple(nodes), tensors=tensors)


def _in_type(network: Network, dtype: str) -> Network:
    """Convert a float32 network, whose inputs and outputs stay; an empty type changes nothing."""
    if not dtype:
        return network
    kept = {
        name
        for node in network.nodes
        for position in _IN_FLOAT32.get(node.op, ())
        for name in node.inputs[position : position + 1]
    }
    converted = with_types(
        network, lambda tensor: _as_type(tensor, "" if tensor.name in kept else dtype)
    )
    tensors, inner, casts = dict(converted.tensors), dict[str, str](), list[Node]()
    for name in dict.fromkeys((*network.inputs, *network.outputs)):
        if name in tensors and tensors[name] != network.tensors[name]:
            inner[name] = f"{name} in {dtype}"
            tensors |= {name: network.tensors[name], inner[name]: tensors[name]}
            ends = (name, inner[name])[:: 1 if name in network.inputs else -1]
            to = data_type_of(tensors[ends[1]].dtype)
            casts.append(Node(f"{name} cast", "Cast", "", ends[:1], ends[1:], {"to": to}))
    nodes = [
        replace(
            node,
            inputs=tuple(inner.get(name, name) for name in node.inputs),
            outputs=tuple(inner.get(name, name) for name in node.outputs),
        )
        for node in converted.nodes
    ]
    before = [cast for cast in casts if cast.inputs[0] in network.inputs]
    behind = [cast for cast in casts if cast not in before]
    return replace(converted, nodes=(*before, *nodes, *behind), tensors=tensors)


def _as_type(tensor: Tensor, dtype: str) -> Tensor:
    if tensor.dtype != SINGLE or not dtype:
        return tensor
    value, converted = tensor.value, replace(tensor, dtype=dtype)
    if value is not None:
        value = np.clip(value, -_LARGEST_HALF, _LARGEST_HALF).astype(numpy_type(converted))
    return replace(converted, value=value)


def _numbered(network: Network, model: Skeleton) -> Skeleton:
    """Name nodes and tensors by numbers, which TensorRT's list cannot mistake."""
    graph = model.model.graph
    order = {node.name: number for number, node in enumerate(network.nodes)}
    names: dict[str, str] = {}
    for part, tensors in (
        ("input", graph.input), ("output", graph.output), ("weight", graph.initializer)
    ):  # fmt: skip
        names |= {tensor.name: f"{part}{number}" for number, tensor in enumerate(tensors)}
    for tensor in (*graph.input, *graph.output, *graph.initializer):
        tensor.name = names[tensor.name]
    for name in (name for node in graph.node for name in node.output if name):
        names.setdefault(name, f"t{len(names)}")
    nodes = [renamed(node, names) for node in graph.node]
    for number, node in enumerate(nodes):
        node.name = f"n{order[node.name]}" if node.name in order else f"converted{number}"
    del graph.node[:]
    graph.node.extend(nodes)
    for body in [*inner_graphs(graph)][1:]:
        for node in body.node:
            node.ClearField("name")  # It may look like one of these.
    return Skeleton(model.model, {names[name]: value for name, value in model.weights.items()})


def _written(model: Skeleton, path: Path) -> Path:
    """Write a model, its weights as a file that has values at the beginning of each alone."""
    proto, offset = model.model, 0
    with path.with_name("weights.bin").open("wb") as file:
        for weight in proto.graph.initializer:
            if (value := model.weights.get(weight.name)) is None:
                continue
            file.seek(offset)
            file.write(value.ravel()[:_VALUES].tobytes())
            del weight.external_data[:]
            facts = {"location": "weights.bin", "offset": offset, "length": value.nbytes}
            for key, fact in facts.items():
                weight.external_data.add(key=key, value=str(fact))
            offset += math.ceil(value.nbytes / _ALIGNED) * _ALIGNED
        file.truncate(offset)
    path.write_bytes(proto.SerializeToString())
    return path
