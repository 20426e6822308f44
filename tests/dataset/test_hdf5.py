from __future__ import annotations

import math
from pathlib import Path

from resperf.dataset import Dataset, DatasetInfo, read_dataset, read_table, write_dataset
from resperf.layers import Conv, Dense
from resperf.machine import Fingerprint
from resperf.measurement import Measurement, PhaseSamples, Status, StopReason

FINGERPRINT = Fingerprint(
    device="cpu", processor="P", instruction_set="avx2", cores=2, threads=2,
    memory_bytes=8 << 30, system="Linux", framework="synthetic", framework_version="1",
    provider="none", settings={"spinning": "off"},
)  # fmt: skip
INFO = DatasetInfo(
    fingerprint=FINGERPRINT,
    campaign={"name": "demo", "kinds": {"conv": {"batch": [1, 8]}}},
    seed=7,
    versions={"resperf": "0.1.0"},
    created="2026-01-02T03:04:05+00:00",
    machine_costs={"session_ms": 0.0125},
)
DENSE = Dense(batch=1, features_in=9, features_out=4, activation="relu", bias=False)
CONV = Conv(batch=2, channels_in=3, height=9, width=7, kernel_height=3, kernel_width=3,
            channels_out=8)  # fmt: skip


def phase(*samples_ms: float) -> PhaseSamples:
    return PhaseSamples(samples_ms, taken=100, warmups=3, stop_reason=StopReason.BUDGET, drift=True)


def measured(layer: Dense | Conv = DENSE, *, at: float = 1.0, **changes: object) -> Measurement:
    values = {
        "layer": layer, "status": Status.OK, "isolated_ms": 0.5, "session_ms": 0.0125,
        "phases": {"preprocess": phase(0.25), "execution": phase(1.0, 2.0, 4.0),
                   "postprocess": phase(0.5, 1.5)},
        "started_at": at, "duration_s": 0.3, "overhead_s": 0.05, "reference_ratio": 1.0,
    }  # fmt: skip
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = (
        measured(CONV, at=1.0, flags=("busy", "drift")),
        measured(DENSE, at=2.0),
        Measurement(CONV, Status.CRASHED, started_at=3.0, repeat=1, detail="exit –9"),
    )
    write_dataset(tmp_path / "a.h5", Dataset(INFO, rows))
    back = read_dataset(tmp_path / "a.h5")
    assert back.info == INFO
    assert back.measurements[:2] == rows[:2]
    assert repr(back.measurements[2]) == repr(rows[2])  # NaN is not equal to itself


def test_tables_have_python_types(tmp_path: Path) -> None:
    rows = (measured(DENSE), Measurement(DENSE, Status.TIMEOUT, repeat=1, flags=("busy", "drift")))
    write_dataset(tmp_path / "a.h5", Dataset(INFO, rows))
    table = read_table(tmp_path / "a.h5")["dense"]
    assert list(table.columns) == list(Dense.specs())
    assert table.columns["bias"].dtype == bool
    assert table.columns["features_in"].tolist() == [9, 9]
    assert table.columns["activation"].tolist() == ["relu", "relu"]
    assert table.key.tolist() == [DENSE.key] * 2
    assert table.status.tolist() == ["ok", "timeout"]
    assert table.flags.tolist() == ["", "busy,drift"]
    assert table.times_ms["execution"][0] == 2.0
    assert table.times_ms["postprocess"][0] == 1.0
    assert all(math.isnan(table.times_ms[name][1]) for name in table.times_ms)
    assert table.ok.tolist() == [True, False]
    assert table.select(table.ok).key.tolist() == [DENSE.key]
