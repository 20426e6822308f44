"""Predicted and measured times in one table."""

from __future__ import annotations

import math

import pytest

from resperf.report.engine_comparison import ComparisonRow, comparison_table, order_agreement
from resperf.timing import rank_correlation


def test_the_error_is_relative_to_the_measurement():
    assert ComparisonRow("a", 1, 110.0, 100.0).error == pytest.approx(0.10)
    assert ComparisonRow("a", 1, 80.0, 100.0).error == pytest.approx(-0.20)
    assert math.isnan(ComparisonRow("a", 1, 80.0, math.nan).error)
    assert math.isnan(ComparisonRow("a", 1, 80.0, 0.0).error)


def test_a_row_without_prediction_shows_a_dash_and_columns_without_content_are_absent():
    text = comparison_table([ComparisonRow("conv1", None, math.nan, 2.0)], title="layer")
    assert text.splitlines()[0].split() == ["layer", "predicted", "ms", "measured", "ms", "error"]
    assert text.splitlines()[2].split() == ["conv1", "-", "2.000", "-"]
    both = comparison_table([ComparisonRow("vgg16", 8, 3.0, 2.0, "slow")])
    assert both.splitlines()[2].split() == ["vgg16", "8", "3.000", "2.000", "+50.0%", "slow"]


def test_ranks_are_compared_and_equal_values_share_theirs() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4: 4.5 / sqrt(4.5 x 5).
    assert rank_correlation([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(0.9**0.5)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_the_order_of_layers_is_summed_up() -> None:
    times_ms = [(1, 1.1), (2, 2.2), (3, 2.9), (4, 4.4), (5, 5.1), (6, 6.0), (7, 7.2), (0.5, 9.0)]
    rows = [ComparisonRow(f"l{place}", None, *each) for place, each in enumerate(times_ms)]
    unknown = ComparisonRow("unknown", None, float("nan"), 3.0)
    text = order_agreement([*rows, unknown])
    # Of 8, 7 agree and the slowest is predicted to be the fastest: 1 - 6 (7 x 1 + 49) / (8 x 63).
    assert "order of 8 layers: rank correlation 0.333;" in text
    assert "4 of the 5 slowest are among the first 7 predicted" in text
    assert order_agreement(rows[:4]) == ""
