"""Compared methods as text."""

from __future__ import annotations

import math

from resperf.predictors.metrics import TimeBin
from resperf.report.methods import at_most_rows, bin_title, by_kind_and_quantity, methods_text


def test_one_line_per_result_and_one_column_per_bin(compared) -> None:
    rows = [
        compared("baseline", 0.2, rows=500), compared("boosted", 0.05, rows=500),
        compared("baseline", 0.2), compared("boosted", -0.04),
        compared("baseline", 0.3, kind="pool", floor=math.nan),
    ]  # fmt: skip
    lines = methods_text(rows).split("\n")
    headings = (
        "kind   quantity   method   rows trained   rows tested   MAPE   noise floor   within 10%   "
        "RMSE ms   MAE ms   fit s   predict us/layer"
    )
    assert lines[0].split() == headings.split()
    assert lines[3].split()[:8] == [
        "conv", "execution", "boosted", "500", "40", "5.0%", "1.0%", "100.0%",
    ]  # fmt: skip
    assert lines[3].split()[-2:] == ["12.3", "5.7"]
    assert lines[6].split()[6] == "-"  # no noise floor is no floor of 0
    conv = lines.index("conv execution: MAPE by measured time")
    assert lines[conv + 1].split()[:3] == ["method", "0.03-0.1", "ms"]
    counts = [int(word) for word in lines[conv + 3].split()[2:]]
    assert sum(counts) == 40
    # The longest training of each method, not an earlier point of its curve.
    assert lines[conv + 5].split() == ["boosted", *["4.0%"] * len(counts)]
    assert "pool execution: MAPE by measured time" in lines


def test_folds_show_their_range_and_are_absent_without_folds(compared) -> None:
    text = methods_text([compared("boosted", 0.05, fold_mapes=(0.06, 0.04, 0.05))])
    assert "of folds" in text.split("\n")[0]
    assert "4.0% to 6.0%" in text
    assert "of folds" not in methods_text([compared("boosted", 0.05)])


def test_a_method_is_shown_by_its_result_with_most_rows(compared) -> None:
    rows = [compared("a", 0.1, rows=900), compared("b", 0.1, rows=5), compared("a", 0.2, rows=9)]
    assert [(row.method, row.rows_trained) for row in at_most_rows(rows)] == [("a", 900), ("b", 5)]


def test_rows_are_grouped_by_kind(compared) -> None:
    rows = [compared("a", 0.1), compared("b", 0.1), compared("a", 0.1, kind="pool")]
    found = {place: len(group) for place, group in by_kind_and_quantity(rows)}
    assert found == {("conv", "execution"): 2, ("pool", "execution"): 1}


def test_bins_are_named_by_their_bounds() -> None:
    bounds = [(0.0, 0.001), (0.1, 0.3), (300.0, 1000.0), (1000.0, math.inf)]
    titles = [bin_title(TimeBin(low, high, 1, 0.0, 1.0)) for low, high in bounds]
    assert titles == ["< 0.001 ms", "0.1-0.3 ms", "300-1000 ms", ">= 1000 ms"]
