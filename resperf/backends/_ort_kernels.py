"""The ONNX Runtime kernel that runs a lowered layer: operator, attributes and tensor shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import (
    ABSORBED_ACTIVATIONS,
    Activation,
    Conv,
    Dense,
    Kernel,
    Layer,
    OperatorLayer,
    Pool,
    Reorder,
)
from resperf.layers._operator import CONTRIB

NCHWC = "com.microsoft.nchwc"
OPSETS = {"": 17, CONTRIB: 1, NCHWC: 1}

ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    **ABSORBED_ACTIVATIONS,
    "hard_swish": ("HardSwish", ()),
}
"""Activations that a convolution absorbs, and typical parameters."""
ALONE: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "relu": ("Relu", "", {}),
    "tanh": ("Tanh", "", {}),
    "sigmoid": ("Sigmoid", "", {}),
    # Many of them in a row must not end in denormal numbers.
    "leaky_relu": ("LeakyRelu", "", {"alpha": 0.99}),
    "clip": ("Clip", "", {}),
    "hard_sigmoid": ("HardSigmoid", "", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("Elu", "", {}),
    "softplus": ("Softplus", "", {}),
    "gelu": ("Gelu", CONTRIB, {}),
    "gelu_tanh": ("FastGelu", CONTRIB, {}),
    "silu": ("QuickGelu", CONTRIB, {"alpha": 1.0}),
    "selu": ("Selu", "", {}),
    "softsign": ("Softsign", "", {}),
    # What measures it is small.
    "thresholded_relu": ("ThresholdedRelu", "", {"alpha": 0.01}),
    "celu": ("Celu", "", {}),
}
"""Activations by themselves: operator, domain and attributes. A hard swish is none: ONNX Runtime
takes it apart where no convolution absorbs it."""
COPYING_KINDS = frozenset({"cast", "move", "concat", "transpose"})
"""Kinds that have kernels of half precision; all others compute in float32."""
GEMM_ACTIVATIONS: Mapping[str, Mapping[str, float]] = {
    "relu": {},
    "tanh": {},
    "sigmoid": {},
    "leaky_relu": {"alpha": 0.01},
    "elu": {"alpha": 1.0},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "selu": {"alpha": 1.6732632, "gamma": 1.0507010},
    "softplus": {},
    "softsign": {},
    "thresholded_relu": {"alpha": 1.0},
}
"""Activations that a matrix product absorbs, and typical parameters."""


def kernel_of(layer: Layer, block: int) -> Kernel:
    """Say which kernel of ONNX Runtime runs a lowered layer.

    Parameters
    ----------
    layer : Layer
        As the backend's `lower` returned it.
    block : int
        Channels per block of this machine's NCHWc layout.

    Raises
    ------
    UnsupportedError
        If no kernel runs it on this machine.
    """
    types = {str(layer.fields().get(name, "float32")) for name in ("dtype", "dtype_out")}
    copies = isinstance(layer, OperatorLayer) and layer.kind in COPYING_KINDS
    computed = {"float16", "bfloat16"} if isinstance(layer, OperatorLayer) else types - {"float32"}
    unknown = types & ({"bfloat16"} if copies else computed)
    if unknown:
        raise UnsupportedError(
            f"ONNX Runtime's CPU kernels are measured in float32, not in {', '.join(unknown)}"
        )
    if isinstance(layer, OperatorLayer):
        try:
            return layer.kernel()
        except LayerError as error:
            raise UnsupportedError(str(error)) from error
    if layer.kind not in _MAKERS:
        raise UnsupportedError(f"ONNX Runtime runs no {layer.kind} layer on a CPU")
    return _MAKERS[layer.kind](layer, block)


def _padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _is_blocked(layout: str, block: int) -> bool:
    """Whether the layout is this machine's blocked one; plain NCHW is not."""
    if layout == "nchw":
        return False
    if block and layout == f"nchwc{block}":
        return True
    raise UnsupportedError(
        f"layout {layout!r} does not exist in ONNX Runtime on this machine, which has "
        + (f"nchw and nchwc{block}" if block else "nchw only")
    )


def _window(layer: Conv | Pool) -> dict[str, Any]:
    return {
        "kernel_shape": [layer.kernel_height, layer.kernel_width],
        "strides": [layer.stride_height, layer.stride_width],
        "dilations": [layer.dilation_height, layer.dilation_width],
        "pads": [layer.pad_top, layer.pad_left, layer.pad_bottom, layer.pad_right],
    }


def _conv(layer: Layer, block: int) -> Kernel:
    assert isinstance(layer, Conv)
    blocked = _is_blocked(layer.layout, block)
    batch, channels_out, rows, columns = layer.output_shape
    channels_in, taps = layer.channels_in, layer.channels_in // layer.groups
    groups = layer.groups
    if blocked:
        channels_out = _padded(channels_out, block)
        if taps == 1 and groups == layer.channels_out == layer.channels_in:
            channels_in = groups = channels_out
        elif groups == 1 and channels_in >= block:
            channels_in = taps = _padded(channels_in, block)
    output_shape = (batch, channels_out, rows, columns)
    weights: tuple[tuple[int, ...], ...] = (
        (channels_out, taps, layer.kernel_height, layer.kernel_width),
    )
    if layer.bias or layer.residual:
        # The residual is the fourth input, so ORT always has a bias where there is one.
        weights += ((channels_out,),)
    attributes = _window(layer) | {"group": groups} | _activation(layer)
    fused = bool(layer.residual or layer.activation != "none")
    return Kernel(
        op="Conv" if blocked or not fused else "FusedConv",
        domain=NCHWC if blocked else CONTRIB if fused else "",
        attributes=attributes,
        input_shape=(batch, channels_in, layer.height, layer.width),
        output_shape=output_shape,
        weight_shapes=weights,
        extra_shapes=(output_shape,) if layer.residual else (),
    )


def _activation(layer: Conv) -> dict[str, Any]:
    if layer.activation == "none":
        return {}
    if layer.activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"ONNX Runtime does not fuse {layer.activation} into a convolution; "
            f"it fuses {', '.join(ACTIVATIONS)}"
        )
    op, parameters = ACTIVATIONS[layer.activation]
    return {"activation": op} | ({"activation_params": parameters} if parameters else {})


def _pool(layer: Layer, block: int) -> Kernel:
    assert isinstance(layer, Pool)
    blocked = _is_blocked(layer.layout, block)
    if blocked and layer.channels_in % block:
        raise UnsupportedError(
            f"ONNX Runtime pools {layer.channels_in} channels in nchw: they are no whole blocks "
            f"of {block}"
        )
    op = {"max": "MaxPool", "average": "AveragePool"}[layer.mode]
    attributes: dict[str, Any] = {}
    if layer.whole_image:
        op = f"Global{op}"
    else:
        attributes = _window(layer) | {"ceil_mode": int(layer.ceil_mode)}
        if layer.mode == "average":
            attributes["count_include_pad"] = int(layer.count_include_pad)
            if (layer.dilation_height, layer.dilation_width) != (1, 1):
                raise UnsupportedError("ONNX Runtime's average pooling is measured undilated")
            del attributes["dilations"]
    return Kernel(op, NCHWC if blocked else "", attributes, layer.input_shape, layer.output_shape)


def _dense(layer: Layer, _block: int) -> Kernel:
    assert isinstance(layer, Dense)
    weights: tuple[tuple[int, ...], ...] = ((layer.features_out, layer.features_in),)
    if layer.bias:
        weights += ((layer.features_out,),)
    fused = layer.activation != "none"
    if fused and layer.activation not in GEMM_ACTIVATIONS:
        raise UnsupportedError(
            f"ONNX Runtime does not fuse {layer.activation} into a matrix product; "
            f"it fuses {', '.join(GEMM_ACTIVATIONS)}"
        )
    attributes: dict[str, Any] = {"transB": 1}
    if fused:
        attributes["activation"] = ALONE[layer.activation][0]
        typical = GEMM_ACTIVATIONS[layer.activation]
        attributes |= {f"activation_{name}": value for name, value in typical.items()}
    return Kernel(
        "FusedGemm" if fused else "Gemm",
        CONTRIB if fused else "",
        attributes,
        layer.input_shape,
        layer.output_shape,
        weights,
    )


def _alone(layer: Layer, _block: int) -> Kernel:
    assert isinstance(layer, Activation)
    if layer.activation not in ALONE:
        raise UnsupportedError(
            f"ONNX Runtime has no kernel for {layer.activation} alone; it has {', '.join(ALONE)}"
        )
    op, domain, attributes = ALONE[layer.activation]
    bounds: tuple[tuple[int, ...], ...] = ((), ()) if op == "Clip" else ()
    shape = layer.input_shape
    return Kernel(op, domain, attributes, shape, shape, bounds, in_place=True)


def _reorder(layer: Layer, block: int) -> Kernel:
    assert isinstance(layer, Reorder)
    batch, channels, height, width = layer.input_shape
    blocked_shape = (batch, _padded(channels, max(block, 1)), height, width)
    plain = layer.layout if layer.layout in ("nchw", "nhwc") else layer.layout_out
    last = plain == "nhwc"
    plain_shape = (batch, height, width, channels) if last else layer.input_shape
    attributes = {"channels_last": 1} if last else {}
    to_blocked = layer.layout == plain and _is_blocked(layer.layout_out, block)
    if not to_blocked and (layer.layout_out != plain or not _is_blocked(layer.layout, block)):
        raise UnsupportedError(f"ONNX Runtime has no re-layout like {layer.key}")
    if to_blocked:
        if channels % 4:
            raise UnsupportedError(f"ReorderInput takes channels in fours, not {channels}")
        return Kernel("ReorderInput", NCHWC, attributes, plain_shape, blocked_shape)
    attributes["channels"] = channels
    return Kernel("ReorderOutput", NCHWC, attributes, blocked_shape, plain_shape)


_MAKERS: Mapping[str, Callable[[Layer, int], Kernel]] = {
    "conv": _conv,
    "pool": _pool,
    "dense": _dense,
    "activation": _alone,
    "reorder": _reorder,
}
