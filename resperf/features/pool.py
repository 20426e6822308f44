"""Numbers that describe a pooling."""

from __future__ import annotations

import numpy as np

from resperf.features.window import block_of, evenness, is_blocked, window_geometry
from resperf.layers.columns import Array, Columns, element_bytes, numbers


def quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of poolings, each of shape (rows,).

    Bytes in bytes; ``flops`` counts one comparison or addition per pixel of a window;
    ``read_bytes`` are the input bytes that some window really covers.
    """
    q = window_geometry(columns)
    batch, channels, whole_image = numbers(columns, "batch", "channels_in", "whole_image")
    size = element_bytes(columns)
    in_bytes = batch * channels * q["pixels_in"] * size
    out_bytes = batch * channels * q["pixels_out"] * size
    flops = batch * channels * q["pixels_out"] * q["taps"]
    layouts = np.asarray(columns["layout"])
    block, blocked = block_of(layouts), is_blocked(layouts)
    waste = np.where(blocked == 1, np.ceil(channels / block) * block / channels, 1.0)
    maximum = (np.asarray(columns["mode"]) == "max").astype(float)
    q |= {
        "batch": batch, "channels_in": channels, "whole_image": whole_image,
        "in_bytes": in_bytes, "out_bytes": out_bytes, "moved_bytes": in_bytes + out_bytes,
        "read_bytes": in_bytes * q["covered"], "flops": flops,
        "flops_real": flops * q["real"] * waste, "maximum": maximum, "blocked": blocked,
        "plain": 1 - blocked, "planes": batch * channels,
        "row_count": batch * channels * waste * q["rows_out"] / np.where(blocked == 1, block, 1),
        "ceil": np.asarray(columns["ceil_mode"], dtype=float),
        "counts_pad": np.asarray(columns["count_include_pad"], dtype=float),
        "intensity": flops / (in_bytes + out_bytes),
        "out_over_in": out_bytes / in_bytes,
        "aligned": (channels % 16 == 0).astype(float), "channel_evenness": evenness(channels),
        "channel_waste": waste,
        "column_waste": np.ceil(q["columns_out"] / 6) * 6 / q["columns_out"],
    }  # fmt: skip
    return q


PLAIN = (
    "kernel_height", "kernel_width", "stride_height", "stride_width", "dilated", "pad_height",
    "pad_width", "padded", "pad_odd", "pad_uneven", "edge_share", "real", "ceil", "counts_pad",
    "whole_image", "maximum", "aligned", "channel_evenness", "channel_waste", "column_waste",
    "strided", "covered",
)  # fmt: skip
"""Features taken as they are."""

LOG2 = (
    "batch", "channels_in", "height", "width", "rows_out", "columns_out", "pixels_out", "taps",
    "in_bytes", "out_bytes", "moved_bytes", "read_bytes", "flops", "flops_real", "planes",
    "row_count", "intensity", "out_over_in",
)  # fmt: skip
"""Features taken as log2."""
