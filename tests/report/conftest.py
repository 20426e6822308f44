"""Results of comparisons, made by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from resperf.predictors.metrics import errors, errors_by_time, r_squared
from resperf.training import Compared

Make = Callable[..., Compared]


@pytest.fixture
def compared() -> Make:
    """A result whose predictions are off by a share: ``compared("residual", 0.05, rows=500)``."""

    def make(
        method: str,
        off: float,
        *,
        kind: str = "conv",
        rows: int = 1000,
        floor: float = 0.01,
        fold_mapes: tuple[float, ...] = (),
    ) -> Compared:
        measured_ms = np.geomspace(0.05, 20, 40)
        predicted_ms = measured_ms * (1 + off)
        return Compared(
            kind=kind, phase="execution", method=method, rows_trained=rows,
            rows_validation=rows // 10, errors=errors(measured_ms, predicted_ms),
            bins=errors_by_time(measured_ms, predicted_ms),
            r2=r_squared(measured_ms, predicted_ms), fold_mapes=fold_mapes, fit_s=12.34,
            predict_us=5.67, noise_floor=floor, measured_ms=measured_ms,
            predicted_ms=predicted_ms,
        )  # fmt: skip

    return make
