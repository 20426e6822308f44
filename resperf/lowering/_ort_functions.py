"""Operators without a kernel in ONNX Runtime, which inlines ONNX's function definition of them."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resperf.errors import ShapeError
from resperf.layers.cast import ELEMENT_TYPES
from resperf.network import Network, Node, Rewritten, Tensor
from resperf.network.folding import folded, is_constant
from resperf.network.graph import renamed
from resperf.network.protos import attributes_of
from resperf.network.shapes import infer_node

if TYPE_CHECKING:
    from onnx import FunctionProto

FUNCTIONS = frozenset({"GroupNormalization", "Mish"})
"""HardSwish is a function as well, but is fused into convolutions."""


def without_functions(network: Network) -> Rewritten:
    """Return the network with such operators replaced by the nodes of their definitions.

    Shape arithmetic in a definition is folded. An operator whose inputs are unknown stays.
    """
    if not any(map(_is_function, network.nodes)):
        return Rewritten(network, {})
    tensors, sources, nodes = dict(network.tensors), dict[str, tuple[str, ...]](), list[Node]()
    for node in network.nodes:
        parts = _decomposed(network, node, tensors) if _is_function(node) else None
        if not parts:
            nodes.append(node)
            continue
        nodes += parts
        # Only the last part has the node as its source, so that it is counted once.
        sources |= {part.name: () for part in parts} | {parts[-1].name: (node.name,)}
    return Rewritten(replace(network, nodes=tuple(nodes), tensors=tensors), sources)


def _is_function(node: Node) -> bool:
    return node.op in FUNCTIONS and not node.domain


def _decomposed(network: Network, node: Node, tensors: dict[str, Tensor]) -> list[Node] | None:
    """Nodes of a definition that run, without folded ones; adds their tensors to `tensors`."""
    body = _definition(network, node, tensors)
    if body is None:
        return None
    names = {name: f"{node.name}/{name}" for inner in body.node for name in inner.output if name}
    names |= dict(zip(body.input, node.inputs, strict=False))
    names |= dict(zip(body.output, node.outputs, strict=False))
    # A ChainMap avoids a copy of all tensors per operator: networks may have many of them.
    new: dict[str, Tensor] = {}
    found, parts = ChainMap(new, tensors), list[Node]()
    for number, inner in enumerate(body.node):
        proto = renamed(inner, names)
        attributes = attributes_of(Path(network.name), proto)
        values = folded(proto, attributes, found)
        if values is not None:
            for name, value in zip(proto.output, values, strict=True):
                found[name] = Tensor(name, value.shape, value.dtype.name, value, is_weight=True)
            continue
        if any(name and name not in found for name in proto.input):
            return None
        try:
            known = infer_node(proto, {n: found[n] for n in proto.input if n}, network.opsets)
        except ShapeError:
            return None
        constant = is_constant(proto, found)
        for name, (dtype, shape) in known.items():
            # The network's own shape of the result stays.
            found.setdefault(name, Tensor(name, shape, dtype, is_weight=constant))
        if not constant:
            name = f"{node.name}/{proto.op_type}{number}"
            ends = tuple(proto.input), tuple(proto.output)
            parts.append(Node(name, proto.op_type, proto.domain, *ends, attributes))
    tensors |= new
    return parts


def _definition(network: Network, node: Node, tensors: dict[str, Tensor]) -> FunctionProto | None:
    """ONNX's own definition of an operator with these attributes and types."""
    from onnx import FunctionProto, defs, helper

    given = [tensors.get(name) for name in node.inputs]
    types = [
        helper.make_tensor_type_proto(ELEMENT_TYPES[tensor.dtype], tensor.shape)
        for tensor in given
        if tensor is not None and tensor.dtype in ELEMENT_TYPES
    ]
    if len(types) < len(node.inputs):
        return None
    try:
        schema = defs.get_schema(node.op, network.opsets.get("", 1), "")
    except defs.SchemaError:
        return None
    if not schema.has_context_dependent_function:
        return schema.function_body if schema.has_function else None
    proto = helper.make_node(node.op, node.inputs, node.outputs, **node.attributes)
    body = FunctionProto()
    body.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(
            schema.context_dependent_function_opset_versions[-1],
            proto.SerializeToString(),
            [each.SerializeToString() for each in types],
        )
    )
    return body
