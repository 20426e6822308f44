"""90% intervals of measured times around predicted ones, from validation rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from resperf.errors import require
from resperf.features import Array
from resperf.records import Record

_Kind = TypeVar("_Kind", bound=Hashable)

SHARE = 0.9
"""Share of measured times that an interval should contain."""
FEWEST_ROWS = 40
"""Minimum rows per bin: with fewer, a single row decides on the outer twentieths."""
MAX_BINS = 6
OUTSIDE_FACTOR = 2.0
"""Factor by which intervals outside the trained range are wider, in logarithms. It is an assumption
that cannot be calibrated."""
OUTSIDE_LEAST = 0.1
"""Minimum width of such an interval to either side, in logarithms."""
ASSUMED = math.log(2.0)
"""Half width, in logarithms, without validation rows: within a factor of two."""
MIN_ROWS_OF_KIND = 5
"""Minimum rows of a kind for an interval: one or two rows may agree by chance."""
FEWEST_GROUPS = 3
"""Minimum groups that say how groups differ: with two, Student's t reaches 4.7 times as far as they
differ, with three 2.0 times, with nine 1.2 times."""
PRIOR_NETWORKS = 2
"""What a spread that was known before counts in that of few networks, or layers."""
PRIOR_ROWS = 1
"""Pseudo-rows with the usual error that are added to the few rows of a kind to estimate its error.
With more, intervals of kinds with large errors would be too narrow."""
_SHORTEST_MS = 1e-6
"""Times up to this count as none: methods that clip at 0 predict 0, which has no logarithm."""
_LEAST_USUAL = 0.001
"""Minimum of the usual error, for when most predictions are exact."""


@dataclass(frozen=True)
class Intervals(Record):
    """Bounds of the logarithm of measured over predicted time, by predicted time.

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

    def __post_init__(self) -> None:
        edges_ms, low, high = self.edges_ms, self.low, self.high
        if not len(low) == len(high) == len(edges_ms) + 1:
            raise ValueError("bounds of intervals do not fit their bins")
        if not (
            all(map(math.isfinite, (*edges_ms, *low, *high)))
            and list(edges_ms) == sorted(edges_ms)
            and max(low) <= 0 <= min(high)
        ):
            raise ValueError("bounds of intervals are damaged")

    @classmethod
    def fit(
        cls, measured_ms: Array, predicted_ms: Array, groups: Sequence[str] = ()
    ) -> Self | None:
        """Calibrate on rows that no predictor was fitted to; None if there are too few.

        These are validation rows. Some methods choose the number of epochs or trees on them, which
        makes intervals slightly too narrow; their noise makes intervals slightly too wide.

        Parameters
        ----------
        measured_ms, predicted_ms : array (rows,)
        groups : sequence of str, optional
            Rows of one group err together: bounds are widened until they would contain the rows of
            one more group, each group weighing as one row.
        """
        usable = _usable(measured_ms, predicted_ms)
        measured_ms, predicted_ms = measured_ms[usable], predicted_ms[usable]
        if len(measured_ms) < FEWEST_ROWS:
            return None
        # Methods that clip at 0 predict 0: these rows get a bin of their own.
        times = predicted_ms > _SHORTEST_MS
        predicted_ms = np.maximum(predicted_ms, _SHORTEST_MS)
        ratios, edges = np.log(measured_ms / predicted_ms), _edges(predicted_ms[times])
        if not times.all():
            edges = [float(np.nextafter(_SHORTEST_MS, 1.0)), *edges] if times.any() else edges
        index = np.searchsorted(edges, predicted_ms, side="right")
        bounds = np.array([_bounds(ratios[index == number]) for number in range(len(edges) + 1)])
        if len(groups):
            reach = np.where(ratios > 0, bounds[index, 1], -bounds[index, 0])
            scores = np.abs(ratios) / np.maximum(reach, _LEAST_USUAL)
            bounds *= max(1.0, conformal_bound(scores, equal_shares(np.asarray(groups)[usable])))
        return cls(tuple(edges), *(tuple(bounds[:, side].tolist()) for side in (0, 1)))

    @classmethod
    def of_groups(cls, ratios: Sequence[Array]) -> Self | None:
        """Calibrate for a group of rows that is like none before, such as a device.

        Rows of one group err alike, so groups count, not rows: the outer twentieths of the rows of
        all groups, each weighing the same, are moved away from the median by as much as Student's t
        is wider than the normal distribution for one more value after so few.

        Parameters
        ----------
        ratios : sequence of array (rows,)
            For each group ln(measured / predicted) of its rows, predicted from the other groups.

        Returns
        -------
        Intervals or None
            None for fewer than `FEWEST_GROUPS`.
        """
        groups = len(ratios)
        if groups < FEWEST_GROUPS:
            return None
        outer = (1 - SHARE) / 2
        wider = half_width(1.0, groups - 1) / half_width(1.0) * math.sqrt(1 + 1 / groups)
        weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in ratios])
        pooled = np.concatenate(ratios)
        order = np.argsort(pooled)
        shares = np.cumsum(weights[order]) / weights.sum()
        places = np.searchsorted(shares, (outer, 0.5, 1 - outer)).clip(max=len(pooled) - 1)
        low, middle, high = pooled[order][places]
        return cls(
            (),
            (min(float(middle + wider * (low - middle)), 0.0),),
            (max(float(middle + wider * (high - middle)), 0.0),),
        )

    def bounds(self, predicted_ms: Array, in_range: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the lower and upper bound of each layer's time, in ms.

        Parameters
        ----------
        predicted_ms : array (rows,)
        in_range : array of bool (rows,)
            Whether the layer is inside the trained range.
        """
        index = np.searchsorted(self.edges_ms, predicted_ms, side="right")
        low, high = np.array(self.low)[index], np.array(self.high)[index]
        return _around(predicted_ms, low, high, in_range)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"share": SHARE, **super().to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        if values.get("share") != SHARE:
            raise ValueError("bounds of intervals are damaged")
        return super().from_json(values)


def intervals_of_kinds(
    judged: Mapping[_Kind, tuple[Array, Array]], layers: Mapping[_Kind, Sequence[int]] = {}
) -> dict[_Kind, Intervals]:
    """Calibrate the intervals of several kinds; kinds of few rows are calibrated together.

    A kind of few rows has no reliable 90% quantile. Its interval is a multiple of its mean error to
    either side. The multiple covers nine of ten rows of all such kinds, each divided by the mean
    error of the other rows of its kind. This follows locally weighted conformal prediction (Lei et
    al. 2018, section 5.2), by kind instead of location. Unlike there, the rows that estimate the
    mean error also calibrate. So the coverage of 90% is approximate, and holds for these kinds
    together, not for each. As in `Intervals.fit`, the number of trees may have been chosen on
    these rows.

    Parameters
    ----------
    judged : mapping of kind to (array (rows,), array (rows,))
        Kind, or session, to measured and predicted times in ms, of rows that no predictor was
        fitted to.
    layers : mapping of kind to sequence of int, optional
        A number of the layer of each row: rows of one layer in several kinds of few rows, such as
        sessions of several cards, err together and count as one row.

    Returns
    -------
    dict of kind to Intervals
        Kinds with fewer than `MIN_ROWS_OF_KIND` rows of a prediction above 0 are absent, as are all
        kinds of few rows if they have fewer than `FEWEST_ROWS` rows together.
    """
    intervals: dict[_Kind, Intervals] = {}
    few: dict[_Kind, Array] = {}
    names: list[Array] = []
    for kind, (measured_ms, predicted_ms) in judged.items():
        own = Intervals.fit(measured_ms, predicted_ms)
        times = _usable(measured_ms, predicted_ms) & (predicted_ms > _SHORTEST_MS)
        if own is not None:
            intervals[kind] = own
        elif times.sum() >= MIN_ROWS_OF_KIND:
            few[kind] = np.abs(np.log(measured_ms[times] / predicted_ms[times]))
            names += [np.asarray(layers[kind])[times]] if layers else []
    if sum(map(len, few.values())) < FEWEST_ROWS:
        return intervals
    usual = max(_LEAST_USUAL, float(np.median([sizes.mean() for sizes in few.values()])))

    def unit(total: Array | float, rows: int) -> Array | float:
        """Return the mean error of the rows and pseudo-rows, increased for few rows.

        With errors of a heavy-tailed distribution, coverage is then 90% for 1 to 35 rows alike.
        """
        weight = PRIOR_ROWS + rows
        return (PRIOR_ROWS * usual + total) / weight * (1 + 1 / weight)

    scores = [sizes / unit(sizes.sum() - sizes, len(sizes) - 1) for sizes in few.values()]
    weights = equal_shares(np.concatenate(names)) if names else ()
    reach = conformal_bound(np.concatenate(scores), weights)
    for kind, sizes in few.items():
        width = float(reach * unit(sizes.sum(), len(sizes)))
        intervals[kind] = Intervals((), (-width,), (width,))
    return intervals


def bounds_of(
    intervals: Intervals | None, predicted_ms: Array, in_range: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return the bounds of intervals, or assumed ones where none were fitted."""
    bounds = assumed if intervals is None else intervals.bounds
    return bounds(predicted_ms, in_range)


def assumed(predicted_ms: Array, in_range: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return bounds without validation rows: half and twice the time."""
    width = np.full(len(predicted_ms), ASSUMED)
    return _around(predicted_ms, -width, width, in_range)


def widened(
    predicted_ms: Array, low_ms: Array, high_ms: Array, in_range: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return a predictor's own bounds, wider outside the trained range."""
    around_ms = np.maximum(predicted_ms, _SHORTEST_MS)
    low = np.log(np.maximum(low_ms, _SHORTEST_MS) / around_ms)
    wider = _around(predicted_ms, low, np.log(high_ms / around_ms), in_range)
    return np.where(in_range, low_ms, wider[0]), np.where(in_range, high_ms, wider[1])


def half_width(spread: float, freedom: float = math.inf) -> float:
    """Return the half width of the interval of a normal distribution.

    By Student's distribution, where its `spread` was estimated with few degrees of freedom.
    """
    special = require("scipy.special", "train")
    outer = (1 + SHARE) / 2
    few = math.isfinite(freedom)
    return float(special.stdtrit(freedom, outer) if few else special.ndtri(outer)) * spread


def joined_spread(squares: float, count: float, prior_spread: float) -> tuple[float, float]:
    """Join the sum of so many squared errors with the spread that was known before.

    Returns
    -------
    spread, freedom : float
        As `half_width` takes them.
    """
    freedom = PRIOR_NETWORKS + count
    return math.sqrt((PRIOR_NETWORKS * prior_spread**2 + squares) / freedom), freedom


def conformal_bound(
    sizes: Sequence[float] | Array, weights: Sequence[float] | Array = (), *, share: float = SHARE
) -> float:
    """Return the conformal quantile: the next size is below it with probability `share`.

    Sizes that err together weigh less than 1 each (`weights`), by default all weigh 1.
    """
    size_weights = np.asarray(weights, dtype=float) if len(weights) else np.ones(len(sizes))
    order = np.argsort(sizes)
    up_to = np.cumsum(size_weights[order])
    # Sums of fractions are a little off.
    index = int(np.searchsorted(up_to, (up_to[-1] + 1) * share - 1e-9))
    return float(np.asarray(sizes)[order[min(index, len(order) - 1)]])


def equal_shares(groups: npt.ArrayLike) -> Array:
    """Return the weight of each row if each group weighs as one, (rows,)."""
    _, of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[of_row])


def _usable(measured_ms: Array, predicted_ms: Array) -> npt.NDArray[np.bool_]:
    """Say which rows have a time above 0 and a finite prediction."""
    return (measured_ms > _SHORTEST_MS) & np.isfinite(predicted_ms)


def _around(
    predicted_ms: Array, low: Array, high: Array, in_range: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Apply logarithmic bounds, wider outside the trained range."""
    low = np.where(in_range, low, np.minimum(OUTSIDE_FACTOR * low, -OUTSIDE_LEAST))
    high = np.where(in_range, high, np.maximum(OUTSIDE_FACTOR * high, OUTSIDE_LEAST))
    around_ms = np.maximum(predicted_ms, _SHORTEST_MS)
    return np.minimum(around_ms * np.exp(low), predicted_ms), around_ms * np.exp(high)


def _edges(predicted_ms: Array) -> list[float]:
    """Split predicted times into bins of about equally many rows, with equal times in one bin."""
    ordered = np.sort(predicted_ms)
    bins = min(len(ordered) // FEWEST_ROWS, MAX_BINS)
    edges: list[float] = []
    before = 0
    for number in range(1, bins):
        edge = ordered[number * len(ordered) // bins]
        below = int(np.searchsorted(ordered, edge))
        if min(below - before, len(ordered) - below) >= FEWEST_ROWS:
            edges.append(float(edge))
            before = below
    return edges


def _bounds(ratios: Array) -> tuple[float, float]:
    """Return bounds that contain the next ratio with probability `SHARE`.

    They always include 0: a prediction is inside its own interval.
    """
    below, above = (conformal_bound(sizes, share=(1 + SHARE) / 2) for sizes in (-ratios, ratios))
    return min(-below, 0.0), max(above, 0.0)
