"""What convolutions and poolings of one and three axes share: the window, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import name, number
from resperf.layers._grouped import GroupedLayer
from resperf.layers._operator import FLOATS, Operator
from resperf.layers._sliding import SlidingLayer, read_window

AXES = ("depth", "height", "width")
_WORDS = ("kernel", "stride", "dilation", "pad")


class VolumeLayer(SlidingLayer):
    """A window over a line of `width` values (`rank` 1), an image (2) or a volume (3).

    A line's depth and height are 1, and so is their window.
    """

    AXES: ClassVar[tuple[str, ...]] = AXES
    RANKS: ClassVar[tuple[int, ...]] = (1, 3)
    """Images of floats have layers of their own."""

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "size": AXES,
        **{word: tuple(f"{word}_{axis}" for axis in AXES) for word in _WORDS},
    }

    batch: int = number("samples in one run")
    channels_in: int = number("channels of the input")
    rank: int = number("axes of the input")
    depth: int = number("slices of the input", unit="pixel", default=1)
    height: int = number("rows of the input", unit="pixel", default=1)
    width: int = number("columns of the input", unit="pixel")
    kernel_depth: int = number("slices of the window", unit="pixel", default=1)
    kernel_height: int = number("rows of the window", unit="pixel", default=1)
    kernel_width: int = number("columns of the window", unit="pixel")
    stride_depth: int = number("slices between windows", unit="pixel", default=1)
    stride_height: int = number("rows between windows", unit="pixel", default=1)
    stride_width: int = number("columns between windows", unit="pixel", default=1)
    dilation_depth: int = number("slices between taps", unit="pixel", default=1)
    dilation_height: int = number("rows between taps", unit="pixel", default=1)
    dilation_width: int = number("columns between taps", unit="pixel", default=1)
    pad_depth: int = number("slices added, of both ends", unit="pixel", minimum=0, default=0)
    pad_height: int = number("rows added, of both ends", unit="pixel", minimum=0, default=0)
    pad_width: int = number("columns added, of both ends", unit="pixel", minimum=0, default=0)
    dtype: str = name("type of one value", FLOATS, default="float32")

    def _check(self) -> None:
        if self.rank not in self.RANKS:
            raise LayerError(f"{self.kind}: rank={self.rank} must be one of {self.RANKS}")
        windows = tuple(zip(*(self._along(word) for word in ("", *_WORDS)), strict=True))
        if any(window != (1, 1, 1, 1, 0) for window in windows[: 3 - self.rank]):
            raise LayerError(f"{self.kind}: of rank {self.rank} there are no more axes")
        if any(pad > self._most_pad(kernel, dilation) for _, kernel, _, dilation, pad in windows):
            raise LayerError(f"{self.kind}: padding larger than the window")
        super()._check()

    def _most_pad(self, kernel: int, dilation: int) -> int:
        """Return the most pixels that are added along an axis: whole windows at both ends."""
        return 2 * kernel * dilation

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Let shorthands mean the width alone where the input is a line."""
        flat = {name for axis in AXES[: 3 - int(fields.get("rank", 3))] for name in _names(axis)}
        return {name: value for name, value in fields.items() if name not in flat}

    @classmethod
    def _flattened(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Take depth and height from a draw of a line, and pad no more than the window reaches."""
        made = dict(fields)
        for axis in AXES[: 3 - made["rank"]]:
            made |= dict(zip(_names(axis), (1, 1, 1, 1, 0), strict=True))
        if made["rank"] == 1:
            made["width"] *= 16
        for axis in AXES:
            reach = (made[f"kernel_{axis}"] - 1) * made.get(f"dilation_{axis}", 1)
            made[f"pad_{axis}"] = reach if made.get(f"pad_{axis}") else 0
        return made

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, width) or (batch, channels_in, depth, height, width)."""
        return (self.batch, self.channels_in, *self._along("")[3 - self.rank :])

    @property
    def input_bytes(self) -> int:
        """Bytes of the input; axes that it has not are one long."""
        return math.prod(super().input_shape) * self.element_bytes

    def _pads(self) -> tuple[tuple[int, int], ...]:
        return tuple((pad // 2, pad - pad // 2) for pad in self._along("pad"))

    @property
    def positions(self) -> tuple[int, ...]:
        """Windows along each axis."""
        return self._positions()[3 - self.rank :]

    @property
    def windows(self) -> int:
        """Windows of one channel."""
        return math.prod(self._positions())

    def _onnx_window(self) -> dict[str, list[int]]:
        """Return the window as an ONNX operator of so many axes names it."""
        attributes = {
            name: each[3 - self.rank :] for name, each in self._window_attributes().items()
        }
        before, behind = zip(*self._pads()[3 - self.rank :], strict=True)
        return attributes | {"pads": [*before, *behind]}

    @classmethod
    def _read_volume(
        cls, operator: Operator, kernel: Sequence[int], shape: tuple[int, ...]
    ) -> dict[str, int]:
        """Read strides, dilations and pads over an input of shape (batch, channels, ...).

        Raises
        ------
        LayerError
            If it has another number of axes, or cuts off what it reads.
        """
        rank = len(shape) - 2
        if rank not in cls.RANKS or len(kernel) != rank:
            raise LayerError(f"a window over shape {shape} has no layer")
        batch, channels, *sizes = shape
        fields = {"batch": batch, "channels_in": channels, "rank": rank}
        windows = read_window(operator, sizes, kernel)
        for axis, size, window in zip(cls.AXES[3 - rank :], sizes, windows, strict=True):
            ends = window.before + window.behind
            fields |= dict(zip(_names(axis), (int(size), *window[:3], ends), strict=True))
        return fields


class VolumeConv(GroupedLayer, VolumeLayer):
    """A convolution among them; the fields are its kind's own."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_out, windows along each axis)."""
        return (self.batch, self.channels_out, *self.positions)

    @property
    def _values(self) -> int:
        """Values of the output."""
        return self.batch * self.channels_out * self.windows

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self._values * self.element_bytes

    @property
    def filters(self) -> int:
        """Weights without the bias."""
        return self.channels_out * (self.channels_in // self.groups) * self.taps

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self._values * (self.channels_in // self.groups) * self.taps


class VolumePool(VolumeLayer):
    """A pooling among them; the fields are its kind's own."""

    mode: str

    def _most_pad(self, kernel: int, dilation: int) -> int:
        """Return the most pixels added: no window may lie in the padding alone."""
        return super()._most_pad(kernel, dilation) - 1

    def _refuse_ceiling(self, attributes: Mapping[str, Any], windows: Sequence[int]) -> None:
        """Refuse partly empty windows, where rounding up makes any.

        Parameters
        ----------
        attributes : mapping
        windows : sequence of int
            As many as the operator gives along each axis.

        Raises
        ------
        LayerError
            If there are more than this layer has.
        """
        if attributes.get("ceil_mode") and tuple(windows) != self.positions:
            raise LayerError("a pooling with partly empty windows has no layer of this kind")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Give a global pooling a window of the whole, and lines no depth and height."""
        del source
        made = cls._flattened(fields)
        if _is_global(made["mode"]):
            for axis in AXES:
                made |= {f"kernel_{axis}": made[axis], f"stride_{axis}": 1, f"pad_{axis}": 0}
        return made

    def varied(self, **changes: Any) -> Self:
        """Change some fields; the window of a global pooling stays the whole input."""
        if _is_global(self.mode):
            changes |= {f"kernel_{axis}": changes[axis] for axis in AXES if axis in changes}
        return self.replace(**changes)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, windows along each axis)."""
        return (self.batch, self.channels_in, *self.positions)

    @property
    def _values(self) -> int:
        """Values of the output."""
        return self.batch * self.channels_in * self.windows

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self._values * self.element_bytes

    @property
    def macs(self) -> int:
        """Comparisons or additions."""
        return self._values * self.taps


def _is_global(mode: str) -> bool:
    return mode.startswith("global")


def _names(axis: str) -> tuple[str, ...]:
    return (axis, *(f"{word}_{axis}" for word in _WORDS))
