"""3-D transposed convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.layers._base import flag, name, number, pixels, shorthands
from resperf.layers._laws import choices, log_uniform
from resperf.layers._operator import FLOATS, Operator
from resperf.layers._transposed import WORDS, TransposedConv, refuse


class ConvTransposeNd(TransposedConv):
    """A transposed convolution of a volume, as in decoders of scans and video.

    `resperf.layers.conv_transpose` reads it, since both share an operator.
    """

    kind: ClassVar[str] = "conv_transpose_nd"
    AXES = ("depth", "height", "width")
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = shorthands(AXES, *WORDS)

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

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a 3-D ``ConvTranspose``."""
        shape, weight = operator.shape(), operator.operand(1).shape
        if len(shape) != 5 or len(weight) != 5:
            raise refuse(shape)
        kernel = operator.attributes.get("kernel_shape") or weight[2:]
        return cls._read_window(operator, shape, operator.result(), kernel)
