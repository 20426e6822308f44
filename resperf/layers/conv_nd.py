"""1-D and 3-D convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import choices, log_uniform, name
from resperf.layers._operator import Kernel, Operator, dtype_of
from resperf.layers._volume import VolumeConv
from resperf.layers.activation import fused_activation

_ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid")


class ConvNd(VolumeConv):
    """A convolution along one axis (audio, text) or three (video, scans).

    `resperf.layers.conv` reads it, since both share an operator.
    """

    activation: str = name("fused activation", _ACTIVATIONS, default="none")

    PLAIN = (
        "threaded", "vector_rest", "bias", "grouped", "depthwise", "pointwise", "strided",
        "dilated",
    )  # fmt: skip
    LOG2 = (
        "batch", "rank", "channels_in", "channels_out", "groups", "taps", "windows", "flops",
        "columns_bytes", "in_bytes", "out_bytes", "weight_bytes",
    )  # fmt: skip
    ENCODED = ("activation",)
    RANGES: ClassVar[Mapping[str, Any]] = {
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

    def own_quantities(self) -> dict[str, Any]:
        """Windows, groups and weights."""
        return super().own_quantities() | {
            "strided": math.prod(self._along("stride")) > 1,
            "dilated": math.prod(self._along("dilation")) > 1,
            "sample_weight_bytes": self.weight_bytes * self.batch,
        }

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a 1-D or 3-D ``Conv``."""
        if operator.has_input(3):
            raise LayerError("a residual of a 1-D or 3-D convolution has no layer")
        return cls(
            **cls._read_conv(operator, 1, operator.shape()), bias=operator.has_input(2),
            activation=fused_activation(operator), dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return a ``Conv`` with its activation."""
        return self._node(
            "Conv", self._onnx_window() | {"group": self.groups}, activation=self.activation,
            weight_shapes=(self._filter_shape, *(((self.channels_out,),) * self.bias)),
        )  # fmt: skip
