import math
from typing import Any

import pytest

from resperf.backends import Phase
from resperf.backends.synthetic import SyntheticBackend, SyntheticBuilt
from resperf.campaign import measure_layer
from resperf.layers import Dense, Pool
from resperf.measurement import Status
from resperf.quantities import PHASES
from resperf.timing import SamplingProtocol
from resperf.timing.load import Load

LAYER = Dense(batch=1, features_in=100, features_out=10)


class FakeLoad:
    """A load meter that always says the same."""

    def __init__(self, other_cores: float) -> None:
        self._load = Load(other_cores=other_cores, frequency_share=1.0)

    def start(self) -> None:
        """Nothing to remember."""

    def stop(self) -> Load:
        return self._load


class SlowToBuild(SyntheticBackend):
    """Takes 40 ms to build a layer and grows slower with each run of it, if asked."""

    growth_ms = 0.0

    def layer(self, layer: Any, *, budget_ms: float) -> SyntheticBuilt:
        self.spend(40.0)
        self._runs = 0
        return SyntheticBuilt(
            phases={
                "preprocess_ms": Phase(lambda: self.spend(1.0)),
                "execution_ms": Phase(self._slower, offset_ms=2.0, divisor=4.0),
                "postprocess_ms": Phase(lambda: self.spend(0.5)),
            },
            isolated=lambda: self.spend(3.0),
        )

    def _slower(self) -> None:
        self._runs += 1
        self.spend(10.0 + self.growth_ms * self._runs)


def test_a_row_holds_all_phases_and_what_they_cost() -> None:
    device = SlowToBuild()
    row = measure_layer(
        device, LAYER, SamplingProtocol(), repeat=1, clock=device.clock, now=lambda: 77.0
    )
    assert (row.status, row.repeat, row.started_at, row.flags) == (Status.OK, 1, 77.0, ())
    assert tuple(row.samples) == PHASES
    # A run of 10 ms less the call's 2 ms, over four copies.
    assert [row.value(name) for name in PHASES] == [1.0, 2.0, 0.5]
    assert row.isolated_ms == 3.0
    assert row.session_ms == 0.02
    assert row.overhead_s == pytest.approx(0.040)
    assert row.duration_s > 0.040


def test_a_drifting_execution_is_marked() -> None:
    device = SlowToBuild()
    device.growth_ms = 1.0
    row = measure_layer(device, LAYER, SamplingProtocol(budget_s=0.3), clock=device.clock)
    assert row.flags == ("drift",)


class Placed(SlowToBuild):
    """Its copies of large layers run in 9, 1, 5, 7, ... ms, in turn from build to build."""

    def __init__(self) -> None:
        super().__init__()
        self.builds = 0

    def layer(self, layer: Any, *, budget_ms: float) -> SyntheticBuilt:
        built = super().layer(layer, budget_ms=budget_ms)
        took_ms = (9.0, 1.0, 5.0, 7.0)[self.builds % 4]
        self.builds += 1
        phases = {**built.phases, "execution_ms": Phase(lambda: self.spend(took_ms))}
        return SyntheticBuilt(phases=phases, isolated=built.isolated)


def test_a_layer_that_waits_for_memory_is_sampled_in_several_places() -> None:
    large = Pool(batch=16, channels_in=64, height=112, width=112, kernel_height=2, kernel_width=2)
    device = Placed()
    row = measure_layer(device, large, SamplingProtocol(placements=3), clock=device.clock)
    assert device.builds == 3
    assert row.value("execution_ms") == 5.0
    assert row.value("postprocess_ms") == 0.5
    # Three builds are not all overhead: the first is, the others belong to the sampling.
    assert row.overhead_s == pytest.approx(0.040)

    # Another build takes 40 ms: after the second one, the time for it is over.
    device = Placed()
    protocol = SamplingProtocol(placements=9, placements_s=0.03)
    measure_layer(device, large, protocol, clock=device.clock)
    assert device.builds == 2

    # A build that fails later loses nothing of those before.
    class Full(Placed):
        def layer(self, layer: Any, *, budget_ms: float) -> SyntheticBuilt:
            if self.builds == 2:
                raise MemoryError
            return super().layer(layer, budget_ms=budget_ms)

    device = Full()
    row = measure_layer(device, large, SamplingProtocol(placements=3), clock=device.clock)
    assert (row.status, device.builds) == (Status.OK, 2)
    assert row.value("execution_ms") == 5.0  # between 9 and 1

    # What computes rather than waits for memory is built once.
    device = Placed()
    measure_layer(device, LAYER, SamplingProtocol(placements=3), clock=device.clock)
    assert device.builds == 1


@pytest.mark.parametrize(("other_cores", "flags"), [(0.9, ("busy",)), (0.1, ())])
def test_a_busy_machine_is_marked(other_cores: float, flags: tuple[str, ...]) -> None:
    device = SlowToBuild()
    load: Any = FakeLoad(other_cores)
    row = measure_layer(device, LAYER, SamplingProtocol(), clock=device.clock, load=load)
    assert row.flags == flags


def test_memory_that_runs_out_while_running_leaves_no_samples() -> None:
    class Greedy(SlowToBuild):
        def _slower(self) -> None:
            raise MemoryError

    device = Greedy()
    row = measure_layer(device, LAYER, SamplingProtocol(), clock=device.clock)
    assert row.status is Status.OUT_OF_MEMORY
    assert row.samples == {}
    assert math.isnan(row.isolated_ms)
    assert row.detail == "MemoryError"
