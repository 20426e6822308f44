"""How many copies of a layer one run holds, and how far away their weights then lie.

Copies with weights of their own push each other out of the caches, as the layers of a network do.
A network that is run again and again finds its weights in the last cache if it is small, and in
memory if it is large; copies of one of its layers hold less than it, or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

MAX_COPIES = 64
TARGET_RUN_MS = 1.0
"""A run holds as many copies as fill about this time: then the session call hardly counts."""
USUAL_RUN_MS = 10.0
"""What campaigns let one run take."""
WEIGHTS_BYTES = 1_200_000_000
"""Weights that all copies of a layer may take together."""
COLD_WEIGHTS_BYTES = 1 << 18
"""Layers with more weights than this are always run in two copies at least: in a network, other
layers' weights push them out of the nearest cache between two runs."""
COLD_COPIES_BYTES = 256_000_000
"""Copies of such a layer hold about this much together, as a network with large layers does."""

FOOTPRINTS_MB = (2, 4, 8, 32, 64, 128, 256)
"""What is read between two readings of one weight, where `weights_cost` is measured."""
SHORTEST_MS = 1e-4
PACKED_KINDS = frozenset({"dense"})
"""Kinds whose weights ONNX Runtime packs, equal ones once."""
STORED_ROWS = 64
"""Measured layers of a kind whose copies a bundle holds."""


def copies_of(one_ms: float, weight_bytes: int, *, budget_ms: float = USUAL_RUN_MS) -> int:
    """Choose how many copies of a layer one run holds.

    Parameters
    ----------
    one_ms : float
        Time of one copy.
    weight_bytes : int
        Of one copy.
    budget_ms : float
        What one run may take.
    """
    wanted = math.ceil(min(TARGET_RUN_MS, budget_ms) / one_ms)
    if weight_bytes > COLD_WEIGHTS_BYTES:
        cold = math.ceil(COLD_COPIES_BYTES / weight_bytes)
        wanted = max(wanted, 2, min(cold, int(budget_ms / one_ms)))
    fitting = WEIGHTS_BYTES // max(weight_bytes, 1)
    return max(1, min(wanted, MAX_COPIES, fitting))


def weights_cost(footprint_mb: int) -> str:
    """Name the cost of a megabyte of weights, where so much is read before it is read again.

    In milliseconds, beyond that of weights in the nearest cache.
    """
    return f"weights_{footprint_mb}mb_ms_per_mb"


@dataclass(frozen=True)
class StoredCopies:
    """How many copies runs of measured layers of one kind held, by what decides on that.

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

    @classmethod
    def of(
        cls, times_ms: Sequence[float], weight_bytes: Sequence[int], copies: Sequence[int]
    ) -> Self | None:
        """Keep `STORED_ROWS` rows, spread over all sizes; None where no row tells anything.

        Rows tell nothing where nobody wrote copies down (0), and where layers have no weights.
        """
        rows = [
            row
            for row in zip(weight_bytes, times_ms, copies, strict=True)
            if row[0] > 0 and row[1] > 0 and row[2] > 0
        ]
        if not rows:
            return None
        rows.sort()
        places = np.linspace(0, len(rows) - 1, min(len(rows), STORED_ROWS)).round().astype(int)
        sizes, times, counts = zip(*(rows[place] for place in places), strict=True)
        return cls(tuple(map(float, times)), tuple(map(int, sizes)), tuple(map(int, counts)))

    def of_layer(self, time_ms: float, weight_bytes: int) -> int:
        """Return the copies of the measured layer most like one, by ratios of time and size."""
        known = np.log(np.array([self.times_ms, self.weight_bytes], dtype=np.float64))
        asked = np.log(np.array([[max(time_ms, SHORTEST_MS)], [max(weight_bytes, 1.0)]]))
        return self.copies[int(np.sum((known - asked) ** 2, axis=0).argmin())]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: list(each) for name, each in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is damaged.
        """
        columns = [tuple(values[name]) for name in ("times_ms", "weight_bytes", "copies")]
        if len(set(map(len, columns))) != 1 or not all(min(each) > 0 for each in columns):
            raise ValueError("the stored copies are damaged")
        return cls(*columns)


def weights_moved_ms(
    costs: Mapping[str, float],
    footprint_bytes: float,
    times_ms: Sequence[float],
    weight_bytes: Sequence[int],
    packed: Sequence[bool],
    copies: Sequence[int | None] | None = None,
) -> npt.NDArray[np.float64]:
    """Say what layers of a network take longer than alone, since their weights lie elsewhere.

    Below zero where the network is smaller than the copies that were measured.

    Parameters
    ----------
    costs : mapping of str to float
        Those that `weights_cost` names; without them nothing is known, and nothing changes.
    footprint_bytes : float
        What one run of the network reads and writes.
    times_ms : sequence of float (layers,)
        Of the layers alone, where they were measured.
    weight_bytes : sequence of int (layers,)
    packed : sequence of bool (layers,)
        Whether the framework packs a layer's weights, equal ones of several copies once: of small
        ones, which are equal, all copies then read the same.
    copies : sequence of int or None (layers,), optional
        How many were measured together. Where that is not known, it is assumed that they were as
        many as `USUAL_RUN_MS` allows.

    Returns
    -------
    array of float64 (layers,)
        In ms.
    """
    known = [mb for mb in FOOTPRINTS_MB if weights_cost(mb) in costs]
    if not known:
        return np.zeros(len(times_ms))
    at_mb = np.log(known)
    # Nothing is nearer for being read more rarely: what says so is noise.
    ms_per_mb = np.maximum.accumulate([costs[weights_cost(mb)] for mb in known])
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
