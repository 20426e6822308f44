"""Transforms against hand-worked numbers, scipy and scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from resperf.errors import BundleError, TrainingError
from resperf.features.transforms import (
    BoxCox,
    MinMax,
    ZScore,
    transform_from_json,
)

RANDOM = np.random.default_rng(3)
SKEWED = np.exp(RANDOM.normal(size=(200, 2)) * [0.5, 2.0] + [1.0, 3.0])


def test_box_cox_by_hand() -> None:
    step = BoxCox(("a", "b", "c"), (2.0, 0.0, -1.0))
    # (3^2 - 1) / 2 = 4; ln e = 1; (4^-1 - 1) / -1 = 0.75.
    np.testing.assert_allclose(step.apply(np.array([[3.0, math.e, 4.0]])), [[4.0, 1.0, 0.75]])


def test_box_cox_agrees_with_scipy_and_scikit_learn() -> None:
    stats = pytest.importorskip("scipy.stats")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    step = BoxCox.fit(SKEWED, ("a", "b"))
    for column in range(2):
        expected, power = stats.boxcox(SKEWED[:, column])
        assert step.lambdas[column] == pytest.approx(power)
        np.testing.assert_allclose(step.apply(SKEWED)[:, column], expected, rtol=1e-10)
    theirs = preprocessing.PowerTransformer(method="box-cox", standardize=False).fit(SKEWED)
    np.testing.assert_allclose(step.lambdas, theirs.lambdas_, atol=1e-6)


def test_powers_of_box_cox_near_zero_and_below() -> None:
    special = pytest.importorskip("scipy.special")
    powers = (0.0, -0.4)
    found = BoxCox(("a", "b"), powers).apply(SKEWED)
    np.testing.assert_allclose(special.inv_boxcox(found, powers), SKEWED, rtol=1e-9)


def test_z_score_by_hand() -> None:
    values = np.array([[1.0, 5.0], [3.0, 5.0]])
    step = ZScore.fit(values, ("a", "b"))
    # Mean 2 and population deviation 1; the constant column becomes 0, its sigma is stored as 1.
    assert (step.means, step.sigmas) == ((2.0, 5.0), (1.0, 1.0))
    np.testing.assert_array_equal(step.apply(values), [[-1.0, 0.0], [1.0, 0.0]])


def test_z_score_agrees_with_scikit_learn() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    mine = ZScore.fit(SKEWED, ("a", "b")).apply(SKEWED)
    np.testing.assert_allclose(mine, preprocessing.StandardScaler().fit_transform(SKEWED))


def test_a_constant_that_is_no_binary_fraction_is_zero_exactly() -> None:
    values = np.full((7, 1), 0.1)
    assert (ZScore.fit(values, ("a",)).apply(values) == 0).all()


@pytest.mark.parametrize("cls", [BoxCox, ZScore])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0], [2.0, math.nan]], "column b holds nan in row 1"),
        ([[1.0, math.inf], [2.0, 3.0]], "column b holds inf in row 0"),
        ([[1.0, 2.0]], "1 rows are too few"),
        (np.empty((0, 2)), "0 rows are too few"),
        ([[1.0], [2.0]], "2 columns were named"),
    ],
)
def test_unusable_training_values_are_refused(
    cls: type[BoxCox], values: object, message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        cls.fit(np.array(values), ("a", "b"))


def test_box_cox_refuses_zeros_and_constants_by_name() -> None:
    with pytest.raises(TrainingError, match="above 0; column b holds 0"):
        BoxCox.fit(np.array([[1.0, 0.0], [2.0, 3.0]]), ("a", "b"))
    with pytest.raises(TrainingError, match="column a is 4 in every row"):
        BoxCox.fit(np.array([[4.0], [4.0]]), ("a",))


@pytest.mark.parametrize(
    "step",
    [
        BoxCox(("a", "b"), (0.3, -0.1)),
        ZScore(("a", "b"), (0.1, 2.0), (3.0, 1 / 3)),
    ],
)
def test_json_keeps_every_bit(step: ZScore) -> None:
    again = transform_from_json(json.loads(json.dumps(step.to_json())))
    assert again == step
    np.testing.assert_array_equal(again.apply(SKEWED), step.apply(SKEWED))


def test_unknown_steps_are_refused() -> None:
    with pytest.raises(BundleError, match="no transform 'quantile'"):
        transform_from_json({"name": "quantile"})
    with pytest.raises(BundleError, match="no transform 'clip'"):
        transform_from_json({"name": "clip", "other": 1})


def test_min_max_scales_ranges_and_names_what_is_beyond() -> None:
    rows = np.array([[2.0, 7.0, -1.0], [4.0, 7.0, 1.0], [3.0, 7.0, 0.0]])
    transform = transform_from_json(MinMax.fit(rows, ("a", "constant", "b")).to_json())
    np.testing.assert_array_equal(transform.apply(rows), [[0, 0, 0], [1, 0, 1], [0.5, 0, 0.5]])
    beyond = np.array([[6.0, 8.0, 0.5]])
    np.testing.assert_array_equal(transform.apply(beyond), [[2, 0, 0.75]])
    np.testing.assert_array_equal(transform.outside(beyond), [[True, True, False]])
    assert not transform.outside(rows).any()
