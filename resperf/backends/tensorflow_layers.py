"""Convolutions, poolings, products and activations as TensorFlow operations.

These are the layers that TensorFlow's graph optimiser fuses: a convolution or matrix product with
its bias, residual and activation, as in a whole network. All other kinds are built from their ONNX
operator (`tensorflow_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends._values import Array, made_up
from resperf.errors import UnsupportedError
from resperf.layers import Activation, Conv, Dense, Layer, Pool
from resperf.lowering.tensorflow import LAYOUT, nhwc


@dataclass(frozen=True)
class Operator:
    """A layer as TensorFlow operations, ready to be added to a graph.

    Attributes
    ----------
    input_shape : tuple of int
        NHWC for images.
    weight_shapes : tuple of tuple of int
        In TensorFlow's order: filter or matrix, then bias.
    apply : callable
        ``apply(x, weights, extras)`` adds the operations and returns the output.
    dtype : str
        Type of the input.
    weight_dtypes : tuple of str
        One for each of the weights.
    extras : callable
        Makes host arrays of all further inputs that a network would compute, such as a residual.
    positive : bool
        Whether inputs must be above zero, as for logarithms.
    """

    input_shape: tuple[int, ...]
    weight_shapes: tuple[tuple[int, ...], ...]
    apply: Callable[[Any, Sequence[Any], Sequence[Any]], Any]
    dtype: str = "float32"
    weight_dtypes: tuple[str, ...] = ()
    extras: Callable[[], list[Array]] = list
    positive: bool = False


def leaky_relu(x: Any, alpha: float = 0.01) -> Any:
    """Return x where it is positive, alpha x elsewhere."""
    return tf.raw_ops.LeakyRelu(features=x, alpha=alpha)


def hard_sigmoid(x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """Return alpha x + beta, clipped to [0, 1]."""
    return tf.clip_by_value(x * alpha + beta, 0.0, 1.0)


def thresholded_relu(x: Any, alpha: float = 1.0) -> Any:
    """Return x where it is above alpha, 0 elsewhere."""
    return tf.where(x > alpha, x, tf.zeros_like(x))


def hard_swish(x: Any) -> Any:
    """Return x times its hard sigmoid of slope 1/6."""
    return x * hard_sigmoid(x, 1 / 6)


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: tf.raw_ops.Relu(features=x),
    "tanh": lambda x: tf.raw_ops.Tanh(x=x),
    "sigmoid": lambda x: tf.raw_ops.Sigmoid(x=x),
    "leaky_relu": leaky_relu,
    "clip": lambda x: tf.raw_ops.Relu6(features=x),
    "hard_sigmoid": hard_sigmoid,
    "elu": lambda x: tf.raw_ops.Elu(features=x),
    "softplus": lambda x: tf.raw_ops.Softplus(features=x),
    "gelu": tf.nn.gelu,
    "gelu_tanh": partial(tf.nn.gelu, approximate=True),
    "silu": tf.nn.silu,
    "hard_swish": hard_swish,
    "selu": lambda x: tf.raw_ops.Selu(features=x),
    "softsign": lambda x: tf.raw_ops.Softsign(features=x),
    "thresholded_relu": thresholded_relu,
    "celu": lambda x: tf.raw_ops.Elu(features=x),
}
"""Activation of a layer -> its TensorFlow operations, with the usual constants."""


def operator_of(layer: Layer, layout: str = LAYOUT) -> Operator:
    """Return the TensorFlow operations of a lowered layer of one of this module's kinds.

    Parameters
    ----------
    layer : Layer
    layout : {"nhwc", "nchw"}
        Of the backend's images.

    Raises
    ------
    UnsupportedError
        If TensorFlow cannot run such a layer.
    """
    if isinstance(layer, Conv | Pool) and layer.layout != layout:
        raise UnsupportedError(
            f"{layer.kind}: TensorFlow stores images as {layout} here, not {layer.layout}; "
            "lower the layer first"
        )
    made, dtype = OPERATORS[layer.kind](layer), str(layer.fields()["dtype"])
    return replace(made, dtype=dtype, weight_dtypes=(dtype,) * len(made.weight_shapes))


def weights_from_onnx(layer: Layer, weights: Sequence[Array]) -> list[Array]:
    """Transpose a convolution's ONNX weights (out, in / groups, rows, columns) for TensorFlow.

    Parameters
    ----------
    layer : Layer
    weights : sequence of ndarray
        Filter, then the bias if the layer has one. Those of a dense layer are not changed.
    """
    if not isinstance(layer, Conv):
        return list(weights)
    kernel = weights[0]
    if _is_depthwise(layer):
        kernel = kernel.reshape(layer.groups, -1, layer.kernel_height, layer.kernel_width)
        return [np.ascontiguousarray(kernel.transpose(2, 3, 0, 1)), *weights[1:]]
    return [np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)), *weights[1:]]


def _is_depthwise(layer: Conv) -> bool:
    return 1 < layer.groups == layer.channels_in


@dataclass(frozen=True)
class _Format:
    """Order of an image's axes in TensorFlow's arguments."""

    channels_last: bool

    @classmethod
    def of(cls, layer: Conv | Pool) -> _Format:
        return cls(layer.layout == "nhwc")

    @property
    def word(self) -> str:
        return "NHWC" if self.channels_last else "NCHW"

    @property
    def pixels(self) -> list[int]:
        """Axes of rows and columns."""
        return [1, 2] if self.channels_last else [2, 3]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape as stored."""
        return nhwc(shape) if self.channels_last else tuple(shape)

    def around(self, rows: Any, columns: Any, other: Any) -> list[Any]:
        """Return one value for each axis."""
        return (
            [other, rows, columns, other] if self.channels_last else [other, other, rows, columns]
        )


def _pads(layer: Conv | Pool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding before and after each axis that some window covers."""
    rows, columns = layer.output_shape[2:]
    reach_rows = (rows - 1) * layer.stride_height + layer.dilation_height * (
        layer.kernel_height - 1
    )
    reach_columns = (columns - 1) * layer.stride_width + layer.dilation_width * (
        layer.kernel_width - 1
    )
    return (
        (layer.pad_top, max(0, reach_rows + 1 - layer.height - layer.pad_top)),
        (layer.pad_left, max(0, reach_columns + 1 - layer.width - layer.pad_left)),
    )


def _same(layer: Conv | Pool) -> tuple[tuple[int, int], tuple[int, int]]:
    pads = layer.same_padding(layer.fields())
    return (pads["pad_top"], pads["pad_bottom"]), (pads["pad_left"], pads["pad_right"])


def _padding(layer: Conv | Pool) -> dict[str, Any]:
    """Arguments of a raw operation for these pads: VALID, SAME or explicit."""
    pads = _pads(layer)
    if not any(sum(pair) for pair in pads):
        return {"padding": "VALID"}
    if pads == _same(layer):
        return {"padding": "SAME"}
    margins = _Format.of(layer).around(*pads, (0, 0))
    return {"padding": "EXPLICIT", "explicit_paddings": [side for pair in margins for side in pair]}


def _conv(layer: Layer) -> Operator:
    assert isinstance(layer, Conv)
    format_ = _Format.of(layer)
    strides = format_.around(layer.stride_height, layer.stride_width, 1)
    dilations = format_.around(layer.dilation_height, layer.dilation_width, 1)
    if _is_depthwise(layer):
        kernel_shape, convolve = _depthwise(layer, strides)
    else:
        kernel_shape = (
            layer.kernel_height,
            layer.kernel_width,
            layer.channels_in // layer.groups,
            layer.channels_out,
        )
        padding = _padding(layer)

        def convolve(x: Any, kernel: Any) -> Any:
            return tf.raw_ops.Conv2D(
                input=x,
                filter=kernel,
                strides=strides,
                dilations=dilations,
                data_format=format_.word,
                **padding,
            )

    def apply(x: Any, weights: Sequence[Any], extras: Sequence[Any]) -> Any:
        y = convolve(x, weights[0])
        if layer.bias:
            y = tf.raw_ops.BiasAdd(value=y, bias=weights[1], data_format=format_.word)
        if layer.residual:
            y = tf.raw_ops.AddV2(x=y, y=extras[0])
        return ACTIVATION_FUNCTIONS[layer.activation](y)

    def extras() -> list[Array]:
        shape = format_.shape(layer.output_shape)
        return [made_up(shape, layer.dtype)] if layer.residual else []

    weight_shapes = (kernel_shape, *[(layer.channels_out,)] * layer.bias)
    return Operator(format_.shape(layer.input_shape), weight_shapes, apply, extras=extras)


def _depthwise(
    layer: Conv, strides: list[int]
) -> tuple[tuple[int, int, int, int], Callable[[Any, Any], Any]]:
    """Use TensorFlow's kernel for one channel per group."""
    shape = (
        layer.kernel_height,
        layer.kernel_width,
        layer.channels_in,
        layer.channels_out // layer.groups,
    )
    if layer.dilation_height > 1 or layer.dilation_width > 1:
        raise UnsupportedError(
            f"conv: dilation={layer.dilation_height}x{layer.dilation_width} with one channel per "
            "group has no single kernel in TensorFlow"
        )
    if layer.stride_height != layer.stride_width:
        raise UnsupportedError(
            f"conv: strides {layer.stride_height}x{layer.stride_width} with one channel per group "
            "must be equal in TensorFlow"
        )
    padding, format_ = _padding(layer), _Format.of(layer)
    margins: list[Any] = []
    if padding["padding"] == "EXPLICIT":
        # Fused with a bias, this kernel's own explicit pads abort TensorFlow 2.21.
        margins = format_.around(*_pads(layer), (0, 0))
        padding = {"padding": "VALID"}

    def convolve(x: Any, kernel: Any) -> Any:
        if margins:
            x = tf.raw_ops.Pad(input=x, paddings=margins)
        return tf.raw_ops.DepthwiseConv2dNative(
            input=x, filter=kernel, strides=strides, data_format=format_.word, **padding
        )

    return shape, convolve


def _pool(layer: Layer) -> Operator:
    assert isinstance(layer, Pool)
    pooled = _whole_image(layer) if layer.whole_image else _windows(layer)
    shape = _Format.of(layer).shape(layer.input_shape)
    return Operator(shape, (), lambda x, _weights, _extras: pooled(x))


def _whole_image(layer: Pool) -> Callable[[Any], Any]:
    reduce = {"max": tf.raw_ops.Max, "average": tf.raw_ops.Mean}[layer.mode]
    return lambda x: reduce(input=x, axis=_Format.of(layer).pixels, keep_dims=True)


def _windows(layer: Pool) -> Callable[[Any], Any]:
    if layer.dilation_height > 1 or layer.dilation_width > 1:
        raise UnsupportedError(
            f"pool: dilation={layer.dilation_height}x{layer.dilation_width} has no kernel in "
            "TensorFlow on CPU"
        )
    format_ = _Format.of(layer)
    window: dict[str, Any] = {
        "ksize": format_.around(layer.kernel_height, layer.kernel_width, 1),
        "strides": format_.around(layer.stride_height, layer.stride_width, 1),
        "data_format": format_.word,
    }
    padding, pads = _padding(layer), _pads(layer)
    for (before, after), kernel in zip(
        pads, (layer.kernel_height, layer.kernel_width), strict=True
    ):
        if max(before, after) >= kernel:
            raise UnsupportedError(
                f"pool: {max(before, after)} padded pixels must be fewer than the {kernel} of the "
                "window in TensorFlow"
            )
    if layer.mode == "max":
        return lambda x: tf.raw_ops.MaxPool(input=x, **window, **padding)
    # TensorFlow's own padding never counts in a mean, and it pads as SAME or not at all.
    if padding["padding"] == "VALID" or (
        padding["padding"] == "SAME" and not layer.count_include_pad
    ):
        return lambda x: tf.raw_ops.AvgPool(value=x, **window, **padding)
    if layer.count_include_pad and not layer.ceil_mode:
        margins = format_.around(*pads, (0, 0))
        return lambda x: tf.raw_ops.AvgPool(
            value=tf.raw_ops.Pad(input=x, paddings=margins), padding="VALID", **window
        )
    raise UnsupportedError(
        f"pool: a mean over pads {pads[0]} and {pads[1]} with count_include_pad="
        f"{layer.count_include_pad}, ceil_mode={layer.ceil_mode} has no kernel in TensorFlow, "
        "which pads means as SAME only"
    )


def _dense(layer: Layer) -> Operator:
    assert isinstance(layer, Dense)

    def apply(x: Any, weights: Sequence[Any], _extras: Sequence[Any]) -> Any:
        y = tf.raw_ops.MatMul(a=x, b=weights[0])
        if layer.bias:
            y = tf.raw_ops.BiasAdd(value=y, bias=weights[1])
        return ACTIVATION_FUNCTIONS[layer.activation](y)

    matrix = (layer.features_in, layer.features_out)
    bias = [(layer.features_out,)] * layer.bias
    return Operator(layer.input_shape, (matrix, *bias), apply)


def _activation(layer: Layer) -> Operator:
    assert isinstance(layer, Activation)
    function = ACTIVATION_FUNCTIONS[layer.activation]
    return Operator(layer.input_shape, (), lambda x, _weights, _extras: function(x))


OPERATORS: Mapping[str, Callable[[Layer], Operator]] = {
    "conv": _conv,
    "pool": _pool,
    "dense": _dense,
    "activation": _activation,
}
