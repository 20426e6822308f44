"""From CSV files to a dataset: calls, repeats, provenance."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from resperf.dataset import (
    check_dataset,
    export_dataset,
    merge_datasets,
    noise_floor,
    read_dataset,
    read_table,
    summarize,
)
from resperf.dataset.importing import (
    Imported,
    import_dataset,
    shipped_mapping,
)
from resperf.errors import DatasetError

HEADER = (
    "activation_fct,batchsize,dim_input,dim_output,gpu,optimizer,precision,"
    "timeUsed_max,timeUsed_median,timeUsed_min,timeUsed_std"
)


def justus(path: Path, *rows: tuple[int, int, int, float]) -> Path:
    """Write dense layers: (dim_input, dim_output, optimizer, median time)."""
    lines = [
        f"0,4,{k},{n},0,{optimizer},32,{ms * 1.5},{ms},{ms * 0.9},0" for k, n, optimizer, ms in rows
    ]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def imported(
    output: Path, *files: Path, source: str = "justus", device: str = "a card"
) -> Imported:
    return import_dataset(files, output, mapping=shipped_mapping(source), device=device)


def test_the_session_call_is_taken_out_and_kept(tmp_path: Path) -> None:
    # 20 forward passes: the smallest tenth are the two of 8 and 16 inputs. The shortest row of
    # all is a large layer, which says nothing about the call.
    rows = [(8 * n, 64, 0, 0.5 + n) for n in range(1, 21)]
    rows[0], rows[1], rows[19] = (8, 64, 0, 0.9), (16, 64, 0, 0.8), (160, 64, 0, 0.75)
    path = justus(tmp_path / "d.csv", *rows, (800, 64, 5, 3.0))
    found = imported(tmp_path / "d.h5", path)
    call_ms = 0.9 * 0.8
    assert found.call_ms == pytest.approx({"dense": call_ms, "dense_step": call_ms})
    assert found.rows == {"dense": 20, "dense_step": 1}
    assert found.info.machine_costs == {"call_ms": pytest.approx(call_ms)}
    dataset = read_dataset(tmp_path / "d.h5")
    first = next(row for row in dataset.measurements if row.layer.features_in == 8)
    assert first.isolated_ms == 0.9
    assert first.call_ms == pytest.approx(call_ms)
    execution = first.samples["execution_ms"]
    assert execution.values == pytest.approx((0.9 * 0.9 - 0.72, 0.18, 1.35 - 0.72), rel=1e-6)
    assert (execution.taken, execution.warmups) == (5, 5)
    step = read_table(tmp_path / "d.h5")["dense_step"]
    assert (step.kind, step.name) == ("dense", "dense_step")
    assert step.columns["optimizer"].tolist() == ["adam"]
    assert step.times_ms["step_ms"][0] == pytest.approx(3.0 - call_ms)
    assert check_dataset(tmp_path / "d.h5") == []


def test_a_time_shorter_than_the_session_call_is_named(tmp_path: Path) -> None:
    rows = [(8 * n, 64, 0, 1.0 + n) for n in range(20)]
    path = justus(tmp_path / "d.csv", *rows[1:], (4000, 64, 0, 0.1))
    found = imported(tmp_path / "d.h5", path)
    assert found.rows == {"dense": 19}
    (left_out,) = found.left_out
    assert str(left_out) == (
        "1 row left out: a time that is not longer than the call "
        "(first: d.csv line 21: 0.1 ms, the call 1.8 ms)"
    )
    assert found.info.source["left_out"] == {left_out.reason: 1}


def test_a_known_device_gets_the_same_call_for_any_part_of_its_file(tmp_path: Path) -> None:
    path = justus(tmp_path / "d.csv", (8, 8, 1, 0.9))
    found = imported(tmp_path / "d.h5", path, device="Tesla K80")
    assert found.info.platform.device == "k80"
    assert found.call_ms == {"dense_step": 0.1900251}
    with pytest.raises(DatasetError, match="training steps of dense layers, but no forward pass"):
        imported(tmp_path / "e.h5", path)


def test_equal_layers_become_repeats_across_files(tmp_path: Path) -> None:
    small = [(8 + n, 8, 0, 1.0) for n in range(9)]
    first = justus(tmp_path / "a.csv", *small, (640, 640, 0, 4.0), (640, 640, 1, 9.0))
    second = justus(tmp_path / "b.csv", (640, 640, 0, 5.0), (640, 640, 2, 9.0))
    path = tmp_path / "d.h5"
    found = imported(path, first, second)
    # Another optimizer makes another training step.
    assert (found.repeats, found.rows) == (1, {"dense": 11, "dense_step": 2})
    tables = read_table(path)
    assert sorted(tables["dense"].repeat.tolist()) == [0] * 10 + [1]
    floor = noise_floor(tables["dense"], "execution_ms")
    # 4.0 and 5.0 ms less 0.9 of call: 3.1 and 4.1.
    assert (floor.pairs, floor.mape) == (1, pytest.approx(1 / 3.6 / math.sqrt(2)))
    assert check_dataset(path) == []


def test_whole_calls_are_their_own_phase_and_know_no_session(
    perfnet_csv: Path, tmp_path: Path
) -> None:
    path = tmp_path / "p.h5"
    found = imported(path, perfnet_csv, source="perfnet", device="gtx1080ti")
    assert found.info.quantities == ("whole_call_ms",)
    assert found.info.machine_costs == {}
    assert found.call_ms == {}
    table = read_table(path)["conv"]
    assert table.quantities == ("whole_call_ms",)
    np.testing.assert_array_equal(table.times_ms["whole_call_ms"], table.isolated_ms)
    row = read_dataset(path).measurements[0]
    assert math.isnan(row.call_ms)
    assert math.isnan(row.started_at)
    assert math.isnan(row.value("execution_ms"))
    assert row.samples["whole_call_ms"].taken == 10
    assert check_dataset(path) == []
    (csv,) = export_dataset(path, tmp_path / "out.csv")
    header = csv.read_text().partition("\n")[0].split(",")
    assert "whole_call_ms" in header
    assert "execution_ms" not in header


def test_the_dataset_says_where_its_rows_are_from(justus_csv: Path, tmp_path: Path) -> None:
    path = tmp_path / "j.h5"
    imported(path, justus_csv, device="GeForce GTX 1080 Ti")
    info = summarize(path).info
    machine = info.platform
    assert (machine.device, machine.processor) == ("1080ti", "GeForce GTX 1080 Ti")
    assert (info.setting.framework, info.setting.framework_version) == ("tensorflow", "1")
    assert info.quantities == ("execution_ms", "step_ms")
    assert info.source["format"] == "justus"
    assert "Apache-2.0" in info.source["citation"]
    assert info.source["files"] == [
        {
            "name": "toy_convolution.csv",
            "sha256": hashlib.sha256(justus_csv.read_bytes()).hexdigest(),
            "rows": 400,
        }
    ]
    assert info.source["mapping"]["times"]["execution"]["median"] == "timeUsed_median"


def test_imports_of_one_device_merge_and_others_do_not(
    justus_csv: Path, perfnet_csv: Path, tmp_path: Path
) -> None:
    dense = justus(tmp_path / "d.csv", *((8 + n, 8, 0, 1.0) for n in range(9)))
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    imported(a, justus_csv)
    imported(b, dense)
    imported(c, perfnet_csv, source="perfnet")
    merged = merge_datasets([a, b, a], tmp_path / "all.h5")
    assert len(merged.measurements) == 409  # rows that two parts share are written once
    names = [file["name"] for file in merged.info.source["files"]]
    assert names == ["toy_convolution.csv", "d.csv", "toy_convolution.csv"]
    assert check_dataset(tmp_path / "all.h5") == []
    with pytest.raises(DatasetError, match="of different machines or settings"):
        merge_datasets([a, c], tmp_path / "x.h5")


def test_what_cannot_be_imported_leaves_nothing_behind(tmp_path: Path) -> None:
    empty = justus(tmp_path / "a.csv")
    bad = justus(tmp_path / "b.csv", (0, 8, 0, 1.0))
    output = tmp_path / "x.h5"
    with pytest.raises(DatasetError, match="nothing to import: the files hold no rows"):
        imported(output, empty)
    with pytest.raises(DatasetError, match="nothing to import: 1 row left out: not a possible la"):
        imported(output, bad)
    with pytest.raises(DatasetError, match=r"b\.csv and b\.csv are the same file"):
        imported(output, bad, bad)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]
