from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from resperf.prediction import LayerPrediction
from resperf.report.comparison import ComparisonRow
from resperf.report.side_by_side import layer_comparison, order_agreement
from resperf.timing import rank_correlation


def test_ranks_are_compared_and_equal_values_share_theirs() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4: 4.5 / sqrt(4.5 x 5).
    assert rank_correlation([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(0.9**0.5)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_layers_of_one_name_and_key_have_a_time_each() -> None:
    """A sum of four tensors is three equal layers of one operator."""

    def layers(*times_ms: float) -> tuple[LayerPrediction, ...]:
        return tuple(LayerPrediction("sum", "elementwise", ms, True, key="k") for ms in times_ms)

    one = LayerPrediction("other", "elementwise", 9.0, True, key="k")
    rows = layer_comparison(
        SimpleNamespace(layers=layers(1.0, 1.0, 1.0)),  # type: ignore[arg-type]
        SimpleNamespace(layers=(*layers(2.0, 3.0), one)),  # type: ignore[arg-type]
    )
    assert [row.measured_ms for row in rows[:2]] == [2.0, 3.0]
    assert math.isnan(rows[2].measured_ms)
    assert (math.isnan(rows[3].predicted_ms), rows[3].measured_ms) == (True, 9.0)


def test_the_order_of_layers_is_summed_up() -> None:
    times_ms = [(1, 1.1), (2, 2.2), (3, 2.9), (4, 4.4), (5, 5.1), (6, 6.0), (7, 7.2), (0.5, 9.0)]
    rows = [ComparisonRow(f"l{place}", None, *each) for place, each in enumerate(times_ms)]
    unknown = ComparisonRow("unknown", None, float("nan"), 3.0)
    text = order_agreement([*rows, unknown])
    # Of 8, 7 agree and the slowest is predicted to be the fastest: 1 - 6 (7 x 1 + 49) / (8 x 63).
    assert "order of 8 layers: rank correlation 0.333;" in text
    assert "4 of the 5 slowest are among the first 7 predicted" in text
    assert order_agreement(rows[:4]) == ""
