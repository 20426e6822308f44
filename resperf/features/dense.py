"""Numbers that describe a fully connected layer."""

from __future__ import annotations

import numpy as np

from resperf.layers.columns import Array, Columns, element_bytes, numbers


def quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of matrix products, each of shape (rows,).

    Bytes in bytes, ``flops`` in multiplications plus additions. With one row the product is
    bound by reading the weights, and frameworks use other kernels: ``vector`` says so.
    """
    batch, k, n, bias = numbers(columns, "batch", "features_in", "features_out", "bias")
    size = element_bytes(columns)
    in_bytes, out_bytes, weight_bytes = batch * k * size, batch * n * size, n * (k + bias) * size
    flops = 2 * batch * k * n
    moved_bytes = in_bytes + out_bytes + weight_bytes
    return {
        "batch": batch, "features_in": k, "features_out": n, "bias": bias,
        "in_bytes": in_bytes, "out_bytes": out_bytes, "weight_bytes": weight_bytes,
        "moved_bytes": moved_bytes, "flops": flops, "intensity": flops / moved_bytes,
        "out_over_in": out_bytes / in_bytes, "vector": (batch == 1).astype(float),
        "few_rows": (batch < 6).astype(float),
        # Matrix kernels start their threads beyond some tens of thousands of multiplications.
        "threaded": (flops >= 2 * 65536).astype(float),
        "narrow": (n < 16).astype(float),
        "flops_tile": 2 * np.ceil(batch / 12) * 12 * k * np.ceil(n / 16) * 16,
        "flops_tile_gpu": 2 * np.ceil(batch / 32) * 32 * k * np.ceil(n / 128) * 128,
        "row_waste": np.ceil(batch / 12) * 12 / batch, "row_rest": batch % 12,
        "column_waste": np.ceil(n / 16) * 16 / n, "column_rest": n % 16,
        "k_rest": k % 16, "units": np.ceil(batch / 12) * np.ceil(n / 16),
    }  # fmt: skip


PLAIN = (
    "bias",
    "vector",
    "narrow",
    "row_waste",
    "row_rest",
    "column_waste",
    "column_rest",
    "k_rest",
)
"""Features taken as they are."""

LOG2 = (
    "batch", "features_in", "features_out", "in_bytes", "out_bytes", "weight_bytes", "moved_bytes",
    "flops", "flops_tile", "intensity", "out_over_in", "units",
)  # fmt: skip
"""Features taken as log2."""
