"""Errors and MAPLE against hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.predictors.metrics import errors, errors_by_time, mape, r_squared

MEASURED = np.array([math.e - 1, math.e**2 - 1])
PREDICTED = np.array([math.e**3 - 1, math.e - 1])


def test_the_loss_that_trains_is_maple() -> None:
    pytest.importorskip("tensorflow")
    from resperf.predictors._fitting import keras, maple_loss

    tensors = [keras().ops.convert_to_tensor(x[:, None], "float32") for x in (MEASURED, PREDICTED)]
    losses = np.asarray(maple_loss(*tensors))
    # ln(1+t) = 1, 2 and ln(1+y) = 3, 1: |3-1|/1 = 2 and |1-2|/2 = 0.5.
    np.testing.assert_allclose(losses, [2.0, 0.5], rtol=1e-5)


def test_errors_by_hand() -> None:
    found = errors(np.array([1.0, 2.0, 10.0, 4.0]), np.array([1.1, 2.0, 7.0, 4.0]))
    assert found.rows == 4
    assert found.mape == pytest.approx((0.1 + 0.3) / 4)
    assert found.mae_ms == pytest.approx(3.1 / 4)
    assert found.rmse_ms == pytest.approx(math.sqrt((0.01 + 9) / 4))
    # 1.1 is a rounding error more than 10% off; 7 of 10 is far more.
    assert found.within_10 == 0.5
    assert found.median_ape == pytest.approx((0.0 + 0.1) / 2)
    assert mape(np.array([2.0]), np.array([1.0])) == 0.5


def test_no_rows_are_no_error_of_zero() -> None:
    with pytest.raises(TrainingError, match="no rows"):
        errors(np.array([]), np.array([]))


def test_errors_by_time_by_hand() -> None:
    measured = np.array([0.2, 0.1, 0.3, 0.0005, 5000.0, 0.29])
    predicted = np.array([0.1, 0.1, 0.6, 0.0005, 5500.0, 0.29])
    bins = errors_by_time(measured, predicted)
    # A bin holds its lower edge and not its upper one: 0.1 to 0.29 are together, 0.3 is not.
    assert [(each.from_ms, each.to_ms, each.rows) for each in bins] == [
        (0.0, 0.001, 1), (0.1, 0.3, 3), (0.3, 1.0, 1), (1000.0, math.inf, 1),
    ]  # fmt: skip
    assert [each.mape for each in bins] == pytest.approx([0.0, 0.5 / 3, 1.0, 0.1])
    assert bins[1].within_10 == pytest.approx(2 / 3)
    assert bins[-1].to_json() == {
        "from_ms": 1000.0, "to_ms": None, "rows": 1, "mape": bins[-1].mape, "within_10": 1.0,
    }  # fmt: skip
    assert errors_by_time(np.array([]), np.array([])) == ()


def test_r_squared_by_hand() -> None:
    # The mean is 2; squares about it 1 + 0 + 1, squares of the errors 0.25 + 0 + 0.25.
    found = r_squared(np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 2.5]))
    assert found == pytest.approx(1 - 0.5 / 2)
    assert math.isnan(r_squared(np.array([2.0, 2.0]), np.array([2.0, 1.0])))
