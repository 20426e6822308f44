"""Errors of predicted times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array
from resperf.records import Record


@dataclass(frozen=True)
class Errors(Record):
    """Errors of predicted times over some rows.

    Attributes
    ----------
    rows : int
        Number of rows.
    mape : float
        Mean of |predicted - measured| / measured, as a fraction: 0.05 is 5%.
    median_ape : float
        Median of the same.
    rmse_ms, mae_ms : float
        Root mean square and mean absolute error, in ms.
    within_10 : float
        Share of rows whose error is at most 10% of the measured time.
    """

    rows: int
    mape: float
    median_ape: float
    rmse_ms: float
    mae_ms: float
    within_10: float


def errors(measured_ms: Array, predicted_ms: Array) -> Errors:
    """Compare predicted with measured times, both of shape (rows,).

    Raises
    ------
    TrainingError
        If there is no row.
    """
    if not len(measured_ms):
        raise TrainingError("no rows to judge; measure more layers with: resperf bench")
    off = predicted_ms - measured_ms
    relative = np.abs(off) / measured_ms
    return Errors(
        rows=len(measured_ms),
        mape=float(relative.mean()),
        median_ape=float(np.median(relative)),
        rmse_ms=float(np.sqrt(np.mean(off**2))),
        mae_ms=float(np.abs(off).mean()),
        within_10=float(np.mean(relative <= 0.1)),
    )


TIME_EDGES_MS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Edges of the bins of `errors_by_time`, two per decade."""


@dataclass(frozen=True)
class TimeBin(Record):
    """Errors over the rows with a measured time in a range.

    Attributes
    ----------
    from_ms, to_ms : float
        The range, excluding `to_ms`; 0 and infinity at the ends.
    rows : int
        At least 1.
    mape, within_10 : float
        As in `Errors`.
    """

    from_ms: float
    to_ms: float
    rows: int
    mape: float
    within_10: float


def errors_by_time(measured_ms: Array, predicted_ms: Array) -> tuple[TimeBin, ...]:
    """Split errors by measured time, since the shortest layers dominate a MAPE.

    Parameters
    ----------
    measured_ms, predicted_ms : array (rows,)

    Returns
    -------
    tuple of TimeBin
        From short to long; bins without rows are absent.
    """
    index = np.searchsorted(TIME_EDGES_MS, measured_ms, side="right")
    bounds = (0.0, *TIME_EDGES_MS, np.inf)
    bins = []
    for number in np.unique(index):
        judged = errors(measured_ms[index == number], predicted_ms[index == number])
        low_ms, high_ms = map(float, bounds[number : number + 2])
        bins.append(TimeBin(low_ms, high_ms, judged.rows, judged.mape, judged.within_10))
    return tuple(bins)


def r_squared(measured_ms: Array, predicted_ms: Array) -> float:
    """Return the share of the times' variance that is explained (ResPerfNet, Figure 4).

    1 - sum of (predicted - measured)^2 / sum of (measured - mean)^2; NaN if all measured times are
    equal.
    """
    spread = float(np.sum((measured_ms - np.mean(measured_ms)) ** 2))
    if not spread:
        return float("nan")
    return 1.0 - float(np.sum((predicted_ms - measured_ms) ** 2)) / spread


def mape(measured_ms: Array, predicted_ms: Array) -> float:
    """Mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted_ms - measured_ms) / measured_ms))
