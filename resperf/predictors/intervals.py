"""How far measured times lie around predicted ones: 90% intervals from validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from resperf.features import Array
from resperf.predictors._base import stored

SHARE = 0.9
"""Share of measured times that an interval should hold."""
FEWEST_ROWS = 40
"""Rows that a bin has at least: fewer leave the outer twentieths to a single one."""
MOST_BINS = 6
OUTSIDE_FACTOR = 2.0
"""An interval of a layer outside the trained range is so many times as wide, in logarithms. There
is nothing to calibrate that by: it is an assumption."""
OUTSIDE_LEAST = 0.1
"""And at least so wide to either side."""
ASSUMED = math.log(2.0)
"""Half the width, in logarithms, where nothing was measured to judge by: within a factor of two."""
_SHORTEST_MS = 1e-6


@dataclass(frozen=True)
class Intervals:
    """Where the logarithm of measured over predicted lies, by predicted time.

    Split conformal prediction (Lei et al. 2018, "Distribution-free predictive inference for
    regression") on the log ratio, within bins of predicted time: short layers are less certain.

    Attributes
    ----------
    edges_ms : tuple of float
        Predicted times at which one bin ends and the next begins.
    low, high : tuple of float
        Bounds of the logarithm of measured over predicted, one for each bin.
    """

    edges_ms: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def fit(cls, measured_ms: Array, predicted_ms: Array) -> Self | None:
        """Calibrate on rows that no predictor was fitted to; None where they are too few.

        Validation rows, which some methods choose the number of epochs or trees by: that makes
        intervals a little too narrow, as their noise of single measurements makes them too wide.

        Parameters
        ----------
        measured_ms, predicted_ms : array (rows,)
        """
        known = (measured_ms > _SHORTEST_MS) & np.isfinite(predicted_ms)
        measured_ms, predicted_ms = measured_ms[known], predicted_ms[known]
        if len(measured_ms) < FEWEST_ROWS:
            return None
        # Methods that cut off below 0 predict 0: these are judged by as well, among themselves.
        times = predicted_ms > _SHORTEST_MS
        predicted_ms = np.maximum(predicted_ms, _SHORTEST_MS)
        ratios, edges = np.log(measured_ms / predicted_ms), _edges(predicted_ms[times])
        if not times.all():
            edges = [float(np.nextafter(_SHORTEST_MS, 1.0)), *edges] if times.any() else edges
        place = np.searchsorted(edges, predicted_ms, side="right")
        bounds = [_bounds(ratios[place == each]) for each in range(len(edges) + 1)]
        return cls(tuple(edges), tuple(low for low, _ in bounds), tuple(high for _, high in bounds))

    def bounds(self, predicted_ms: Array, in_range: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the smallest and largest time expected of each layer, in ms.

        Parameters
        ----------
        predicted_ms : array (rows,)
        in_range : array of bool (rows,)
            Whether the layer lies inside what the predictor was trained on.
        """
        place = np.searchsorted(self.edges_ms, predicted_ms, side="right")
        low, high = np.array(self.low)[place], np.array(self.high)[place]
        return _around(predicted_ms, low, high, in_range)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "share": SHARE,
            "edges_ms": list(self.edges_ms),
            "low": list(self.low),
            "high": list(self.high),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        edges, low, high = (
            tuple(float(each) for each in stored(values, name))
            for name in ("edges_ms", "low", "high")
        )
        if not len(low) == len(high) == len(edges) + 1:
            raise ValueError("bounds of intervals do not fit their bins")
        sound = (
            all(map(math.isfinite, (*edges, *low, *high)))
            and list(edges) == sorted(edges)
            and max(low) <= 0 <= min(high)
            and values.get("share") == SHARE
        )
        if not sound:
            raise ValueError("bounds of intervals are damaged")
        return cls(edges, low, high)


def assumed(predicted_ms: Array, in_range: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return bounds where nothing was measured to judge by: half and twice the time."""
    width = np.full(len(predicted_ms), ASSUMED)
    return _around(predicted_ms, -width, width, in_range)


def _around(
    predicted_ms: Array, low: Array, high: Array, in_range: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Apply logarithmic bounds, wider out of range."""
    low = np.where(in_range, low, np.minimum(OUTSIDE_FACTOR * low, -OUTSIDE_LEAST))
    high = np.where(in_range, high, np.maximum(OUTSIDE_FACTOR * high, OUTSIDE_LEAST))
    around_ms = np.maximum(predicted_ms, _SHORTEST_MS)
    return np.minimum(around_ms * np.exp(low), predicted_ms), around_ms * np.exp(high)


def _edges(predicted_ms: Array) -> list[float]:
    """Part predicted times into bins of about as many rows each, equal times in one bin."""
    ordered = np.sort(predicted_ms)
    bins = min(len(ordered) // FEWEST_ROWS, MOST_BINS)
    edges: list[float] = []
    before = 0
    for each in range(1, bins):
        edge = ordered[each * len(ordered) // bins]
        below = int(np.searchsorted(ordered, edge))
        if min(below - before, len(ordered) - below) >= FEWEST_ROWS:
            edges.append(float(edge))
            before = below
    return edges


def _bounds(ratios: Array) -> tuple[float, float]:
    """Return the bounds that the next ratio of the same law keeps with probability `SHARE`.

    Always around 0: a prediction lies within its own interval.
    """
    ordered, rows = np.sort(ratios), len(ratios)
    outer = (1 - SHARE) / 2
    first = max(math.floor((rows + 1) * outer), 1) - 1
    last = min(math.ceil((rows + 1) * (1 - outer)), rows) - 1
    return min(float(ordered[first]), 0.0), max(float(ordered[last]), 0.0)
