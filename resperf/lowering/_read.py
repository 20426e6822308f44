"""From one ONNX node to the layer it means: attributes and shapes in, a `Layer` out.

These readers know the ONNX operators (and the fused forms that ONNX Runtime writes, whose extra
inputs and ``activation`` attribute mean the same), not what any framework does with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import (
    Activation,
    Conv,
    Dense,
    Layer,
    Move,
    Operand,
    Operator,
    Pool,
    layer_of_operator,
)
from resperf.lowering._base import MALFORMED
from resperf.network import Network, Node, Tensor

LayerT = TypeVar("LayerT", bound=Layer)

ACTIVATION_OPS: Mapping[str, str] = {
    "Relu": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "LeakyRelu": "leaky_relu",
    "Clip": "clip",
    "HardSigmoid": "hard_sigmoid",
    "Elu": "elu",
    "Softplus": "softplus",
    "Gelu": "gelu",
    "FastGelu": "gelu_tanh",
    "BiasGelu": "gelu",
    "Silu": "silu",
    "Swish": "silu",
    "QuickGelu": "silu",
    "HardSwish": "hard_swish",
    "Selu": "selu",
    "Softsign": "softsign",
    "ThresholdedRelu": "thresholded_relu",
    "Celu": "celu",
}
"""ONNX operator (also the value of a fused node's ``activation``) -> activation of a layer."""

LayerReader = TypeVar("LayerReader", bound=Callable[..., Layer])


def _with_reasons(read: LayerReader) -> LayerReader:
    """Let a reader say which node has attributes or inputs that its operator does not have."""

    @wraps(read)
    def reading(network: Network, node: Node, *words: Any, **more: Any) -> Layer:
        try:
            return read(network, node, *words, **more)
        except LayerError as error:
            raise UnsupportedError(f"{_where(node)}: {error}") from error
        except MALFORMED as error:
            raise UnsupportedError(
                f"{_where(node)}: its attributes are not those of this operator ({error!r})"
            ) from error

    return cast(LayerReader, reading)


CONV_OPS = frozenset({"Conv", "FusedConv"})
POOL_OPS: Mapping[str, tuple[str, bool]] = {
    "MaxPool": ("max", False),
    "AveragePool": ("average", False),
    "GlobalMaxPool": ("max", True),
    "GlobalAveragePool": ("average", True),
}
"""ONNX operator -> (mode, whether it is a global pooling)."""
VIEW_OPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that change only a shape."""
REMOVED_OPS = frozenset({"Identity", "Dropout"})
"""Operators that do nothing in inference."""
DENSE_OPS = frozenset({"Gemm", "MatMul", "FusedGemm", "FusedMatMul"})


@_with_reasons
def conv_from_node(
    network: Network,
    node: Node,
    layout: str = "nchw",
    *,
    bias: bool | None = None,
    residual: bool = False,
    activation: str = "none",
) -> Conv:
    """Read a convolution.

    Parameters
    ----------
    network : Network
    node : Node
        ``Conv`` or a fused form of it.
    layout : str
        How the image lies in memory.
    bias : bool, optional
        Whether a bias is added; by default, whether the node has one.
    residual : bool
        Whether a later addition was absorbed (a fused node's own fourth input counts as well).
    activation : str
        An absorbed activation; by default the node's own.

    Raises
    ------
    UnsupportedError
        If the shapes are not known, the image is not 2-D, or no layer has such fields.
    """
    image, weight = tensor_of(network, node, 0), tensor_of(network, node, 1)
    batch, channels, height, width = _image_shape(node, image)
    if len(weight.shape) != 4:
        raise UnsupportedError(f"{_where(node)}: weights of shape {weight.shape} are not 4-D")
    kernel = _numbers(node, "kernel_shape", weight.shape[2:])
    window = _window(node, (height, width), kernel)
    return _made(
        Conv,
        node,
        batch=batch,
        channels_in=channels,
        height=height,
        width=width,
        channels_out=weight.shape[0],
        groups=int(node.attributes.get("group", 1)),
        bias=has_input(node, 2) if bias is None else bias,
        residual=residual or has_input(node, 3),
        activation=_own_activation(node) if activation == "none" else activation,
        layout=layout,
        dtype=image.dtype,
        **window,
    )


@_with_reasons
def pool_from_node(network: Network, node: Node, layout: str = "nchw") -> Pool:
    """Read a max, average or global pooling; a global one gets a window of the whole image.

    Raises
    ------
    UnsupportedError
        If the shapes are not known, the image is not 2-D, or positions of maxima are asked for.
    """
    image = tensor_of(network, node, 0)
    batch, channels, height, width = _image_shape(node, image)
    mode, whole_image = POOL_OPS[node.op]
    if len([name for name in node.outputs if name]) > 1:
        raise UnsupportedError(f"{_where(node)}: the positions of the maxima are asked for")
    if whole_image:
        window = {"kernel_height": height, "kernel_width": width}
    else:
        kernel = _numbers(node, "kernel_shape", ())
        window = _window(node, (height, width), kernel)
    return _made(
        Pool,
        node,
        batch=batch,
        channels_in=channels,
        height=height,
        width=width,
        mode=mode,
        whole_image=whole_image,
        count_include_pad=mode == "average" and bool(node.attributes.get("count_include_pad", 0)),
        ceil_mode=not whole_image and bool(node.attributes.get("ceil_mode", 0)),
        layout=layout,
        dtype=image.dtype,
        **window,
    )


@_with_reasons
def dense_from_node(
    network: Network, node: Node, *, bias: bool | None = None, activation: str = "none"
) -> Dense:
    """Read a matrix product with fixed weights; leading dimensions of the input become rows.

    Parameters
    ----------
    network : Network
    node : Node
        ``Gemm``, ``MatMul`` or a fused form of them.
    bias : bool, optional
        Whether a bias is added; by default, whether the node has one.
    activation : str
        An absorbed activation; by default the node's own.

    Raises
    ------
    UnsupportedError
        If the shapes are not known, or the right-hand side is not a constant matrix.
    """
    rows, weight = tensor_of(network, node, 0), tensor_of(network, node, 1)
    if not weight.is_weight:
        raise UnsupportedError(f"{_where(node)}: a product of two computed tensors has no layer")
    if len(weight.shape) != 2 or not rows.shape:
        raise UnsupportedError(
            f"{_where(node)}: a product of shapes {rows.shape} and {weight.shape} has no layer"
        )
    features_in, features_out = (
        weight.shape[::-1] if node.attributes.get("transB", 0) else weight.shape
    )
    columns = rows.shape[-2:][0] if node.attributes.get("transA", 0) else rows.shape[-1]
    if columns != features_in:
        raise UnsupportedError(
            f"{_where(node)}: shapes {rows.shape} and {weight.shape} do not fit together"
        )
    return _made(
        Dense,
        node,
        batch=math.prod(rows.shape) // max(features_in, 1),
        features_in=features_in,
        features_out=features_out,
        bias=has_input(node, 2) if bias is None else bias,
        activation=_own_activation(node) if activation == "none" else activation,
        dtype=rows.dtype,
    )


@_with_reasons
def _bounded(network: Network, node: Node) -> Layer:
    """Read a Relu or Clip of whole numbers: they are compared with one number."""
    tensor = tensor_of(network, node, 0)
    operands = (_operand(tensor), Operand((), tensor.dtype))
    op = "Max" if node.op == "Relu" or has_input(node, 1) else "Min"
    return layer_of_operator(Operator(op, {}, operands, (tensor.shape,)))


@_with_reasons
def activation_from_node(network: Network, node: Node, block: int = 1) -> Layer:
    """Read an activation that stands by itself.

    Parameters
    ----------
    network : Network
    node : Node
        An operator of `ACTIVATION_OPS`.
    block : int
        Channels that come together in the image's layout: what fills the last block counts.

    Raises
    ------
    UnsupportedError
        If the shape is not known.
    """
    tensor = tensor_of(network, node, 0)
    if node.op in ("Relu", "Clip") and tensor.dtype not in Activation.specs()["dtype"].choices:
        return _bounded(network, node)
    batch, *rest = tensor.shape or (1,)
    if rest:
        rest[0] = -(-rest[0] // block) * block
    return _made(
        Activation,
        node,
        batch=batch,
        values=math.prod(rest),
        activation=activation_of(node),
        dtype=tensor.dtype,
    )


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


@_with_reasons
def layer_from_node(network: Network, node: Node, block: int = 1) -> Layer:
    """Read an operator of any kind whose file says how (`resperf.layers.OPERATOR_KINDS`).

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
    operands = [
        _operand(tensor_of(network, node, place)) if name else None
        for place, name in enumerate(node.inputs)
    ]
    written = [network.tensors.get(name) for name in node.outputs if name]
    if not written or any(tensor is None for tensor in written):
        raise UnsupportedError(f"{_where(node)}: the shape of its output is not known")
    operator = Operator(
        op=node.op,
        domain=node.domain,
        attributes=node.attributes,
        inputs=tuple(operands),
        outputs=tuple(tensor.shape for tensor in written if tensor is not None),
        block=block,
        opset=network.opsets.get(node.domain, 1),
    )
    return layer_of_operator(operator)


def _operand(tensor: Tensor) -> Operand:
    return Operand(tensor.shape, tensor.dtype, tensor.value)


def is_dense(network: Network, node: Node) -> bool:
    """Whether a matrix product is one with a fixed matrix."""
    if node.op not in DENSE_OPS or not has_input(node, 1):
        return False
    weight = network.tensors.get(node.inputs[1])
    return weight is None or (weight.is_weight and len(weight.shape) == 2)


def is_image(network: Network, node: Node) -> bool:
    """Whether a window slides over two axes, or over an unknown number of them."""
    tensor = network.tensors.get(node.inputs[0]) if has_input(node, 0) else None
    return tensor is None or len(tensor.shape) not in (3, 5)


def is_image_pool(network: Network, node: Node) -> bool:
    """Whether a node pools images, and does not say where the largest values are."""
    outputs = [name for name in node.outputs if name]
    return node.op in POOL_OPS and len(outputs) < 2 and is_image(network, node)


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


def _made(kind: type[LayerT], node: Node, **fields: Any) -> LayerT:
    """Make the layer, or say which node could not become one."""
    try:
        return kind.from_fields(fields)
    except LayerError as error:
        raise UnsupportedError(f"{_where(node)}: {error}") from error


def _image_shape(node: Node, image: Tensor) -> tuple[int, int, int, int]:
    if len(image.shape) != 4:
        raise UnsupportedError(
            f"{_where(node)}: an input of shape {image.shape} is not a 2-D image"
        )
    batch, channels, height, width = image.shape
    return batch, channels, height, width


def _numbers(node: Node, attribute: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(value) for value in node.attributes.get(attribute, default))


def activation_of(node: Node) -> str:
    """Name the function of an operator of `ACTIVATION_OPS`."""
    by_tanh = node.op == "Gelu" and node.attributes.get("approximate") == "tanh"
    return "gelu_tanh" if by_tanh else ACTIVATION_OPS[node.op]


def _own_activation(node: Node) -> str:
    """Activation that a fused node names in its attributes."""
    op = str(node.attributes.get("activation", ""))
    if not op:
        return "none"
    if op not in ACTIVATION_OPS:
        raise UnsupportedError(f"{_where(node)}: activation {op!r} has no layer")
    return ACTIVATION_OPS[op]


def _window(node: Node, size: tuple[int, int], kernel: tuple[int, ...]) -> dict[str, int]:
    """Fields of a window: kernel, strides, dilations and the four pads."""
    strides = _numbers(node, "strides", (1, 1))
    dilations = _numbers(node, "dilations", (1, 1))
    if not len(kernel) == len(strides) == len(dilations) == 2:
        raise UnsupportedError(
            f"{_where(node)}: kernel {kernel}, strides {strides} and dilations {dilations} "
            "are not those of a 2-D window"
        )
    fields: dict[str, int] = {}
    for axis, where in enumerate(("height", "width")):
        fields[f"kernel_{where}"] = kernel[axis]
        fields[f"stride_{where}"] = strides[axis]
        fields[f"dilation_{where}"] = dilations[axis]
    return fields | _pads(node, fields | dict(zip(("height", "width"), size, strict=True)))


_PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")


def _pads(node: Node, window: Mapping[str, int]) -> dict[str, int]:
    """Pixels added on the four sides, ``auto_pad`` worked out."""
    auto_pad = str(node.attributes.get("auto_pad", "NOTSET")) or "NOTSET"
    if auto_pad == "SAME_UPPER":
        return Conv.same_padding(window)
    if auto_pad == "SAME_LOWER":
        # The odd pixel goes before the image instead of behind it.
        upper = Conv.same_padding(window)
        return dict(zip(_PADS, (upper[_PADS[i]] for i in (2, 3, 0, 1)), strict=True))
    if auto_pad not in ("NOTSET", "VALID"):
        raise UnsupportedError(f"{_where(node)}: auto_pad={auto_pad!r} is not known")
    pads = _numbers(node, "pads", (0, 0, 0, 0)) if auto_pad == "NOTSET" else (0, 0, 0, 0)
    if len(pads) != 4:
        raise UnsupportedError(f"{_where(node)}: pads={pads} are not those of a 2-D window")
    if min(pads) < 0:
        raise UnsupportedError(f"{_where(node)}: pads={pads} cut pixels off, which no layer does")
    return dict(zip(_PADS, pads, strict=True))
