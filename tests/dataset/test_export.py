from __future__ import annotations

import csv
from pathlib import Path

import pytest

from resperf.dataset import export_dataset
from resperf.errors import DatasetError, OutputError


def test_several_kinds_become_several_files(tmp_path: Path, golden: Path) -> None:
    written = export_dataset(golden, tmp_path / "out.csv")
    assert [path.name for path in written] == [
        "out.conv.csv", "out.dense.csv", "out.dense_step.csv", "out.networks.csv", "out.pool.csv",
        "out.reorder.csv",
    ]  # fmt: skip
    with written[1].open(newline="", encoding="utf-8") as file:
        first, failed = csv.DictReader(file)
    assert first["features_in"] == "9"
    assert first["bias"] == "0"
    assert first["execution_ms"] == "0.125"
    assert "execution_samples_ms" not in first
    assert (failed["status"], failed["execution_ms"], failed["execution_taken"]) == (
        "out_of_memory", "", "0",
    )  # fmt: skip
    assert failed["detail"] == "killed: 64 MiB übersteigt das Limit"


def test_existing_outputs_stay_unless_told_otherwise(tmp_path: Path, golden: Path) -> None:
    (tmp_path / "out.dense.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"out\.dense\.csv exists"):
        export_dataset(golden, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out.dense.csv"]
    export_dataset(golden, tmp_path / "out.csv", replace=True)
    assert (tmp_path / "out.dense.csv").read_text().startswith("batch,")


def test_what_cannot_be_exported_is_named(tmp_path: Path, golden: Path) -> None:
    with pytest.raises(DatasetError, match=r"must end in \.csv"):
        export_dataset(golden, tmp_path / "out.xlsx")
    assert list(tmp_path.iterdir()) == []
