"""How many copies of a layer one run holds, and from which cache or memory their weights are read.

Copies with different weights evict each other from the caches, as the layers of a network do. In
repeated runs, a small network finds its weights in the last-level cache, a large one in memory.
Copies of one of its layers may hold less than the network, or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from resperf.records import Record

MAX_COPIES = 64
TARGET_RUN_MS = 1.0
"""A run holds enough copies to take about this long, so that the call hardly counts."""
USUAL_RUN_MS = 10.0
"""Limit of campaigns on the time of one run."""
WEIGHTS_BYTES = 1_200_000_000
"""Limit on the weights of all copies of a layer together."""
COLD_WEIGHTS_BYTES = 1 << 18
"""Layers with more weights are always run in at least two copies: in a network, other layers'
weights evict them from the nearest cache between two runs."""
COLD_COPIES_BYTES = 256_000_000
"""Total weights of the copies of such a layer, about those of a network with large layers."""

FOOTPRINTS_MB = (2, 4, 8, 32, 64, 128, 256)
"""Footprints for which `weights_cost` is measured: MB read between two reads of one weight."""
SHORTEST_MS = 1e-4
PACKED_KINDS = frozenset({"dense"})
"""Kinds whose weights ONNX Runtime packs, equal weights only once."""
STORED_ROWS = 64
"""Measured layers per kind for which a bundle stores the number of copies."""


def copies_of(one_ms: float, weight_bytes: int, *, budget_ms: float = USUAL_RUN_MS) -> int:
    """Choose how many copies of a layer one run holds.

    Parameters
    ----------
    one_ms : float
        Time of one copy.
    weight_bytes : int
        Of one copy.
    budget_ms : float
        Limit on the time of one run.
    """
    wanted = math.ceil(min(TARGET_RUN_MS, budget_ms) / one_ms)
    if weight_bytes > COLD_WEIGHTS_BYTES:
        cold = math.ceil(COLD_COPIES_BYTES / weight_bytes)
        wanted = max(wanted, 2, min(cold, int(budget_ms / one_ms)))
    fitting = WEIGHTS_BYTES // max(weight_bytes, 1)
    return max(1, min(wanted, MAX_COPIES, fitting))


def weights_cost(footprint_mb: int) -> str:
    """Return the name of the cost of reading a megabyte of weights at such a footprint.

    The cost is in milliseconds, beyond that of weights in the nearest cache.
    """
    return f"weights_{footprint_mb}mb_ms_per_mb"


@dataclass(frozen=True)
class StoredCopies(Record):
    """Numbers of copies in the runs of one kind's measured layers, by time and weights.

    Attributes
    ----------
    times_ms : tuple of float (rows,)
        Of one copy.
    weight_bytes : tuple of int (rows,)
        Of one copy; above zero.
    copies : tuple of int (rows,)
    """

    times_ms: tuple[float, ...]
    weight_bytes: tuple[int, ...]
    copies: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = (self.times_ms, self.weight_bytes, self.copies)
        if len(set(map(len, columns))) != 1 or not all(min(column) > 0 for column in columns):
            raise ValueError("the stored copies are damaged")

    @classmethod
    def of(
        cls, times_ms: Sequence[float], weight_bytes: Sequence[int], copies: Sequence[int]
    ) -> Self | None:
        """Select `STORED_ROWS` rows, spread over all sizes; None if no row can be used.

        Rows without a number of copies (0) and layers without weights are skipped.
        """
        rows = [
            row
            for row in zip(weight_bytes, times_ms, copies, strict=True)
            if row[0] > 0 and row[1] > 0 and row[2] > 0
        ]
        if not rows:
            return None
        rows.sort()
        indices = np.linspace(0, len(rows) - 1, min(len(rows), STORED_ROWS)).round().astype(int)
        sizes, times, counts = zip(*(rows[index] for index in indices), strict=True)
        return cls(tuple(map(float, times)), tuple(map(int, sizes)), tuple(map(int, counts)))

    def of_layer(self, time_ms: float, weight_bytes: int) -> int:
        """Return the copies of the most similar measured layer, by ratios of time and size."""
        asked = np.log(np.array([[max(time_ms, SHORTEST_MS)], [max(weight_bytes, 1.0)]]))
        measured = _logarithms(self.times_ms, self.weight_bytes)
        return self.copies[int(np.sum((measured - asked) ** 2, axis=0).argmin())]


@lru_cache(maxsize=64)
def _logarithms(*rows: tuple[float, ...]) -> npt.NDArray[np.float64]:
    return np.log(np.array(rows, dtype=np.float64))


def weights_moved_ms(
    costs: Mapping[str, float],
    footprint_bytes: float,
    times_ms: Sequence[float],
    weight_bytes: Sequence[int],
    packed: Sequence[bool],
    copies: Sequence[int | None] | None = None,
) -> npt.NDArray[np.float64]:
    """Return how much longer a network's layers take, since their weights are in slower memory.

    Negative where the network is smaller than the measured copies.

    Parameters
    ----------
    costs : mapping of str to float
        Values under the names of `weights_cost`; without them the result is 0.
    footprint_bytes : float
        Bytes that one run of the network reads and writes.
    times_ms : sequence of float (layers,)
        Times of the layers, measured in isolation.
    weight_bytes : sequence of int (layers,)
    packed : sequence of bool (layers,)
        Whether the framework packs a layer's weights. Equal weights are packed once, so that all
        copies of small weights, which are equal, read the same memory.
    copies : sequence of int or None (layers,), optional
        Copies per measured run; where unknown, as many as `USUAL_RUN_MS` allows are assumed.

    Returns
    -------
    array of float64 (layers,)
        Milliseconds.
    """
    footprints_mb = [mb for mb in FOOTPRINTS_MB if weights_cost(mb) in costs]
    if not footprints_mb:
        return np.zeros(len(times_ms))
    at_mb = np.log(footprints_mb)
    # The cost cannot fall with the footprint: a decrease is noise.
    ms_per_mb = np.maximum.accumulate([costs[weights_cost(mb)] for mb in footprints_mb])
    alone_bytes = [
        size
        if is_packed and size <= COLD_WEIGHTS_BYTES
        else (known_copies or copies_of(max(time_ms, SHORTEST_MS), size)) * size
        for time_ms, size, is_packed, known_copies in zip(
            times_ms, weight_bytes, packed, copies or [None] * len(packed), strict=True
        )
    ]
    here, alone = (
        np.interp(np.log(np.maximum(size, 1.0) / 1e6), at_mb, ms_per_mb)
        for size in (np.array([footprint_bytes]), np.array(alone_bytes, dtype=float))
    )
    moved_ms: npt.NDArray[np.float64] = np.asarray(weight_bytes) / 1e6 * (here - alone)
    return moved_ms
