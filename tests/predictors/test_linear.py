"""Linear fits by hand: each option alone, in problems of one or two coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from resperf.predictors.linear import Robust, fit_coefficients, independent, left_out

pytest.importorskip("scipy")

LINE = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
ONES = np.ones((2, 1))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("non_negative", [False, True])
def test_what_lies_on_a_line_is_fitted_exactly(relative: bool, non_negative: bool) -> None:
    values = np.array([3.0, 5.0, 7.0])
    found = fit_coefficients(LINE, values, relative=relative, non_negative=non_negative)
    assert found == pytest.approx([1.0, 2.0])


def test_a_slope_below_zero_becomes_zero_and_the_constant_the_mean() -> None:
    falling = np.array([5.0, 4.0, 3.0])
    assert fit_coefficients(LINE, falling, relative=False) == pytest.approx([4.0, 0.0])
    free = fit_coefficients(LINE, falling, relative=False, non_negative=False)
    assert free == pytest.approx([6.0, -1.0])


def test_relative_errors_favour_small_values() -> None:
    """c / 1 and c / 2 are nearest to 1 at c = 6 / 5; c is nearest to 1 and 2 at their mean."""
    values = np.array([1.0, 2.0])
    assert fit_coefficients(ONES, values) == pytest.approx([1.2])
    assert fit_coefficients(ONES, values, relative=False) == pytest.approx([1.5])


def test_rows_count_by_their_weights() -> None:
    weights = np.array([2.0, 1.0])
    found = fit_coefficients(ONES, np.array([1.0, 4.0]), relative=False, weights=weights)
    assert found == pytest.approx([2.0])


def test_an_outlier_does_not_move_a_robust_fit() -> None:
    values = np.array([1.0, 1.0, 1.0, 1.0, 11.0])
    ones = np.ones((5, 1))
    assert fit_coefficients(ones, values, relative=False) == pytest.approx([3.0])
    robust = Robust(rounds=30, least_error=1e-3)
    found = fit_coefficients(ones, values, relative=False, robust=robust)
    assert found == pytest.approx([1.0], abs=1e-3)


def test_weights_of_errors_have_a_mean_of_one() -> None:
    """Before that they are 2 and 1: 1 / sqrt(1/4), which is the least error, and 1 / sqrt(1)."""
    errors = np.array([0.01, -1.0])
    assert Robust(1, 0.25, by_squares=False).weights(errors) == pytest.approx([4 / 3, 2 / 3])
    assert Robust(1, 0.25).weights(errors) == pytest.approx(np.array([2.0, 1.0]) / 2.5**0.5)


def test_coefficients_are_drawn_to_a_centre() -> None:
    """Halfway, where it counts as much as the single row; and to the centre alone without rows."""
    row, value, strength = np.ones((1, 1)), np.array([4.0]), np.ones(1)
    to_zero = fit_coefficients(row, value, relative=False, strengths=strength)
    to_two = fit_coefficients(
        row, value, relative=False, strengths=strength, centre=np.array([2.0])
    )
    assert (to_zero[0], to_two[0]) == pytest.approx((2.0, 3.0))
    unseen = fit_coefficients(
        np.array([[1.0, 0.0]]), value, strengths=np.array([0.0, 0.1]), centre=np.array([0.0, 7.0])
    )
    assert unseen == pytest.approx([4.0, 7.0])


def test_a_coefficient_above_its_bound_is_fixed_and_the_others_fitted_again() -> None:
    terms, values = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([3.0, 5.0])
    for largest, expected in ((np.inf, [3.0, 2.0]), (2.0, [2.0, 3.0]), (0.0, [0.0, 5.0])):
        found = fit_coefficients(terms, values, relative=False, largest=np.array([largest, np.inf]))
        assert found == pytest.approx(expected)


def test_of_terms_that_are_not_told_apart_the_longer_one_gets_the_coefficient() -> None:
    """The second column is twice the first, and a half of it where it is divided by four."""
    terms, values = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([4.0, 4.0])
    for scales, expected in (([1.0, 1.0], [0.0, 2.0]), ([1.0, 4.0], [4.0, 0.0])):
        found = fit_coefficients(terms, values, relative=False, scales=np.array(scales))
        assert found == pytest.approx(expected)


def test_columns_that_follow_from_others_are_not_independent() -> None:
    matrix = np.array([[1.0, 2.0, 1.0, 4.0], [1.0, 2.0, 0.0, 3.0]])
    assert independent(matrix) == [0, 2]


def test_rows_are_predicted_without_their_group() -> None:
    values = np.array([1.0, 8.0, 3.0])
    found = left_out(["a", "b", "a"], lambda rest, own: np.full(own.sum(), values[rest].mean()))
    assert found.tolist() == [8.0, 2.0, 8.0]
