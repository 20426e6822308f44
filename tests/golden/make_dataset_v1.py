"""Made dataset-v1.h5, once. Readers of any later version must still read that file as it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.layers import Conv, Dense, Pool, Reorder
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.settings import Setting

INFO = DatasetInfo(
    setting=Setting(
        threads=2,
        framework="synthetic",
        framework_version="1.0",
        provider="none",
        options={"spinning": "off"},
    ),
    platform=Platform(
        device="cpu",
        processor="Example Processor 3000",
        instruction_set="avx2",
        cores=4,
        memory_bytes=16 << 30,
        system="Linux",
    ),
    campaign={"name": "golden", "kinds": {"conv": {"batch": [1, 8]}}},
    seed=7,
    versions={"resperf": "0.1.0", "python": "3.11.9", "numpy": "2.4.6"},
    created="2026-01-02T03:04:05+00:00",
    machine_costs={"session_ms": 0.0125, "view_ms": 0.002},
)
CONV = Conv(
    batch=2, channels_in=3, height=9, width=7, kernel_height=3, kernel_width=3, channels_out=8,
    activation="relu",
)  # fmt: skip
POOL = Pool(batch=1, channels_in=8, height=4, width=4, kernel_height=2, kernel_width=2)
DENSE = Dense(batch=1, features_in=9, features_out=4, bias=False)
REORDER = Reorder(batch=1, channels_in=16, height=4, width=4)


def _ok(layer: Conv | Pool | Dense | Reorder, at: float, *execution_ms: float) -> Measurement:
    def phase(*samples_ms: float) -> Samples:
        return Samples(samples_ms, 100, 3, StopReason.PRECISE)

    return Measurement(
        subject=layer,
        status=Status.OK,
        samples={
            "preprocess_ms": phase(0.25, 0.75),
            "execution_ms": phase(*execution_ms),
            "postprocess_ms": phase(0.125),
        },
        setting=INFO.setting,
        platform=INFO.platform,
        isolated_ms=4.5,
        session_ms=0.0125,
        started_at=1_767_323_045.0 + at,
        duration_s=0.5,
        overhead_s=0.0625,
        reference_ratio=1.03125,
    )


def rows() -> list[Measurement]:
    """Rows of every kind; a repeat, a flagged row and a failure among them."""
    return [
        _ok(CONV, 0, 1.0, 2.5, 4.0),
        _ok(POOL, 1, 0.5),
        _ok(DENSE, 2, 0.0625, 0.1875),
        dataclasses.replace(_ok(CONV, 3, 3.0, 3.5, 4.0), repeat=1),
        dataclasses.replace(_ok(POOL, 4, 1.5), repeat=1, flags=("busy", "drift")),
        _ok(REORDER, 5, 0.03125),
        Measurement(
            subject=DENSE.replace(features_in=4096),
            setting=INFO.setting,
            platform=INFO.platform,
            status=Status.OUT_OF_MEMORY,
            started_at=1_767_323_051.0,
            detail="killed: 64 MiB übersteigt das Limit",
        ),
    ]


if __name__ == "__main__":
    write_dataset(Path(__file__).with_name("dataset-v1.h5"), Dataset(INFO, tuple(rows())))
