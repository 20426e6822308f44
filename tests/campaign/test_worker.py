import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest

from resperf.backends import backend
from resperf.campaign.messages import plain
from resperf.campaign.worker import Worker, start
from resperf.layers import Conv, Dense, Layer, Pool
from resperf.targets import target
from resperf.timing import SamplingProtocol

SHORT = Dense(batch=1, features_in=4, features_out=4)
COPY = Pool(batch=4, channels_in=64, height=64, width=64, kernel_height=1, kernel_width=1)


class FakeMonitor:
    """Names the slow probes that it was told, one set after the other."""

    def __init__(self, answers: Sequence[set[str]]) -> None:
        self._answers = iter(answers)

    def check(self) -> None:
        return None

    @property
    def usual_probes(self) -> dict[str, tuple[float, int]]:
        return {}

    def slow_probes(self) -> set[str]:
        return next(self._answers)


def flags_of(layer: Layer, before: set[str], after: set[str]) -> list[str]:
    """Measure while these probes are slow before and after the layer."""
    device: Any = backend("synthetic", gb_per_s=20.0)
    monitor: Any = FakeMonitor([before, after])
    worker = Worker(
        backend=device, protocol=SamplingProtocol(), load=None, reference=monitor,
        clock=device.clock, now=lambda: 0.0, kept=ExitStack(),
    )  # fmt: skip
    return list(worker.measure(plain(layer), 0)["row"]["flags"])


def test_a_short_layer_is_flagged_when_cores_are_far_apart_before_or_after_it() -> None:
    assert flags_of(SHORT, set(), set()) == []
    assert flags_of(SHORT, {"caches"}, set()) == ["caches"]
    assert flags_of(SHORT, set(), {"caches"}) == ["caches"]
    # Its few bytes stay in the nearest cache.
    assert flags_of(SHORT, {"memory"}, {"memory"}) == []


def test_a_layer_that_waits_for_memory_is_flagged_when_either_is_slow() -> None:
    assert flags_of(COPY, {"memory"}, set()) == ["memory"]
    # Cores that are far apart have other ways to memory.
    assert flags_of(COPY, {"memory"}, {"caches"}) == ["caches", "memory"]
    # A convolution of the same bytes spends its time on arithmetic.
    conv = Conv(batch=4, channels_in=64, height=64, width=64, kernel_height=7, kernel_width=7,
                channels_out=512)  # fmt: skip
    assert conv.moved_bytes > COPY.moved_bytes
    assert flags_of(conv, {"caches"}, {"memory"}) == []


def test_a_simulated_device_has_no_probes() -> None:
    row = asdict(target("synthetic"))
    settings = {"target": row, "settings": {}, "protocol": {}, "reference_interval_s": 3}
    worker = start(settings)
    assert worker.reference is not None
    assert not worker.reference.slow_probes()
    assert worker.measure(plain(SHORT), 0)["row"]["flags"] == ()


@pytest.mark.parametrize("framework", ["onnxruntime", "tensorflow"])
def test_a_real_framework_is_watched_as_long_as_the_worker_lives(framework: str) -> None:
    pytest.importorskip(framework)
    # In a process of its own, since a worker changes its process.
    script = f"""
import gc
from dataclasses import asdict
from resperf.campaign.messages import plain
from resperf.campaign.worker import start
from resperf.layers import Dense
from resperf.targets import target
from resperf.timing import SamplingProtocol
worker = start({{
    "target": asdict(target("{framework}")), "settings": {{"threads": 1}},
    "protocol": SamplingProtocol(budget_s=0.02).to_json(), "reference_interval_s": 3.0,
}})
gc.collect()
assert worker.reference.check(force=True)[1] > 0
# A first reading has nothing to be compared with.
print(worker.reference.slow_probes())
reply = worker.measure(plain(Dense(batch=1, features_in=8, features_out=8)), 0)
print(reply["row"]["status"], *sorted(worker.reference._probes))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["set()", "ok", "caches", "memory"]
