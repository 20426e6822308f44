"""ONNX Runtime's kernel of a lowered layer, and the graph that runs copies of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from resperf.backends._values import (
    in_order,
    inputs_of_kernel,
    kernel_values,
    made_up,
    weights_of_kernel,
)
from resperf.copies import COLD_WEIGHTS_BYTES
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import OPERATOR_OF, Activation, Conv, Kernel, Layer, Pool, Reorder
from resperf.layers._operator import CONTRIB
from resperf.units import DTYPE_BYTES

NCHWC = "com.microsoft.nchwc"
OPSETS = {"": 17, CONTRIB: 1, NCHWC: 1}

CONV_ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {
    "relu": {},
    "tanh": {},
    "sigmoid": {},
    "leaky_relu": {"activation_params": (0.01,)},
    "clip": {"activation_params": (0.0, 6.0)},
    "hard_sigmoid": {"activation_params": (0.2, 0.5)},
    "hard_swish": {},
}
"""Activations that can be fused into a convolution, with attributes for typical parameters."""
GEMM_ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {
    "relu": {},
    "tanh": {},
    "sigmoid": {},
    "leaky_relu": {"activation_alpha": 0.01},
    "elu": {"activation_alpha": 1.0},
    "hard_sigmoid": {"activation_alpha": 0.2, "activation_beta": 0.5},
    "selu": {"activation_alpha": 1.6732632, "activation_gamma": 1.0507010},
    "softplus": {},
    "softsign": {},
    "thresholded_relu": {"activation_alpha": 1.0},
}
"""Activations that can be fused into a matrix product, with attributes for typical parameters."""
COPYING_KINDS = frozenset({"cast", "move", "concat", "transpose"})
"""Kinds with half-precision kernels; all others compute in float32."""


def kernel_of(layer: Layer, block: int, *, half_precision: bool = False) -> Kernel:
    """Return the ONNX Runtime kernel that runs a lowered layer.

    Parameters
    ----------
    layer : Layer
        As returned by the backend's `lower`.
    block : int
        Channels per block of this machine's NCHWc layout.
    half_precision : bool
        Whether kernels compute in float16, as on a GPU.

    Raises
    ------
    UnsupportedError
        If no kernel runs it on this machine.
    """
    types = {str(layer.fields().get(name, "float32")) for name in ("dtype", "dtype_out")}
    copied = half_precision or layer.kind in COPYING_KINDS
    unknown = types & ({"bfloat16"} if copied else {"float16", "bfloat16"})
    if unknown:
        dtypes = "float32 and float16" if half_precision else "float32"
        raise UnsupportedError(
            f"ONNX Runtime's kernels are measured in {dtypes} here, not in {', '.join(unknown)}"
        )
    try:
        kernel = (
            _OWN[layer.kind](layer, block) if layer.kind in _OWN else _fused(layer.as_onnx_node())
        )
        return kernel.in_floats(str(layer.fields().get("dtype", kernel.dtype)))
    except LayerError as error:
        raise UnsupportedError(f"ONNX Runtime runs no {layer.kind} like this: {error}") from error


def _fused(kernel: Kernel) -> Kernel:
    """Return the fused operator for a kernel with an activation or a residual."""
    function, attributes = kernel.activation, dict(kernel.attributes)
    if function == "none" and not (kernel.op == "Conv" and kernel.extra_shapes):
        return kernel
    what, fusible = _FUSIBLE[kernel.op]
    if function != "none":
        if function not in fusible:
            raise UnsupportedError(
                f"ONNX Runtime does not fuse {function} into a {what}; "
                f"it fuses {', '.join(fusible)}"
            )
        attributes |= {"activation": OPERATOR_OF[function], **fusible[function]}
    return replace(
        kernel, op=f"Fused{kernel.op}", domain=CONTRIB, attributes=attributes, activation="none"
    )


def _padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _is_blocked(layout: str, block: int) -> bool:
    """Whether the layout is this machine's blocked layout, not NCHW."""
    if layout == "nchw":
        return False
    if block and layout == f"nchwc{block}":
        return True
    raise UnsupportedError(
        f"layout {layout!r} does not exist in ONNX Runtime on this machine, which has "
        + (f"nchw and nchwc{block}" if block else "nchw only")
    )


def _conv(layer: Layer, block: int) -> Kernel:
    assert isinstance(layer, Conv)
    blocked, kernel = _is_blocked(layer.layout, block), _fused(layer.as_onnx_node())
    if not blocked:
        return kernel
    batch, channels_out, rows, columns = layer.output_shape
    channels_in, taps = layer.channels_in, layer.channels_in // layer.groups
    groups = layer.groups
    channels_out = _padded(channels_out, block)
    if taps == 1 and groups == layer.channels_out == layer.channels_in:
        channels_in = groups = channels_out
    elif groups == 1 and channels_in >= block:
        channels_in = taps = _padded(channels_in, block)
    output_shape = (batch, channels_out, rows, columns)
    weights = (channels_out, taps, layer.kernel_height, layer.kernel_width)
    return replace(
        kernel,
        op="Conv",
        domain=NCHWC,
        attributes={**kernel.attributes, "group": groups},
        input_shape=(batch, channels_in, layer.height, layer.width),
        output_shape=output_shape,
        weight_shapes=(weights, *((channels_out,) for _ in kernel.weight_shapes[1:])),
        extra_shapes=(output_shape,) * len(kernel.extra_shapes),
    )


def _pool(layer: Layer, block: int) -> Kernel:
    assert isinstance(layer, Pool)
    blocked = _is_blocked(layer.layout, block)
    if blocked and layer.channels_in % block:
        raise UnsupportedError(
            f"ONNX Runtime pools {layer.channels_in} channels in nchw: they are no multiple of "
            f"{block}"
        )
    return replace(layer.as_onnx_node(), domain=NCHWC if blocked else "")


def _activation(layer: Layer, _block: int) -> Kernel:
    assert isinstance(layer, Activation)
    if layer.activation == "hard_swish":
        raise UnsupportedError(
            "ONNX Runtime has no kernel for hard_swish alone: it decomposes it unless it is fused "
            "into a convolution"
        )
    return layer.as_onnx_node()


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
            raise UnsupportedError(f"ReorderInput needs a multiple of 4 channels, not {channels}")
        return Kernel("ReorderInput", NCHWC, attributes, plain_shape, blocked_shape)
    attributes["channels"] = channels
    return Kernel("ReorderOutput", NCHWC, attributes, blocked_shape, plain_shape)


_FUSIBLE: Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    "Conv": ("convolution", CONV_ACTIVATIONS),
    "Gemm": ("matrix product", GEMM_ACTIVATIONS),
}
_OWN: Mapping[str, Callable[[Layer, int], Kernel]] = {
    "conv": _conv,
    "pool": _pool,
    "activation": _activation,
    "reorder": _reorder,
}
"""Kinds with kernels that differ from ONNX's operators, such as blocked ones."""


CHAIN_COPIES = 16
"""Length of a chain of in-place copies. Functions such as silu halve small values each time: after
some forty copies they would be denormal, which is ten times slower on Intel processors."""

_Arrays = dict[str, npt.NDArray[Any]]


def copies_graph(kernel: Kernel, copies: int) -> tuple[ModelProto, _Arrays, _Arrays]:
    """Build a graph of copies of a kernel: independent ones, or short chains of in-place kernels.

    Parameters
    ----------
    kernel : Kernel
    copies : int

    Returns
    -------
    model : ModelProto
        Its output is that of the last copy.
    weights, host : dict of str to array
        Values of the model's external initializers, different for each copy, and of its inputs.
    """
    inputs, kernel_weights = inputs_of_kernel(kernel), weights_of_kernel(kernel)
    constants = ["" if ints is None else f"constant{i}" for i, ints in enumerate(kernel.constants)]
    nodes, initializers, weights = [], [], {}
    kernel_bytes = sum(
        math.prod(shape) * DTYPE_BYTES.get(dtype, 4) for shape, dtype in kernel_weights
    )
    for name, values in zip(constants, kernel.constants, strict=True):
        if values is not None:
            initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
    for copy in range(copies):
        names = []
        for position, (shape, dtype) in enumerate(kernel_weights):
            name = f"w{copy}_{position}"
            names.append(name)
            weights[name] = made_up(shape, dtype, zero_points=True)
            if kernel_bytes > COLD_WEIGHTS_BYTES and weights[name].ndim:
                # ONNX Runtime packs equal weights once, so these must differ.
                weights[name].flat[0] = 1 + copy
            initializers.append(_absent(name, weights[name]))
        first, *extras = inputs
        if kernel.in_place and copy % CHAIN_COPIES:
            first = f"y{copy - 1}"
        node = helper.make_node(
            kernel.op,
            [*in_order(kernel, [first, *names, *extras], ""), *constants],
            [f"y{copy}", *(f"more{copy}_{i}" for i in range(kernel.more_outputs))],
            f"copy{copy}",
            domain=kernel.domain,
            **kernel.attributes,
        )
        nodes.append(node)
    last, output_type = f"y{copies - 1}", kernel.output_dtype or kernel.dtype
    graph = helper.make_graph(
        nodes,
        "copies",
        [_info(name, shape, dtype) for name, (shape, dtype) in inputs.items()],
        [_info(last, kernel.output_shape, output_type)],
        initializers,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, weights, kernel_values(kernel, inputs)


def _absent(name: str, values: npt.NDArray[Any]) -> Any:
    """Declare an external weight; the session's options hold its bytes."""
    proto = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        dims=values.shape,
        data_location=TensorProto.EXTERNAL,
    )
    proto.external_data.add(key="location", value="absent.bin")
    return proto


def _info(name: str, shape: Sequence[int], dtype: str) -> Any:
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element_type, shape)
