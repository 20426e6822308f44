"""Transposed convolutions: what those of images and volumes share, and the kind of volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.layers._base import AXES, choices, flag, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of
from resperf.layers._sliding import GroupedLayer, with_groups
from resperf.layers.columns import smaller

WORDS = ("kernel", "stride", "dilation", "cut")


class TransposedConv(GroupedLayer):
    """A transposed convolution over `AXES`; each kind declares its own fields."""

    PLAIN = ("threaded", "vector_rest", "bias", "grouped", "overlap")
    LOG2 = (
        "batch", "channels_in", "channels_out", "groups", "pixels_in", "pixels_out", "taps",
        "flops", "columns_bytes", "in_bytes", "out_bytes", "weight_bytes",
    )  # fmt: skip

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Give depthwise draws as many channels out as in."""
        return with_groups(fields)

    def _pads(self) -> tuple[tuple[int, int], ...]:
        return tuple((cut // 2, cut - cut // 2) for cut in self._along("cut"))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_out, the axes of the output)."""
        windows = zip(*(self._along(word) for word in ("", *WORDS)), strict=True)
        return (self.batch, self.channels_out, *(_side(*window) for window in windows))

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations: each input pixel with each tap."""
        return math.prod(self.input_shape) * self.channels_out // self.groups * self.taps

    def own_quantities(self) -> dict[str, Any]:
        """Pixels and weights; ``columns_bytes`` is the col2im buffer."""
        pixels = math.prod(self._along(""))
        columns = self.batch * self.channels_out * self.taps * pixels
        return {
            "grouped": self.groups > 1, "pixels_in": pixels, "taps": self.taps,
            "pixels_out": math.prod(self.output_shape[2:]),
            "overlap": smaller(self.taps / math.prod(self._along("stride")), 10.0),
            "image_weight_bytes": self.weight_bytes * self.batch,
            "products": self.batch * self.groups, "columns_bytes": columns * self.element_bytes,
        }  # fmt: skip

    @classmethod
    def read_along(
        cls, operator: Operator, shape: Sequence[int], result: Sequence[int], kernel: Sequence[int]
    ) -> Self:
        """Read a ``ConvTranspose`` over `AXES`; what is cropped follows from the output's shape.

        Strides and dilations with fewer axes apply to the last axes.
        """
        attributes = operator.attributes

        def along(word: str) -> tuple[int, ...]:
            given = tuple(attributes.get(word) or ())[-len(operator.shape()) + 2 :]
            return (1,) * (len(cls.AXES) - len(given)) + tuple(int(value) for value in given)

        strides, dilations = along("strides"), along("dilations")
        fields: dict[str, int] = {}
        for axis, size, side, taps, stride, dilation in zip(
            cls.AXES, shape[2:], result[2:], kernel, strides, dilations, strict=True
        ):
            # Output padding beyond the filters' reach holds the bias only and costs almost nothing.
            cut = max(_side(size, taps, stride, dilation, 0) - side, 0)
            window = zip(WORDS, (taps, stride, dilation, cut), strict=True)
            fields |= {axis: size, **{f"{word}_{axis}": value for word, value in window}}
        return cls.from_fields({
            "batch": shape[0], "channels_in": shape[1], "channels_out": result[1], **fields,
            "groups": int(attributes.get("group", 1)), "bias": operator.has_input(2),
            "dtype": dtype_of(operator),
        })  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return a ``ConvTranspose``; an odd crop takes the extra pixel from the end of an axis."""
        weights = (self.channels_in, self.channels_out // self.groups, *self._along("kernel"))
        return self._node(
            "ConvTranspose", self._window_attributes() | {"group": self.groups},
            weight_shapes=(weights, *(((self.channels_out,),) * self.bias)),
        )  # fmt: skip


def _side(size: Any, kernel: Any, stride: Any, dilation: Any, cut: Any) -> Any:
    """Count the output pixels along an axis."""
    return (size - 1) * stride + dilation * (kernel - 1) + 1 - cut


class ConvTransposeNd(TransposedConv):
    """A transposed convolution of a volume, as in decoders of scans and video.

    `resperf.layers.conv_transpose` reads it, since both share an operator.
    """

    AXES = AXES

    depth: int = pixels("slices of the input")
    height: int = pixels("rows of the input")
    width: int = pixels("columns of the input")
    channels_out: int = number("channels of the output")
    kernel_depth: int = pixels("slices of the window")
    kernel_height: int = pixels("rows of the window")
    kernel_width: int = pixels("columns of the window")
    stride_depth: int = pixels("output slices between two windows", default=1)
    stride_height: int = pixels("output rows between two windows", default=1)
    stride_width: int = pixels("output columns between two windows", default=1)
    dilation_depth: int = pixels("slices between two taps", default=1)
    dilation_height: int = pixels("rows between two taps", default=1)
    dilation_width: int = pixels("columns between two taps", default=1)
    cut_depth: int = pixels("slices cropped, less output padding", minimum=0, default=0)
    cut_height: int = pixels("rows cropped, less output padding", minimum=0, default=0)
    cut_width: int = pixels("columns cropped, less output padding", minimum=0, default=0)
    groups: int = number("groups of channels that are convolved separately", default=1)
    bias: bool = flag("whether a bias is added", default=True)
    dtype: str = name("type of one value", FLOATS, default="float32")

    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": choices([1, 2, 4, 8], [5, 3, 1, 1]),
        "channels_in": log_uniform(4, 320, 8, 16),
        "channels_out": log_uniform(4, 320, 8, 16),
        "size": {**log_uniform(2, 64), "same_share": 0.8},
        "kernel": {**choices([1, 2, 3, 4], [1, 8, 3, 2]), "same_share": 0.9},
        "stride": {**choices([1, 2], [1, 8]), "same_share": 0.9},
        "cut": {**choices([0, 1, 2], [6, 2, 1]), "same_share": 0.9},
        "groups": choices([1, "depthwise"], [10, 1]),
        "bias": choices([True, False], [2, 1]),
    }
