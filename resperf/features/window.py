"""Geometry that convolution and pooling share, for many layers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.layers import LAYOUTS
from resperf.layers.columns import Array, Columns, is_among, numbers

MOST_TAPS = 4096
"""Taps of a window that are looked at one by one along an axis."""


def block_of(layouts: npt.NDArray[Any]) -> Array:
    """Return the channels of one block of a layout: 8 for ``nchwc8``, 16 where there are none."""
    blocks = np.full(len(layouts), 16.0)
    for layout in LAYOUTS:
        if layout.startswith("nchwc"):
            blocks[layouts == layout] = float(layout.removeprefix("nchwc"))
    return blocks


def is_blocked(layouts: npt.NDArray[Any]) -> Array:
    """Return 1 for layouts in blocks of channels, 0 for plain ones."""
    return is_among(layouts, [name for name in LAYOUTS if "c" in name[4:]]).astype(float)


def real_share(
    size: Array, out: Array, kernel: Array, stride: Array, dilation: Array, before: Array
) -> Array:
    """Return the share of a window's taps along one axis that lie on the image, not on padding.

    The mean over all positions of the window: an 11 x 11 window over a single pixel has one real
    tap of eleven per axis, and kernels that skip padding do so much less work. Of windows longer
    than `MOST_TAPS`, which no network has, as many taps stand for all, and one counts at least.
    """
    counts = np.zeros(len(size))
    apart = np.maximum(kernel / MOST_TAPS, 1.0)
    for number in range(int(np.minimum(kernel, MOST_TAPS).max(initial=1))):
        tap = np.floor(number * apart)
        offset = tap * dilation - before
        first = np.maximum(np.ceil(-offset / stride), 0)
        last = np.minimum(np.floor((size - 1 - offset) / stride), out - 1)
        counts += np.where(tap < kernel, apart * np.maximum(last - first + 1, 0), 0)
    return np.maximum(counts, 1.0) / (kernel * out)


def evenness(counts: Array) -> Array:
    """Return how often 2 divides each count, at most five times.

    Kernels read several channels at once where their number allows it, and slower ones where not.
    """
    return np.asarray(np.log2(np.gcd(counts.astype(np.int64), 32)))


def window_geometry(columns: Columns) -> dict[str, Array]:
    """Return output size, padding and edge columns of sliding windows.

    The keys of the answer are fields of the layer or derived from them, in pixels:
    ``edge_share`` is the share of output pixels whose window touches padding, which blocked
    kernels compute one at a time.
    """
    names = (
        "height", "width", "kernel_height", "kernel_width", "stride_height", "stride_width",
        "dilation_height", "dilation_width", "pad_top", "pad_left", "pad_bottom", "pad_right",
    )  # fmt: skip
    h, w, kh, kw, sh, sw, dh, dw, top, left, bottom, right = numbers(columns, *names)
    spans = h + top + bottom - dh * (kh - 1) - 1, w + left + right - dw * (kw - 1) - 1
    rows, cols = np.floor(spans[0] / sh) + 1, np.floor(spans[1] / sw) + 1
    if "ceil_mode" in columns:
        # The same rule as WindowLayer._positions: a last window may hang over, not start outside.
        ceil = np.asarray(columns["ceil_mode"], dtype=bool)
        more_rows, more_cols = np.ceil(spans[0] / sh) + 1, np.ceil(spans[1] / sw) + 1
        more_rows -= (more_rows - 1) * sh >= h + top
        more_cols -= (more_cols - 1) * sw >= w + left
        rows, cols = np.where(ceil, more_rows, rows), np.where(ceil, more_cols, cols)
    edge_rows = np.minimum(np.ceil(top / sh) + np.ceil(bottom / sh), rows)
    edge_cols = np.minimum(np.ceil(left / sw) + np.ceil(right / sw), cols)
    pad_height, pad_width = top + bottom, left + right
    real = np.ones(len(h))
    # Only padding (or a last window that hangs over) makes taps unreal; most rows need no count.
    some = np.flatnonzero(
        (pad_height + pad_width > 0) | (rows > spans[0] / sh + 1) | (cols > spans[1] / sw + 1)
    )
    if len(some):
        vertical = (each[some] for each in (h, rows, kh, sh, dh, top))
        horizontal = (each[some] for each in (w, cols, kw, sw, dw, left))
        real[some] = real_share(*vertical) * real_share(*horizontal)
    return {
        "height": h, "width": w, "kernel_height": kh, "kernel_width": kw,
        "stride_height": sh, "stride_width": sw, "dilation_height": dh, "dilation_width": dw,
        "rows_out": rows, "columns_out": cols, "pixels_in": h * w, "pixels_out": rows * cols,
        "taps": kh * kw, "stride": sh * sw, "dilated": (dh * dw > 1).astype(float),
        "pad_height": pad_height, "pad_width": pad_width,
        "padded": (pad_height + pad_width > 0).astype(float),
        "pad_odd": ((pad_height % 2 == 1) | (pad_width % 2 == 1)).astype(float),
        "pad_uneven": ((top != bottom) | (left != right)).astype(float),
        "edge_share": 1 - (1 - edge_rows / rows) * (1 - edge_cols / cols),
        "edge_columns": edge_cols,
        "strided": (sh * sw > 1).astype(float),
        "real": real,
        "covered": np.minimum(kh * kw / (sh * sw), 1.0),
    }  # fmt: skip
