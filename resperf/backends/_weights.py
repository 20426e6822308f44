"""What weights cost by how much else is read before they are read again: caches, then memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resperf.copies import FOOTPRINTS_MB, weights_cost
from resperf.layers import Conv, Dense, Layer

PROBES: tuple[Layer, ...] = (
    Dense(batch=1, features_in=512, features_out=512),
    Conv(batch=1, channels_in=512, channels_out=512, height=7, width=7, kernel_height=1,
         kernel_width=1),
)  # fmt: skip
"""Of about a megabyte each: one that waits for its weights, and one that computes with them."""


def weights_costs(copies_ms: Callable[[Layer, int], float]) -> Mapping[str, float]:
    """Measure layers in as many copies as read so many megabytes.

    Parameters
    ----------
    copies_ms : callable
        Time of one run of so many copies of a layer, each with weights of its own.

    Returns
    -------
    mapping
        What `weights_cost` names, for each of `FOOTPRINTS_MB`; 0 for the least. A reading is noisy:
        ask now and then, and take the median.
    """
    costs = np.zeros(len(FOOTPRINTS_MB))
    for layer in PROBES:
        megabytes = layer.weight_bytes / 1e6
        counts = [round(total / megabytes) for total in FOOTPRINTS_MB]
        per_mb = [copies_ms(layer, count) / (count * megabytes) for count in counts]
        costs += (np.array(per_mb) - per_mb[0]) / len(PROBES)
    return {
        weights_cost(total): max(float(cost), 0.0)
        for total, cost in zip(FOOTPRINTS_MB, costs, strict=True)
    }
