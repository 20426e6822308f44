"""Transfers between host and device, whose time depends only on a tensor's bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array
from resperf.predictors.baseline import fit_terms
from resperf.records import Record

_MB = 1e6
# Bytes beyond which a copy exceeds the L2 and L3 caches of common processors. A step without effect
# on a machine gets a coefficient of 0.
_STEPS_BYTES = (0.0, 256e3, 1e6, 4e6, 16e6)
_MOST = 1e9
"""Above all milliseconds, milliseconds per MB, and bytes of a step."""
_SHORTEST_MS = 1e-6
"""Times up to this are of views, which copy nothing."""


@dataclass(frozen=True)
class Transfers(Record):
    """Time of one direction: a constant plus a cost per MB that may rise at steps.

    Attributes
    ----------
    constant_ms : float
    steps_bytes : tuple of float
        Sizes at which the cost per byte changes.
    ms_per_mb : tuple of float
        Added cost per MB beyond each step; at least 0, so the time never falls with size.
    largest_bytes : float
        Largest tensor seen.
    """

    constant_ms: float
    steps_bytes: tuple[float, ...]
    ms_per_mb: tuple[float, ...]
    largest_bytes: float

    def __post_init__(self) -> None:
        numbers = (self.constant_ms, *self.steps_bytes, *self.ms_per_mb)
        is_whole = len(self.steps_bytes) == len(self.ms_per_mb)
        if not (is_whole and all(0 <= number < _MOST for number in numbers)):
            raise ValueError("the times of copies are damaged")

    @classmethod
    def fit(cls, tensor_bytes: Array, times_ms: Array) -> Self:
        """Fit to the tensors of all layer kinds together.

        Parameters
        ----------
        tensor_bytes, times_ms : array (rows,)
            Times near zero are of views, which copy nothing.

        Raises
        ------
        TrainingError
            If there is no row with a finite time.
        """
        finite = np.isfinite(times_ms)
        tensor_bytes, times_ms = tensor_bytes[finite], times_ms[finite]
        if not len(times_ms):
            raise TrainingError("no transfer was measured; run the campaign again: resperf bench")
        largest = float(tensor_bytes.max())
        if np.median(times_ms) <= _SHORTEST_MS:
            return cls(float(max(0.0, np.median(times_ms))), (), (), largest)
        timed = times_ms > _SHORTEST_MS
        # Skip steps beyond the data.
        steps = tuple(step for step in _STEPS_BYTES if step < largest / 2)
        coefficients = fit_terms(_terms(tensor_bytes[timed], steps), times_ms[timed])
        return cls(float(coefficients[0]), steps, tuple(coefficients[1:].tolist()), largest)

    def predict(self, tensor_bytes: Array | Sequence[float]) -> Array:
        """Return the time of each tensor in ms, shape (rows,)."""
        sizes = np.asarray(tensor_bytes, dtype=float)
        times_ms: Array = _terms(sizes, self.steps_bytes) @ np.array(
            [self.constant_ms, *self.ms_per_mb]
        )
        return times_ms

    def outside(self, tensor_bytes: Array | Sequence[float]) -> list[str]:
        """Say for each tensor why its copy is outside the measured range; empty if it is inside."""
        # A time that does not depend on the size has no range.
        largest = self.largest_bytes if any(self.ms_per_mb) else math.inf
        return [
            f"tensor of {size:.0f} B above {largest:.0f}" if size > largest else ""
            for size in tensor_bytes
        ]


def _terms(tensor_bytes: Array, steps_bytes: tuple[float, ...]) -> Array:
    beyond = [np.maximum(tensor_bytes - step, 0.0) / _MB for step in steps_bytes]
    return np.stack([np.ones_like(tensor_bytes), *beyond], axis=1)
