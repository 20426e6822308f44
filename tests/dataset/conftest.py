"""Rows and files that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import pytest

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.layers import Dense, Layer
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.settings import Setting

MeasuredFactory = Callable[..., Measurement]
FileFactory = Callable[..., Path]
EditedFactory = Callable[..., AbstractContextManager[h5py.File]]


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "golden" / "dataset.h5"


@pytest.fixture
def edited(golden: Path, tmp_path: Path) -> EditedFactory:
    """Open a copy of the golden file at ``a.h5``, without its seal: as other tools write it."""

    def opened() -> AbstractContextManager[h5py.File]:
        path = tmp_path / "a.h5"
        path.write_bytes(golden.read_bytes()[512:])
        return h5py.File(path, "r+")

    return opened


@pytest.fixture
def info() -> DatasetInfo:
    return DatasetInfo(
        setting=Setting("synthetic", "1", "none", threads=2, options={"spinning": "off"}),
        platform=Platform(
            device="cpu", processor="P", instruction_set="avx2", cores=2,
            memory_bytes=8 << 30, system="Linux",
        ),
        campaign={"name": "demo", "kinds": {"conv": {"batch": [1, 8]}}},
        seed=7,
        versions={"resperf": "0.1.0"},
        created="2026-01-02T03:04:05+00:00",
        machine_costs={"call_ms": 0.0125},
    )  # fmt: skip


@pytest.fixture
def measured(info: DatasetInfo) -> MeasuredFactory:
    """Make an ok row: ``measured(layer, execution_ms=(1.0, 2.0), started_at=3.0)``."""

    def make(
        layer: Layer | None = None,
        *,
        execution_ms: tuple[float, ...] = (1.0, 2.0, 4.0),
        **changes: object,
    ) -> Measurement:
        def phase(*samples_ms: float) -> Samples:
            return Samples(samples_ms, 100, 3, StopReason.BUDGET, drift=True)

        values: dict[str, object] = {
            "subject": layer or Dense(batch=1, features_in=9, features_out=4),
            "status": Status.OK,
            "samples": {
                "preprocess_ms": phase(0.25),
                "execution_ms": phase(*execution_ms),
                "postprocess_ms": phase(0.5, 1.5),
            },
            "setting": info.setting,
            "platform": info.platform,
            "isolated_ms": 0.5,
            "call_ms": 0.0125,
            "started_at": 1.0,
            "duration_s": 0.3,
            "overhead_s": 0.05,
            "reference_ratio": 1.0,
        }
        return Measurement(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def write(tmp_path: Path, info: DatasetInfo) -> FileFactory:
    """Write rows to a file: ``write("a.h5", row, row, info=...)``."""

    def make(name: str, *rows: Measurement, info: DatasetInfo = info) -> Path:
        write_dataset(tmp_path / name, Dataset(info, rows))
        return tmp_path / name

    return make
