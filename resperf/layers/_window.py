"""Sliding windows over images: geometry that convolution and pooling share."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import LAYOUTS, name, pixels, shorthands
from resperf.layers._operator import FLOATS, Operator
from resperf.layers._sliding import SlidingLayer, read_window, same_pads
from resperf.layers.columns import Array

MAX_TAPS = 4096
"""Taps of a window that `real_share` visits one by one along an axis."""
_SIDES = {"height": ("top", "bottom"), "width": ("left", "right")}
_PADS = tuple(f"pad_{side}" for side in ("top", "left", "bottom", "right"))


class WindowLayer(SlidingLayer):
    """A layer whose window slides over an image of `height` x `width` pixels."""

    AXES = ("height", "width")
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **shorthands(AXES, "kernel", "stride", "dilation"),
        "pad": _PADS,
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
        for axis, (before, after) in _SIDES.items():
            try:
                size, kernel = int(fields[axis]), int(fields[f"kernel_{axis}"])
            except KeyError as error:
                raise LayerError(f"{cls.kind} needs a value for {error.args[0]}") from error
            pads[f"pad_{before}"], pads[f"pad_{after}"] = same_pads(
                size,
                kernel,
                int(fields.get(f"stride_{axis}", 1)),
                int(fields.get(f"dilation_{axis}", 1)),
            )
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
            words = (f"kernel_{axis}", f"stride_{axis}", f"dilation_{axis}")
            fields |= dict(
                zip((*words, *(f"pad_{side}" for side in _SIDES[axis])), window, strict=True)
            )
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
        for axis, sides in _SIDES.items():
            reach = (int(draw[f"kernel_{axis}"]) - 1) * int(draw.get(f"dilation_{axis}", 1))
            for side in sides:
                pad = int(source.random() * (reach + 1)) if padding == "explicit" else 0
                draw[f"pad_{side}"] = reach // 2 if padding == "symmetric" else pad
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
        for axis, sides in _SIDES.items():
            pads = [f"pad_{side}" for side in sides]
            reach = (fields[f"kernel_{axis}"] - 1) * fields[f"dilation_{axis}"]
            half = (int(old[f"kernel_{axis}"]) - 1) * int(old[f"dilation_{axis}"]) // 2
            for pad in pads:
                fields[pad] = reach // 2 if old[pad] == half else min(int(old[pad]), reach)
            if any(old[pad] != half for pad in pads) and all(old[p] == same[p] for p in pads):
                new = self.same_padding(fields)
                fields |= {pad: new[pad] for pad in pads}
        return self.from_fields(fields)

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
