"""Reads the kernels of a TensorRT engine as layers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import Activation, Layer, Move, Operand, Operator
from resperf.layers.attention import Attention
from resperf.layers.cast import Cast
from resperf.lowering._base import LoweredNode, Role, with_fields
from resperf.lowering._read import VIEW_OPS, as_binary_nodes, layer_from_node
from resperf.lowering._trt_kernels import Kernel
from resperf.lowering._work import macs_of, tensor_bytes
from resperf.network import MALFORMED, Network, Node
from resperf.network.canonical import canonical

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_POINTWISE = frozenset({"activation", "cast", "elementwise", "move", "select", "transpose"})
"""Kinds of a kernel that does nothing but this."""
_PREPARING = frozenset({"kgen", "runtime_function"})
"""Types of kernels that prepare the operands of a product that another kernel holds too."""


def layers_of(network: Network, kernels: Sequence[Kernel]) -> list[LoweredNode]:
    """Return the layer of each kernel: that of its product, else of its largest operator.

    Fused activations, biases and residual sums are fields of a product. Other kernels move the
    bytes that TensorRT lists. The kernels of a recurrence are one layer.

    Parameters
    ----------
    network : Network
        In the types that it runs in.
    kernels : sequence of Kernel
    """
    owners, joined = _owners(network, kernels), _joined(network)
    recurrent = {i for i, node in enumerate(network.nodes) if node.op in _RECURRENT}
    lowered = []
    for index, kernel in enumerate(kernels):
        own = [node for node in kernel.nodes if owners[node] == index]
        if recurrent and recurrent.issuperset(kernel.nodes) and not recurrent.intersection(own):
            continue
        nodes = [network.nodes[node] for node in own]
        first = [node for node in nodes if node.op in _RECURRENT] or [
            node for node in nodes if node.op in _PRODUCTS
        ]
        held = [joined.get(network.nodes[node].name) for node in kernel.nodes]
        others = list({node.name: node for node in held if node is not None}.values())
        layer, reason = None, Message("")
        try:
            if first:
                layer = _product(network, kernel, first, others)
            else:
                layer = _with_bytes(_largest(network, kernel, others), kernel_bytes(kernel))
        except (LayerError, UnsupportedError, *MALFORMED) as error:
            reason = Message.of(error)
        role = _role(kernel, nodes) if layer is not None else "unknown"
        sources = tuple(node.name for node in nodes)
        lowered.append(LoweredNode(kernel.name, kernel.op, layer, role, reason, sources))
    return lowered


def _owners(network: Network, kernels: Sequence[Kernel]) -> dict[int, int]:
    """Return node -> the one kernel that runs it: the first, of a product the last that computes.

    Kernels that prepare a product's operands name the product too.
    """
    owners: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        for node in kernel.nodes:
            product = network.nodes[node].op in _PRODUCTS
            if node not in owners or (product and not _multiplies(kernels[owners[node]])):
                owners[node] = index
    return owners


def _multiplies(kernel: Kernel) -> bool:
    return kernel.layer_type not in _PREPARING or re.search("gemm|MulSum", kernel.name) is not None


def _joined(network: Network) -> dict[str, Node]:
    """Return the operators that are neither products nor views, with those written in parts joined.

    By the name of each part.
    """
    rewritten = canonical(network)
    parts: dict[str, Node] = {}
    for node in rewritten.network.nodes:
        if node.op not in _PRODUCTS and node.op != "Attention":
            parts |= dict.fromkeys(rewritten.sources.get(node.name, (node.name,)), node)
    own = {node.name: parts.get(node.name, node) for node in network.nodes}
    return {
        name: node for name, node in own.items() if node.op not in _PRODUCTS | _RECURRENT | VIEW_OPS
    }


def _role(kernel: Kernel, nodes: Sequence[Node]) -> Role:
    """Return whether a kernel without operators of its own converts an input or output."""
    if not nodes and any(tensor.name.startswith("input") for tensor in kernel.inputs):
        return "preprocess"
    if not nodes and any(tensor.name.startswith("output") for tensor in kernel.outputs):
        return "postprocess"
    return "execution"


def kernel_bytes(kernel: Kernel) -> float:
    """Count the bytes that a kernel moves: each tensor once, and of tables no more than results."""
    inputs, constants, outputs = (
        math.fsum({tensor.name: tensor_bytes(tensor) for tensor in part}.values())
        for part in (kernel.inputs, kernel.constants, kernel.outputs)
    )
    if kernel.layer_type in _PREPARING:
        constants = min(constants, outputs)
    return inputs + constants + outputs


def _product(
    network: Network, kernel: Kernel, nodes: Sequence[Node], others: Sequence[Node]
) -> Layer:
    """Return a product with what is fused into it; several are attention, or lie side by side."""
    if len(nodes) == 2 and nodes[0].inputs[0] != nodes[1].inputs[0]:
        return _attention(network, nodes, others)
    layer = layer_from_node(network, as_binary_nodes(network, nodes[0])[0])
    results = sum(math.prod(network.tensors[node.outputs[0]].shape) for node in nodes)
    share = results / math.prod(network.tensors[nodes[0].outputs[0]].shape)
    for name in ("channels_out", "features_out"):
        if name in layer.fields() and len(nodes) > 1:
            layer = layer.replace(**{name: round(vars(layer)[name] * share)})
    fields = layer.fields()
    ops = {node.op for node in others}
    size = max(math.prod(tensor.shape) for tensor in kernel.outputs)
    same = [tensor for tensor in kernel.inputs if math.prod(tensor.shape) == size]
    if "residual" in fields and "Add" in ops and len(kernel.inputs) > 1 and same:
        layer = with_fields(layer, {"residual": True})
    if "bias" in fields and ops & {"Add", "BatchNormalization"}:
        layer = with_fields(layer, {"bias": True})
    for activation in _layers(network, others):
        if isinstance(activation, Activation) and "activation" in fields:
            layer = with_fields(layer, {"activation": activation.activation})
    return layer


def _attention(network: Network, nodes: Sequence[Node], others: Sequence[Node]) -> Layer:
    """Return two products, the second of the scores that the first computes, as attention."""
    # (..., queries, head_size) x (..., head_size, keys), and values of (..., keys, value_size)
    query, scores, result = (
        network.tensors[name].shape
        for name in (nodes[0].inputs[0], nodes[0].outputs[0], nodes[1].outputs[0])
    )
    if not any(node.op == "Softmax" for node in others):
        raise UnsupportedError(f"{nodes[0].op} and {nodes[1].op} in one kernel have no layer")
    return Attention(
        batch=network.batch or 1, heads=max(math.prod(scores[:-2]) // (network.batch or 1), 1),
        queries=scores[-2], keys=scores[-1], head_size=query[-1], value_size=result[-1],
        features=0, masked=any(node.op == "Add" for node in others),
        dtype=network.tensors[nodes[0].outputs[0]].dtype,
    )  # fmt: skip


def _layers(network: Network, nodes: Sequence[Node]) -> Iterator[Layer]:
    """Read those nodes that are layers."""
    for node in nodes:
        with suppress(LayerError, UnsupportedError):
            yield layer_from_node(network, as_binary_nodes(network, node)[0])


def _largest(network: Network, kernel: Kernel, nodes: Sequence[Node]) -> Layer:
    """Return the layer of the largest operator, or the copy that a kernel without any makes."""
    layers = list(_layers(network, nodes))
    if layers:
        return max(layers, key=lambda layer: (layer.kind not in _POINTWISE, layer.moved_bytes))
    result = max(kernel.outputs, key=tensor_bytes)
    given = next((tensor.dtype for tensor in kernel.inputs), result.dtype)
    if given != result.dtype:
        values = math.prod(result.shape)
        return Cast(batch=1, values=values, dtype=given, dtype_out=result.dtype)
    return Move.copied(Operator("Identity", {}, (Operand(result.shape, given),), (result.shape,)))


def _with_bytes(layer: Layer, moved_bytes: float) -> Layer:
    """Give a layer so many values that it moves these bytes."""
    name = max(("batch", *layer.SCALED), key=lambda name: vars(layer)[name])
    wanted = vars(layer)[name] * moved_bytes / layer.moved_bytes
    return with_fields(layer, {name: max(round(wanted), 1)})


def homes(
    network: Network, kernels: Sequence[Kernel], lowered: Sequence[LoweredNode]
) -> tuple[float, float]:
    """Return the shares of its products' MACs and of its kernels' bytes that have a layer.

    They are 1 where there are none.
    """
    products = {
        node.name: macs
        for node in network.nodes
        if node.op in _PRODUCTS | _RECURRENT and not math.isnan(macs := macs_of(network, node))
    }
    moved = {kernel.name: kernel_bytes(kernel) for kernel in kernels}
    macs, moved_bytes = sum(products.values()), sum(moved[node.name] for node in lowered)
    layers = [(node, node.layer) for node in lowered if node.layer is not None]
    own_macs = sum(
        layer.macs for node, layer in layers if not products.keys().isdisjoint(node.sources)
    )
    own_bytes = sum(moved[node.name] for node, _ in layers)
    return own_macs / macs if macs else 1.0, own_bytes / moved_bytes if moved_bytes else 1.0
