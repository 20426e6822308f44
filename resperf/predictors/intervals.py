"""How far measured times lie around predicted ones: 90% intervals from validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
MAX_BINS = 6
OUTSIDE_FACTOR = 2.0
"""An interval of a layer outside the trained range is so many times as wide, in logarithms. There
is nothing to calibrate that by: it is an assumption."""
OUTSIDE_LEAST = 0.1
"""And at least so wide to either side."""
ASSUMED = math.log(2.0)
"""Half the width, in logarithms, where nothing was measured to judge by: within a factor of two."""
MIN_ROWS_OF_KIND = 5
"""Rows without which nothing is said of a kind: one or two that happen to fit promise too much."""
PRIOR_ROWS = 1
"""Rows of the usual kind that stand beside the few of a kind, to say how large its errors are. With
more, kinds that are predicted worse than most would get intervals that hold too little."""
_SHORTEST_MS = 1e-6
_LEAST_USUAL = 0.001
"""Usual error at least, where most predictions are exact."""


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
        measured_ms, predicted_ms = _known(measured_ms, predicted_ms)
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


def intervals_of_kinds(judged: Mapping[str, tuple[Array, Array]]) -> dict[str, Intervals]:
    """Calibrate the intervals of several kinds, those of few rows together.

    A kind of few rows cannot say what nine of ten of its layers keep. So its intervals go so many
    times the mean error of its kind to either side as hold nine of ten rows of all such kinds,
    each judged by the mean error of the others of its kind. That is after locally weighted
    conformal prediction (Lei et al. 2018, section 5.2), with the kind for the place; unlike there,
    the rows that say how large errors are calibrate too, so that nine of ten is what they hold
    together, not each kind, and near enough, not for certain. Validation rows may have chosen the
    number of trees, as in `Intervals.fit`.

    Parameters
    ----------
    judged : mapping of str to (array (rows,), array (rows,))
        Kind to measured and predicted times in ms, of rows that no predictor was fitted to.

    Returns
    -------
    dict of str to Intervals
        Without kinds of which nothing can be said: fewer than `MIN_ROWS_OF_KIND` rows are predicted
        to take time, or all kinds of few rows come to fewer than `FEWEST_ROWS`.
    """
    found, few = {}, {}
    for kind, (measured_ms, predicted_ms) in judged.items():
        own = Intervals.fit(measured_ms, predicted_ms)
        measured_ms, predicted_ms = _known(measured_ms, predicted_ms)
        times = predicted_ms > _SHORTEST_MS
        if own is not None:
            found[kind] = own
        elif times.sum() >= MIN_ROWS_OF_KIND:
            few[kind] = np.abs(np.log(measured_ms[times] / predicted_ms[times]))
    if sum(map(len, few.values())) < FEWEST_ROWS:
        return found
    usual = max(_LEAST_USUAL, float(np.median([sizes.mean() for sizes in few.values()])))

    def unit(total: Array | float, rows: int) -> Array | float:
        """Return the mean error of so many rows and the usual kind; more where they are few.

        Drawn from a heavy-tailed law, kinds of 1 to 35 rows then keep nine of ten alike.
        """
        known = PRIOR_ROWS + rows
        return (PRIOR_ROWS * usual + total) / known * (1 + 1 / known)

    scores = [sizes / unit(sizes.sum() - sizes, len(sizes) - 1) for sizes in few.values()]
    reach = conformal_bound(np.concatenate(scores))
    for kind, sizes in few.items():
        width = float(reach * unit(sizes.sum(), len(sizes)))
        found[kind] = Intervals((), (-width,), (width,))
    return found


def assumed(predicted_ms: Array, in_range: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return bounds where nothing was measured to judge by: half and twice the time."""
    width = np.full(len(predicted_ms), ASSUMED)
    return _around(predicted_ms, -width, width, in_range)


def conformal_bound(sizes: Sequence[float] | Array) -> float:
    """Return what the next of some sizes keeps with probability `SHARE`: its conformal rank."""
    ordered, rows = sorted(sizes), len(sizes)
    return float(ordered[min(math.ceil((rows + 1) * SHARE), rows) - 1])


def _known(measured_ms: Array, predicted_ms: Array) -> tuple[Array, Array]:
    """Keep rows of a time, with a prediction."""
    known = (measured_ms > _SHORTEST_MS) & np.isfinite(predicted_ms)
    return measured_ms[known], predicted_ms[known]


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
    bins = min(len(ordered) // FEWEST_ROWS, MAX_BINS)
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
