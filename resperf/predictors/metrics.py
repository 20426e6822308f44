"""How far predicted times are from measured ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array


@dataclass(frozen=True)
class Errors:
    """Errors of predicted times over some rows.

    Attributes
    ----------
    rows : int
        How many times were compared.
    mape : float
        Mean of |predicted - measured| / measured, as a fraction: 0.05 is 5%.
    rmse_ms, mae_ms : float
        Root mean square and mean absolute error, in ms.
    within_10 : float
        Share of rows whose error is at most 10% of the measured time.
    """

    rows: int
    mape: float
    rmse_ms: float
    mae_ms: float
    within_10: float

    def to_json(self) -> dict[str, float]:
        """Return plain JSON values."""
        return asdict(self)


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
        rmse_ms=float(np.sqrt(np.mean(off**2))),
        mae_ms=float(np.abs(off).mean()),
        within_10=float(np.mean(relative <= 0.1)),
    )


def mape(measured_ms: Array, predicted_ms: Array) -> float:
    """Mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted_ms - measured_ms) / measured_ms))


def maple(measured: Array, predicted: Array) -> float:
    """Mean absolute percentage logarithmic error (ResPerfNet equation 7 without its L2 term).

    The mean over rows of |ln(1 + y) - ln(1 + t)| / ln(1 + t), t measured and y predicted.
    """
    logs = np.log1p(measured)
    return float(np.mean(np.abs(np.log1p(predicted) - logs) / logs))
