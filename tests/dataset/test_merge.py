from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from resperf.dataset import (
    DatasetInfo,
    check_dataset,
    merge_datasets,
    noise_floor,
    read_dataset,
    read_table,
)
from resperf.errors import DatasetError, OutputError
from resperf.layers import Dense
from resperf.measurement import Measurement
from resperf.platform import Accelerator

MeasuredFactory = Callable[..., Measurement]
FileFactory = Callable[..., Path]
OTHER = Dense(batch=2, features_in=9, features_out=4)


def test_layers_of_several_parts_become_repeats(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory
) -> None:
    first = write(
        "a.h5",
        measured(started_at=1.0, execution_ms=(1.0,)),
        measured(started_at=3.0, execution_ms=(3.0,), repeat=1),
    )
    second = write(
        "b.h5",
        measured(started_at=2.0, execution_ms=(2.0,)),
        measured(OTHER, started_at=4.0, execution_ms=(4.0,)),
    )
    merge_datasets([first, second], tmp_path / "c.h5")
    rows = read_dataset(tmp_path / "c.h5").measurements
    # In order of start: repeat 0, then the other file's 0 as next, then 1, which is taken by now.
    assert [(row.value("execution_ms"), row.repeat) for row in rows] == [
        (1.0, 0),
        (2.0, 1),
        (3.0, 2),
        (4.0, 0),
    ]
    assert check_dataset(tmp_path / "c.h5") == []


def test_rows_that_two_parts_share_are_kept_once(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory
) -> None:
    backup = write("a.h5", measured(started_at=1.0))
    longer = write("b.h5", measured(started_at=1.0), measured(OTHER, started_at=2.0))
    merged = merge_datasets([backup, longer], longer)
    assert [(row.layer.key, row.repeat) for row in merged.measurements] == [
        (Dense(batch=1, features_in=9, features_out=4).key, 0),
        (OTHER.key, 0),
    ]
    assert read_dataset(longer).measurements == merged.measurements


def test_the_history_of_all_parts_is_kept(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    later = dataclasses.replace(
        info,
        created="2026-02-01T00:00:00+00:00",
        campaign={"name": "overnight"},
        seed=8,
        versions={"resperf": "0.2.0", "numpy": "2.4"},
        machine_costs={"call_ms": 0.0425, "reshape_ms": 0.002},
    )
    night = write("b.h5", measured(OTHER), measured(OTHER, started_at=2.0, repeat=1), info=later)
    day = write("a.h5", measured())
    third = write("c.h5", measured(started_at=9.0))
    merge_datasets([night, day], tmp_path / "d.h5")
    merged = merge_datasets([tmp_path / "d.h5", third], tmp_path / "e.h5").info
    assert read_dataset(tmp_path / "e.h5").info == merged
    assert merged.versions == {"resperf": "0.1.0, 0.2.0", "numpy": "2.4"}
    assert merged.campaign["name"] == "demo"
    assert [(part["campaign"]["name"], part["seed"], part["rows"]) for part in merged.merged] == [
        ("demo", 7, 1),
        ("demo", 7, 1),
        ("overnight", 8, 2),
    ]
    # Weighted by rows: two of 0.0125, two of 0.0425.
    assert merged.machine_costs["call_ms"] == pytest.approx(0.0275)
    assert merged.machine_costs["reshape_ms"] == pytest.approx(0.002)


def test_a_machine_of_which_more_is_known_is_the_same_machine(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    known = dataclasses.replace(info.platform, model=143, stepping=8)
    later = dataclasses.replace(info, platform=known)
    rows = [measured(execution_ms=(n,), started_at=n) for n in (1.0, 3.0)]
    own = measured(execution_ms=(2.0,), started_at=2.0, platform=known)
    path = tmp_path / "c.h5"
    merge_datasets([write("a.h5", *rows), write("b.h5", own, info=later)], path)
    found = read_dataset(path).measurements
    assert [(row.value("execution_ms"), row.repeat) for row in found] == [
        (1.0, 0), (2.0, 1), (3.0, 2),
    ]  # fmt: skip
    table = read_table(path)["dense"]
    assert noise_floor(table, "execution_ms").pairs == 2
    assert table.machine.tolist() == [0, 0, 0]
    assert table.platform.tolist() == [0, 1, 0]


def test_cards_of_one_kind_are_merged_and_rows_keep_theirs(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    platforms = [
        dataclasses.replace(info.platform, accelerators=(Accelerator("T4", uuid_hash=name),))
        for name in ("ab", "cd")
    ]
    parts = [
        write(f"{number}.h5", measured(started_at=1.0 + number, platform=platform),
              info=dataclasses.replace(info, platform=platform))
        for number, platform in enumerate(platforms)
    ]  # fmt: skip
    merge_datasets(parts, tmp_path / "c.h5")
    found = read_dataset(tmp_path / "c.h5").measurements
    assert [row.platform.accelerators[0].uuid_hash for row in found] == ["ab", "cd"]


def test_unlike_machines_are_refused_with_the_difference(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    foreign = dataclasses.replace(
        info, setting=dataclasses.replace(info.setting, threads=4, options={})
    )
    first, second = write("a.h5", measured()), write("b.h5", measured(OTHER), info=foreign)
    with pytest.raises(DatasetError) as refused:
        merge_datasets([first, second], tmp_path / "c.h5")
    assert "threads: 2 here, 4 there" in str(refused.value)
    assert "spinning: off here, unset there" in str(refused.value)
    assert not (tmp_path / "c.h5").exists()


def test_rows_of_several_processes_are_merged_with_those_of_one(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    shared = dataclasses.replace(info.platform, devices=2, interconnect="gloo on 1 host")
    first = write("a.h5", measured(started_at=1.0))
    second = write(
        "b.h5",
        measured(started_at=2.0, platform=shared),
        info=dataclasses.replace(info, platform=shared),
    )
    merged = merge_datasets([first, second], tmp_path / "c.h5")
    # They are no repeats of each other.
    assert [(row.platform.devices, row.repeat) for row in merged.measurements] == [(1, 0), (2, 0)]


def test_one_part_is_too_few_and_bad_outputs_are_named(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory
) -> None:
    path = write("a.h5", measured())
    with pytest.raises(DatasetError, match="needs at least two datasets, not 1"):
        merge_datasets([path], tmp_path / "c.h5")
    with pytest.raises(OutputError, match="could not be written"):
        merge_datasets([path, write("b.h5", measured(OTHER))], tmp_path / "absent" / "c.h5")


def test_machine_checks_and_calls_of_imports_keep_the_least_of_all_parts(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, info: DatasetInfo
) -> None:
    def part(name: str, check_ms: float, calls_ms: dict[str, float], second: float) -> Path:
        source = {"files": [name], "left_out": {}, "call_ms": calls_ms}
        costs = {"caches_check_ms": check_ms, "call_ms": min(calls_ms.values())}
        own = dataclasses.replace(info, machine_costs=costs, source=source)
        return write(name, measured(started_at=second), info=own)

    parts = [
        part("a.h5", 0.09, {"conv": 0.162}, 1.0),
        part("b.h5", 0.17, {"dense": 0.297, "conv": 0.2}, 2.0),
    ]
    merged = merge_datasets(parts, tmp_path / "c.h5").info
    assert merged.machine_costs == {"caches_check_ms": 0.09, "call_ms": 0.162}
    assert merged.source["call_ms"] == {"conv": 0.162, "dense": 0.297}
