from typing import Any

import pytest

from resperf.backends.monitors import Monitor, Reading
from resperf.timing import WallClock


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


def monitor_of(machine: FakeMachine) -> Monitor:
    monitor = Monitor()
    monitor.now = machine.now
    monitor.watch(WallClock(machine.run, machine.clock), interval_s=3.0)
    return monitor


def test_reference_is_timed_only_when_due() -> None:
    machine = FakeMachine()
    monitor = monitor_of(machine)
    reading = monitor.reading()
    # One warm-up and fifteen runs of 1 ms each: the middle is 8 ms later.
    assert reading == Reading(pytest.approx(100.008), pytest.approx(1.0))
    assert machine.runs == 16
    assert monitor.reading() is None
    machine.now_s += 3.0
    assert monitor.reading() is not None
    assert monitor.reading(force=True) is not None
    assert len(monitor.history) == 3


def test_a_slower_machine_shows() -> None:
    machine = FakeMachine()
    monitor = monitor_of(machine)
    for _ in range(4):
        monitor.reading(force=True)
    assert monitor.is_steady()
    machine.reference_ms = 1.6
    monitor.reading(force=True)
    assert monitor.history.latest_ms == pytest.approx(1.6)
    assert not monitor.is_steady()


def test_before_the_first_reading_nothing_is_known() -> None:
    assert not monitor_of(FakeMachine()).is_steady()


class FakeCheck:
    """A machine check with a given result that counts its checks."""

    def __init__(self, slow: bool) -> None:
        self.slow, self.checks = slow, 0

    def is_slow(self, *, record: bool = True) -> bool:
        self.checks += 1
        return self.slow


def test_machine_checks_after_a_slow_one_are_skipped() -> None:
    # Cores under different caches have more bandwidth: memory's usual time would become too short.
    first: Any = FakeCheck(slow=True)
    second: Any = FakeCheck(slow=True)
    monitor = Monitor()
    monitor.watch(lambda: 1.0, interval_s=3.0, machine_checks={"caches": first, "memory": second})
    assert monitor.active_flags() == {"caches"}
    assert second.checks == 0
    first.slow = False
    assert monitor.active_flags() == {"memory"}
    second.slow = False
    assert monitor.active_flags() == set()
