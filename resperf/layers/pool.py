"""2-D pooling."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, flag, log_uniform, name
from resperf.layers._operator import INT8_TYPES, Kernel, Operator
from resperf.layers._sliding import WindowLayer
from resperf.layers.columns import block_of, evenness, is_blocked, padded

_OPS: Mapping[tuple[str, bool], str] = {
    ("max", False): "MaxPool", ("average", False): "AveragePool",
    ("max", True): "GlobalMaxPool", ("average", True): "GlobalAveragePool",
}  # fmt: skip
_MODE_OF: Mapping[str, tuple[str, bool]] = {op: mode for mode, op in _OPS.items()}


class Pool(WindowLayer):
    """A 2-D pooling (ResPerfNet Table 3, scenario P; average and global pooling added)."""

    mode: str = name("pooling function", ("max", "average"), default="max")
    whole_image: bool = flag("whether it is a global pooling", default=False)
    count_include_pad: bool = flag("whether the mean counts padding", default=False)
    ceil_mode: bool = flag("whether a last, partly empty window counts", default=False)

    PLAIN = (
        "kernel_height", "kernel_width", "stride_height", "stride_width", "dilated", "pad_height",
        "pad_width", "padded", "pad_odd", "pad_uneven", "edge_share", "real", "ceil", "counts_pad",
        "whole_image", "maximum", "aligned", "channel_evenness", "channel_waste", "column_waste",
        "strided", "covered",
    )  # fmt: skip
    LOG2 = (
        "batch", "channels_in", "height", "width", "rows_out", "columns_out", "pixels_out", "taps",
        "in_bytes", "out_bytes", "moved_bytes", "read_bytes", "flops", "flops_real", "planes",
        "row_count", "intensity", "out_over_in",
    )  # fmt: skip
    ENCODED = ("layout",)
    FUNCTION = ""
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels_in": log_uniform(1, 1024, 1, 8, 16),
        "size": {**log_uniform(4, 128), "same_share": 0.9},
        "kernel": {**choices([1, 2, 3, 5], [1, 5, 6, 1]), "same_share": 0.95},
        "stride": {**choices([1, 2], [1, 4]), "same_share": 0.95},
        "padding": choices(["valid", "symmetric", "same"], [3, 2, 1]),
        "mode": choices(["max", "average"], [3, 2]),
        "whole_image": choices([False, True], [5, 1]),
        "ceil_mode": choices([False, True], [4, 1]),
        "count_include_pad": choices([False, True], [2, 1]),
    }
    SCALED = ("channels_in",)
    REDRAWN = ("mode", "kernel", "stride")
    FLOPS_PER_MAC = 1
    OPERATORS = frozenset(_MODE_OF)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, rows, columns)."""
        return (self.batch, self.channels_in, *self._positions(self.ceil_mode))

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Give a global pooling a window over the image; replace a named padding by pads."""
        draw = dict(fields)
        if draw.get("whole_image"):
            draw.pop("padding", None)
            draw |= {f"kernel_{axis}": draw[axis] for axis in cls.AXES}
            draw |= {f"{word}_{axis}": 1 for word in ("stride", "dilation") for axis in cls.AXES}
            return draw | {"ceil_mode": False, "count_include_pad": False}
        draw = cls._padded(draw, source)
        if draw.get("mode", "max") == "max":
            draw["count_include_pad"] = False
        return draw

    def own_quantities(self) -> dict[str, Any]:
        """Windows and layout; ``read_bytes`` are the input bytes that some window covers."""
        import numpy as np

        q = super().own_quantities()
        channels, layouts = self.channels_in, np.asarray(self.layout)
        planes = self.batch * channels
        block, blocked = block_of(layouts), is_blocked(layouts)
        waste = np.where(blocked == 1, padded(channels, block) / channels, 1.0)
        return q | {
            "read_bytes": self.input_bytes * q["covered"],
            "flops_real": self.flops * q["real"] * waste, "maximum": self.mode == "max",
            "plain": 1 - blocked, "planes": planes,
            "row_count": planes * waste * q["rows_out"] / np.where(blocked == 1, block, 1),
            "ceil": self.ceil_mode, "counts_pad": self.count_include_pad,
            "intensity": self.flops / self.moved_bytes,
            "out_over_in": self.output_bytes / self.input_bytes,
            "aligned": channels % 16 == 0, "channel_evenness": evenness(np.asarray(channels)),
            "channel_waste": waste, "column_waste": padded(q["columns_out"], 6) / q["columns_out"],
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read a 2-D pooling; a global one gets a window over the whole image.

        A 1-D or 3-D pooling, or one that also returns indices, is read as `PoolNd`, one of int8
        as `QuantizedPool`.
        """
        if operator.operand(0).dtype in INT8_TYPES and operator.op == _OPS["max", False]:
            from resperf.layers.quantized_pool import QuantizedPool

            return QuantizedPool.read(operator)
        if len(operator.outputs) > 1 or len(operator.operand(0).shape) in (3, 5):
            from resperf.layers.pool_nd import PoolNd

            return PoolNd.read(operator)
        (mode, whole_image), attributes = _MODE_OF[operator.op], operator.attributes
        kernel = None if whole_image else tuple(attributes.get("kernel_shape", ()))
        return cls(
            **cls._read_image(operator, kernel), mode=mode, whole_image=whole_image,
            count_include_pad=mode == "average" and bool(attributes.get("count_include_pad", 0)),
            ceil_mode=not whole_image and bool(attributes.get("ceil_mode", 0)),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the pooling operator."""
        attributes: dict[str, Any] = {}
        if not self.whole_image:
            attributes = self._window_attributes() | {"ceil_mode": int(self.ceil_mode)}
            if self.mode == "average":
                attributes["count_include_pad"] = int(self.count_include_pad)
                if max(attributes.pop("dilations")) > 1:
                    raise LayerError("pool: average pooling has no dilation before opset 19")
        return self._node(_OPS[self.mode, self.whole_image], attributes)

    @property
    def is_runnable(self) -> bool:
        """Whether every window overlaps the image: ONNX requires pads smaller than the kernel."""
        kernels = self._along("kernel")
        return all(max(pads) < kernel for pads, kernel in zip(self._pads(), kernels, strict=True))
