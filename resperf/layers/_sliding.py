"""Sliding windows: geometry that convolutions, poolings and their transposes share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, name, number, pixels
from resperf.layers._operator import FLOATS, Operator
from resperf.layers.columns import LAYOUTS, Array

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
        counts = []
        for size, kernel, stride, dilation, start, end in zip(*words, before, after, strict=True):
            span = size + start + end - dilation * (kernel - 1) - 1
            count = span // stride + 1
            if ceil is not False:
                count = count + ceil * (span % stride > 0)
                # ONNX drops a last window that would start in the padding after the input.
                count = count - ceil * ((count - 1) * stride >= size + start)
            counts.append((span >= 0) * count)
        return tuple(counts)

    def _window_attributes(self) -> dict[str, list[int]]:
        """Return the window as attributes of an ONNX operator."""
        before, after = zip(*self._pads(), strict=True)
        return {
            "kernel_shape": list(self._along("kernel")),
            "strides": list(self._along("stride")),
            "dilations": list(self._along("dilation")),
            "pads": [*before, *after],
        }


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


_CHANNELS = ("channels_in", "channels_out")


class GroupedLayer(SlidingLayer):
    """Base class of such kinds, which declare the fields themselves."""

    channels_out: int
    groups: int
    bias: bool

    SCALED: ClassVar[tuple[str, ...]] = _CHANNELS

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
        for side in _CHANNELS:
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
        side: max(1, round(fields[side] / groups)) * groups for side in _CHANNELS if side in fields
    }


MAX_TAPS = 4096
"""Taps of a window that `real_share` visits one by one along an axis."""
_PADS = {"height": ("pad_top", "pad_bottom"), "width": ("pad_left", "pad_right")}
"""Axis -> fields of the padding before and after it."""


class WindowLayer(SlidingLayer):
    """A layer whose window slides over an image of `height` x `width` pixels."""

    AXES = ("height", "width")
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pad": ("pad_top", "pad_left", "pad_bottom", "pad_right")
    }
    INDEPENDENT_FIELDS = True
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "padding": ("same", "symmetric", "valid", "explicit")
    }

    height: int = pixels("rows of the input")
    width: int = pixels("columns of the input")
    kernel_height: int = pixels("rows of the window")
    kernel_width: int = pixels("columns of the window")
    stride_height: int = pixels("rows between windows", default=1)
    stride_width: int = pixels("columns between windows", default=1)
    dilation_height: int = pixels("rows between taps of a window", default=1)
    dilation_width: int = pixels("columns between taps of a window", default=1)
    pad_top: int = pixels("padding rows at the top", minimum=0, default=0)
    pad_left: int = pixels("padding columns on the left", minimum=0, default=0)
    pad_bottom: int = pixels("padding rows at the bottom", minimum=0, default=0)
    pad_right: int = pixels("padding columns on the right", minimum=0, default=0)
    layout: str = name("memory layout of the image", LAYOUTS, default="nchw")
    dtype: str = name("type of one value", FLOATS, default="float32")

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Turn ``padding=same|valid`` into explicit pads."""
        padding = str(fields.pop("padding", "valid")).lower()
        if padding not in ("same", "valid"):
            raise LayerError(f"{cls.kind}: padding={padding!r} must be same or valid")
        if padding == "same":
            fields |= cls.same_padding(fields)
        return fields

    @classmethod
    def same_padding(cls, fields: Mapping[str, Any]) -> dict[str, int]:
        """Return the four pads of SAME padding for these fields."""
        pads = {}
        for axis, (before, after) in _PADS.items():
            try:
                size, kernel = int(fields[axis]), int(fields[f"kernel_{axis}"])
            except KeyError as error:
                raise LayerError(f"{cls.kind} needs a value for {error.args[0]}") from error
            step, gap = (int(fields.get(f"{word}_{axis}", 1)) for word in ("stride", "dilation"))
            pads[before], pads[after] = same_pads(size, kernel, step, gap)
        return pads

    def _pads(self) -> tuple[tuple[int, int], ...]:
        return ((self.pad_top, self.pad_bottom), (self.pad_left, self.pad_right))

    @classmethod
    def _read_image(cls, operator: Operator, kernel: tuple[int, ...] | None) -> dict[str, Any]:
        """Read image, layout, type and window; without a `kernel` the window is the whole image.

        Raises
        ------
        LayerError
            If the input is no image, or the window is not 2-D.
        """
        image = operator.operand(0)
        if len(image.shape) != 4:
            raise LayerError(f"an input of shape {image.shape} is not a 2-D image")
        batch, channels, *sizes = image.shape
        fields: dict[str, Any] = {
            "batch": batch, "channels_in": channels, "layout": operator.layout,
            "dtype": image.dtype, **dict(zip(cls.AXES, sizes, strict=True)),
        }  # fmt: skip
        if kernel is None:
            return fields | {f"kernel_{axis}": fields[axis] for axis in cls.AXES}
        for axis, window in zip(cls.AXES, read_window(operator, sizes, kernel), strict=True):
            words = (f"kernel_{axis}", f"stride_{axis}", f"dilation_{axis}", *_PADS[axis])
            fields |= dict(zip(words, window, strict=True))
        return fields

    @classmethod
    def _padded(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Replace the named padding of a draw by pads.

        ``symmetric`` is half the window on every side, as in PyTorch; ``explicit`` draws every side
        independently.
        """
        draw = dict(fields)
        if "padding" not in draw:
            return draw
        padding = str(draw.pop("padding"))
        if padding == "same":
            return draw | cls.same_padding(draw)
        for axis, pads in _PADS.items():
            reach = (int(draw[f"kernel_{axis}"]) - 1) * int(draw.get(f"dilation_{axis}", 1))
            for pad in pads:
                drawn = int(source.random() * (reach + 1)) if padding == "explicit" else 0
                draw[pad] = reach // 2 if padding == "symmetric" else drawn
        return draw

    def varied(self, **changes: Any) -> Self:
        """Change size, kernel or stride and keep the style of padding.

        SAME padding stays SAME, half the window stays half the window, and other pads are limited
        to the window's reach.
        """
        old = self.fields()
        fields: dict[str, Any] = {**old, **changes}
        if fields.get("whole_image"):
            fields |= {f"kernel_{axis}": fields[axis] for axis in self.AXES}
        same = self.same_padding(old)
        for axis, pads in _PADS.items():
            reach = (fields[f"kernel_{axis}"] - 1) * fields[f"dilation_{axis}"]
            half = (int(old[f"kernel_{axis}"]) - 1) * int(old[f"dilation_{axis}"]) // 2
            for pad in pads:
                fields[pad] = reach // 2 if old[pad] == half else min(int(old[pad]), reach)
            if any(old[pad] != half for pad in pads) and all(old[p] == same[p] for p in pads):
                new = self.same_padding(fields)
                fields |= {pad: new[pad] for pad in pads}
        return type(self)(**fields)

    def as_drawn(self) -> Self:
        """Return the layer at batch 1, in NCHW.

        Rows of other kinds may be tokens or windows, of which one image has many.
        """
        return self.replace(layout="nchw", batch=1)

    def own_quantities(self) -> dict[str, Any]:
        """Output size, padding and edges of the windows, in pixels.

        ``edge_share`` is the share of output pixels whose window touches padding; blocked kernels
        compute these one at a time.
        """
        import numpy as np

        (h, w), (kh, kw), (sh, sw), (dh, dw) = (
            self._along(word) for word in ("", "kernel", "stride", "dilation")
        )
        (top, bottom), (left, right) = self._pads()
        rows, cols = self.output_shape[2:]
        edge_rows = np.minimum(np.ceil(top / sh) + np.ceil(bottom / sh), rows)
        edge_cols = np.minimum(np.ceil(left / sw) + np.ceil(right / sw), cols)
        pad_height, pad_width = top + bottom, left + right
        real = np.ones(np.shape(h))
        # Taps miss the image only with padding or an overhanging last window: most rows need no
        # count.
        hang_down = rows > (h + pad_height - dh * (kh - 1) - 1) / sh + 1
        hang_right = cols > (w + pad_width - dw * (kw - 1) - 1) / sw + 1
        some = np.flatnonzero((pad_height + pad_width > 0) | hang_down | hang_right)
        if len(some):
            vertical = (np.asarray(values)[some] for values in (h, rows, kh, sh, dh, top))
            horizontal = (np.asarray(values)[some] for values in (w, cols, kw, sw, dw, left))
            real[some] = real_share(*vertical) * real_share(*horizontal)
        return {
            "rows_out": rows, "columns_out": cols, "pixels_out": rows * cols,
            "taps": self.taps, "strided": sh * sw > 1, "dilated": dh * dw > 1, "real": real,
            "pad_height": pad_height, "pad_width": pad_width, "padded": pad_height + pad_width > 0,
            "pad_odd": (pad_height % 2 == 1) | (pad_width % 2 == 1),
            "pad_uneven": (top != bottom) | (left != right),
            "edge_share": 1 - (1 - edge_rows / rows) * (1 - edge_cols / cols),
            "covered": np.minimum(self.taps / (sh * sw), 1.0),
        }  # fmt: skip


def real_share(
    size: Array, out: Array, kernel: Array, stride: Array, dilation: Array, before: Array
) -> Array:
    """Return the share of a window's taps along one axis that are on the image, not on padding.

    It is the mean over all window positions. Kernels that skip padding do only this share of the
    work: an 11 x 11 window over a single pixel has one real tap of eleven per axis. Longer windows
    than `MAX_TAPS`, which no network has, are sampled at so many taps. At least one tap counts.
    """
    import numpy as np

    counts = np.zeros(len(size))
    spacing = np.maximum(kernel / MAX_TAPS, 1.0)
    for index in range(int(np.minimum(kernel, MAX_TAPS).max(initial=1))):
        tap = np.floor(index * spacing)
        offset = tap * dilation - before
        first = np.maximum(np.ceil(-offset / stride), 0)
        last = np.minimum(np.floor((size - 1 - offset) / stride), out - 1)
        counts += np.where(tap < kernel, spacing * np.maximum(last - first + 1, 0), 0)
    return np.maximum(counts, 1.0) / (kernel * out)
