"""Made dataset-v2.h5, once. Readers of any later version must still read that file as it is."""

from __future__ import annotations

import math
from pathlib import Path

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.layers import Conv, Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.settings import Setting

INFO = DatasetInfo(
    setting=Setting(
        threads=0,
        framework="tensorflow",
        framework_version="1",
        provider="cuda",
        options={"measured by": "golden"},
    ),
    platform=Platform(device="1080ti", processor="GeForce GTX 1080 Ti", memory_bytes=11 << 30),
    campaign={"name": "import of golden"},
    seed=0,
    versions={"resperf": "0.1.0", "tensorflow": "1"},
    created="2026-01-02T03:04:05+00:00",
    machine_costs={"session_ms": 0.125},
    quantities=("execution_ms",),
    source={
        "format": "golden",
        "description": "made up",
        "citation": "",
        "files": [{"name": "golden.csv", "sha256": "00", "rows": 3}],
        "session_ms": {"conv": 0.125, "dense_step": 0.125},
        "left_out": {"no value in size": 1},
        "mapping": {"name": "golden"},
    },
)
CONV = Conv(
    batch=2, channels_in=3, height=9, width=7, kernel_height=3, kernel_width=3, channels_out=8,
    layout="nhwc",
)  # fmt: skip
STEP = Dense(batch=1, features_in=9, features_out=4)


def _row(layer: Conv | Dense, repeat: int, *values_ms: float) -> Measurement:
    """Return a forward pass of a convolution, or a training step, then called an execution."""
    is_step = layer is STEP
    quantity = "step_ms" if is_step else "execution_ms"
    return Measurement(
        subject=layer,
        status=Status.OK,
        samples={quantity: Samples(values_ms, 5, 5, StopReason.BUDGET)},
        setting=INFO.setting.with_optimizer("adam" if is_step else ""),
        platform=INFO.platform,
        isolated_ms=values_ms[1] + 0.125,
        session_ms=0.125,
        started_at=math.nan,
        duration_s=math.nan,
        overhead_s=math.nan,
        repeat=repeat,
    )


def rows() -> list[Measurement]:
    """A layer that was measured twice, and a training step."""
    return [
        _row(CONV, 0, 1.0, 2.5, 4.0),
        _row(STEP, 0, 3.0, 3.5, 4.0),
        _row(CONV, 1, 2.0, 3.0, 5.0),
    ]


if __name__ == "__main__":
    write_dataset(Path(__file__).with_name("dataset-v2.h5"), Dataset(INFO, tuple(rows())))
