"""The table of devices."""

from __future__ import annotations

from resperf.report.devices import device_table


def row(path: str = "there/cards", **changes: object) -> dict[str, object]:
    return {
        "device": "h100", "framework": "torch", "machine": "NVIDIA H100", "precisions": ["fp32"],
        "rests_on": "measured", "bundle": {"name": path.split("/")[-1], "path": path},
        "quantity": "execution_ms", "validation_error": {"conv": 0.1, "dense": 0.2}, **changes,
    }  # fmt: skip


def test_a_bundle_is_named_as_commands_take_it_unless_two_have_the_name():
    text = device_table([row(), row("a/cpu"), row("b/cpu")])
    assert [line.split()[-1] for line in text.splitlines()[2:]] == ["cards", "a/cpu", "b/cpu"]


def test_the_machine_of_a_known_card_is_its_name_and_errors_are_a_median():
    first, second, third = device_table([
        row(precisions=["fp32", "amp compiled"]),
        row(device="cpu", machine="Red 5", quantity="whole_call_ms"),
        {"device": "l4", "framework": "torch", "precisions": ["fp16"], "bundle": None,
         "rests_on": "estimated from the data sheet"},
    ]).splitlines()[2:]  # fmt: skip
    assert "NVIDIA" not in first
    assert "fp32, amp compiled   measured" in first
    assert "15.0%" in first
    assert "15.0% (whole calls)" in second
    assert second.endswith("Red 5")
    assert third.split() == ["l4", "torch", "fp16", *["estimated", "from", "the", "data", "sheet"]]
