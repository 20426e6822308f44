"""Int8 pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.layers._base import choices, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator, dtype_of
from resperf.layers._volume import VolumePool
from resperf.layers.columns import is_in
from resperf.layers.quantize import constants, scale

_OPS: Mapping[str, str] = {
    "max": "NhwcMaxPool", "average": "QLinearAveragePool",
    "global_average": "QLinearGlobalAveragePool",
}  # fmt: skip
_MODE_OF: Mapping[str, str] = {op: mode for mode, op in _OPS.items()}
_PLAIN_MAX = "MaxPool"
"""The operator of a max pooling with channels first, which the kind `pool` reads in floats."""


class QuantizedPool(VolumePool):
    """Max or average pooling of a quantised image."""

    RANKS = (2,)

    mode: str = name("pooling function", tuple(_OPS), default="max")
    layout: str = name("memory layout of the image", ("nchw", "nhwc"), default="nhwc")
    dtype: str = name("type of one value", INT8_TYPES, default="uint8")

    PLAIN = ("threaded", "vector_rest", "last")
    LOG2 = ("batch", "channels_in", "taps", "windows", "flops", "in_bytes", "out_bytes")
    ENCODED = ("mode",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "rank": 2,
        "channels_in": log_uniform(2, 1024, 1, 8, 16),
        "size": {**log_uniform(4, 128), "same_share": 0.9},
        "kernel": {**choices([2, 3, 5], [6, 5, 1]), "same_share": 0.95},
        "stride": {**choices([1, 2], [1, 4]), "same_share": 0.95},
        "pad": {**choices([0, 1], [2, 1]), "same_share": 1.0},
        "mode": choices(tuple(_OPS), [4, 2, 4]),
        "layout": choices(["nhwc", "nchw"], [4, 1]),
        "dtype": choices(INT8_TYPES, [3, 1]),
    }
    SCALED = ("channels_in",)
    OPERATORS = frozenset(_MODE_OF)

    def own_quantities(self) -> dict[str, Any]:
        """Windows, their sizes and the layout."""
        last = is_in(self.layout, ("nhwc",))
        return super().own_quantities() | {"last": last, "plain": 1 - last}

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantised pooling of ONNX Runtime, or a ``MaxPool``."""
        mode = _MODE_OF.get(operator.op, "max")
        shape, windows = operator.shape(), operator.result()[2:]
        last = operator.op == _OPS["max"] or bool(operator.attributes.get("channels_last"))
        if last:
            shape, windows = (shape[0], shape[-1], *shape[1:-1]), operator.result()[1:-1]
        layout, dtype = "nhwc" if last else "nchw", dtype_of(operator, INT8_TYPES)
        return cls._read_pool(operator, mode, shape, windows, layout=layout, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator with scales and zero points of input and output."""
        shape, result = self.input_shape, self.output_shape
        if self.layout == "nhwc":
            shape, result = ((s[0], *s[2:], s[1]) for s in (shape, result))
        attributes: dict[str, Any] = {}
        if self.mode != "global_average":
            attributes |= self._onnx_window()
        if self.mode == "max":
            op, domain = (_OPS["max"], CONTRIB) if self.layout == "nhwc" else (_PLAIN_MAX, "")
            return Kernel(op, domain, attributes, shape, result, dtype=self.dtype)
        attributes.pop("dilations", None)
        attributes["channels_last"] = int(self.layout == "nhwc")
        typed = constants(self.dtype, *scale(self.dtype), *scale(self.dtype))
        return Kernel(_OPS[self.mode], CONTRIB, attributes, shape, result, **typed)
