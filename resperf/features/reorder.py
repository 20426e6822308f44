"""Numbers that describe a change of data layout."""

from __future__ import annotations

import numpy as np

from resperf.features.window import block_of, is_blocked
from resperf.layers.columns import Array, Columns, element_bytes, numbers


def quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of re-layouts, each of shape (rows,); bytes in bytes."""
    batch, channels, height, width = numbers(columns, "batch", "channels_in", "height", "width")
    in_bytes = batch * channels * height * width * element_bytes(columns)
    read, written = np.asarray(columns["layout"]), np.asarray(columns["layout_out"])
    to_blocked, from_blocked = is_blocked(written), is_blocked(read)
    block = np.where(to_blocked == 1, block_of(written), block_of(read))
    padded = np.ceil(channels / block) * block / channels
    return {
        "batch": batch, "channels_in": channels, "height": height, "width": width,
        "pixels_in": height * width, "in_bytes": in_bytes, "out_bytes": in_bytes,
        "padded_bytes": in_bytes * padded, "channel_waste": padded,
        "moved_bytes": in_bytes * (1 + padded), "planes": batch * channels,
        "aligned": (channels % 16 == 0).astype(float),
        "pixel_rest": (height * width) % 4,
        "to_blocked": to_blocked, "from_blocked": from_blocked,
    }  # fmt: skip


PLAIN = ("channel_waste", "aligned", "pixel_rest", "to_blocked", "from_blocked")
"""Features taken as they are."""

LOG2 = (
    "batch",
    "channels_in",
    "height",
    "width",
    "pixels_in",
    "in_bytes",
    "padded_bytes",
    "moved_bytes",
    "planes",
)
"""Features taken as log2."""
