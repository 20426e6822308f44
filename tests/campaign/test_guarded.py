"""Whole runs on a machine that changes its speed, with clocks that only the work moves."""

from __future__ import annotations

import math
from functools import partial
from itertools import count

import pytest

from resperf.backends import Phase
from resperf.backends.monitors import Monitor
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign.measure import PATIENCE_S, PAUSE_S, guarded_runs
from resperf.timing import WallClock

MS = 1_000_000
TIMES_MS = {"preprocess_ms": {1.0}, "execution_ms": {8.0}, "postprocess_ms": {2.0}}


class Machine:
    """A network and a reference on one clock."""

    def __init__(self):
        self.now_ns = 0
        self.factor = 1.0
        self.phases = {
            "preprocess_ms": Phase(self.timer(lambda: self.spend(1.0))),
            "execution_ms": Phase(self.timer(lambda: self.spend(8.0))),
            "postprocess_ms": Phase(self.timer(lambda: self.spend(2.0))),
        }
        self.monitor = CpuMonitor()
        self.monitor.clock, self.monitor.now = self.clock, count().__next__
        self.watch()

    def watch(self, **machine_checks):
        self.monitor.watch(
            self.timer(self.reference), interval_s=3.0, machine_checks=machine_checks
        )

    def timer(self, run):
        return WallClock(run, self.clock)

    def clock(self):
        return self.now_ns

    def spend(self, time_ms):
        self.now_ns += round(time_ms * self.factor * MS)

    def reference(self):
        self.spend(1.0)


class SlowAtFirst(Machine):
    """1.6 times slower during two rounds; earlier readings tell the usual speed."""

    def __init__(self):
        super().__init__()
        for _ in range(7):
            self.monitor.history.add(-1.0, 1.0)

    def reference(self):
        self.factor = 1.6 if len(self.monitor.history) < 7 + 3 else 1.0
        self.spend(1.0)


class FasterReference(SlowAtFirst):
    """The reference alone takes 0.8 of its usual time, as behind a network of large weights."""

    def reference(self):
        self.spend(0.8)


def test_a_faster_reference_disturbs_no_round():
    machine = FasterReference()
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert (timed.rounds, timed.steady_rounds, timed.reference_rounds) == (3, 3, 3)
    assert timed.reference_ratio < 0.9


def test_phases_and_whole_runs_are_timed():
    machine = Machine()
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert {name: set(times_ms) for name, times_ms in timed.phases_ms.items()} == TIMES_MS
    assert set(timed.totals_ms) == {11.0}
    assert (timed.rounds, timed.steady_rounds) == (3, 3)
    assert timed.reference_ratio == pytest.approx(1.0)


def test_a_training_step_is_timed_in_its_parts_as_one_run():
    machine = Machine()

    def timer(run_ms, before_ms):
        before = partial(machine.spend, before_ms)
        return WallClock(partial(machine.spend, run_ms), machine.clock, before)

    machine.phases = {
        "forward_ms": Phase(timer(3.0, 1.0)),
        "backward_ms": Phase(timer(6.0, 1000.0)),  # Another forward pass, which is not repeated.
        "step_ms": Phase(timer(9.5, 1000.0)),
        "peak_memory_bytes": Phase(lambda: 1e6, unit="bytes"),
    }
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert {name: set(times_ms) for name, times_ms in timed.phases_ms.items()} == {
        "forward_ms": {3.0}, "backward_ms": {6.0}, "step_ms": {9.0}
    }  # fmt: skip
    assert set(timed.totals_ms) == {9.0}
    assert timed.samples["peak_memory_bytes"].value == 1e6
    assert timed.steady_rounds == 3
    assert machine.now_ns < 1000 * MS


def test_a_step_that_runs_ahead_of_its_device_is_timed_apart_from_its_parts():
    machine = Machine()
    parts_ms = {"forward_ms": 3.0, "backward_ms": 6.0, "step_ms": 7.5}

    def timed_by_events(time_ms):
        machine.spend(time_ms)
        return time_ms

    machine.phases = {
        name: Phase(partial(timed_by_events, time_ms)) for name, time_ms in parts_ms.items()
    }
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert {name: set(times_ms) for name, times_ms in timed.phases_ms.items()} == {
        name: {time_ms} for name, time_ms in parts_ms.items()
    }
    assert set(timed.totals_ms) == {7.5}


def test_a_slow_network_still_runs_three_times_a_round():
    machine = Machine()
    timed = guarded_runs(machine, machine.monitor, seconds=1e-3)
    assert len(timed.totals_ms) == 9


def test_one_steady_round_of_a_network_of_seconds_is_enough():
    machine = Machine()
    machine.phases["execution_ms"] = Phase(machine.timer(lambda: machine.spend(2000.0)))
    assert guarded_runs(machine, machine.monitor, seconds=0.3).rounds == 1
    assert guarded_runs(machine, machine.monitor, seconds=30.0).rounds == 3


def test_rounds_on_a_slow_machine_are_measured_again_and_dropped():
    machine = SlowAtFirst()
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert {name: set(times_ms) for name, times_ms in timed.phases_ms.items()} == TIMES_MS
    assert set(timed.totals_ms) == {11.0}
    # Readings 0 to 2 are slow, so rounds 0 to 2 touch a slow reading; 3 to 5 do not.
    assert (timed.rounds, timed.steady_rounds, timed.reference_rounds) == (6, 3, 3)


class FakeCheck:
    """Is slow at its first checks."""

    def __init__(self, slow_checks):
        self.checks, self.slow_checks = 0, slow_checks

    def is_slow(self, *, record=True):
        self.checks += 1
        return self.checks <= self.slow_checks


def watched_by(flag, slow_checks):
    machine = Machine()
    machine.watch(**{flag: FakeCheck(slow_checks)})
    return machine


def test_rounds_beside_a_slow_machine_check_are_measured_again():
    machine = watched_by("memory", 2)
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    # Checks 0 and 1 are slow, so rounds 0 and 1 stand beside a slow one.
    assert (timed.rounds, timed.steady_rounds) == (5, 3)


def test_rounds_that_took_longer_than_others_are_measured_again_whatever_the_machine_checks_say():
    machine, rounds = Machine(), []

    def unseen_by_the_reference():
        # The first and the third round are in a state that only the network feels.
        machine.factor = 1.8 if len(rounds) in (1, 3) else 1.0
        machine.spend(8.0)
        machine.factor = 1.0

    class Noting(CpuMonitor):
        def reading(self, *, force=False):
            rounds.append(len(rounds))
            return super().reading(force=force)

    machine.phases["execution_ms"] = Phase(machine.timer(unseen_by_the_reference))
    machine.monitor = Noting()
    machine.monitor.clock, machine.monitor.now = machine.clock, count().__next__
    machine.watch()
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert set(timed.totals_ms) == {11.0}
    assert (timed.rounds, timed.steady_rounds) == (5, 3)


def test_a_measurement_waits_for_cores_that_are_far_apart(monkeypatch):
    machine, waited = watched_by("caches", 5), []
    monkeypatch.setattr("time.sleep", waited.append)
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert (timed.rounds, timed.steady_rounds) == (3, 3)
    assert waited == [PAUSE_S] * 5


def test_a_measurement_does_not_wait_for_ever(monkeypatch):
    machine, waited = watched_by("caches", 1000), []
    monkeypatch.setattr("time.sleep", waited.append)
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert (timed.rounds, timed.steady_rounds) == (8, 0)
    assert sum(waited) == pytest.approx(PATIENCE_S)


def test_a_machine_disturbed_throughout_has_no_steady_round():
    machine = Machine()
    machine.watch(memory=FakeCheck(100))
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert (timed.rounds, timed.steady_rounds, timed.reference_rounds) == (8, 0, 8)
    assert set(timed.totals_ms) == {11.0}


def test_a_reference_that_is_slow_throughout_leaves_no_round():
    machine = Machine()
    machine.reference = lambda: machine.spend(1.6)
    machine.watch()
    for _ in range(100):
        machine.monitor.history.add(-1.0, 1.0)
    timed = guarded_runs(machine, machine.monitor, seconds=0.3)
    assert (timed.rounds, timed.reference_rounds) == (8, 0)


def test_a_device_without_a_reference_is_judged_by_its_states_alone():
    class Hot(Monitor):
        device_states = ("hot",)

        def __init__(self, clock, answers):
            super().__init__()
            self.clock, self.answers = clock, iter(answers)

        def active_flags(self, *, record=True):
            return next(self.answers)

    machine = Machine()
    # The second round ends hot, so that the third begins so.
    monitor = Hot(machine.clock, [set(), set(), {"hot"}, set(), set(), set(), set()])
    timed = guarded_runs(machine, monitor, seconds=0.3)
    assert (timed.rounds, timed.steady_rounds) == (5, 3)
    assert set(timed.totals_ms) == {11.0}
    assert math.isnan(timed.reference_ratio)
