"""Fingerprints: what makes two machines differ."""

from __future__ import annotations

from dataclasses import replace

from resperf.machine import Fingerprint, instruction_set, this_machine, usable_cores


def here() -> Fingerprint:
    return this_machine(
        device="cpu", framework="f", framework_version="1", provider="p", threads=2,
        settings={"spinning": "on"},
    )  # fmt: skip


def test_a_machine_is_itself() -> None:
    assert here().differences(here()) == []
    assert Fingerprint.from_json(here().to_json()) == here()
    assert here().cores == usable_cores() >= 1
    assert here().instruction_set == instruction_set() != ""


def test_each_difference_is_named() -> None:
    other = replace(here(), threads=4, framework_version="2", settings={"spinning": "off"})
    assert here().differences(other) == [
        "threads: 2 here, 4 there",
        "framework_version: 1 here, 2 there",
        "spinning: on here, off there",
    ]
    assert here().differences(replace(here(), settings={})) == ["spinning: on here, unset there"]


def test_a_little_memory_more_is_the_same_machine() -> None:
    machine = replace(here(), memory_bytes=100)
    assert machine.differences(replace(machine, memory_bytes=109)) == []
    assert machine.differences(replace(machine, memory_bytes=120)) != []


def test_fields_of_newer_versions_are_ignored() -> None:
    assert Fingerprint.from_json({**here().to_json(), "moon_phase": "full"}) == here()
