"""Int8 convolution."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import choices, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator, dtype_of
from resperf.layers._volume import VolumeConv
from resperf.layers.columns import LAYOUTS, either, is_in, padded
from resperf.layers.quantize import constants, scale
from resperf.units import DTYPE_BYTES

_TILE_DEPTH, _TILE_FILTERS = 4, 16
"""Values along the summed axis, and filters, that int8 products compute at once."""
FUNCTIONS = ("linear", "integer")
_FUNCTION_OF: Mapping[str, str] = {"QLinearConv": "linear", "ConvInteger": "integer"}
_WIDE = DTYPE_BYTES["int32"]


class QuantizedConv(VolumeConv):
    """An int8 convolution; ``linear`` requantises its sums, ``integer`` returns them as int32.

    Weights are int8, with one scale for all filters; those of ``integer`` may be uint8, which takes
    a fifth of the time in ONNX Runtime 1.31.
    """

    RANKS = (1, 2, 3)

    function: str = name(
        "linear requantises the sums, integer returns them", FUNCTIONS, default="linear"
    )
    layout: str = name("memory layout of the image", LAYOUTS, default="nhwc")
    dtype: str = name(
        "type of a value of the image; with function=integer, whose images are uint8, of a weight",
        INT8_TYPES, default="uint8",
    )  # fmt: skip

    PLAIN = ("threaded", "vector_rest", "bias", "depthwise", "pointwise", "integer", "last")
    LOG2 = (
        "batch", "rank", "channels_in", "channels_out", "groups", "taps", "windows", "flops",
        "in_bytes", "out_bytes", "weight_bytes",
    )  # fmt: skip
    RANGED = ("grouped_products",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "rank": choices([1, 2, 3], [1, 20, 1]),
        "channels_in": log_uniform(3, 1024, 1, 8, 16),
        "channels_out": log_uniform(8, 1024, 8, 16),
        "size": {**log_uniform(4, 128), "same_share": 0.9},
        "kernel": {**choices([1, 3, 5, 7], [10, 9, 1, 1]), "same_share": 0.95},
        "stride": {**choices([1, 2], [5, 1]), "same_share": 1.0},
        "pad": {**choices([0, 1], [1, 4]), "same_share": 1.0},
        "groups": choices([1, "depthwise", 2, 4, 8, 16, 32, 64], [30, 8, 1, 1, 2, 2, 3, 1]),
        "bias": choices([True, False], [6, 1]),
        "function": choices(FUNCTIONS, [6, 1]),
        "layout": choices(["nhwc", "nchw"], [4, 1]),
        "dtype": choices(INT8_TYPES, [3, 2]),
    }
    OPERATORS = frozenset(_FUNCTION_OF)

    def _check(self) -> None:
        if self.function == "integer" and (self.bias or self.layout != "nchw"):
            raise LayerError("quantized_conv: function=integer needs bias=0 and layout=nchw")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Give depthwise draws as many channels out as in; limit ``integer`` to what exists."""
        draw = super().fitting(fields, source)
        if draw["function"] == "integer":
            draw |= {"bias": False, "layout": "nchw"}
        return draw

    @property
    def output_bytes(self) -> int:
        """Bytes of the results: int8 values or int32 sums."""
        return self.value_count * either(self.function == "integer", _WIDE, 1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""
        return self.filters + self.bias * self.channels_out * _WIDE

    def own_quantities(self) -> dict[str, Any]:
        """Windows, groups, function and layout."""
        last = is_in(self.layout, ("nhwc",))
        integer = {"integer": is_in(self.function, ("integer",))}
        plain = is_in(self.layout, ("nchw",))
        quantities = super().own_quantities()
        # Only `linear` has a depthwise kernel, and gathers the windows of each other group apart.
        linear = 1 - integer["integer"]
        together = quantities["depthwise"] * linear
        depth, filters = self.channels_in // self.groups, self.channels_out // self.groups
        rows = self.batch * self.windows * self.groups
        tiles = 2 * rows * padded(depth * self.taps, _TILE_DEPTH) * padded(filters, _TILE_FILTERS)
        return quantities | integer | {
            "last": last, "plain": plain,
            "grouped_products": quantities["grouped"] * (linear - together),
            "group_pieces": rows * self.taps, "flops_tile": tiles * (1 - together),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``QLinearConv``, ONNX's or ONNX Runtime's, or a ``ConvInteger``."""
        function, attributes = _FUNCTION_OF[operator.op], operator.attributes
        shape, last = operator.shape(), bool(attributes.get("channels_last"))
        if last:
            shape = (shape[0], shape[-1], *shape[1:-1])
        return cls(
            **cls._read_conv(operator, 3 if function == "linear" else 1, shape),
            bias=function == "linear" and operator.has_input(8), function=function,
            layout="nhwc" if last else "nchw",
            dtype=dtype_of(operator, INT8_TYPES, function == "integer"),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator with one scale and zero point per tensor."""
        if self.layout not in ("nchw", "nhwc"):
            raise LayerError(f"quantized_conv: no ONNX operator has layout={self.layout}")
        shape, result = self.input_shape, self.output_shape
        attributes: dict[str, Any] = self._onnx_window() | {"group": self.groups}
        own, filters = scale(self.dtype), scale("int8")
        if self.function == "integer":
            image, weights = scale("uint8"), (self._filter_shape, self.dtype)
            typed = constants("uint8", weights, image[1], ((), self.dtype))
            return Kernel(
                "ConvInteger", "", attributes, shape, result, output_dtype="int32", **typed
            )
        last = self.layout == "nhwc"
        if last:
            attributes["channels_last"] = 1
            shape, result = ((s[0], *s[2:], s[1]) for s in (shape, result))
        bias = (((self.channels_out,), "int32"),) * self.bias
        typed = constants(self.dtype, *own, (self._filter_shape, "int8"), *filters, *own, *bias)
        return Kernel("QLinearConv", CONTRIB if last else "", attributes, shape, result, **typed)
