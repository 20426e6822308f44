"""Cost of reading weights, by the footprint between two reads: from caches, then from memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resperf.copies import FOOTPRINTS_MB, weights_cost
from resperf.layers import Conv, Dense, Layer

CHAIN_LAYERS: tuple[Layer, ...] = (
    Dense(batch=1, features_in=512, features_out=512),
    Conv(batch=1, channels_in=512, channels_out=512, height=7, width=7, kernel_height=1,
         kernel_width=1),
)  # fmt: skip
"""Layers of about 1 MB of weights: one bound by reading them, one bound by computing."""


def weights_costs(copies_ms: Callable[[Layer, int], float]) -> Mapping[str, float]:
    """Measure layers in as many copies as fill each footprint.

    Parameters
    ----------
    copies_ms : callable
        Time in ms of one run of a number of copies of a layer, each with different weights.

    Returns
    -------
    mapping
        Cost in ms per MB for each of `FOOTPRINTS_MB`, under the names of `weights_cost`; 0 for the
        smallest. Single readings are noisy: repeat them and take the median.
    """
    costs = np.zeros(len(FOOTPRINTS_MB))
    for layer in CHAIN_LAYERS:
        megabytes = layer.weight_bytes / 1e6
        counts = [round(total / megabytes) for total in FOOTPRINTS_MB]
        per_mb = [copies_ms(layer, count) / (count * megabytes) for count in counts]
        costs += (np.array(per_mb) - per_mb[0]) / len(CHAIN_LAYERS)
    return {
        weights_cost(total): max(float(cost), 0.0)
        for total, cost in zip(FOOTPRINTS_MB, costs, strict=True)
    }
