"""Windows over one to three axes: geometry that convolutions and poolings share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AXES, flag, name, number, pixels
from resperf.layers._operator import FLOATS, Operator
from resperf.layers._sliding import GroupedLayer, SlidingLayer, read_window, with_groups
from resperf.layers.columns import either, is_in

_WORDS = ("kernel", "stride", "dilation", "pad")


class VolumeLayer(SlidingLayer):
    """A window over a signal of `width` values (`rank` 1), an image (2) or a volume (3).

    For a signal, depth and height are 1, as are the window's.
    """

    AXES = AXES
    RANKS: ClassVar[tuple[int, ...]] = (1, 3)
    """Supported ranks; float images are layers of other kinds."""

    rank: int = number("axes of the input")
    depth: int = pixels("slices of the input", default=1)
    height: int = pixels("rows of the input", default=1)
    width: int = pixels("columns of the input")
    kernel_depth: int = pixels("slices of the window", default=1)
    kernel_height: int = pixels("rows of the window", default=1)
    kernel_width: int = pixels("columns of the window")
    stride_depth: int = pixels("slices between windows", default=1)
    stride_height: int = pixels("rows between windows", default=1)
    stride_width: int = pixels("columns between windows", default=1)
    dilation_depth: int = pixels("slices between taps", default=1)
    dilation_height: int = pixels("rows between taps", default=1)
    dilation_width: int = pixels("columns between taps", default=1)
    pad_depth: int = pixels("padding slices, both ends together", minimum=0, default=0)
    pad_height: int = pixels("padding rows, both ends together", minimum=0, default=0)
    pad_width: int = pixels("padding columns, both ends together", minimum=0, default=0)
    dtype: str = name("type of one value", FLOATS, default="float32")

    def _check(self) -> None:
        if self.rank not in self.RANKS:
            raise LayerError(f"{self.kind}: rank={self.rank} must be one of {self.RANKS}")
        windows = tuple(zip(*(self._along(word) for word in ("", *_WORDS)), strict=True))
        if any(window != (1, 1, 1, 1, 0) for window in windows[: 3 - self.rank]):
            raise LayerError(f"{self.kind}: a window of rank {self.rank} has no further axes")
        if any(pad > self._max_pad(kernel, dilation) for _, kernel, _, dilation, pad in windows):
            raise LayerError(f"{self.kind}: the padding is larger than the window")
        super()._check()

    def _max_pad(self, kernel: int, dilation: int) -> int:
        """Return the largest padding of an axis: one full window at each end."""
        return 2 * kernel * dilation

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Apply shorthands to the width only if the input is a signal."""
        flat = {name for axis in AXES[: 3 - int(fields.get("rank", 3))] for name in _names(axis)}
        return {name: value for name, value in fields.items() if name not in flat}

    @classmethod
    def _flattened(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the depth and height of a drawn signal; limit padding to the window's reach."""
        draw = dict(fields)
        for axis in AXES[: 3 - draw["rank"]]:
            draw |= dict(zip(_names(axis), (1, 1, 1, 1, 0), strict=True))
        if draw["rank"] == 1:
            draw["width"] *= 16
        for axis in AXES:
            reach = (draw[f"kernel_{axis}"] - 1) * draw.get(f"dilation_{axis}", 1)
            draw[f"pad_{axis}"] = reach if draw.get(f"pad_{axis}") else 0
        return draw

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, width) or (batch, channels_in, depth, height, width)."""
        return (self.batch, self.channels_in, *self._along("")[3 - self.rank :])

    @property
    def input_bytes(self) -> int:
        """Bytes of the input; absent axes have length 1."""
        return math.prod(super().input_shape) * self.element_bytes

    def _pads(self) -> tuple[tuple[int, int], ...]:
        return tuple((pad // 2, pad - pad // 2) for pad in self._along("pad"))

    @property
    def _window_shape(self) -> tuple[int, ...]:
        return super()._window_shape[3 - self.rank :]

    @property
    def positions(self) -> tuple[int, ...]:
        """Windows along each axis."""
        return self._positions()[3 - self.rank :]

    @property
    def windows(self) -> int:
        """Windows of one channel."""
        return math.prod(self._positions())

    @property
    def _filters(self) -> int:
        """Channels of the output."""
        filters: int = getattr(self, "channels_out", self.channels_in)
        return filters

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels, windows along each axis)."""
        return (self.batch, self._filters, *self.positions)

    @property
    def value_count(self) -> int:
        """Values of the output."""
        return self.batch * self._filters * self.windows

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.value_count * self.element_bytes

    def _onnx_window(self) -> dict[str, list[int]]:
        """Return the window as attributes of an ONNX operator of this rank."""
        attributes = {
            name: values[3 - self.rank :] for name, values in self._window_attributes().items()
        }
        before, after = zip(*self._pads()[3 - self.rank :], strict=True)
        return attributes | {"pads": [*before, *after]}

    @classmethod
    def _read_volume(
        cls, operator: Operator, kernel: Sequence[int], shape: tuple[int, ...]
    ) -> dict[str, int]:
        """Read strides, dilations and pads over an input of shape (batch, channels, ...).

        Raises
        ------
        LayerError
            If it has another number of axes, or negative padding.
        """
        rank = len(shape) - 2
        if rank not in cls.RANKS or len(kernel) != rank:
            raise LayerError(f"a window over shape {shape} has no layer")
        batch, channels, *sizes = shape
        fields = {"batch": batch, "channels_in": channels, "rank": rank}
        windows = read_window(operator, sizes, kernel)
        for axis, size, window in zip(cls.AXES[3 - rank :], sizes, windows, strict=True):
            ends = window.before + window.after
            fields |= dict(zip(_names(axis), (int(size), *window[:3], ends), strict=True))
        return fields


class VolumeConv(GroupedLayer, VolumeLayer):
    """A convolution over one to three axes."""

    channels_out: int = number("filters")
    groups: int = number("groups of channels that are convolved separately", default=1)
    bias: bool = flag("whether a bias is added", default=True)

    SCALED = ("channels_in", "channels_out", "width")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Make channels multiples of the groups; drop depth and height of signals."""
        return with_groups(cls._flattened(fields))

    @classmethod
    def _read_conv(cls, operator: Operator, filters: int, shape: tuple[int, ...]) -> dict[str, int]:
        """Read window, filters and groups; `filters` is the place of the filters' input."""
        weight, attributes = operator.operand(filters).shape, operator.attributes
        window = cls._read_volume(operator, attributes.get("kernel_shape") or weight[2:], shape)
        return window | {"channels_out": weight[0], "groups": int(attributes.get("group", 1))}

    def own_quantities(self) -> dict[str, Any]:
        """Windows and groups; ``columns_bytes`` is the im2col buffer."""
        pointwise = self.taps == 1
        columns = self.batch * self.channels_in * self.windows * self.taps * self.element_bytes
        return {
            "taps": self.taps, "windows": self.windows, "grouped": self.groups > 1,
            "depthwise": (self.groups > 1) & (self.groups == self.channels_in),
            "pointwise": pointwise, "products": self.batch * self.groups,
            "columns_bytes": either(pointwise, 0, columns),
        }  # fmt: skip


class VolumePool(VolumeLayer):
    """A pooling over one to three axes; each kind declares its own fields."""

    FLOPS_PER_MAC = 1

    mode: str

    def _max_pad(self, kernel: int, dilation: int) -> int:
        """Return the largest padding: every window must overlap the input."""
        return super()._max_pad(kernel, dilation) - 1

    def _check(self) -> None:
        whole = self._along("") == self._along("kernel") and math.prod(self.positions) == 1
        if _is_global(self.mode) and not whole:
            raise LayerError(f"{self.kind}: the window of {self.mode} must be the whole input")
        super()._check()

    @classmethod
    def _read_pool(
        cls,
        operator: Operator,
        mode: str,
        shape: tuple[int, ...],
        windows: Sequence[int],
        **others: str,
    ) -> Self:
        """Read a pooling of this mode; `windows` is their number along each axis.

        What the last window of ``ceil_mode`` reaches beyond the input is read as padding.

        Raises
        ------
        LayerError
            If such a window counts padding: ONNX Runtime has another kernel for it.
        """
        attributes = operator.attributes
        kernel = shape[2:] if _is_global(mode) else attributes["kernel_shape"]
        window = cls._read_volume(operator, kernel, shape)
        layer = cls.from_fields({**window, "mode": mode, **others})
        if not attributes.get("ceil_mode") or tuple(windows) == layer.positions:
            return layer
        if attributes.get("count_include_pad"):
            raise LayerError("a pooling with partly empty windows is not supported by this kind")
        fields = layer.fields()
        for axis, count in zip(AXES[3 - layer.rank :], windows, strict=True):
            size, kernel, stride, dilation = (int(fields[name]) for name in _names(axis)[:4])
            reach = (count - 1) * stride + (kernel - 1) * dilation + 1
            fields[f"pad_{axis}"] = max(int(fields[f"pad_{axis}"]), reach - size)
        return cls.from_fields(fields)

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Give a global pooling a window over the whole input; drop depth and height of signals."""
        draw = cls._flattened(fields)
        if _is_global(draw["mode"]):
            for axis in AXES:
                draw |= {f"kernel_{axis}": draw[axis], f"stride_{axis}": 1, f"pad_{axis}": 0}
        return draw

    def varied(self, **changes: Any) -> Self:
        """Change some fields; the window of a global pooling still covers the whole input."""
        if _is_global(self.mode):
            changes |= {f"kernel_{axis}": changes[axis] for axis in AXES if axis in changes}
        return self.replace(**changes)

    def own_quantities(self) -> dict[str, Any]:
        """Windows, their sizes and what is done with them."""
        planes = self.batch * self.channels_in
        return {
            "planes": planes, "taps": self.taps, "windows": self.windows,
            "window_count": planes * self.windows,
            "whole": is_in(self.mode, ("global_max", "global_average", "global_lp")),
            "mean": is_in(self.mode, ("average", "global_average")),
        }  # fmt: skip


def _is_global(mode: str) -> bool:
    return mode.startswith("global")


def _names(axis: str) -> tuple[str, ...]:
    return (axis, *(f"{word}_{axis}" for word in _WORDS))
