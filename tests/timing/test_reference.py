import math
from typing import Any

import pytest

from resperf.timing import ReferenceHistory, ReferenceMonitor, WallClock


class FakeMachine:
    """A clock in seconds and nanoseconds at once, and a reference of adjustable speed."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.reference_ms = 1.0
        self.runs = 0

    def run(self) -> None:
        self.now_s += self.reference_ms / 1000
        self.runs += 1

    def now(self) -> float:
        return self.now_s

    def clock(self) -> int:
        return round(self.now_s * 1e9)


def monitor_of(machine: FakeMachine) -> ReferenceMonitor:
    return ReferenceMonitor(
        WallClock(machine.run, machine.clock), interval_s=3.0, samples=5, now=machine.now
    )


def test_reference_is_timed_only_when_due() -> None:
    machine = FakeMachine()
    monitor = monitor_of(machine)
    # One warm-up and five runs of 1 ms each: the middle is 3 ms later.
    assert monitor.check() == (pytest.approx(100.003), pytest.approx(1.0))
    assert machine.runs == 6
    assert monitor.check() is None
    machine.now_s += 3.0
    assert monitor.check() is not None
    assert monitor.check(force=True) is not None
    assert len(monitor.history) == 3


def test_a_slower_machine_shows() -> None:
    machine = FakeMachine()
    monitor = monitor_of(machine)
    for _ in range(4):
        monitor.check(force=True)
    assert monitor.is_steady()
    machine.reference_ms = 1.6
    monitor.check(force=True)
    assert monitor.ratio == pytest.approx(1.6)
    assert not monitor.is_steady()


def test_ratio_is_interpolated_between_readings() -> None:
    history = ReferenceHistory([(0.0, 1.0), (10.0, 2.0), (20.0, 1.0), (30.0, 1.0), (40.0, 1.0)])
    assert history.median_ms == 1.0
    assert history.ratio(10.0) == 2.0
    assert history.ratio(5.0) == pytest.approx(1.5)
    assert history.ratio(12.5) == pytest.approx(1.75)
    assert history.ratio(-1.0) == 1.0
    assert history.ratio(99.0) == 1.0


def test_readings_may_come_in_any_order() -> None:
    history = ReferenceHistory([(2.0, 30.0), (1.0, 10.0)])
    assert history.readings == [(1.0, 10.0), (2.0, 30.0)]
    assert history.latest_ms == 30.0


def test_without_readings_nothing_is_known() -> None:
    assert math.isnan(ReferenceHistory().ratio(0.0))
    assert not monitor_of(FakeMachine()).is_steady()


class FakeProbe:
    """A probe with a given result that counts its checks."""

    def __init__(self, slow: bool) -> None:
        self.slow, self.checks = slow, 0

    def is_slow(self, *, record: bool = True) -> bool:
        self.checks += 1
        return self.slow


def test_probes_after_a_slow_one_are_skipped() -> None:
    # Cores under different caches have more bandwidth: memory's usual time would become too short.
    first: Any = FakeProbe(slow=True)
    second: Any = FakeProbe(slow=True)
    monitor = ReferenceMonitor(lambda: 1.0, probes={"caches": first, "memory": second})
    assert monitor.slow_probes() == {"caches"}
    assert second.checks == 0
    first.slow = False
    assert monitor.slow_probes() == {"memory"}
    second.slow = False
    assert monitor.slow_probes() == set()
