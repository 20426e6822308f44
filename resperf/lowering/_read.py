"""From one ONNX node to the layer it means: attributes and shapes in, a `Layer` out.

These readers know the ONNX operators (and the fused forms that ONNX Runtime writes, whose extra
inputs and ``activation`` attribute mean the same), not what any framework does with them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Dense, Layer, Move, Operand, Operator, layer_of_operator
from resperf.lowering._base import MALFORMED
from resperf.network import Network, Node, Tensor

LayerT = TypeVar("LayerT", bound=Layer)

VIEW_OPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that change only a shape."""
REMOVED_OPS = frozenset({"Identity", "Dropout"})
"""Operators that do nothing in inference."""


def is_empty(network: Network, node: Node) -> bool:
    """Whether nothing that a node makes holds a value, such as a slice of no length.

    It costs what any node costs that has no work.
    """
    made = [network.tensors.get(name) for name in node.outputs if name]
    return bool(made) and all(tensor is not None and 0 in tensor.shape for tensor in made)


def copied_view(network: Network, node: Node) -> Layer | None:
    """Return the copy that a change of shape is where it makes an output of the network.

    Elsewhere it is none: ONNX Runtime lets the result lie where its input lies, but gives every
    output memory of its own.
    """
    result = network.tensors.get(node.outputs[0])
    if result is None or node.outputs[0] not in network.outputs:
        return None
    operand = Operand(result.shape, result.dtype)
    try:
        return Move.copied(Operator(node.op, {}, (operand,), (result.shape,)))
    except LayerError:
        return None


def in_pairs(network: Network, node: Node) -> tuple[Node, ...]:
    """Take an operator of three or more tensors apart into those that meet two at a time.

    So does ONNX Runtime's own kernel: it adds each further tensor to the result so far. What a
    product of two computed matrices adds, and the function that it ends with, are parts as well.
    """
    if node.op in ("Gemm", "FusedGemm") and has_input(node, 1) and not is_dense(network, node):
        return _product_parts(node)
    if node.op not in ("Sum", "Max", "Min") or node.domain or len(node.inputs) < 3:
        return (node,)

    def size(name: str) -> int:
        tensor = network.tensors.get(name)
        return math.prod(tensor.shape) if tensor is not None else 0

    # The largest first: what it meets has the shape of the result, as good as always.
    first, second, *others = sorted(node.inputs, key=size, reverse=True)
    return (
        replace(node, inputs=(first, second)),
        *(replace(node, inputs=(node.outputs[0], each)) for each in others),
    )


def _product_parts(node: Node) -> tuple[Node, ...]:
    """Take a product of two computed matrices, its term and its activation apart."""
    result, function = node.outputs[0], str(node.attributes.get("activation", ""))
    turned = {k: v for k, v in node.attributes.items() if k in ("transA", "transB")}
    parts = [replace(node, op="Gemm", domain="", inputs=node.inputs[:2], attributes=turned)]
    if has_input(node, 2):
        inputs = (result, node.inputs[2])
        parts.append(replace(node, op="Add", domain="", inputs=inputs, attributes={}))
    if function:
        parts.append(replace(node, op=function, domain="", inputs=(result,), attributes={}))
    return tuple(parts)


def layer_from_node(network: Network, node: Node, block: int = 1) -> Layer:
    """Read an operator of any kind (`resperf.layers.KINDS`).

    Parameters
    ----------
    network : Network
    node : Node
    block : int
        Channels that come together in the images' layout: what fills the last block counts.

    Raises
    ------
    UnsupportedError
        If no kind reads it, or a shape is not known.
    """
    operands = (
        _operand(tensor_of(network, node, place)) if name else None
        for place, name in enumerate(node.inputs)
    )
    written = (network.tensors.get(name) for name in node.outputs if name)
    operator = Operator(
        op=node.op,
        domain=node.domain,
        attributes=node.attributes,
        inputs=tuple(operands),
        outputs=tuple(None if tensor is None else tensor.shape for tensor in written),
        block=max(block, 1),
        opset=network.opsets.get(node.domain, 1),
    )
    try:
        return layer_of_operator(operator)
    except LayerError as error:
        raise UnsupportedError(f"{_where(node)}: {error}") from error
    except MALFORMED as error:
        raise UnsupportedError(
            f"{_where(node)}: its attributes are not those of this operator ({error!r})"
        ) from error


def layer_of(made: type[LayerT], network: Network, node: Node) -> LayerT:
    """Read an operator that must become a layer of this kind.

    Raises
    ------
    UnsupportedError
        If it becomes none, or one of another kind.
    """
    layer = layer_from_node(network, node)
    if not isinstance(layer, made):
        raise UnsupportedError(f"{_where(node)} is of kind {layer.kind}, which has no layer here")
    return layer


def _operand(tensor: Tensor) -> Operand:
    return Operand(tensor.shape, tensor.dtype, tensor.value, tensor.is_weight)


def is_dense(network: Network, node: Node) -> bool:
    """Whether a matrix product is one with a fixed matrix."""
    if node.op not in Dense.OPERATORS or not has_input(node, 1):
        return False
    weight = network.tensors.get(node.inputs[1])
    return weight is None or (weight.is_weight and len(weight.shape) == 2)


def has_input(node: Node, position: int) -> bool:
    """Whether the node has an input at this position."""
    return position < len(node.inputs) and bool(node.inputs[position])


def tensor_of(network: Network, node: Node, position: int) -> Tensor:
    """Return the tensor at an input position.

    Raises
    ------
    UnsupportedError
        If there is none, or its shape is not known.
    """
    if not has_input(node, position):
        raise UnsupportedError(f"{_where(node)} has no input {position}")
    try:
        return network.tensors[node.inputs[position]]
    except KeyError as error:
        raise UnsupportedError(
            f"{_where(node)}: the shape of its input {node.inputs[position]!r} is not known"
        ) from error


def _where(node: Node) -> str:
    return f"{node.op} {node.name!r}"
