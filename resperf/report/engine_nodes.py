"""Which nodes of a network an engine's layers compute: by their names, else by their shapes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from resperf.grouping import grouped
from resperf.layers import FUNCTION_OF
from resperf.network import MALFORMED, Network, Node

if TYPE_CHECKING:
    from resperf.dataset.importing import EngineLayer

BY_NAMES, BY_SHAPES = "names of nodes", "shapes, as names differ"
"""How layers were matched with nodes."""
_ENOUGH_NAMES = 0.5
"""Share of the layers with nodes that must be known by name."""
_POOLED = "ConvActPool"
"""Type of parameters of a convolution with activation and pooling, whose own have a prefix."""
_CONV_WINDOW = ("Kernel", "Stride", "Dilation", "PrePadding", "PostPadding")
_PASSED = ("QuantizeLinear", "DequantizeLinear", "BatchNormalization")
"""Operators that vanish into the convolution before them."""


def nodes_of_layers(
    layers: Sequence[EngineLayer], network: Network
) -> tuple[list[frozenset[str]], str]:
    """Return the nodes of each layer, and how they were found: `BY_NAMES` or `BY_SHAPES`.

    Names of an engine are of the file that it was built from; of a file that another exporter wrote
    they say nothing. Layers of equal shapes are then matched in their order.
    """
    order = {node.name: index for index, node in enumerate(network.nodes)}
    named = [{name for name in layer.nodes if name in order} for layer in layers]
    claimed = set().union(*named) if named else set()
    for layer, own in zip(layers, named, strict=True):
        if layer.spans and len(own) == len(layer.nodes):
            first, last = sorted(order[name] for name in own)[:: max(len(own) - 1, 1)]
            between = {node.name for node in network.nodes[first : last + 1]}
            own |= between - claimed
    having = sum(bool(layer.nodes) for layer in layers)
    if having and sum(map(bool, named)) >= _ENOUGH_NAMES * having:
        return list(map(frozenset, named)), BY_NAMES
    return _by_shapes(layers, network), BY_SHAPES


def _by_shapes(layers: Sequence[EngineLayer], network: Network) -> list[frozenset[str]]:
    shapes = [_shape_of_node(node, network) for node in network.nodes]
    waiting = grouped(pair for pair in zip(shapes, network.nodes, strict=True) if pair[0])
    readers = grouped((name, node) for node in network.nodes for name in node.inputs)
    matched = []
    for layer in layers:
        try:
            same = waiting.get(_shape_of_layer(layer))
        except MALFORMED:  # the export lacks parameters
            same = None
        if not same:
            matched.append(frozenset[str]())
        else:
            matched.append(frozenset(_with_fused(same.pop(0), layer, network, readers)))
    return matched


def _shape_of_layer(layer: EngineLayer) -> Hashable:
    values, kind = layer.parameters, layer.parameters.get("ParameterType")
    if not layer.inputs or not layer.outputs:
        return None
    read, written = layer.inputs[0].shape, layer.outputs[0].shape
    if kind == "Convolution":
        return ("product", written, read[1], tuple(values["Kernel"]), int(values["Groups"]))
    if kind == "Pooling":
        return ("pool", written, tuple(values["WindowSize"]))
    if kind == _POOLED:
        steps = zip(read[2:], *(values[f"Conv{suffix}"] for suffix in _CONV_WINDOW), strict=True)
        sizes = (
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation, before, after in steps
        )
        convolved = (read[0], int(values["ConvOutMaps"]), *sizes)
        return ("product", convolved, read[1], tuple(values["ConvKernel"]), values["ConvGroups"])
    return ("softmax", math.prod(written)) if kind == "SoftMax" else None


def _shape_of_node(node: Node, network: Network) -> Hashable:
    """Return what a layer of the same work has, None for other operators."""
    tensors = [network.tensors.get(name) for name in (*node.inputs[:2], *node.outputs[:1])]
    if any(tensor is None for tensor in tensors):
        return None
    *read, written = (tensor.shape for tensor in tensors if tensor is not None)
    attributes = node.attributes
    if node.op == "Conv":
        groups = int(attributes.get("group", 1))
        return ("product", written, read[0][1], tuple(read[1][2:]), groups)
    if node.op in ("Gemm", "MatMul") and network.tensors[node.inputs[1]].is_weight:
        rows, depth = math.prod(written[:-1]), read[0][-1]
        return ("product", (rows, written[-1], 1, 1), depth, (1, 1), 1)
    if node.op in ("MaxPool", "AveragePool"):
        return ("pool", written, tuple(attributes["kernel_shape"]))
    if node.op in ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean") and len(read[0]) == 4:
        return ("pool", (*written[:2], 1, 1), read[0][2:])
    return ("softmax", math.prod(written)) if node.op == "Softmax" else None


def _with_fused(
    node: Node, layer: EngineLayer, network: Network, readers: Mapping[str, Sequence[Node]]
) -> list[str]:
    """Return a node and those after it that its layer fuses: bias, sum, activation."""
    kind, values = layer.parameters.get("ParameterType"), layer.parameters
    activation = values.get("ConvActivation" if kind == _POOLED else "Activation", "NONE")
    sums, activations, poolings = len(layer.inputs) - 1, activation != "NONE", kind == _POOLED
    names = [node.name]
    while kind in ("Convolution", _POOLED) and len(after := readers.get(node.outputs[0], ())) == 1:
        (node,) = after
        is_bias = node.op == "Add" and any(
            name in network.tensors and network.tensors[name].is_weight for name in node.inputs
        )
        if node.op == "Add" and not is_bias and sums > 0:
            sums -= 1
        elif node.op in FUNCTION_OF and activations:
            activations = False
        elif node.op in ("MaxPool", "AveragePool") and poolings:
            poolings = False
        elif node.op not in _PASSED and not is_bias:
            break
        names.append(node.name)
    return names
