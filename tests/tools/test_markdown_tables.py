"""Compared methods in Markdown."""

from __future__ import annotations

import math

import pytest


@pytest.fixture
def tables(load_tool):
    return load_tool("benchmarks/markdown_tables")


def test_a_table(tables) -> None:
    text = tables.markdown_table(("method", "MAPE"), [["a", "1%"], ["b", "2%"]])
    assert text.split("\n") == ["| method | MAPE |", "| --- | ---: |", "| a | 1% |", "| b | 2% |"]


def test_the_best_method_comes_first_and_a_curve_has_each_number_of_rows(tables, compared) -> None:
    rows = [
        compared("a", 0.2), compared("b", 0.05, rows=200), compared("b", 0.04, rows=1000),
        compared("c", 0.1, kind="pool", floor=math.nan),
    ]  # fmt: skip
    parts = tables.methods_markdown(rows).split("\n\n")
    lines = parts[0].split("\n")
    assert [line.split(" | ")[:5] for line in lines[2:]] == [
        ["| conv", "execution", "b", "1000", "40"],
        ["| conv", "execution", "a", "1000", "40"],
        ["| pool", "execution", "c", "1000", "40"],
    ]
    assert "| 4.00% | 1.00% | 100.0% |" in lines[2]
    assert lines[2].endswith("| 12.3 | 5.7 |")
    assert "| 10.00% | - | " in lines[4]  # no noise floor is no floor of 0
    # `a` has one point, which is no curve.
    assert parts[1] == "conv, MAPE by rows trained:"
    assert parts[2].split("\n") == [
        "| method | 200 | 1000 |", "| --- | ---: | ---: |", "| b | 5.00% | 4.00% |",
    ]  # fmt: skip
    assert len(parts) == 3
