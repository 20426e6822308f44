"""TensorRT's lowering where it is not asked: rules of what its builder fuses.

The rules are those of `resperf.lowering._trt_fusions`.

Each lowered node is a layer of an engine. Its ``op`` is written as TensorRT names layers, with
operators instead of names: ``Conv + Add + Relu``, ``PWN(Sigmoid, Mul)``, ``Conv || Conv``; weights
and what is folded into them are left out. Changes of shape, and concatenations whose inputs are
written in place, are views.

Engines also have layers that change the format of a tensor (``Reformat``). Those of types follow
from the precision, and are nodes here: ``preprocess`` and ``postprocess`` of inputs and outputs,
``execution`` inside. Those of memory layouts follow from the kernels that the builder chose by
timing them, and are not predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import Layer, Move, Operand, Operator, layer_of_operator
from resperf.lowering._base import (
    SINGLE,
    LoweredNetwork,
    LoweredNode,
    Role,
    answer,
    in_precision,
    largest,
    named_by_sources,
)
from resperf.lowering._read import VIEW_OPS, as_binary_nodes, layer_from_node
from resperf.lowering._torch_attention import attention_in_parts
from resperf.lowering._trt_fusions import SHUFFLE, Fusing, fused, is_view
from resperf.network import Network, Node, Tensor
from resperf.network.canonical import canonical
from resperf.network.protos import data_type_of
from resperf.settings import HALF_TYPES, Setting

REFORMAT = "Reformat"
"""Operator of a lowered node that changes the type of a tensor."""
_QUANTIZING = ("QuantizeLinear", "DequantizeLinear")


def lower(network: Network, setting: Setting) -> LoweredNetwork:
    """Lower a network by rules.

    A network with quantisations of its own runs in int8 where they tell, whatever the precision;
    its layers have the type that the network computes with, and are those of the precision.

    Parameters
    ----------
    network : Network
    setting : Setting
        Its precision decides what is fused, and of which type layers are.
    """
    joined = canonical(in_precision(network, setting.precision))
    joined = replace(joined, network=attention_in_parts(joined.network))
    graph = fused(joined, setting.precision)
    lowered = [part for node in graph.walk() for part in _lowered(graph, node)]
    nodes = named_by_sources(network, lowered)
    dtype = HALF_TYPES.get(setting.precision, "")
    nodes = [
        *_converted(network, network.inputs, dtype, "preprocess"), *nodes,
        *_converted(network, network.outputs, dtype, "postprocess"),
    ]  # fmt: skip
    return answer(network, nodes, "rules", _notes(graph, setting))


def _converted(network: Network, names: Iterable[str], dtype: str, role: Role) -> list[LoweredNode]:
    """Return the conversions of inputs or outputs, which are float32 in the file."""
    conversions = []
    for name in names:
        tensor = network.tensors.get(name)
        if not dtype or tensor is None or tensor.dtype != SINGLE:
            continue
        first, last = (SINGLE, dtype) if role == "preprocess" else (dtype, SINGLE)
        operand, shape = Operand(tensor.shape, first), tensor.shape
        cast = layer_of_operator(Operator("Cast", {"to": data_type_of(last)}, (operand,), (shape,)))
        conversions.append(LoweredNode(f"{name} to {last}", REFORMAT, cast, role))
    return conversions


def _notes(graph: Fusing, setting: Setting) -> tuple[str, ...]:
    if graph.quantized and setting.precision != "int8":
        return (
            "the network quantises tensors to int8; the times of its layers are those of "
            f"{setting.precision or 'its own types'}: predict it with precision int8",
        )
    return ()


def _lowered(graph: Fusing, node: Node) -> list[LoweredNode]:
    sources, label = graph.sources_of(node), graph.label(node)
    if node.op == "Concat" and not node.domain:
        return _copies(graph, node)
    if node.op in (*VIEW_OPS, "Transpose", SHUFFLE) and not node.domain and is_view(graph, node):
        return [LoweredNode(node.name, label, None, "view", sources=sources)]
    role: Role = "execution"
    if node.op in _QUANTIZING:
        label = REFORMAT
        role = "preprocess" if node.inputs[0] in graph.network.inputs else role
    try:
        layer = _layer(graph, node)
    except (LayerError, UnsupportedError) as error:
        return [LoweredNode(node.name, label, None, "unknown", Message.of(error), sources)]
    return [LoweredNode(node.name, label, layer, role, sources=sources)]


def _layer(graph: Fusing, node: Node) -> Layer:
    network = replace(graph.network, tensors=graph.tensors)
    return largest(partial(_layer_of_part, network, part) for part in graph.parts_of(node))


def _layer_of_part(network: Network, node: Node) -> Layer:
    if node.op in _QUANTIZING:
        # It converts from and to float32 in networks of any type.
        changed = {name: _in_single(network.tensors[name]) for name in (*node.inputs, *node.outputs)
                   if name in network.tensors}  # fmt: skip
        network = replace(network, tensors={**network.tensors, **changed})
    return layer_from_node(network, as_binary_nodes(network, node)[0])


def _in_single(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=SINGLE) if tensor.dtype in HALF_TYPES.values() else tensor


def _copies(graph: Fusing, node: Node) -> list[LoweredNode]:
    """Return a concatenation as a view, or as the copies of what is not written in place."""
    sources, copied = graph.sources_of(node), graph.copied.get(node.name, ())
    try:
        layers = [_copy(graph.tensors[name]) for name in copied]
    except KeyError as error:
        reason = f"the shape of {error} is not known"
        return [LoweredNode(node.name, "Concat", None, "unknown", reason, sources)]
    except LayerError as error:
        return [LoweredNode(node.name, "Concat", None, "unknown", str(error), sources)]
    return [
        LoweredNode(
            f"{node.name}: {name} copy",
            "copy",
            layer,
            "execution",
            sources=() if index else sources,
        )
        for index, (name, layer) in enumerate(zip(copied, layers, strict=True))
    ] or [LoweredNode(node.name, "Concat", None, "view", sources=sources)]


def _copy(tensor: Tensor) -> Layer:
    operand, shape = Operand(tensor.shape, tensor.dtype), tensor.shape
    return Move.copied(Operator("Identity", {}, (operand,), (shape,)))
