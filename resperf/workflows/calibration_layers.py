"""The layers that `resperf calibrate` times on a machine, by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.layers import (
    Activation,
    Concat,
    Conv,
    Dense,
    Elementwise,
    Layer,
    Move,
    Norm,
    Pool,
    QuantizedDense,
    Reorder,
    Softmax,
    Transpose,
)
from resperf.layers.matmul import MatMul
from resperf.layers.quantized_conv import QuantizedConv


def _square_conv(
    channels_in: int, channels_out: int, size: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> Conv:
    pad = kernel // 2
    return Conv(
        batch=1, channels_in=channels_in, channels_out=channels_out, height=size, width=size,
        kernel_height=kernel, kernel_width=kernel, stride_height=stride, stride_width=stride,
        pad_top=pad, pad_left=pad, pad_bottom=pad, pad_right=pad, groups=groups,
    )  # fmt: skip


def _square_int8_conv(
    channels: int, size: int, kernel: int, *, groups: int = 1, **more: Any
) -> QuantizedConv:
    return QuantizedConv(
        batch=1, channels_in=channels, channels_out=channels, rank=2, height=size, width=size,
        kernel_height=kernel, kernel_width=kernel, pad_height=kernel // 2, pad_width=kernel // 2,
        groups=groups, **more,
    )  # fmt: skip


def _square_pool(size: int, stride: int = 1) -> Pool:
    return Pool(
        batch=1, channels_in=64, height=size, width=size, kernel_height=3, kernel_width=3,
        stride_height=stride, stride_width=stride, pad_top=1, pad_left=1, pad_bottom=1,
        pad_right=1,
    )  # fmt: skip


_OF_SUMS: Mapping[str, Any] = {
    "function": "integer", "layout": "nchw", "bias": False, "dtype": "int8",
}  # fmt: skip
"""A convolution of dynamic quantisation."""
CALIBRATION_LAYERS: tuple[Layer, ...] = (
    # In turns of all groups, so that a minute that is too short takes something from each.
    _square_conv(64, 64, 56, 3),
    Activation(batch=1, values=64, activation="relu"),
    Dense(batch=1, features_in=4096, features_out=4096),
    _square_pool(56),
    Transpose(batch=1, dim1=197, dim2=6, dim3=64, order="213"),
    Elementwise(batch=1, inner=6_400_000),
    QuantizedDense(batch=128, features_in=768, features_out=768),
    _square_conv(256, 256, 14, 3),
    Dense(batch=128, features_in=768, features_out=3072),
    Elementwise(batch=1, inner=64),
    Activation(batch=1, values=200_000, activation="relu"),
    _square_pool(204),
    _square_conv(48, 48, 64, 3),
    _square_int8_conv(64, 56, 3),
    Reorder(batch=1, channels_in=96, height=28, width=28),
    _square_conv(256, 256, 16, 7, groups=256),
    _square_int8_conv(144, 56, 3, groups=144),
    _square_conv(512, 128, 28, 1),
    MatMul(batch=1, outer=12, rows=197, depth=64, columns=197),
    Dense(batch=1, features_in=32, features_out=32),
    Elementwise(batch=1, inner=200_000),
    Activation(batch=1, values=2_500_000, activation="relu"),
    Dense(batch=1, features_in=1024, features_out=1000),
    _square_conv(144, 144, 56, 3, groups=144),
    Norm(batch=1, channels=768, pixels=197),
    Transpose(batch=1, dim1=64, dim2=3136, order="21"),
    Softmax(batch=1, outer=2364, values=197),
    _square_conv(3, 64, 224, 7, stride=2),
    Concat(batch=1, parts=2, inner=200_704),
    _square_conv(512, 512, 7, 3),
    _square_conv(512, 512, 14, 3, groups=512),
    Reorder(batch=1, channels_in=480, height=14, width=14, layout="nchwc16", layout_out="nchw"),
    QuantizedDense(batch=197, features_in=768, features_out=3072, function="dynamic"),
    _square_int8_conv(256, 28, 1),
    _square_int8_conv(64, 56, 3, **_OF_SUMS),
    _square_pool(112, 2),
    Activation(batch=1, values=600_000, activation="gelu"),
    MatMul(batch=1, outer=6, rows=1024, depth=64, columns=1024),
    _square_int8_conv(480, 14, 5, groups=480),
    Norm(batch=1, channels=64, pixels=3136),
    Softmax(batch=1, outer=2048, values=1024),
    _square_conv(24, 144, 56, 1),
    _square_conv(192, 128, 56, 1),
    Move(batch=1, outer=197, length=3, length_out=3, inner=384, function="split", parts=3),
    _square_conv(960, 160, 7, 1),
    _square_int8_conv(256, 14, 3),
    _square_conv(240, 240, 28, 5, groups=240),
    Activation(batch=1, values=200_000, activation="silu"),
    Dense(batch=3136, features_in=64, features_out=256),
    _square_int8_conv(256, 14, 1, **_OF_SUMS),
    Dense(batch=197, features_in=384, features_out=384),
    # Channels that are no multiples of four are not in blocks.
    _square_conv(62, 62, 56, 3),
    _square_conv(190, 96, 28, 1),
    Move(batch=1, outer=1024, length=1, length_out=196, inner=1, function="expand"),
    Move(batch=1, outer=6144, length=64, length_out=32, inner=1, function="slice", step=2),
    _square_conv(90, 90, 28, 5, groups=90),
    _square_conv(18, 64, 112, 1),
    _square_conv(128, 128, 28, 3, groups=8),
    _square_conv(122, 122, 28, 3, stride=2, groups=122),
    _square_conv(256, 256, 14, 3, groups=16),
    _square_conv(574, 574, 7, 5, groups=574),
    _square_conv(238, 238, 14, 3, groups=238),
    _square_conv(26, 78, 56, 1),
    _square_conv(60, 60, 56, 3, groups=10),
)  # fmt: skip
"""Layers as drawn: compute-bound and memory-bound convolutions, products, copies and other
layers in the caches and in memory, and tiny ones, of which a run holds 64. Copies of a layer with
large weights hold up to 256 MB of them, as in a campaign."""
