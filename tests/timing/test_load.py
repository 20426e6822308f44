import os
from collections import namedtuple
from types import SimpleNamespace

import pytest

from resperf.timing import load as load_module
from resperf.timing.load import LoadMeter

Times = namedtuple("Times", "user system idle iowait steal guest")
FIRST = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


class FakePsutil:
    """What the meter asks of psutil, with numbers that a test sets."""

    def __init__(self) -> None:
        self.all_s = 0.0
        self.own_s = 0.0
        self.mhz = 3000.0

    def Process(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self.own_s, system=0.0))

    def cpu_times(self, percpu: bool) -> list[Times]:
        assert percpu
        idle = Times(0, 0, 99, 9, 0, 0)
        # A guest's second is counted within user's.
        return [idle] * FIRST + [Times(self.all_s, 0, 50, 5, 0, self.all_s / 2), idle]

    def cpu_freq(self) -> SimpleNamespace:
        return SimpleNamespace(current=self.mhz)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(now=10.0)
    monkeypatch.setattr(load_module.time, "monotonic", lambda: fake.now)
    return fake


def test_other_load_is_what_this_process_did_not_use(clock: SimpleNamespace) -> None:
    source = FakePsutil()
    meter = LoadMeter(source)
    meter.start()
    clock.now += 2.0
    source.all_s += 3.0
    source.own_s += 0.5
    result = meter.stop()
    # 3 s used (guests' half of them is counted twice), 0.5 of them here: 2.5 over 2 s.
    assert result.other_cores == pytest.approx(1.25)
    assert result.is_busy


def test_own_work_is_not_other_load(clock: SimpleNamespace) -> None:
    source = FakePsutil()
    meter = LoadMeter(source)
    meter.start()
    clock.now += 1.0
    source.own_s += 2.0
    assert meter.stop().other_cores == 0.0
    assert not meter.stop().is_busy


def test_a_few_ticks_are_too_short(clock: SimpleNamespace) -> None:
    source = FakePsutil()
    meter = LoadMeter(source)
    meter.start()
    clock.now += 0.05
    source.all_s += 0.04
    assert not meter.stop().is_busy


def test_a_throttled_clock_is_busy(clock: SimpleNamespace) -> None:
    source = FakePsutil()
    meter = LoadMeter(source)
    meter.start()
    assert not meter.stop().is_busy
    source.mhz = 2000.0
    meter.start()
    result = meter.stop()
    assert result.frequency_share == pytest.approx(2 / 3)
    assert result.is_busy


def test_the_real_psutil_answers() -> None:
    meter = LoadMeter()
    meter.start()
    result = meter.stop()
    assert result.other_cores >= 0.0
    assert 0.0 < result.frequency_share <= 1.0
