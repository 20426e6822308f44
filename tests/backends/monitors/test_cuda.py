"""The monitor of GPUs, on the synthetic device beside a card of the fake NVML."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from fake_nvml import GIBIBYTE, FakeGpu, FakeNvml, installed

from resperf.backends import Built, backend
from resperf.backends.monitors import Reading
from resperf.backends.monitors.cuda import FEWEST_CLOCKS, USUAL_CLOCK, CudaMonitor
from resperf.errors import DeviceLostError
from resperf.layers import Dense, Layer

LAYER = Dense(batch=1, features_in=100, features_out=100)
THERMAL = pynvml.nvmlClocksEventReasonSwThermalSlowdown
POWER_CAP = pynvml.nvmlClocksEventReasonSwPowerCap
IDLE = pynvml.nvmlClocksEventReasonGpuIdle


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    found = FakeGpu(pids=[os.getpid()])
    with installed(FakeNvml([found, FakeGpu("NVIDIA L4", "GPU-7", 22 * GIBIBYTE)])):
        yield found


@pytest.fixture
def monitor(card: FakeGpu) -> Iterator[CudaMonitor]:
    with CudaMonitor() as made:
        made.start(backend("synthetic"), interval_s=0.0)
        yield made


def flags(monitor: CudaMonitor) -> tuple[str, ...]:
    """Return the flags of a row during which the card is as it is now."""
    monitor.before()
    return monitor.after(LAYER, 1.0)


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("SwThermalSlowdown", ("throttled",)), ("HwThermalSlowdown", ("throttled",)),
        ("HwSlowdown", ("throttled",)), ("HwPowerBrakeSlowdown", ("throttled",)),
        ("SwPowerCap", ("power_cap",)), ("GpuIdle", ()), ("ApplicationsClocksSetting", ()),
    ],
)  # fmt: skip
def test_reasons_become_flags(
    monitor: CudaMonitor, card: FakeGpu, reason: str, found: tuple[str, ...]
) -> None:
    assert flags(monitor) == ()
    card.reasons = getattr(pynvml, f"nvmlClocksEventReason{reason}")
    assert flags(monitor) == found


def test_what_happens_during_a_row_counts_if_it_began_before_or_lasts(
    monitor: CudaMonitor, card: FakeGpu
) -> None:
    card.reasons = THERMAL
    monitor.before()
    card.reasons = 0
    assert monitor.after(LAYER, 1.0) == ("throttled",)
    assert flags(monitor) == ()


def test_heat_between_two_checks_shows_in_the_cards_own_count(
    monitor: CudaMonitor, card: FakeGpu
) -> None:
    at = [1000.0]
    monitor.now = lambda: at[0]
    monitor.before()
    at[0] += 1.0
    card.throttled_ns += 90_000_000
    assert monitor.after(LAYER, 1.0) == ()
    monitor.before()
    at[0] += 1.0
    card.throttled_ns += 110_000_000
    assert monitor.after(LAYER, 1.0) == ("throttled",)


def test_other_processes_share_the_card_and_this_one_does_not(
    monitor: CudaMonitor, card: FakeGpu
) -> None:
    assert flags(monitor) == ()
    card.pids = [os.getpid(), 1]
    assert flags(monitor) == ("shared",)


def test_the_first_of_several_processes_that_share_a_run_is_no_other(
    card: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = backend("synthetic")
    platform = replace(several.platform(), devices=2)
    monkeypatch.setattr(several, "platform", lambda: platform)
    with CudaMonitor() as monitor:
        monitor.start(several, interval_s=0.0)
        card.pids = [os.getpid(), 1]
        assert flags(monitor) == ()
        card.pids = [os.getpid(), 1, 2]
        assert flags(monitor) == ("shared",)


def test_a_clock_below_the_usual_one_is_a_disturbance_unless_something_explains_it(
    monitor: CudaMonitor, card: FakeGpu
) -> None:
    card.clock_mhz = 1000
    assert flags(monitor) == ()  # nothing is usual yet
    assert monitor.usual_times() == {}
    card.clock_mhz = 2520
    for _ in range(FEWEST_CLOCKS):
        assert flags(monitor) == ()
    assert monitor.usual_times()[USUAL_CLOCK][0] == 2520
    card.clock_mhz = round(0.91 * 2520)
    assert flags(monitor) == ()
    card.clock_mhz = round(0.89 * 2520)
    assert flags(monitor) == ("clocks",)
    card.reasons = POWER_CAP
    assert flags(monitor) == ("power_cap",)
    card.reasons, card.clock_mhz = IDLE, 210
    assert flags(monitor) == ()
    for unknown in ("EventReasons", "ThrottleReasons"):
        card.unsupported.add(f"nvmlDeviceGetCurrentClocks{unknown}")
    assert flags(monitor) == ()
    card.reasons, card.unsupported = 0, {"nvmlDeviceGetClockInfo"}
    assert flags(monitor) == ()


def test_a_later_process_goes_on_from_the_usual_clock(card: FakeGpu) -> None:
    card.clock_mhz = 1000
    with CudaMonitor() as later:
        later.start(backend("synthetic"), usual={USUAL_CLOCK: (2520.0, 200)})
        assert flags(later) == ("clocks",)


def test_readings_hold_the_reference_and_what_the_card_says(
    monitor: CudaMonitor, card: FakeGpu
) -> None:
    card.unsupported = {"nvmlDeviceGetPowerUsage"}
    found = monitor.reading(force=True)
    assert found is not None
    assert found.reference_ms > 0
    assert found.facts == {
        "sm_clock_mhz": 2520, "memory_clock_mhz": 10501, "temperature_c": 55,
        "utilisation_percent": 97, "used_memory_bytes": 3 * GIBIBYTE, "other_processes": 0,
        "is_throttled": 0, "is_power_capped": 0,
    }  # fmt: skip
    assert Reading.from_json(found.to_json()) == found


def test_the_reference_is_timed_on_the_device_in_copies(card: FakeGpu) -> None:
    """Alone it is a launch of the host's, whose times moved by 60% where the card's did not."""
    device = backend("synthetic")
    layer = device.layer

    def short(given: Layer, *, budget_ms: float) -> Built:
        return Built(layer(given, budget_ms=budget_ms).phases, lambda: 0.02)

    with pytest.MonkeyPatch.context() as patch, CudaMonitor() as monitor:
        patch.setattr(device, "layer", short)
        monitor.start(device)
        reading = monitor.reading(force=True)
    assert reading is not None
    assert reading.reference_ms > 1.0


def test_a_framework_without_the_reference_layer_is_still_watched(card: FakeGpu) -> None:
    at = [1000.0]
    with CudaMonitor() as monitor:
        monitor.now = lambda: at[0]
        device = backend("synthetic", fail={"unsupported": "conv"})
        monitor.start(device, interval_s=3.0)
        assert "unsupported" in monitor.unwatched
        first = monitor.before()
        assert first is not None
        assert (str(first.reference_ms), first.facts["temperature_c"]) == ("nan", 55)
        at[0] += 2.9
        assert monitor.before() is None
        at[0] += 0.2
        assert monitor.before() is not None
        card.reasons = THERMAL
        assert flags(monitor) == ("throttled",)


def test_memory_is_the_cards_or_where_it_has_none_of_its_own_the_machines(card: FakeGpu) -> None:
    second = CudaMonitor()
    second.device = "cuda:1"
    assert (CudaMonitor().memory_bytes(), second.memory_bytes()) == (24 * GIBIBYTE, 22 * GIBIBYTE)
    card.unsupported = {"nvmlDeviceGetMemoryInfo"}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert CudaMonitor().memory_bytes() == pytest.approx(pages, rel=0.01)


def test_what_cannot_fit_is_refused_before_it_is_built(card: FakeGpu) -> None:
    monitor = CudaMonitor()
    monitor.check_memory(1e15)  # no limit yet
    monitor.limit_memory(2 * GIBIBYTE)
    monitor.check_memory(2 * GIBIBYTE)
    with pytest.raises(MemoryError, match=r"needs at least 3.0 GiB, more than the 2.0 GiB"):
        monitor.check_memory(3 * GIBIBYTE)


def test_the_card_that_a_backend_names_by_its_uuid_is_watched(card: FakeGpu) -> None:
    from resperf.platform import this_platform

    class OnTheSecond:
        def platform(self) -> object:
            return this_platform("cuda:1")

    monitor = CudaMonitor()
    monitor.reference = None
    monitor.start(OnTheSecond())  # type: ignore[arg-type]
    assert (monitor.device, monitor.gpu.facts().name) == ("cuda:1", "NVIDIA L4")
    assert monitor.exclusive != CudaMonitor().exclusive


def test_a_lost_card_shows_in_every_question(monitor: CudaMonitor, card: FakeGpu) -> None:
    monitor.check()
    card.is_lost = True
    for asked in (monitor.check, monitor.before, monitor.active_flags, monitor.memory_bytes):
        with pytest.raises(DeviceLostError, match="cuda:0 is lost"):
            asked()
