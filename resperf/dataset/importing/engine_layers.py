"""Layers of TensorRT engines as layers of resperf's kinds, where a kind says all that matters.

An engine's layer is written as the ONNX operator that it computes, which its kind reads. What is
fused, the type of the values and their format are fields; a layer of which they cannot say all has
no typed layer, and the reason is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resperf.dataset.importing.trtexec import DETAILED, MOST, VIEWS, EngineLayer, EngineTensor
from resperf.errors import LayerError
from resperf.layers import (
    FUNCTION_OF,
    Conv,
    Dense,
    Layer,
    Operand,
    Operator,
    QuantizedDense,
    Reorder,
    layer_of_operator,
)
from resperf.layers.cast import ELEMENT_TYPES
from resperf.network import MALFORMED

_LAYOUTS: Mapping[str, str] = {
    "linear": "nchw", "hwc": "nhwc", "hwc4": "nhwc", "hwc8": "nhwc", "hwc16": "nhwc",
    "chw4": "nchwc4", "chw16": "nchwc16", "chw32": "nchwc32",
}  # fmt: skip
"""TensorRT's format -> a layer's layout. Padding of channels follows from their number."""
_ACTIVATIONS: Mapping[str, str] = {
    "NONE": "none", "RELU": "relu", "CLIPPED_RELU": "clip", "CLIP": "clip", "TANH": "tanh",
    "SIGMOID": "sigmoid", "LEAKY_RELU": "leaky_relu", "ELU": "elu", "SELU": "selu",
    "SOFTPLUS": "softplus", "SOFTSIGN": "softsign", "HARD_SIGMOID": "hard_sigmoid",
    "THRESHOLDED_RELU": "thresholded_relu", "SWISH": "silu", "GELU_ERF": "gelu",
    "GELU_TANH": "gelu_tanh",
}  # fmt: skip
_CLAMPED = ("none", "relu", "clip")
"""Activations that requantising to int8 computes by its limits."""
_PLAIN_PADDING = ("kEXPLICIT_ROUND_DOWN", "kEXPLICIT_ROUND_UP")
_SAME_PADDING: Mapping[str, str] = {"kSAME_UPPER": "SAME_UPPER", "kSAME_LOWER": "SAME_LOWER"}


def is_relayout(layer: EngineLayer) -> bool:
    """Whether a layer only changes formats or types of values."""
    if not layer.type:
        return layer.name.startswith("Reformatting CopyNode ")
    return layer.type.lower() == "reformat"


def is_view(layer: EngineLayer) -> bool:
    """Whether a layer runs nothing: the same bytes under another name or format."""
    return layer.type in VIEWS


def typed_layer(layer: EngineLayer) -> Layer:
    """Return the layer of an engine's layer.

    Raises
    ------
    LayerError
        If no kind says all of it; the message is the reason, without sizes, so that equal reasons
        can be counted.
    """
    if not layer.type:
        raise LayerError(f"only its name is exported; trtexec {DETAILED} exports more")
    if "deconv" in layer.type.lower():  # its parameters are called those of a convolution
        raise LayerError("a transposed convolution")
    read = _READERS.get(str(layer.parameters.get("ParameterType") or layer.type))
    if read is None:
        raise LayerError(f"no kind of layer for TensorRT's {layer.type}")
    if not layer.inputs or not layer.outputs:
        raise LayerError("the export gives no inputs or outputs")
    if any(min(tensor.shape, default=0) < 1 for tensor in (*layer.inputs, *layer.outputs)):
        raise LayerError("the export gives no sizes")
    try:
        typed = read(layer)
        if any(isinstance(value, int) and value >= MOST**2 for value in typed.fields().values()):
            raise LayerError("sizes that no layer has")
        return typed
    except MALFORMED as error:
        raise LayerError(f"the export lacks parameters of a {layer.type}") from error


def _operand(tensor: EngineTensor) -> Operand:
    return Operand(tensor.shape, tensor.dtype)


def _layout(tensor: EngineTensor) -> str:
    """Return the layout of an image; with one pixel, all formats store it alike."""
    if math.prod(tensor.shape[2:]) == 1:
        return "nchw"
    if tensor.layout not in _LAYOUTS:
        written = f"format {tensor.layout}" if tensor.layout else "a format that is not exported"
        raise LayerError(f"{written} is no layout of layers")
    return _LAYOUTS[tensor.layout]


def _one_layout(layer: EngineLayer) -> str:
    read, written = _layout(layer.inputs[0]), _layout(layer.outputs[0])
    if read != written and math.prod(layer.outputs[0].shape[2:]) > 1:
        raise LayerError("it writes another format than it reads")
    return read


def _one_type(layer: EngineLayer) -> str:
    types = {tensor.dtype for tensor in (*layer.inputs, layer.outputs[0])}
    if len(types) > 1:
        raise LayerError("it writes another type than it reads")
    return types.pop()


def _checked(layer: EngineLayer, typed: Layer) -> Layer:
    """Return the typed layer if its output has the engine's shape."""
    if math.prod(typed.output_shape) != layer.outputs[0].values:
        raise LayerError("its window does not give the exported output")
    return typed


def _activation(layer: EngineLayer) -> str:
    """Name the fused activation; chains that TensorRT generates are named by their nodes."""
    usual = "RELU" if layer.parameters.get("HasReLU") else "NONE"
    written = str(layer.parameters.get("Activation", usual))
    if written not in _ACTIVATIONS:
        raise LayerError(f"fused activation {written} is none of layers")
    if written == "NONE" and "PWN(" in layer.name:
        return _chain(layer.nodes, layer.name[layer.name.index("PWN(") :])
    return _ACTIVATIONS[written]


_LAST_WORD = re.compile(r"([A-Za-z]+)[_\d]*$")


def _chain(nodes: Sequence[str], chain: str) -> str:
    """Name the activation that a generated chain of pointwise operators computes."""
    matches = (_LAST_WORD.search(node) for node in nodes if node in chain)
    words = tuple(match[1] for match in matches if match)
    if words == ("Sigmoid", "Mul"):
        return "silu"
    if len(words) == 1 and words[0] in FUNCTION_OF:
        return FUNCTION_OF[words[0]]
    raise LayerError("a chain of pointwise operators is fused into it")


def _window(layer: EngineLayer, kernel: str) -> dict[str, Any]:
    values = layer.parameters
    mode = str(values.get("PaddingMode", _PLAIN_PADDING[0]))
    if mode not in _PLAIN_PADDING and mode not in _SAME_PADDING:
        raise LayerError(f"padding {mode} is not known")
    return {
        "kernel_shape": list(values[kernel]),
        "strides": list(values["Stride"]),
        "dilations": list(values.get("Dilation") or (1,) * len(values[kernel])),
        "pads": [*values["PrePadding"], *values["PostPadding"]],
        "auto_pad": _SAME_PADDING.get(mode, "NOTSET"),
        "ceil_mode": int(mode == "kEXPLICIT_ROUND_UP"),
    }


def _convolution(layer: EngineLayer) -> Layer:
    """Read a convolution with what is fused into it; a product is one of 1 x 1 over one pixel."""
    values, image, result = layer.parameters, layer.inputs[0], layer.outputs[0]
    if len(image.shape) != 4:
        raise LayerError("a convolution over other than two axes")
    if len(layer.inputs) > 2 or (len(layer.inputs) == 2 and layer.inputs[1].shape != result.shape):
        raise LayerError("an input that is not added to its output")
    groups, window = int(values["Groups"]), _window(layer, "Kernel")
    has_bias = bool(values.get("HasBias", int(dict(values.get("Bias") or {}).get("Count", 0)) > 0))
    is_product = groups == 1 and image.shape[2:] == (1, 1) and set(window["kernel_shape"]) == {1}
    weights = Operand(
        (int(values["OutMaps"]), image.shape[1] // groups, *window["kernel_shape"]),
        image.dtype, is_fixed=True,
    )  # fmt: skip
    if "int8" in (image.dtype, str(dict(values.get("Weights") or {}).get("Type", "")).lower()):
        return _quantized(layer, weights, window | {"group": groups}, has_bias, is_product)
    dtype, activation, residual = _one_type(layer), _activation(layer), len(layer.inputs) == 2
    if is_product and not residual:
        return Dense(
            batch=image.shape[0], features_in=image.shape[1], features_out=weights.shape[0],
            bias=has_bias, activation=activation, dtype=dtype,
        )  # fmt: skip
    bias = Operand((weights.shape[0],), dtype, is_fixed=True) if has_bias else None
    added = _operand(layer.inputs[1]) if residual else None
    operator = Operator(
        "Conv", window | {"group": groups}, (_operand(image), weights, bias, added), (result.shape,)
    )
    typed = layer_of_operator(operator)
    assert isinstance(typed, Conv)
    return _checked(layer, typed.replace(layout=_one_layout(layer), activation=activation))


def _quantized(
    layer: EngineLayer, weights: Operand, window: Mapping[str, Any], bias: bool, is_product: bool
) -> Layer:
    """Read an int8 convolution, which requantises, or an int8 product."""
    image, result = layer.inputs[0], layer.outputs[0]
    if len(layer.inputs) > 1:
        raise LayerError("an int8 convolution that adds a second tensor")
    if _activation(layer) not in _CLAMPED:
        raise LayerError("an int8 convolution with an activation that is no limit")
    if image.dtype != "int8":
        raise LayerError("int8 weights with other values")
    if is_product and result.dtype in _PRODUCTS:
        return QuantizedDense(
            batch=image.shape[0], features_in=image.shape[1], features_out=weights.shape[0],
            function=_PRODUCTS[result.dtype], dtype="int8",
        )  # fmt: skip
    if result.dtype != "int8":
        raise LayerError("an int8 convolution that writes another type")
    scale, zero = Operand(()), Operand((), "int8")
    added = Operand((weights.shape[0],), "int32") if bias else None
    inputs = (_operand(image), scale, zero, weights, scale, zero, scale, zero, added)
    typed = layer_of_operator(Operator("QLinearConv", window, inputs, (result.shape,)))
    return _checked(layer, typed.replace(layout=_one_layout(layer)))


_PRODUCTS: Mapping[str, str] = {"int8": "linear", "float32": "to_float"}
"""Type of an int8 product's results -> function of its layer."""
_POOLINGS: Mapping[str, str] = {"MAX": "MaxPool", "AVERAGE": "AveragePool"}


def _pooling(layer: EngineLayer) -> Layer:
    values, image, result = layer.parameters, layer.inputs[0], layer.outputs[0]
    op = _POOLINGS.get(str(values["PoolingType"]))
    if op is None:
        raise LayerError(f"a pooling of type {values['PoolingType']}")
    if len(image.shape) != 4:
        raise LayerError("a pooling over other than two axes")
    dtype, layout, window = _one_type(layer), _one_layout(layer), _window(layer, "WindowSize")
    if dtype == "int8":
        raise LayerError("an int8 pooling in TensorRT's formats")
    if tuple(window["kernel_shape"]) == image.shape[2:] and not any(window["pads"]):
        op = f"Global{op}"
    counts_padding = not values.get("AverageCountExcludesPadding", 1)
    window["count_include_pad"] = int(op == "AveragePool" and counts_padding)
    typed = layer_of_operator(Operator(op, window, (Operand(image.shape, dtype),), (result.shape,)))
    return _checked(layer, typed.replace(layout=layout))


def _softmax(layer: EngineLayer) -> Layer:
    """Read a softmax; its axis is the bit that is set."""
    bits = int(layer.parameters["Axes"])
    if bits.bit_count() != 1:
        raise LayerError("a softmax over several axes")
    _one_type(layer)
    op = "LogSoftmax" if layer.parameters.get("HasLog") else "Softmax"
    shapes = (_operand(layer.inputs[0]),), (layer.outputs[0].shape,)
    return layer_of_operator(Operator(op, {"axis": bits.bit_length() - 1}, *shapes))


def _is_plain(layer: EngineLayer) -> bool:
    """Whether values lie in memory in the order of their axes, before and after."""
    return all(
        tensor.layout == "linear" or len(tensor.shape) < 3
        for tensor in (*layer.inputs, *layer.outputs)
    )


def _shuffle(layer: EngineLayer) -> Layer:
    """Read a transposition; what also reshapes has no layer."""
    image, result = layer.inputs[0], layer.outputs[0]
    orders = [list(layer.parameters[f"{which}Transpose"]) for which in ("First", "Second")]
    moved = [order for order in orders if order != sorted(order)]
    _one_type(layer)
    if len(moved) != 1 or sorted(image.shape) != sorted(result.shape):
        raise LayerError("a shuffle that is not one transposition")
    if not _is_plain(layer):
        raise LayerError("a transposition of values in blocks or with channels last")
    if tuple(image.shape[axis] for axis in moved[0]) != result.shape:
        raise LayerError("a shuffle that is not one transposition")
    attributes = {"perm": moved[0]}
    return layer_of_operator(Operator("Transpose", attributes, (_operand(image),), (result.shape,)))


def _slice(layer: EngineLayer) -> Layer:
    """Read a slice, or a padding, which is a slice that begins before its input."""
    image, result = layer.inputs[0], layer.outputs[0]
    starts, sizes, steps = (list(layer.parameters[name]) for name in ("Start", "Size", "Stride"))
    _one_type(layer)
    if not _is_plain(layer):
        raise LayerError("a slice of values in blocks or with channels last")
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    beyond = [end - length for end, length in zip(ends, image.shape, strict=True)]
    shapes = (_operand(image),), (result.shape,)
    if min(starts) < 0 or max(beyond) > 0:
        if set(steps) != {1} or max(starts) > 0 or min(beyond) < 0:
            raise LayerError("a slice that pads and cuts at once")
        pads = {"pads": [*(-start for start in starts), *beyond]}
        return layer_of_operator(Operator("Pad", pads, *shapes, opset=2))
    last = [start + (n - 1) * step + 1 for start, n, step in zip(starts, sizes, steps, strict=True)]
    words = {"starts": starts, "ends": last, "axes": list(range(len(starts))), "steps": steps}
    return layer_of_operator(Operator("Slice", words, *shapes, opset=1))


def _reformat(layer: EngineLayer) -> Layer:
    """Read a change of format (`Reorder`), of type (`Cast`, `Quantize`), or a copy."""
    source, result = layer.inputs[0], layer.outputs[0]
    if not source.dtype or not result.dtype:
        raise LayerError("a type that is not exported")
    is_alike = source.layout == result.layout or _layout(source) == _layout(result)
    if source.dtype != result.dtype:
        if not is_alike:
            raise LayerError("it changes type and format at once")
        return _conversion(source, result)
    if source.layout == result.layout:
        return layer_of_operator(Operator("Slice", {}, (_operand(source),), (result.shape,)))
    if is_alike:
        raise LayerError("it pads channels, or drops their padding")
    if len(source.shape) != 4:
        raise LayerError("a change of format of other than an image")
    batch, channels, height, width = source.shape
    return Reorder(
        batch=batch, channels_in=channels, height=height, width=width, dtype=source.dtype,
        layout=_layout(source), layout_out=_layout(result),
    )  # fmt: skip


def _conversion(source: EngineTensor, result: EngineTensor) -> Layer:
    """Read a change of type: to and from int8 it multiplies with a scale."""
    if "int8" not in (source.dtype, result.dtype):
        if result.dtype not in ELEMENT_TYPES:
            raise LayerError(f"a conversion to {result.dtype}")
        wanted = {"to": ELEMENT_TYPES[result.dtype]}
        return layer_of_operator(Operator("Cast", wanted, (_operand(source),), (result.shape,)))
    if "float32" not in (source.dtype, result.dtype):
        raise LayerError(f"a scaled conversion from {source.dtype} to {result.dtype}")
    narrow = result.dtype == "int8"
    op, zero = ("QuantizeLinear" if narrow else "DequantizeLinear"), Operand((), "int8")
    inputs = (_operand(source), Operand(()), zero)
    return layer_of_operator(Operator(op, {}, inputs, (result.shape,)))


_READERS: Mapping[str, Callable[[EngineLayer], Layer]] = {
    "Convolution": _convolution, "Pooling": _pooling, "SoftMax": _softmax, "Shuffle": _shuffle,
    "Slice": _slice, "Reformat": _reformat,
}  # fmt: skip
"""TensorRT's ``ParameterType`` -> what reads such a layer."""
