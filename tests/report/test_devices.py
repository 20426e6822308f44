"""The table of bundles."""

from __future__ import annotations

from resperf.report.devices import device_table
from resperf.settings import Setting


def entry(**changes: object) -> dict[str, object]:
    return {
        "device": "h100", "devices": ["h100"], "framework": "torch", "machine": "NVIDIA H100",
        "method": "m", "date": "2026-01-02T03:04", "path": "there/cards",
        "validation_error": {"conv": 0.1}, "settings": [], **changes,
    }  # fmt: skip


def settings(*words: tuple[str, str]) -> list[dict[str, object]]:
    return [Setting("torch", precision=each, compiled=how).to_json() for each, how in words]


def test_a_bundle_is_named_as_commands_take_it_unless_two_have_the_name():
    text = device_table([entry(), entry(path="a/cpu"), entry(path="b/cpu")])
    assert [line.split()[-1] for line in text.splitlines()[2:]] == ["cards", "a/cpu", "b/cpu"]


def test_the_machine_of_a_known_card_is_its_name_and_precisions_are_listed():
    several = settings(("fp32", "eager"), ("amp", "eager"), ("amp", "dynamo"))
    rows = device_table([
        entry(settings=several),
        entry(device="cpu", machine="Red 5", settings=settings(("fp32", "dynamo"))),
    ]).splitlines()[2:]  # fmt: skip
    assert "NVIDIA" not in rows[0]
    assert "fp32, amp  " in rows[0]
    assert "fp32 compiled   Red 5" in rows[1]
