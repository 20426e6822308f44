"""1-D and 3-D convolution."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import flag, name, number
from resperf.layers._grouped import with_groups
from resperf.layers._laws import BATCHES, choices, log_uniform
from resperf.layers._operator import Kernel, Operator, dtype_of
from resperf.layers._volume import VolumeConv
from resperf.layers.activation import fused_activation
from resperf.layers.columns import Array, Columns, numbers

_ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid")


class ConvNd(VolumeConv):
    """A convolution along one axis (audio, text) or three (video, scans).

    `resperf.layers.conv` reads it, since both share an operator.
    """

    kind: ClassVar[str] = "conv_nd"

    channels_out: int = number("filters")
    groups: int = number("groups of channels that are convolved separately", default=1)
    bias: bool = flag("whether a bias is added", default=True)
    activation: str = name("fused activation", _ACTIVATIONS, default="none")

    PLAIN: ClassVar[tuple[str, ...]] = (
        "threaded", "vector_rest", "bias", "grouped", "depthwise", "pointwise", "strided",
        "dilated",
    )  # fmt: skip
    LOG2: ClassVar[tuple[str, ...]] = (
        "batch", "rank", "channels_in", "channels_out", "groups", "taps", "windows", "flops",
        "columns_bytes", "in_bytes", "out_bytes", "weight_bytes",
    )  # fmt: skip
    ENCODED: ClassVar[tuple[str, ...]] = ("activation",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "rank": choices([1, 3], [2, 1]),
        "channels_in": log_uniform(1, 512, 1, 8, 16),
        "channels_out": log_uniform(4, 512, 8, 16),
        "size": {**log_uniform(4, 64), "same_share": 0.7},
        "kernel": {**choices([1, 3, 5, 7], [4, 8, 1, 1]), "same_share": 0.9},
        "stride": {**choices([1, 2], [4, 1]), "same_share": 0.9},
        "dilation": choices([1, 2], [10, 1]),
        "pad": {**choices([0, 1], [1, 3]), "same_share": 1.0},
        "groups": choices([1, "depthwise"], [6, 1]),
        "bias": choices([True, False], [4, 1]),
        "activation": choices(_ACTIVATIONS, [6, 4, *(0.5,) * 5]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("channels_in", "channels_out", "width")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Give depthwise draws as many channels out as in; drop depth and height of signals."""
        del source
        return with_groups(cls._flattened(fields))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""
        return (self.filters + self.bias * self.channels_out) * self.element_bytes

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes and FLOPs; ``columns_bytes`` is the im2col buffer."""
        import numpy as np

        batch, channels_in, channels_out, groups, bias, rank = numbers(
            columns, "batch", "channels_in", "channels_out", "groups", "bias", "rank"
        )
        many = cls.over(columns)
        windows, taps, weights = (
            np.asarray(each) for each in (many.windows, many.taps, many.weight_bytes)
        )
        size = many.element_bytes
        depthwise = (groups > 1) & (groups == channels_in)
        pointwise = taps == 1
        strides = np.prod(numbers(columns, "stride_depth", "stride_height", "stride_width"), axis=0)
        dilations = np.prod(
            numbers(columns, "dilation_depth", "dilation_height", "dilation_width"), axis=0
        )
        return {
            **many.traffic(2 * many.macs, many._values),
            "batch": batch, "channels_in": channels_in, "channels_out": channels_out,
            "groups": groups, "rank": rank, "bias": bias, "taps": taps, "windows": windows,
            "grouped": (groups > 1).astype(float), "depthwise": depthwise.astype(float),
            "pointwise": pointwise.astype(float), "strided": (strides > 1).astype(float),
            "dilated": (dilations > 1).astype(float), "weight_bytes": weights,
            "sample_weight_bytes": weights * batch, "products": batch * groups,
            "columns_bytes": np.where(pointwise, 0.0, batch * channels_in * windows * taps * size),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a 1-D or 3-D ``Conv``."""
        weight, attributes = operator.operand(1).shape, operator.attributes
        kernel = attributes.get("kernel_shape") or weight[2:]
        if operator.has_input(3):
            raise LayerError("a residual of a 1-D or 3-D convolution has no layer")
        return cls(
            **cls._read_volume(operator, kernel, operator.shape()), channels_out=weight[0],
            groups=int(attributes.get("group", 1)),
            bias=operator.has_input(2), activation=fused_activation(operator),
            dtype=dtype_of(operator),
        )  # fmt: skip

    def kernel(self) -> Kernel:
        """Return a ``Conv`` with its activation."""
        kernel = self._along("kernel")[3 - self.rank :]
        weights = (self.channels_out, self.channels_in // self.groups, *kernel)
        return Kernel(
            "Conv", "", self._onnx_window() | {"group": self.groups}, self.input_shape,
            self.output_shape,
            weight_shapes=(weights, *(((self.channels_out,),) * self.bias)),
            activation=self.activation,
        )  # fmt: skip
