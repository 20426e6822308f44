"""Numbers that describe a convolution: sizes, work, bytes, and how well kernels' blocks fit."""

from __future__ import annotations

import numpy as np

from resperf.features.window import block_of, evenness, is_blocked, window_geometry
from resperf.layers.columns import Array, Columns, element_bytes, numbers


def quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of convolutions, each of shape (rows,).

    Bytes in bytes, ``flops`` in multiplications plus additions (2 per MAC), the rest counts.
    ``flops_real`` leaves out taps on padding and counts channels in whole blocks. The
    matrix product behind a convolution has ``m`` rows (output pixels of all images), ``k`` (inputs
    of one output value) and ``n`` columns (output channels of one group).
    """
    q = window_geometry(columns)
    batch, cin, cout, groups, bias, residual = numbers(
        columns, "batch", "channels_in", "channels_out", "groups", "bias", "residual"
    )
    size = element_bytes(columns)
    m, k, n = batch * q["pixels_out"], q["taps"] * cin / groups, cout / groups
    in_bytes, out_bytes = batch * cin * q["pixels_in"] * size, m * cout * size
    weight_bytes = cout * (k + bias) * size
    flops = 2 * m * k * cout
    depthwise = (groups == cin) & (groups > 1)
    pointwise = q["taps"] == 1
    # A window as large as the image is one matrix product, whatever the stride.
    as_large = (q["kernel_height"] == q["height"]) & (q["kernel_width"] == q["width"])
    whole = as_large & (q["padded"] == 0) & (q["dilated"] == 0)
    direct = (pointwise & (q["strided"] == 0)) | whole
    bare = (bias == 0) & (residual == 0) & (np.asarray(columns["activation"]) == "none")
    layouts = np.asarray(columns["layout"])
    block, blocked = block_of(layouts), is_blocked(layouts)
    in_padded, out_padded = np.ceil(cin / block) * block, np.ceil(cout / block) * block
    waste_in = np.where((groups == 1) & (cin >= block), in_padded / cin, 1.0)
    waste = waste_in * out_padded / cout
    blocks = out_padded / block
    column_waste = np.ceil(q["columns_out"] / 6) * 6 / q["columns_out"]
    units = batch * groups * np.ceil(n / 64) * q["rows_out"]
    real_flops = flops * q["real"] * waste
    q |= {
        "batch": batch, "channels_in": cin, "channels_out": cout, "groups": groups,
        "bias": bias, "residual": residual, "m": m, "k": k, "n": n,
        "in_bytes": in_bytes, "out_bytes": out_bytes, "weight_bytes": weight_bytes,
        "residual_bytes": residual * out_bytes,
        "moved_bytes": in_bytes + out_bytes * (1 + residual) + weight_bytes,
        "flops": flops, "flops_real": real_flops,
        # Blocked kernels take four blocks of output channels and six pixels of a row at a time.
        "flops_columns": real_flops * column_waste,
        "flops_block": real_flops * column_waste * np.ceil(blocks / 4) * 4 / blocks,
        "column_waste": column_waste, "channel_waste": waste,
        "block_waste": np.ceil(blocks / 4) * 4 / blocks,
        # Tiles of the matrix kernels of GPUs.
        "flops_tile": 2 * (np.ceil(m / 128) * 128) * k * groups * np.ceil(n / 32) * 32,
        "flops_tile_k": 2 * (np.ceil(m / 128) * 128) * (np.ceil(k / 8) * 8) * groups
        * np.ceil(n / 128) * 128,
        "im2col_bytes": np.where(pointwise & (q["strided"] == 0), 0.0, m * k * groups * size),
        # Work of a single unit cannot be shared by threads; plain products share from a size on.
        "threaded": np.where(blocked == 1, units > 1, flops >= 2 * 65536).astype(float),
        "blocked": blocked, "plain": 1 - blocked, "products": batch * groups,
        "units": units,
        "intensity": flops / (in_bytes + out_bytes * (1 + residual) + weight_bytes),
        "out_over_in": out_bytes / in_bytes,
        "depthwise": depthwise.astype(float),
        "grouped": ((groups > 1) & ~depthwise).astype(float),
        "pointwise": pointwise.astype(float),
        "direct": direct.astype(float), "direct_bare": (direct & bare).astype(float),
        "shallow": ((cin < 16) & (groups == 1)).astype(float),
        "in_aligned": (cin % 16 == 0).astype(float), "out_aligned": (cout % 16 == 0).astype(float),
        "in_evenness": evenness(cin), "out_evenness": evenness(cout),
    }  # fmt: skip
    return q


PLAIN = (
    "kernel_height", "kernel_width", "stride_height", "stride_width", "dilated", "bias", "residual",
    "pad_height", "pad_width", "padded", "pad_odd", "pad_uneven", "edge_share", "real",
    "column_waste", "channel_waste", "block_waste", "depthwise", "grouped", "pointwise", "direct",
    "direct_bare", "shallow", "in_aligned", "out_aligned", "in_evenness", "out_evenness",
    "strided", "threaded",
)  # fmt: skip
"""Features taken as they are."""

LOG2 = (
    "batch", "channels_in", "channels_out", "height", "width", "rows_out", "columns_out",
    "pixels_out", "taps", "groups", "m", "k", "n", "in_bytes", "out_bytes", "weight_bytes",
    "moved_bytes", "flops", "flops_block", "flops_real", "im2col_bytes",
    "units", "products", "intensity", "out_over_in",
)  # fmt: skip
"""Features taken as log2."""
