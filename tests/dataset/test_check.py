from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import numpy as np
import pytest

from resperf.dataset import check_dataset
from resperf.measurement import Measurement, Samples, StopReason
from resperf.quantities import Estimator

MeasuredFactory = Callable[..., Measurement]
FileFactory = Callable[..., Path]
EditedFactory = Callable[..., AbstractContextManager[h5py.File]]
CHANGED = "the checksum differs: the content was changed after it was written"


def test_sound_files_have_no_problems(golden: Path, edited: EditedFactory, tmp_path: Path) -> None:
    with edited():
        pass
    assert check_dataset(golden) == []
    assert check_dataset(tmp_path / "a.h5") == []


@pytest.mark.parametrize(
    ("column", "row", "value", "problem"),
    [
        ("pool/status", 1, b"fine", "pool: unknown status in 1 row (first: row 1)"),
        ("pool/repeat", 1, -1, "pool: negative repeat in 1 row (first: row 1)"),
        ("conv/started_at", 0, np.nan, "conv: started_at is not a time in 1 row (first: row 0)"),
        ("conv/duration_s", 0, 0.01, "conv: overhead_s above duration_s in 1 row (first: row 0)"),
        ("conv/reference_ratio", 1, 0, "conv: reference_ratio not above 0 in 1 row (first: row 1)"),
        ("conv/isolated_ms", 1, np.nan,
         "conv: ok but isolated_ms not above 0 in 1 row (first: row 1)"),
        ("conv/execution_n_samples", 0, 65,
         "conv: execution_n_samples not within 1..64 in 1 row (first: row 0)"),
        ("conv/execution_taken", 0, 2,
         "conv: execution_taken below execution_n_samples in 1 row (first: row 0)"),
        ("conv/execution_samples_ms", (0, 1), 2.6,
         "conv: execution_ms is not the median of its samples in 1 row (first: row 0)"),
        ("conv/execution_samples_ms", (1, 2), np.inf,
         "conv: execution_samples_ms not a number in 1 row (first: row 1)"),
        ("conv/execution_samples_ms", (1, 3), 2.0,
         "conv: execution_samples_ms beyond execution_n_samples in 1 row (first: row 1)"),
        ("conv/preprocess_ms", 1, -0.5,
         "conv: ok but preprocess_ms below 0 in 1 row (first: row 1)"),
        ("conv/execution_ms", 1, 0.0,
         "conv: ok but execution_ms not above 0 in 1 row (first: row 1)"),
        ("dense/execution_ms", 1, 1.0,
         "dense: not ok but execution_ms has a value in 1 row (first: row 1)"),
        ("conv/postprocess_stop_reason", 0, b"bored",
         "conv: unknown postprocess_stop_reason in 1 row (first: row 0)"),
        ("pool/kernel_width", 1, 3, "pool: key is not that of the fields in 1 row (first: row 1)"),
        ("pool/mode", 0, b"min",
         "pool: 1 invalid layer (first: row 0, pool: mode='min' must be one of max, average)"),
    ],
)  # fmt: skip
def test_every_wrong_value_is_found(
    edited: EditedFactory, tmp_path: Path, column: str, row: object, value: object, problem: str
) -> None:
    with edited() as file:
        file[column][row] = value
    problems = check_dataset(tmp_path / "a.h5")
    assert CHANGED in problems
    assert problem in problems


def test_a_second_row_of_the_same_repeat_is_found(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    path = write("a.h5", measured(), measured(repeat=1), measured(repeat=1))
    assert check_dataset(path) == [
        "dense: same key and repeat as an earlier row in 1 row (first: row 2)"
    ]


def test_columns_of_another_layout_are_found(edited: EditedFactory, tmp_path: Path) -> None:
    with edited() as file:
        file["conv/height"].attrs["unit"] = "inch"
        file["conv/extra"] = [1, 2]
        del file["pool/mode"]
        del file["dense/repeat"]
        file["dense/repeat"] = [0, 0, 0]
    problems = check_dataset(tmp_path / "a.h5")
    assert "conv: unit of height is inch, not pixel" in problems
    assert "conv: unknown column extra" in problems
    assert "pool: column mode is missing" in problems
    assert "dense: column repeat has shape (3,), not (2,)" in problems
    assert "dense: column repeat has type int64, not <i4" in problems


@pytest.mark.parametrize(
    ("estimator", "value"),
    [
        (Estimator.MEDIAN, 3.0), (Estimator.MEAN_OF_BEST_FIVE, 2.8),
        (Estimator.THROUGHPUT_MEAN, 4.0), (Estimator.MAXIMUM, 10.0),
    ],
)  # fmt: skip
def test_a_value_follows_from_its_samples_by_its_estimator(
    write: FileFactory, measured: MeasuredFactory, estimator: Estimator, value: float
) -> None:
    sampled = (10.0, 1.0, 2.0, 3.0, 3.0, 5.0)
    samples = Samples(sampled, 6, 0, StopReason.BUDGET, estimator=estimator)
    row = measured(samples={"execution_ms": samples})
    assert row.value("execution_ms") == pytest.approx(value)
    assert check_dataset(write("a.h5", row)) == []


def test_a_file_without_rows_is_called_so(write: FileFactory) -> None:
    assert check_dataset(write("a.h5")) == ["the file has no rows"]
