from __future__ import annotations

import json

import pytest


@pytest.fixture
def tool(load_tool):
    return load_tool("compare_predictions")


BEFORE = {
    "a": {"total_ms": 2.0, "layers": [{"name": "conv", "low_ms": None}], "notes": ["x"]},
    "b": {"error": "no such device"},
}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, []),
        ({"total_ms": 2.0 + 1e-12}, ["total_ms: 2.0 -> 2.000000000001"]),
        ({"layers": [{"name": "conv"}]}, ["layers[0].low_ms: None -> absent"]),
        ({"layers": []}, ["layers: 1 entries -> 0 entries"]),
        ({"notes": ["y"]}, ["notes[0]: 'x' -> 'y'"]),
        ({"new": 1}, ["new: absent -> 1"]),
    ],
)
def test_every_difference_is_named(tool, change, lines):
    assert [*tool.differences(BEFORE["a"], {**BEFORE["a"], **change}, 0.0)] == lines


def test_a_tolerance_is_of_numbers_alone(tool):
    old = {"total_ms": 100.0, "notes": ["x"], "complete": True}
    new = {"total_ms": 100.5, "notes": ["y"], "complete": False}
    assert [*tool.differences(old, new, 0.01)] == [
        "notes[0]: 'x' -> 'y'", "complete: True -> False",
    ]  # fmt: skip


def test_what_is_expected_is_told_apart_by_its_reason(tool, tmp_path, capsys):
    expected = tmp_path / "expected.toml"
    expected.write_text(
        '[[difference]]\nquery = "a"\nvalue = "notes*"\nreason = "notes are shorter"\n'
    )
    now = json.loads(json.dumps(BEFORE))
    now["a"]["notes"] = []
    assert tool.report(BEFORE, now, 0.0, expected) == 0
    assert "1 answers differ as expected: notes are shorter" in capsys.readouterr().out
    now["a"]["total_ms"] = 3.0
    assert tool.report(BEFORE, now, 0.0, expected) == 1
    assert "total_ms: 2.0 -> 3.0" in capsys.readouterr().out
    del now["b"]
    assert tool.report(BEFORE, now, 0.0, expected) == 2


def test_every_setting_of_every_device_is_asked(tool):
    asked = [*tool.settings()]
    assert {each["network"] for each in asked} == {tool.FIRST}
    assert len({tool.label(each) for each in asked}) == len(asked)
    devices = {each["device"] for each in asked}
    assert {"cpu", "h100", "rtx4090", "1080ti", "i7-12700h", "l4", "b200", "mi250"} <= devices
    ways = {
        (each["precision"], each.get("compiled"), each.get("training"))
        for each in asked
        if each["device"] == "h100"
    }
    assert {(None, None, None), ("fp16", True, None), ("amp", None, True)} <= ways
