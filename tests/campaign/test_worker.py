import dataclasses
import subprocess
import sys

import pytest

from resperf.backends.monitors import Monitor, Reading
from resperf.campaign.process import WorkerSettings
from resperf.campaign.worker import Worker, start
from resperf.layers import Dense, Layer
from resperf.targets import target
from resperf.testing.synthetic import SyntheticBackend
from resperf.timing import SamplingProtocol

SHORT = Dense(batch=1, features_in=4, features_out=4)


class Watching(Monitor):
    """Says what it was told, and writes down when it was asked."""

    device_states = ("hot",)

    def __init__(self, device: SyntheticBackend) -> None:
        super().__init__()
        self.clock, self.asked, self.device = device.clock, [], device

    def before(self) -> Reading | None:
        self.asked.append(("before", self.device.clock()))
        return Reading(12.0, facts={"clock_mhz": 1000.0})

    def after(self, layer: Layer, time_ms: float) -> tuple[str, ...]:
        self.asked.append((layer.key, time_ms))
        return ("hot",)

    def usual_times(self) -> dict[str, tuple[float, int]]:
        return {"hot_ms": (1.5, 3)}


def test_a_row_has_the_flags_that_the_monitor_says_after_it() -> None:
    device = SyntheticBackend()
    monitor = Watching(device)
    worker = Worker(backend=device, protocol=SamplingProtocol(), monitor=monitor)
    taken = worker.measure(SHORT, 0)
    assert taken.row.flags == ("hot",)
    assert taken.reading.to_json() == [12.0, None, {"clock_mhz": 1000.0}]
    assert taken.usual == {"hot_ms": (1.5, 3)}
    # 5 us and 4 (4 + 4 + 20) bytes at 5 GB/s, 32 operations at 50 GFLOP/s.
    time_ms = 0.005 + 112 / 5e6 + 32 / 50e6
    assert monitor.asked == [("before", 0), (SHORT.key, pytest.approx(time_ms, rel=1e-3))]


def test_a_layer_that_fails_has_no_flags_of_the_machine() -> None:
    device = SyntheticBackend(fail={"unsupported": "dense"})
    monitor = Watching(device)
    worker = Worker(backend=device, protocol=SamplingProtocol(), monitor=monitor)
    assert worker.measure(SHORT, 0).row.flags == ()
    assert [what for what, _ in monitor.asked] == ["before"]


def test_the_machines_costs_are_those_of_backend_and_monitor() -> None:
    class Fast(Monitor):
        def costs(self) -> dict[str, float]:
            return {"check_call_us": 7.0}

    worker = Worker(backend=SyntheticBackend(), protocol=SamplingProtocol(), monitor=Fast())
    assert worker.costs() == {"call_ms": 0.02, "reshape_ms": 0.0, "check_call_us": 7.0}
    assert dataclasses.replace(worker, networks=True).costs() == {"check_call_us": 7.0}


def test_a_simulated_device_has_no_machine_checks() -> None:
    worker = start(WorkerSettings(target("synthetic")))
    assert not worker.monitor.unwatched
    assert not worker.monitor.machine_checks
    assert not worker.monitor.active_flags()
    assert worker.measure(SHORT, 0).row.flags == ()


@pytest.mark.parametrize("framework", ["onnxruntime", "tensorflow"])
def test_a_real_framework_is_watched_as_long_as_the_worker_lives(framework: str) -> None:
    pytest.importorskip(framework)
    # In a process of its own, since a worker changes its process.
    script = f"""
import gc
from resperf.campaign.process import WorkerSettings
from resperf.campaign.worker import start
from resperf.layers import Dense
from resperf.targets import target
from resperf.timing import SamplingProtocol
protocol = SamplingProtocol(budget_s=0.02)
worker = start(WorkerSettings(target("{framework}"), {{"threads": 1}}, protocol))
monitor = worker.monitor
gc.collect()
assert worker.reading().reference_ms > 0
# A first reading has nothing to be compared with.
print(monitor.active_flags())
taken = worker.measure(Dense(batch=1, features_in=8, features_out=8), 0)
print(taken.row.status, *sorted(monitor.machine_checks))
speed = monitor.costs()
assert min(speed.values()) > 0, speed
print(*sorted(speed))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "set()", "ok", "caches", "memory",
        "check_call_us", "check_copy_gb_per_s", "check_product_gflops",
    ]  # fmt: skip
