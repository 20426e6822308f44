"""Numbers that describe an activation by itself."""

from __future__ import annotations

import numpy as np

from resperf.layers.columns import Array, Columns, element_bytes, numbers


def quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of activations, each of shape (rows,); bytes in bytes.

    ``flops`` counts one operation per value, whatever the function.
    """
    batch, values = numbers(columns, "batch", "values")
    elements = batch * values
    in_bytes = elements * element_bytes(columns)
    # Above some ten thousand values frameworks share the work among their threads.
    threaded = (elements >= 16384).astype(float)
    return {
        "batch": batch, "values": values, "threaded": threaded,
        "in_bytes": in_bytes, "out_bytes": in_bytes, "moved_bytes": 2 * in_bytes, "flops": elements,
        "vector_rest": np.mod(elements, 16),
    }  # fmt: skip


PLAIN = ("threaded", "vector_rest")
"""Features taken as they are."""

LOG2 = ("batch", "values", "flops")
"""Features taken as log2."""
