"""Sliding windows: geometry that convolutions, poolings and their transposes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, number
from resperf.layers._operator import Operator

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class SlidingLayer(Layer):
    """A layer with a window over `AXES`; each kind declares its own fields."""

    AXES: ClassVar[tuple[str, ...]]

    batch: int = number("images or samples in one run")
    channels_in: int = number("channels of the input")

    def _along(self, word: str) -> tuple[int, ...]:
        """Return sizes (``""``), kernels, strides or dilations along the axes."""
        return tuple(getattr(self, f"{word}_{axis}" if word else axis) for axis in self.AXES)

    @property
    def _window_shape(self) -> tuple[int, ...]:
        """Window along each axis of the input."""
        return self._along("kernel")

    @property
    def taps(self) -> int:
        """Values in a window of one channel."""
        return math.prod(self._along("kernel"))

    @property
    def macs(self) -> int:
        """Comparisons or additions of a pooling: one per output value and value of its window."""
        return self.value_count * self.taps

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, the axes)."""
        return (self.batch, self.channels_in, *self._along(""))

    def _pads(self) -> tuple[tuple[int, int], ...]:
        """Return the padding (before, after) of each axis."""
        raise NotImplementedError

    def _positions(self, ceil: bool = False) -> tuple[int, ...]:
        """Windows along each axis.

        Parameters
        ----------
        ceil : bool
            Count a last window that only partly overlaps the input (ONNX ``ceil_mode``).
        """
        return self._once("positions", lambda: self._count_positions(ceil))

    def _count_positions(self, ceil: bool) -> tuple[int, ...]:
        words = [self._along(word) for word in ("", "kernel", "stride", "dilation")]
        before, after = zip(*self._pads(), strict=True)
        windows = zip(*words, before, after, strict=True)
        return tuple([window_length(window, ceil=ceil) for window in windows])

    def _window_attributes(self) -> dict[str, list[int]]:
        """Return the window as attributes of an ONNX operator."""
        before, after = zip(*self._pads(), strict=True)
        return {
            "kernel_shape": list(self._along("kernel")),
            "strides": list(self._along("stride")),
            "dilations": list(self._along("dilation")),
            "pads": [*before, *after],
        }


def window_length(window: Iterable[int], *, ceil: bool = False) -> int:
    """Count the positions of a sliding window along one axis; an array for many layers.

    Parameters
    ----------
    window : six ints
        Size, kernel, stride and dilation along this axis, and the padding before and after it.
    ceil : bool
        Count a last window that only partly overlaps the input (ONNX ``ceil_mode``).
    """
    size, kernel, stride, dilation, before, after = window
    span = size + before + after - dilation * (kernel - 1) - 1
    count = span // stride + 1
    if ceil is not False:
        count = count + ceil * (span % stride > 0)
        # ONNX drops a last window that would start in the padding after the input.
        count = count - ceil * ((count - 1) * stride >= size + before)
    return (span >= 0) * count


def same_pads(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the pads (before, after) of SAME padding: output = ceil(size / stride).

    If the total is odd, the extra pixel goes to the end.
    """
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


class AxisWindow(NamedTuple):
    """An operator's window along one axis."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int


def read_window(
    operator: Operator, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[AxisWindow, ...]:
    """Read the window of an operator along axes of these sizes, with ``auto_pad`` resolved.

    Raises
    ------
    LayerError
        If the window has another number of axes, or negative padding.
    """
    attributes, rank = operator.attributes, len(sizes)
    strides = attributes.get("strides") or (1,) * rank
    dilations = attributes.get("dilations") or (1,) * rank
    auto_pad = str(attributes.get("auto_pad", "NOTSET")) or "NOTSET"
    if auto_pad not in _AUTO_PADS:
        raise LayerError(f"auto_pad={auto_pad!r} is not known")
    given = tuple(attributes.get("pads") or (0,) * 2 * rank)
    pads = given if auto_pad == "NOTSET" else (0,) * 2 * rank
    if not len(kernel) == len(strides) == len(dilations) == len(pads) / 2 == rank:
        raise LayerError(
            f"kernel {tuple(kernel)}, strides {tuple(strides)}, dilations {tuple(dilations)} and "
            f"pads {pads} are not those of a {rank}-D window"
        )
    if min(given) < 0:
        raise LayerError(f"pads={given} are negative (cropping), which no layer supports")
    windows = []
    for axis, size in enumerate(sizes):
        length, stride, dilation = (int(values[axis]) for values in (kernel, strides, dilations))
        ends = int(pads[axis]), int(pads[rank + axis])
        if auto_pad.startswith("SAME"):
            # SAME_LOWER puts the extra pixel of an odd total before the image, not after it.
            order = 1 if auto_pad == "SAME_UPPER" else -1
            first, second = same_pads(int(size), length, stride, dilation)[::order]
            ends = first, second
        windows.append(AxisWindow(length, stride, dilation, *ends))
    return tuple(windows)


_SIDES = ("channels_in", "channels_out")


class GroupedLayer(SlidingLayer):
    """Base class of such kinds, which declare the fields themselves."""

    channels_out: int
    groups: int
    bias: bool

    SCALED: ClassVar[tuple[str, ...]] = _SIDES

    @property
    def filters(self) -> int:
        """Number of weights, without the bias."""
        return self.channels_out * (self.channels_in // self.groups) * self.taps

    @property
    def macs(self) -> int:
        """Multiply-accumulates: one per output value and weight of its filter."""
        return self.value_count * (self.channels_in // self.groups) * self.taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of the filters and the bias."""
        return (self.filters + self.bias * self.channels_out) * self.element_bytes

    @property
    def _filter_shape(self) -> tuple[int, ...]:
        """Output channels, input channels of a group, and the window."""
        return (self.channels_out, self.channels_in // self.groups, *self._window_shape)

    def _check(self) -> None:
        for side in _SIDES:
            if (channels := getattr(self, side)) % self.groups:
                raise LayerError(
                    f"{self.kind}: {side}={channels} is not a multiple of groups={self.groups}"
                )
        super()._check()

    def varied(self, **changes: Any) -> Self:
        """Change some fields; depthwise layers stay depthwise, others retain their groups."""
        groups = self.groups
        if 1 < groups == self.channels_in:
            width = changes.get("channels_in", groups)
            more = {"groups": width, "channels_out": width * (self.channels_out // groups)}
            changes |= {"channels_in": width, **more}
        else:
            changes |= _multiples(changes, groups)
        return super().varied(**changes)


def with_groups(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make the channels of a draw multiples of its groups.

    ``groups="depthwise"`` stands for as many groups and channels out as channels in.
    """
    groups, width = fields.get("groups", 1), fields["channels_in"]
    if groups == "depthwise":
        return {**fields, "groups": width, "channels_out": width}
    return {**fields, **_multiples(fields, groups)}


def _multiples(fields: Mapping[str, Any], groups: int) -> dict[str, int]:
    """Round the numbers of channels among these fields."""
    return {
        side: max(1, round(fields[side] / groups)) * groups for side in _SIDES if side in fields
    }
