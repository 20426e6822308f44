"""2-D transposed convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import choices, flag, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS, Operator
from resperf.layers.conv_transpose_nd import ConvTransposeNd, TransposedConv


class ConvTranspose(TransposedConv):
    """A transposed convolution of an image, as in decoders and generators."""

    AXES = ("height", "width")

    height: int = pixels("rows of the input")
    width: int = pixels("columns of the input")
    channels_out: int = number("channels of the output")
    kernel_height: int = pixels("rows of the window")
    kernel_width: int = pixels("columns of the window")
    stride_height: int = pixels("output rows between two windows", default=1)
    stride_width: int = pixels("output columns between two windows", default=1)
    dilation_height: int = pixels("rows between two taps", default=1)
    dilation_width: int = pixels("columns between two taps", default=1)
    cut_height: int = pixels("rows cropped, less output padding", minimum=0, default=0)
    cut_width: int = pixels("columns cropped, less output padding", minimum=0, default=0)
    groups: int = number("groups of channels that are convolved separately", default=1)
    bias: bool = flag("whether a bias is added", default=True)
    dtype: str = name("type of one value", FLOATS, default="float32")

    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels_in": log_uniform(4, 512, 8, 16),
        "channels_out": log_uniform(4, 512, 8, 16),
        "size": {**log_uniform(4, 128), "same_share": 0.95},
        "kernel": choices([2, 3, 4, 5], [5, 3, 4, 1]),
        "stride": choices([1, 2], [1, 5]),
        "cut": choices([0, 1, 2], [3, 2, 2]),
        "groups": choices([1, "depthwise"], [8, 1]),
        "bias": choices([True, False], [2, 1]),
    }
    OPERATORS = frozenset({"ConvTranspose"})

    @classmethod
    def read(cls, operator: Operator) -> TransposedConv:
        """Read a ``ConvTranspose``; one of lines as an image of one row, or a `ConvTransposeNd`."""
        shape, result, weight = operator.shape(), operator.result(), operator.operand(1).shape
        kernel = tuple(operator.attributes.get("kernel_shape") or weight[2:])
        if not 3 <= len(shape) == len(weight) <= 5:
            raise LayerError(f"a transposed convolution of shape {shape} has no layer")
        if len(shape) == 3:
            shape, result = ((*lengths[:2], 1, lengths[2]) for lengths in (shape, result))
            kernel = (1, kernel[-1])
        kind = ConvTransposeNd if len(shape) == 5 else cls
        return kind.read_along(operator, shape, result, kernel)
