import math
from typing import Any

import pytest

from resperf.backends import Built, Phase
from resperf.backends.monitors import Monitor
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign import measure_layer
from resperf.layers import Dense, Layer, Pool
from resperf.measurement import Measurement, Status
from resperf.quantities import PHASES
from resperf.testing.synthetic import SyntheticBackend
from resperf.timing import SamplingProtocol, WallClock

LAYER = Dense(batch=1, features_in=100, features_out=10)
LARGE = Pool(batch=16, channels_in=64, height=112, width=112, kernel_height=2, kernel_width=2)


class OwnClock(CpuMonitor):
    """Watches a simulated device as if it were a CPU: its clock, a CPU's rules, no checks."""

    def __init__(self, device: SyntheticBackend) -> None:
        super().__init__()
        self.clock = device.clock
        self.now = lambda: 77.0


class SlowToBuild(SyntheticBackend):
    """Takes 40 ms to build a layer and grows slower with each run of it, if asked."""

    growth_ms = 0.0

    def layer(self, layer: Any, *, budget_ms: float) -> Built:
        self.spend(40.0)
        self._runs = 0
        slower = WallClock(self._slower, self.clock)
        execution = Phase(slower, offset=2.0, copies=4)
        return Built.of_phases(self.timer(1.0), execution, self.timer(0.5), self.timer(3.0))

    def _slower(self) -> None:
        self._runs += 1
        self.spend(10.0 + self.growth_ms * self._runs)


def measured(device: SyntheticBackend, layer: Layer, **protocol: Any) -> Measurement:
    return measure_layer(device, layer, SamplingProtocol(**protocol), monitor=OwnClock(device))


def test_a_row_holds_all_phases_and_what_they_cost() -> None:
    device = SlowToBuild()
    row = measure_layer(device, LAYER, SamplingProtocol(), repeat=1, monitor=OwnClock(device))
    assert (row.status, row.repeat, row.started_at, row.flags) == (Status.OK, 1, 77.0, ())
    assert tuple(row.samples) == PHASES
    # A run of 10 ms less the call's 2 ms, over four copies.
    assert [row.value(name) for name in PHASES] == [1.0, 2.0, 0.5]
    assert row.isolated_ms == 3.0
    execution, outer = row.samples["execution_ms"], row.samples["preprocess_ms"]
    assert (execution.copies, execution.divisor, execution.offset) == (4, 4.0, 2.0)
    assert (outer.copies, outer.divisor, outer.offset) == (1, 1.0, 0.0)
    assert row.call_ms == 0.02
    assert row.overhead_s == pytest.approx(0.040)
    assert row.duration_s > 0.040


def test_a_drifting_execution_is_marked() -> None:
    device = SlowToBuild()
    device.growth_ms = 1.0
    row = measured(device, LAYER, budget_s=0.3)
    assert row.flags == ("drift",)


class TimedNetwork(SlowToBuild):
    """Its copies of large layers run in 9, 1, 5, 7, ... ms, in turn from build to build."""

    def __init__(self) -> None:
        super().__init__()
        self.builds = 0

    def layer(self, layer: Any, *, budget_ms: float) -> Built:
        built = super().layer(layer, budget_ms=budget_ms)
        took_ms = (9.0, 1.0, 5.0, 7.0)[self.builds % 4]
        self.builds += 1
        phases = {**built.phases, "execution_ms": Phase(self.timer(took_ms))}
        return Built(phases=phases, isolated=built.isolated)


def test_a_layer_that_waits_for_memory_is_sampled_in_several_places() -> None:
    device = TimedNetwork()
    row = measured(device, LARGE, placements=3)
    assert device.builds == 3
    assert row.value("execution_ms") == 5.0
    assert row.value("postprocess_ms") == 0.5
    # Three builds are not all overhead: the first is, the others belong to the sampling.
    assert row.overhead_s == pytest.approx(0.040)

    # Another build takes 40 ms: after the second one, the time for it is over.
    device = TimedNetwork()
    measured(device, LARGE, placements=9, placements_s=0.03)
    assert device.builds == 2

    # A build that fails later loses nothing of those before.
    class Full(TimedNetwork):
        def layer(self, layer: Any, *, budget_ms: float) -> Built:
            if self.builds == 2:
                raise MemoryError
            return super().layer(layer, budget_ms=budget_ms)

    device = Full()
    row = measured(device, LARGE, placements=3)
    assert (row.status, device.builds) == (Status.OK, 2)
    assert row.value("execution_ms") == 5.0  # between 9 and 1

    # What computes rather than waits for memory is built once.
    device = TimedNetwork()
    measured(device, LAYER, placements=3)
    assert device.builds == 1


def test_memory_that_runs_out_while_running_leaves_no_samples() -> None:
    class Greedy(SlowToBuild):
        def _slower(self) -> None:
            raise MemoryError

    device = Greedy()
    row = measured(device, LAYER)
    assert row.status is Status.OUT_OF_MEMORY
    assert row.samples == {}
    assert math.isnan(row.isolated_ms)
    assert row.detail == "MemoryError"


class Allocating(SlowToBuild):
    """Offers what an allocator says besides the times: a peak that its first run raises."""

    def layer(self, layer: Any, *, budget_ms: float) -> Built:
        built = super().layer(layer, budget_ms=budget_ms)
        self.peaks = iter([5e6, 3e6, 3e6, 3e6])
        peak = Phase(self.peaks.__next__, unit="bytes", offset=1e6)
        return Built({**built.phases, "peak_memory_bytes": peak}, built.isolated)


def test_whatever_a_backend_offers_is_sampled() -> None:
    device = Allocating()
    row = measured(device, LAYER)
    assert tuple(row.samples) == (*PHASES, "peak_memory_bytes")
    assert row.samples["peak_memory_bytes"].values == (2e6,) * 3
    assert row.value("execution_ms") == 2.0


def test_a_device_without_phases_of_its_own_may_offer_other_times() -> None:
    class Steps(SlowToBuild):
        def layer(self, layer: Any, *, budget_ms: float) -> Built:
            return Built({"forward_ms": Phase(self.timer(4.0))}, self.timer(4.0))

    device = Steps()
    row = measured(device, LAYER)
    assert (row.status, row.flags) == (Status.OK, ())
    assert row.value("forward_ms") == 4.0


def test_only_a_device_whose_monitor_says_so_is_sampled_in_several_places() -> None:
    device, monitor = TimedNetwork(), Monitor()
    monitor.clock = device.clock
    measure_layer(device, LARGE, SamplingProtocol(placements=3), monitor=monitor)
    assert device.builds == 1
