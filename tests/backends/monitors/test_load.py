import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from resperf.backends.monitors import cpu
from resperf.backends.monitors.cpu import Load, LoadMeter

FIRST = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


class FakePsutil:
    """What the meter asks of psutil, with numbers that a test sets."""

    def __init__(self) -> None:
        self.all_cores = 0.0
        self.own_cores = 0.0
        self.mhz = 3000.0

    def Process(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(cpu_percent=lambda: 100 * self.own_cores)

    def cpu_percent(self, percpu: bool) -> list[float]:
        assert percpu
        # Cores that this process may not use are busy as well.
        return [100.0] * FIRST + [100 * self.all_cores, *[0.0] * 3]

    def cpu_freq(self) -> SimpleNamespace:
        return SimpleNamespace(current=self.mhz)


@pytest.fixture
def load_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Load]:
    """Measure an interval of some seconds, in which so many core seconds are used."""
    now_s, source = [10.0], FakePsutil()
    monkeypatch.setattr(cpu.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(cpu, "require", lambda *_: source)
    meter = LoadMeter()

    def measure(wall_s: float, *, all_s: float = 0.0, own_s: float = 0.0, mhz: float = 3e3) -> Load:
        meter.start()
        now_s[0] += wall_s
        source.all_cores, source.own_cores = all_s / wall_s, own_s / wall_s
        source.mhz = mhz
        return meter.stop()

    return measure


def test_other_load_is_what_this_process_did_not_use(load_of: Callable[..., Load]) -> None:
    result = load_of(2.0, all_s=3.0, own_s=0.5)
    # 3 s used, 0.5 of them here: 2.5 over 2 s.
    assert result.other_cores == pytest.approx(1.25)
    assert result.is_busy


def test_own_work_is_not_other_load(load_of: Callable[..., Load]) -> None:
    result = load_of(1.0, own_s=2.0)
    assert result.other_cores == 0.0
    assert not result.is_busy


def test_a_few_ticks_are_too_short(load_of: Callable[..., Load]) -> None:
    assert not load_of(0.05, all_s=0.04).is_busy


def test_a_throttled_clock_is_busy(load_of: Callable[..., Load]) -> None:
    assert not load_of(1.0).is_busy
    result = load_of(1.0, mhz=2000.0)
    assert result.frequency_share == pytest.approx(2 / 3)
    assert result.is_busy


def test_the_real_psutil_answers() -> None:
    meter = LoadMeter()
    meter.start()
    result = meter.stop()
    assert result.other_cores >= 0.0
    assert 0.0 < result.frequency_share <= 1.0
