"""Errors and MAPLE against hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.predictors.metrics import errors, mape, maple

MEASURED = np.array([math.e - 1, math.e**2 - 1])
PREDICTED = np.array([math.e**3 - 1, math.e - 1])
# ln(1+t) = 1, 2 and ln(1+y) = 3, 1: |3-1|/1 = 2 and |1-2|/2 = 0.5, on average 1.25.
MAPLE = 1.25


def test_maple_is_the_mean_of_the_ratios() -> None:
    assert maple(MEASURED, PREDICTED) == pytest.approx(MAPLE)


def test_the_loss_that_trains_is_the_same() -> None:
    pytest.importorskip("tensorflow")
    from resperf.predictors._fitting import keras, maple_loss

    tensors = [keras().ops.convert_to_tensor(x[:, None], "float32") for x in (MEASURED, PREDICTED)]
    losses = np.asarray(maple_loss(*tensors))
    np.testing.assert_allclose(losses, [2.0, 0.5], rtol=1e-5)


def test_errors_by_hand() -> None:
    found = errors(np.array([1.0, 2.0, 10.0, 4.0]), np.array([1.1, 2.0, 7.0, 4.0]))
    assert found.rows == 4
    assert found.mape == pytest.approx((0.1 + 0.3) / 4)
    assert found.mae_ms == pytest.approx(3.1 / 4)
    assert found.rmse_ms == pytest.approx(math.sqrt((0.01 + 9) / 4))
    # 1.1 is a rounding error more than 10% off; 7 of 10 is far more.
    assert found.within_10 == 0.5
    assert mape(np.array([2.0]), np.array([1.0])) == 0.5


def test_no_rows_are_no_error_of_zero() -> None:
    with pytest.raises(TrainingError, match="no rows"):
        errors(np.array([]), np.array([]))
