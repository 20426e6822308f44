"""Compared methods in Markdown."""

from __future__ import annotations

import math

from resperf.report.markdown import markdown_table, methods_markdown


def test_a_table() -> None:
    text = markdown_table(("method", "MAPE"), [["a", "1%"], ["b", "2%"]])
    assert text.split("\n") == ["| method | MAPE |", "| --- | ---: |", "| a | 1% |", "| b | 2% |"]


def test_the_best_method_comes_first_and_a_curve_shows_each_number_of_rows(compared) -> None:
    rows = [
        compared("a", 0.2), compared("b", 0.05, rows=200), compared("b", 0.04, rows=1000),
        compared("c", 0.1, kind="pool", floor=math.nan),
    ]  # fmt: skip
    parts = methods_markdown(rows).split("\n\n")
    assert parts[0] == (
        "**conv**, execution: 1000 rows trained, 40 tested, noise floor 1.00%."
    )  # fmt: skip
    lines = parts[1].split("\n")
    assert [line.split()[1] for line in lines[2:]] == ["b", "a"]
    assert lines[2].startswith("| b | 4.00% | 100.0% |")
    assert lines[2].endswith("| 12.3 | 5.7 |")
    # `a` has one point, which is no curve.
    assert parts[3].split("\n") == [
        "| method | 200 | 1000 |", "| --- | ---: | ---: |", "| b | 5.00% | 4.00% |",
    ]  # fmt: skip
    assert parts[4].endswith("40 tested, noise floor -.")
    assert len(parts) == 6
