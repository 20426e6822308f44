"""Disturbances of a CPU, and what they affect."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from resperf.backends import backend
from resperf.backends.monitors.cpu import (
    CALL,
    MACHINE_CHECKS,
    PRODUCT,
    CpuMonitor,
    Load,
    limit_private_memory,
)
from resperf.errors import UnsupportedError
from resperf.layers import Conv, Dense, Layer, Pool
from resperf.testing.synthetic import SyntheticBackend

SHORT = Dense(batch=1, features_in=4, features_out=4)
COPY = Pool(batch=4, channels_in=64, height=64, width=64, kernel_height=1, kernel_width=1)
CONV = Conv(batch=4, channels_in=64, height=64, width=64, kernel_height=7, kernel_width=7,
            channels_out=512)  # fmt: skip


class Checked(CpuMonitor):
    """Returns given sets of slow machine checks, one after the other."""

    def __init__(self, answers: Sequence[set[str]]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def active_flags(self, *, record: bool = True) -> set[str]:
        return next(self._answers)


def flags_of(layer: Layer, before: set[str], after: set[str]) -> list[str]:
    """Flag a layer while these checks are slow before and after it, at 20 GB/s and 50 GFLOP/s."""
    monitor = Checked([before, after])
    assert monitor.before() is None
    time_ms = 0.005 + 2 * layer.macs / 50e6 + layer.moved_bytes / 20e6
    return list(monitor.after(layer, time_ms))


def test_a_short_layer_is_flagged_if_cores_share_no_cache_before_or_after_it() -> None:
    assert flags_of(SHORT, set(), set()) == []
    assert flags_of(SHORT, {"caches"}, set()) == ["caches"]
    assert flags_of(SHORT, set(), {"caches"}) == ["caches"]
    # Its few bytes stay in the nearest cache.
    assert flags_of(SHORT, {"memory"}, {"memory"}) == []


def test_a_memory_bound_layer_is_flagged_when_either_is_slow() -> None:
    assert flags_of(COPY, {"memory"}, set()) == ["memory"]
    # Cores under different caches have other paths to memory.
    assert flags_of(COPY, {"memory"}, {"caches"}) == ["caches", "memory"]
    # A convolution of the same bytes spends its time on arithmetic.
    assert CONV.moved_bytes > COPY.moved_bytes
    assert flags_of(CONV, {"caches"}, {"memory"}) == []


def test_caches_affect_networks_and_memory_long_ones_too() -> None:
    monitor = CpuMonitor()
    assert monitor.felt_by_network(4.9) == {"caches"}
    assert monitor.felt_by_network(5.0) == {"caches", "memory"}
    assert monitor.waits_for == {"caches"}


def test_a_memory_bound_layer_without_weights_depends_on_its_addresses() -> None:
    monitor = CpuMonitor()
    assert COPY.moved_bytes == 2 * 4 * 64 * 64 * 64 * 4  # 8.4 MB, 5 MB a ms
    assert monitor.depends_on_place(COPY, 1.6)
    assert not monitor.depends_on_place(COPY, 1.7)
    weighty = Dense(batch=1, features_in=2000, features_out=1000)
    assert weighty.moved_bytes > 8e6
    assert not monitor.depends_on_place(weighty, 1.0)


class TimesByKind:
    """A backend whose layers of a kind take a given time, in milliseconds."""

    def __init__(self, **times_ms: float) -> None:
        self.times_ms = times_ms
        self.closed: list[str] = []

    def lower(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        return layers

    def layer(self, layer: Layer, *, budget_ms: float) -> Any:
        del budget_ms
        return SimpleNamespace(
            isolated=lambda: self.times_ms[layer.kind],
            close=lambda: self.closed.append(layer.kind),
        )


def test_the_machine_check_of_memory_is_a_layer_that_runs_at_the_speed_of_memory() -> None:
    # 21 MB in 3 ms and in 0.6 ms; PyTorch's pooling takes 70 ms, which says nothing of memory.
    usual: Any = TimesByKind(pool=3.0, activation=0.6)
    assert MACHINE_CHECKS["memory"](usual).isolated() == 3.0
    slow_pooling: Any = TimesByKind(pool=70.0, activation=0.6)
    assert MACHINE_CHECKS["memory"](slow_pooling).isolated() == 0.6
    assert slow_pooling.closed == ["pool"]
    neither: Any = TimesByKind(pool=70.0, activation=70.0)
    with pytest.raises(UnsupportedError, match="speed of memory"):
        MACHINE_CHECKS["memory"](neither)
    assert neither.closed == ["pool", "activation"]


class FakeLoad:
    """A load meter with a constant result."""

    def __init__(self, other_cores: float) -> None:
        self._load = Load(other_cores=other_cores, frequency_share=1.0)

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> Load:
        return self._load


@pytest.mark.parametrize(("other_cores", "flags"), [(0.9, ("busy", "caches")), (0.1, ("caches",))])
def test_a_busy_machine_is_marked(other_cores: float, flags: tuple[str, ...]) -> None:
    monitor = Checked([set(), {"caches"}])
    load: Any = FakeLoad(other_cores)
    monitor.load = load
    monitor.before()
    assert monitor.after(SHORT, 0.01) == flags


def test_the_threshold_for_memory_is_higher_for_networks_than_for_layers() -> None:
    usual = {"caches_check_ms": (1e9, 400)}

    def slow_at(times: float, *, networks: bool) -> set[str]:
        device = SyntheticBackend()
        with CpuMonitor().start(
            device, usual={**usual, "memory_check_ms": (pool_ms(device) / times, 400)},
            networks=networks,
        ) as monitor:  # fmt: skip
            return monitor.active_flags()

    def pool_ms(device: SyntheticBackend) -> float:
        from resperf.backends.monitors.cpu import MEMORY

        with device.layer(MEMORY[0], budget_ms=1.0) as built:
            return built.isolated()

    assert slow_at(1.3, networks=False) == set()
    assert slow_at(1.5, networks=False) == {"memory"}
    assert slow_at(1.5, networks=True) == set()
    assert slow_at(2.1, networks=True) == {"memory"}


def test_usual_times_have_the_names_of_a_datasets_costs() -> None:
    usual = {"caches_check_ms": (0.5, 9), "memory_check_ms": (3.0, 7)}
    with CpuMonitor().start(backend("synthetic"), usual=usual) as monitor:
        assert set(monitor.usual_times()) == set(CpuMonitor.usual_costs) == set(usual)
        assert monitor.usual_times()["memory_check_ms"] == (3.0, 7)


def test_three_figures_describe_the_speed_of_a_processor() -> None:
    device = SyntheticBackend(gflops=100.0, gb_per_s=10.0)
    with CpuMonitor().start(device) as monitor:
        costs = monitor.costs()
    # As in testing/synthetic.py: a call of 0.02 ms, and a node of 0.005 ms.
    product_ms = 0.025 + 2 * PRODUCT.macs / 100e6 + PRODUCT.moved_bytes / 10e6
    assert costs["check_product_gflops"] == pytest.approx(
        2 * 512 * 1024 * 1024 / 1e6 / product_ms, rel=1e-3
    )
    call_ms = 0.025 + 2 * CALL.macs / 100e6 + CALL.moved_bytes / 10e6
    assert costs["check_call_us"] == pytest.approx(1000 * call_ms, rel=0.01)
    assert 0.1 < costs["check_copy_gb_per_s"] < 1000


def test_figures_that_a_framework_cannot_run_are_absent() -> None:
    refusing = SyntheticBackend(fail={"unsupported": "features_in=1024"})
    with CpuMonitor().start(refusing) as monitor:
        assert set(monitor.costs()) == {"check_copy_gb_per_s", "check_call_us"}


def test_no_limit_changes_nothing() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_private_memory(0)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
