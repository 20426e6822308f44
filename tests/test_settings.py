"""The setting: one value that compares, hashes, and survives JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from resperf.errors import ResperfError
from resperf.quantities import QUANTITIES, Composition, quantity
from resperf.settings import Mode, Setting

FULL = Setting(
    framework="torch",
    framework_version="2.13",
    provider="cuda",
    threads=4,
    mode=Mode.TRAINING,
    optimizer="sgd",
    precision="amp",
    batch=8,
    shapes={"x": (8, 3, 224, 224)},
    options={"benchmark": "on"},
)


def test_a_setting_survives_json() -> None:
    assert Setting.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


def test_fields_of_newer_versions_are_ignored() -> None:
    assert Setting.from_json({**FULL.to_json(), "later": 1}) == FULL


def test_equal_settings_have_one_hash() -> None:
    again = Setting.from_json(FULL.to_json())
    assert hash(again) == hash(FULL)
    assert len({FULL, again, dataclasses.replace(FULL, batch=1)}) == 2


def test_differences_are_named() -> None:
    other = dataclasses.replace(FULL, threads=2, options={"benchmark": "off"})
    assert FULL.differences(FULL) == []
    assert FULL.differences(other) == ["threads: 4 here, 2 there", "benchmark: on here, off there"]


def test_every_quantity_ends_in_its_unit_and_its_parts_exist() -> None:
    for name, row in QUANTITIES.items():
        assert name == f"{row.stem}_{row.unit}"
        assert (row.over_layers is Composition.DERIVED) == bool(row.parts)
        assert set(row.parts) <= set(QUANTITIES)
        assert {QUANTITIES[part].unit for part in row.parts} <= {row.unit}


def test_an_unknown_quantity_lists_the_known_ones() -> None:
    with pytest.raises(ResperfError, match="latency_ms"):
        quantity("energy_j")
