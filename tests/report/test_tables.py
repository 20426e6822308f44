"""Text tables and JSON text."""

from __future__ import annotations

import json
import math

import pytest

from resperf.report.documents import json_text
from resperf.report.tables import ms_cell, percent_cell, table


def test_a_table_in_a_file_has_a_fixed_form():
    rows = [["conv1", "12.30"], ["fc", "4.1"]]
    text = table(("layer", "ms"), rows, text=("layer",), width=80)
    assert text.split("\n") == [
        "layer      ms",
        "------ ------",
        "conv1   12.30",
        "fc        4.1",
    ]


def test_brackets_and_colons_in_names_are_shown_as_they_are():
    assert "[bold]x[/bold] :smile:" in table(("a",), [["[bold]x[/bold] :smile:"]])


def test_a_name_of_160_columns_and_more_is_folded_not_cut():
    name = "x" * 300
    assert table(("a",), [[name]], text=("a",), width=100).count("x") == 300


def test_a_narrow_terminal_does_not_squeeze_words_to_letters(monkeypatch):
    monkeypatch.setattr("resperf.report.tables.WIDTH_IN_FILES", 80)
    rows = [["cpu-onnxruntime-xeon", "1" * 30, "2" * 30]]
    lines = table(("device", "a", "b"), rows, text=("device",)).splitlines()
    assert len(lines) == 3
    assert lines[2].split() == rows[0]


@pytest.mark.parametrize(
    ("share", "signed", "cell"),
    [
        (0.0512, False, "5.1%"),
        (0.0512, True, "+5.1%"),
        (-0.2, True, "-20.0%"),
        (math.nan, 0, "-"),
        (-1e-17, False, "0.0%"),
        (-0.0004, True, "+0.0%"),
    ],
)
def test_shares_are_percentages(share, signed, cell):
    assert percent_cell(share, signed=bool(signed)) == cell


def test_a_missing_time_is_not_zero():
    assert ms_cell(math.nan) == "-"
    assert ms_cell(0.0) == "0"


def test_json_knows_no_nan():
    text = json_text({"a": math.nan, "b": [math.inf, 1.5], "c": (1, "x", None, True)})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": [1, "x", None, True]}


def test_characters_that_a_terminal_would_obey_are_written_out() -> None:
    text = table(("name", "ms"), [["\x1b[2Jgone\rback", "1"]])
    assert text.isascii()
    assert r"\x1b[2Jgone\rback" in text
    assert not any(character in text for character in "\x1b\r")
