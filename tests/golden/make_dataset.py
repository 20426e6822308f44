"""Write dataset.h5: rows of layers, of training steps and of networks with and without a graph.

    python tests/golden/make_dataset.py

Run it again for another layout.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from resperf.dataset import (
    Dataset,
    DatasetInfo,
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    description_digest,
    write_dataset,
)
from resperf.layers import Conv, Dense, Layer, Pool, Reorder
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest
from resperf.platform import Accelerator, Platform
from resperf.quantities import Estimator
from resperf.settings import Mode, Setting

GRAPH = (
    b'\x08\x08:A\n\x16\n\x01x\x12\x01y\x1a\x04relu"\x04Relu*\x02  \x12\x03netZ\x10\n\x01x'
    b"\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x08\x90\x03b\x10\n\x01y"
)
"""Bytes that a graph is stored as; a dataset does not look into them."""
NETWORK = NetworkRef("net", graph_digest(GRAPH))
LINEAR = ListedOperator(
    "Linear",
    (ListedTensor((2, 8), "float16"), ListedTensor((4, 8), "float16", True)),
    (ListedTensor((2, 4), "float16"),),
    {"name": "head"},
    24,
    {"forward_ms": 0.25},
)
DESCRIPTION = NetworkDescription(
    "net-8", "net", "nets", sequence=8, batch=2, parameters=36, operators=(LINEAR,)
)
CONTENT = DESCRIPTION.to_bytes()
NAMED = NetworkRef("net-8", "", description_digest(CONTENT))
INFO = DatasetInfo(
    setting=Setting("synthetic", "1.0", "none", threads=2, options={"spinning": "off"}),
    platform=Platform(
        device="cpu", processor="Example Processor 3000", family=6, model=143, stepping=8,
        caches={"L2": 2 << 20}, hypervisor="KVM", instruction_set="avx2", cores=4,
        memory_bytes=16 << 30, system="Linux", machine_checks={"core_ms": 0.25},
    ),
    campaign={"name": "golden", "kinds": {"conv": {"batch": [1, 8]}}},
    seed=7,
    versions={"resperf": "0.1.0", "python": "3.11.9", "numpy": "2.4.6"},
    created="2026-11-23T03:04:05+00:00",
    machine_costs={"call_ms": 0.0125, "reshape_ms": 0.002},
)  # fmt: skip
TRAINING = dataclasses.replace(
    INFO.setting, mode=Mode.TRAINING, optimizer="sgd", precision="amp", batch=8,
    shapes={"x": (8, 3, 32, 32)},
)  # fmt: skip
GPU = dataclasses.replace(
    INFO.platform, accelerators=(Accelerator("H100", 80 << 30, "550.54", 1980, 2619, 700, "9.0"),),
    devices=2, interconnect="NVLink",
)  # fmt: skip
CONV = Conv(
    batch=2, channels_in=3, height=9, width=7, kernel_height=3, kernel_width=3, channels_out=8,
    activation="relu",
)  # fmt: skip
DENSE = Dense(batch=1, features_in=9, features_out=4, bias=False)
POOL = Pool(batch=1, channels_in=8, height=4, width=4, kernel_height=2, kernel_width=2)
REORDER = Reorder(batch=1, channels_in=16, height=4, width=4)


def _ok(layer: Layer, at: float, *execution_ms: float) -> Measurement:
    def samples(*values: float, copies: int | None = None) -> Samples:
        divisor, offset = (float(copies), 0.5) if copies else (1.0, 0.0)
        return Samples(values, 100, 3, StopReason.PRECISE, False, copies, divisor, offset)

    return Measurement(
        layer,
        Status.OK,
        {
            "preprocess_ms": samples(0.25, 0.75),
            "execution_ms": samples(*execution_ms, copies=4),
            "postprocess_ms": samples(0.125),
        },
        setting=INFO.setting,
        platform=INFO.platform,
        isolated_ms=4.5,
        call_ms=0.0125,
        started_at=1_795_323_045.0 + at,
        duration_s=0.5,
        overhead_s=0.0625,
        reference_ratio=1.03125,
    )


def _network(at: float, setting: Setting, platform: Platform, **values: float) -> Measurement:
    samples = {
        name: Samples(
            (value,), 1, 0, StopReason.BUDGET,
            estimator=Estimator.MAXIMUM if name == "peak_memory_bytes" else Estimator.MEDIAN,
        )
        for name, value in values.items()
    }  # fmt: skip
    return Measurement(
        NETWORK, Status.OK, samples, setting=setting, platform=platform,
        started_at=1_795_323_045.0 + at, reference_ratio=1.0,
    )  # fmt: skip


def _described(at: float, batch: int, **changes: object) -> Measurement:
    best = Samples((1.5 * batch,), 25, 0, StopReason.BUDGET, estimator=Estimator.MEAN_OF_BEST_FIVE)
    row = Measurement(
        NAMED, Status.OK, {"execution_ms": best},
        setting=dataclasses.replace(INFO.setting, batch=batch, options={"session": "train"}),
        platform=INFO.platform, started_at=1_795_323_045.0 + at, reference_ratio=1.0,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def rows() -> list[Measurement]:
    """Layers with repeats, flags and a failure; a training step; two networks, one described."""
    step = {"step_ms": Samples((3.0, 3.5, 4.0), 5, 5, StopReason.BUDGET)}
    return [
        _ok(CONV, 0, 1.0, 2.5, 4.0),
        _ok(POOL, 1, 0.5),
        _ok(DENSE, 2, 0.0625, 0.1875),
        dataclasses.replace(_ok(CONV, 3, 3.0, 3.5, 4.0), repeat=1),
        dataclasses.replace(_ok(POOL, 4, 1.5), repeat=1, flags=("busy", "drift")),
        _ok(REORDER, 5, 0.03125),
        dataclasses.replace(
            _ok(DENSE, 6, 1.0), subject=DENSE.replace(features_in=4096), samples={},
            status=Status.OUT_OF_MEMORY, detail="killed: 64 MiB übersteigt das Limit",
        ),
        dataclasses.replace(
            _ok(DENSE, 7, 1.0), samples=step, setting=INFO.setting.with_optimizer("adam")
        ),
        _network(8, dataclasses.replace(INFO.setting, batch=1), INFO.platform, latency_ms=2.5),
        _network(9, TRAINING, GPU, step_ms=7.5, peak_memory_bytes=float(3 << 20)),
        _described(10, 1),
        _described(11, 2, flags=("throttled",), detail="at 20% of the peak"),
        _described(12, 4, status=Status.CRASHED, samples={}, detail="no step time"),
    ]  # fmt: skip


if __name__ == "__main__":
    write_dataset(
        Path(__file__).with_name("dataset.h5"),
        Dataset(INFO, tuple(rows()), {NETWORK.digest: GRAPH}, {NAMED.description: CONTENT}),
    )
