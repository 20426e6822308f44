"""Predicted and measured times in one table."""

from __future__ import annotations

import math

import pytest

from resperf.report.comparison import ComparisonRow, comparison_table


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
