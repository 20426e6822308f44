"""Reads ONNX nodes as layers: attributes and shapes in, a `Layer` out.

These functions know ONNX operators, and the fused operators of ONNX Runtime with their extra inputs
and ``activation`` attribute. They do not know what a framework does with them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import Dense, Layer, Operand, Operator, Reorder, layer_of_operator
from resperf.network import MALFORMED, Network, Node, Tensor

LayerT = TypeVar("LayerT", bound=Layer)

NCHWC = "com.microsoft.nchwc"
"""Domain of ONNX Runtime's operators in blocked layouts."""
VIEW_OPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that only change a shape."""
_QATTENTION_PAST = 8
"""Input position of past keys and values."""
REMOVED_OPS = frozenset({"Identity", "Dropout"})
"""Operators that are no-ops in inference."""


def is_empty(network: Network, node: Node) -> bool:
    """Whether all outputs of a node are empty, such as those of a slice of length 0.

    Such a node has the cost of a node without work.
    """
    outputs = [network.tensors.get(name) for name in node.outputs if name]
    return bool(outputs) and all(tensor is not None and 0 in tensor.shape for tensor in outputs)


def reorder(shape: tuple[int, ...], layout: str, layout_out: str) -> Reorder:
    """Return the re-layout of an image of shape (batch, channels, height, width)."""
    batch, channels, height, width = shape
    return Reorder(
        batch=batch, channels_in=channels, height=height, width=width, layout=layout,
        layout_out=layout_out,
    )  # fmt: skip


def as_binary_nodes(network: Network, node: Node) -> tuple[Node, ...]:
    """Split an operator of three or more tensors into operators of two.

    ONNX Runtime's kernel does the same: it adds each further tensor to the result so far. Bias and
    activation of a product of two computed matrices are split off too, and the int8 product from
    the attention behind it.
    """
    if node.op in ("Gemm", "FusedGemm") and has_input(node, 1) and not is_dense(network, node):
        return _product_parts(node)
    if node.op == "QAttention" and not has_input(node, _QATTENTION_PAST):
        return _attention_parts(node)
    if node.op not in ("Sum", "Max", "Min") or node.domain or len(node.inputs) < 3:
        return (node,)

    def size(name: str) -> int:
        tensor = network.tensors.get(name)
        return math.prod(tensor.shape) if tensor is not None else 0

    # The largest first: it nearly always has the shape of the result.
    first, second, *others = sorted(node.inputs, key=size, reverse=True)
    return (
        replace(node, inputs=(first, second)),
        *(replace(node, inputs=(node.outputs[0], other)) for other in others),
    )


def _product_parts(node: Node) -> tuple[Node, ...]:
    """Split a product of two computed matrices into product, bias and activation."""
    result, function = node.outputs[0], str(node.attributes.get("activation", ""))
    transposes = {k: v for k, v in node.attributes.items() if k in ("transA", "transB")}
    parts = [replace(node, op="Gemm", domain="", inputs=node.inputs[:2], attributes=transposes)]
    if has_input(node, 2):
        inputs = (result, node.inputs[2])
        parts.append(replace(node, op="Add", domain="", inputs=inputs, attributes={}))
    if function:
        parts.append(replace(node, op=function, domain="", inputs=(result,), attributes={}))
    return tuple(parts)


def _attention_parts(node: Node) -> tuple[Node, ...]:
    """Split attention whose weights are int8 into their product and attention in floats."""
    result = node.outputs[0]
    names = ("num_heads", "unidirectional")
    attributes = {name: node.attributes[name] for name in names if name in node.attributes}
    return (
        replace(node, op="MatMulIntegerToFloat", inputs=node.inputs[:2], attributes={}),
        replace(node, op="MultiHeadAttention", inputs=(result,) * 3, attributes=attributes),
    )


def layer_from_node(network: Network, node: Node, block: int = 1) -> Layer:
    """Read an operator as a layer of any kind (`resperf.layers.KINDS`).

    Parameters
    ----------
    network : Network
    node : Node
    block : int
        Channels per block of the images' layout; padding of the last block counts.

    Raises
    ------
    UnsupportedError
        If no kind reads it, or a shape is unknown.
    """
    operator = operator_of(network, node, block)
    try:
        return layer_of_operator(operator)
    except LayerError as error:
        raise UnsupportedError(about_node(node, Message.of(error))) from error
    except MALFORMED as error:
        malformed = Message(f"its attributes are malformed ({error!r})")
        raise UnsupportedError(about_node(node, malformed)) from error


def operator_of(network: Network, node: Node, block: int = 1) -> Operator:
    """Describe a node to the layer kinds.

    Raises
    ------
    UnsupportedError
        If the shape of an input is unknown.
    """
    read = (
        tensor_of(network, node, position) if name else None
        for position, name in enumerate(node.inputs)
    )
    operands = (
        None
        if tensor is None
        else Operand(tensor.shape, tensor.dtype, tensor.value, tensor.is_weight)
        for tensor in read
    )
    written = (network.tensors.get(name) for name in node.outputs if name)
    return Operator(
        op=node.op, domain=node.domain, attributes=node.attributes, inputs=tuple(operands),
        outputs=tuple(None if tensor is None else tensor.shape for tensor in written),
        block=max(block, 1), opset=network.opsets.get(node.domain, 1),
    )  # fmt: skip


def layer_of(kind: type[LayerT], network: Network, node: Node) -> LayerT:
    """Read an operator as a layer of the given kind.

    Raises
    ------
    UnsupportedError
        If it is not supported, or a layer of another kind.
    """
    layer = layer_from_node(network, node)
    if not isinstance(layer, kind):
        other = Message(f"is of kind {layer.kind}, which has no layer here")
        raise UnsupportedError(about_node(node, other, " "))
    return layer


def is_dense(network: Network, node: Node) -> bool:
    """Whether a matrix product has a constant matrix."""
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
        If there is none, or its shape is unknown.
    """
    if not has_input(node, position):
        raise UnsupportedError(about_node(node, Message(f"has no input {position}"), " "))
    try:
        return network.tensors[node.inputs[position]]
    except KeyError as error:
        unknown = Message(
            f"the shape of its input {node.inputs[position]!r} is not known",
            "the shape of its input is not known",
        )
        raise UnsupportedError(about_node(node, unknown)) from error


def about_node(node: Node, message: Message, between: str = ": ") -> Message:
    """Name the node that a message is about."""
    return message.about(f"{node.op} {node.name!r}{between}")
