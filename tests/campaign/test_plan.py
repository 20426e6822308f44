from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from resperf.backends.monitors import Monitor
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign import Campaign
from resperf.campaign.plan import Plan, Planned, Stream, plan
from resperf.errors import CampaignError
from resperf.layers import Dense, Layer, Pool, key_at_any_batch
from resperf.splits import split_of_keys


class FakeLowerer:
    """Lowers dense layers of odd width to the next even one, and refuses kinds by name."""

    def __init__(self, refuses: Sequence[str] = ()) -> None:
        self.refuses = refuses

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return [
            v.replace(features_in=v.features_in + v.features_in % 2) if isinstance(v, Dense) else v
            for v in layers
        ]

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        return [f"no {v.kind} here" if v.kind in self.refuses else "" for v in layers]


def made(**changes: Any) -> Campaign:
    dense = {
        "batch": {"law": "uniform", "low": 1, "high": 50},
        "features_in": {"law": "uniform", "low": 1, "high": 1000},
        "features_out": {"law": "uniform", "low": 1, "high": 1000},
        **changes.pop("dense", {}),
    }
    pool = {"batch": 1, "channels_in": {"law": "uniform", "low": 1, "high": 5000}, "size": 8,
            "kernel": 2}  # fmt: skip
    kinds = {"dense": dense, "pool": pool}
    return Campaign.from_mapping({"name": "t", "samples": 200, "kinds": kinds, **changes})


def test_the_plan_holds_distinct_lowered_layers() -> None:
    planned = plan(made(repeat_share=0.0), FakeLowerer())
    keys = [item.layer.key for item in planned.items]
    assert len(keys) == len(set(keys)) == 200
    assert sum(planned.counts.values()) == 200
    dense = [item.layer for item in planned.items if isinstance(item.layer, Dense)]
    assert dense
    assert all(layer.features_in % 2 == 0 for layer in dense)


def test_a_longer_plan_starts_as_a_shorter_one() -> None:
    campaign = made(repeat_share=0.0)
    short = plan(campaign, FakeLowerer(), samples=50)
    longer = plan(campaign, FakeLowerer(), samples=120)
    assert longer.items[:50] == short.items


def test_a_share_is_repeated_at_a_later_time() -> None:
    planned = plan(made(samples=2000, repeat_share=0.05), FakeLowerer())
    position = {item.identity: i for i, item in enumerate(planned.items)}
    repeats = [item for item in planned.items if item.repeat == 1]
    assert planned.repeats == len(repeats)
    assert len(repeats) / 2000 == pytest.approx(0.05, abs=0.015)
    gaps = [
        position[item.identity] - position[item.layer.key, 0]
        for item in repeats
        # Those of the last layers have no later time than the end.
        if position[item.layer.key, 0] < 1500
    ]
    assert min(gaps) >= 50


def test_layers_of_the_test_split_are_measured_several_times() -> None:
    planned = plan(made(samples=1500, repeat_share=0.0, test_repeats=2), FakeLowerer())
    times = Counter(item.layer.key for item in planned.items)
    keys = sorted(times)
    is_test = split_of_keys(keys).test
    assert {times[key] for key in np.array(keys)[is_test]} == {3}
    assert {times[key] for key in np.array(keys)[~is_test]} == {1}
    position = {item.identity: i for i, item in enumerate(planned.items)}
    early = [key for key in keys if times[key] == 3 and position[key, 0] < 500]
    assert early
    assert all(position[key, 1] - position[key, 0] >= 50 for key in early)
    assert all(position[key, 2] - position[key, 1] >= 50 for key in early)


def test_excluded_keys_are_never_planned() -> None:
    campaign = made(repeat_share=0.0)
    first = plan(campaign, FakeLowerer())
    excluded = frozenset(item.layer.key for item in first.items[::2])
    second = plan(campaign, FakeLowerer(), exclude_keys=excluded)
    keys = {item.layer.key for item in second.items}
    assert len(keys) == 200
    assert not keys & excluded
    # Nor at another batch size.
    assert not {key_at_any_batch(key) for key in keys} & {*map(key_at_any_batch, excluded)}
    assert any("excluded networks" in note for note in second.notes)


def test_kinds_that_the_framework_refuses_are_skipped_and_named() -> None:
    planned = plan(made(), FakeLowerer(refuses=["pool"]))
    assert set(planned.counts) == {"dense"}
    assert planned.notes == ("no layers of kind pool: no pool here",)
    with pytest.raises(CampaignError, match="can run no kind"):
        plan(made(), FakeLowerer(refuses=["pool", "dense"]))


def test_exhausted_ranges_end_the_plan_and_say_so() -> None:
    small = made(dense={"batch": [1, 2], "features_in": [2, 4], "features_out": 7, "share": 99})
    planned = plan(small, FakeLowerer(refuses=["pool"]))
    assert planned.counts == {"dense": 4}
    assert "only 4 distinct layers of the 200 wanted" in planned.notes[1]


def test_missing_networks_are_noted() -> None:
    planned = plan(made(mixture={"from_networks": 0.5}), FakeLowerer())
    assert any("no reference network" in note for note in planned.notes)


def seconds_of(campaign: Campaign, layer: Layer, monitor: Monitor) -> float:
    planned = Plan((Planned(layer),), Stream(campaign), monitor=monitor)
    return planned.predicted_s[0]


def test_predicted_time_grows_with_slow_layers() -> None:
    campaign = made(
        constraints={"gflops": 1.0, "gb_per_s": 1000.0},
        protocol={"budget_s": 0.1, "warmup_s": 0.02},
    )
    tiny = Dense(batch=1, features_in=2, features_out=2)
    # Overhead 0.06 s and 1.55 budgets of 0.07 + 0.01 s.
    assert seconds_of(campaign, tiny, Monitor()) == pytest.approx(0.06 + 1.55 * 0.08, abs=1e-4)
    # 2 GFLOP at 1 GFLOP/s take 2 s, sixteen times.
    slow = Dense(batch=1000, features_in=1000, features_out=1000)
    assert seconds_of(campaign, slow, Monitor()) == pytest.approx(32.06, abs=0.3)


def test_layers_that_are_built_several_times_take_longer() -> None:
    campaign = made(
        constraints={"gflops": 1000.0, "gb_per_s": 10.0},
        protocol={"budget_s": 0.1, "warmup_s": 0.02, "placements": 3, "placements_s": 1.0},
    )
    copy = Pool(batch=1, channels_in=64, height=128, width=128, kernel_height=1, kernel_width=1)
    once_s = seconds_of(campaign, copy, Monitor())
    # Two more builds, each with a third of the time.
    assert seconds_of(campaign, copy, CpuMonitor()) == pytest.approx(once_s * (1 + 2 / 3))
