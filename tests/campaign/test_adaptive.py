"""Campaigns that choose layers by an acquisition score."""

import itertools
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Bench, Campaign, run_campaign, runner
from resperf.campaign.adaptive import Batches, allocated, choose_by_score, first_batch
from resperf.campaign.plan import plan
from resperf.dataset import read_dataset
from resperf.errors import CampaignError
from resperf.layers import Activation, Layer
from resperf.splits import split_of_keys
from resperf.targets import target

NOWHERE = Path("nothing-reads-it.h5")
LENGTHS = {"law": "uniform", "low": 1, "high": 5000}


def made(samples: int = 400, **changes: Any) -> Campaign:
    dense = {
        "batch": {"law": "uniform", "low": 1, "high": 50},
        "features_in": {"law": "uniform", "low": 1, "high": 1000},
        "features_out": 5,
    }
    adaptive = {"first": 0.25, "growth": 0.5, "held_out": 0.1, "candidates": 5}
    values = {"name": "t", "samples": samples, "seed": 3, "repeat_share": 0.0, "test_repeats": 1,
              "kinds": {"dense": dense}, "adaptive": adaptive}  # fmt: skip
    return Campaign.from_mapping(values | changes)


def go(campaign: Campaign, output: Path, acquisition: Any, **bench: Any) -> Any:
    with_what = Bench(target("synthetic"), **bench)
    return run_campaign(campaign, output, with_what, acquisition=acquisition)


class Plain:
    """Lowers nothing and builds everything."""

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return list(layers)

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        return [""] * len(layers)


def width(layer: Layer) -> int:
    return int(layer.fields()["features_in"])


def about_wide_layers(_: Path, layers: Sequence[Layer]) -> list[float]:
    """Scores only layers of more than 500 features above 0."""
    return [float(width(layer) > 500) for layer in layers]


def is_train(layers: Sequence[Layer]) -> list[bool]:
    return split_of_keys([layer.key for layer in layers]).train.tolist()


def taken(batches: Batches, measured: set[str] = frozenset()) -> list[list[Layer]]:  # type: ignore[assignment]
    """Distinct layers of each batch, the first one first."""
    found = [[item.layer for item in batches.first_items() if not item.repeat]]
    known = set(measured) | {layer.key for layer in found[0]}
    while items := batches.next_items(Plain(), NOWHERE, known):
        found.append([item.layer for item in items if not item.repeat])
        known |= {layer.key for layer in found[-1]}
    return found


def test_later_batches_are_training_layers_by_score_and_the_next_held_out_draws() -> None:
    planned = plan(made(), Plain())
    batches = Batches(planned, about_wide_layers, first_batch(planned, None))
    first, *later = taken(batches)
    assert first == list(planned.layers[:100])
    assert [len(batch) for batch in later] == [50, 75, 113, 62]
    keys = [layer.key for batch in (first, *later) for layer in batch]
    assert len(set(keys)) == len(keys) == 400
    chosen = [layer for batch in later for layer in batch if is_train([layer])[0]]
    assert len(chosen) == 300 - round(0.1 * 300)
    assert all(width(layer) > 500 for layer in chosen)
    held_out = [v for v in planned.layers[100:] if not is_train([v])[0]]
    assert {v for batch in later for v in batch} - set(chosen) == set(held_out[:30])
    # Each batch has its share of them.
    assert [len(set(batch) & set(held_out)) for batch in later] == [5, 7, 12, 6]


def test_rows_are_allocated_in_proportion() -> None:
    portions, nothing, plenty = {"a": 1.0, "b": 3.0}, {"a": 0, "b": 0}, {"a": 100, "b": 100}
    assert allocated(40, portions, nothing, plenty) == {"a": 10, "b": 30}
    # Rows that a kind has already count, and are not taken away.
    assert allocated(40, portions, {"a": 5, "b": 15}, plenty) == {"a": 10, "b": 30}
    assert allocated(40, portions, {"a": 50, "b": 0}, plenty) == {"a": 0, "b": 40}
    # Rows beyond one's limit go to the other; the sum of the limits bounds the sum.
    assert allocated(40, portions, nothing, {"a": 100, "b": 7}) == {"a": 33, "b": 7}
    assert allocated(40, portions, nothing, {"a": 4, "b": 7}) == {"a": 4, "b": 7}
    # A portion of 0 gets what exceeds the limits of the others.
    assert allocated(40, {"a": 0.0, "b": 3.0}, nothing, plenty) == {"a": 0, "b": 40}
    assert allocated(40, {"a": 0.0, "b": 3.0}, nothing, {"a": 9, "b": 35}) == {"a": 5, "b": 35}
    assert allocated(7, {"a": 0.0, "b": 0.0}, nothing, plenty) in (
        {"a": 3, "b": 4},
        {"a": 4, "b": 3},
    )
    assert allocated(7, {}, {}, {}) == {}


@pytest.mark.parametrize("seed", range(5))
def test_the_allocation_minimises_the_weighted_sum_of_errors(seed: int) -> None:
    source = random.Random(seed)
    names = [f"kind {number}" for number in range(6)]
    scales = {name: 10 ** source.uniform(-1, 1) for name in names}
    have = {name: source.randrange(200) for name in names}
    slots = allocated(
        500, {k: v ** (2 / 3) for k, v in scales.items()}, have, dict.fromkeys(names, 10**6)
    )
    assert sum(slots.values()) == 500

    def errors(given: dict[str, int]) -> float:
        return sum(scales[k] / math.sqrt(max(1, have[k] + given[k])) for k in names)

    least = errors(slots)
    for giver, taker in itertools.permutations(names, 2):
        if slots[giver] >= 10:
            assert errors(slots | {giver: slots[giver] - 10, taker: slots[taker] + 10}) > least


def test_uncertain_kinds_are_chosen_more_often_than_drawn() -> None:
    kinds = ["often"] * 900 + ["seldom"] * 100
    scores = [0.1] * 900 + [0.2] * 50 + [0.0] * 50

    def chosen(weights: dict[str, float], measured: dict[str, int]) -> Counter[str]:
        places = choose_by_score(
            kinds, scores, weights=weights, learnt=measured, have=measured, count=60,
            source=random.Random(4),
        )  # fmt: skip
        assert len(set(places)) == 60
        # Layers with a score of 0 are not chosen.
        assert max(places) < 950
        return Counter(kinds[place] for place in places)

    measured = {"often": 90, "seldom": 10}
    alike = chosen({"often": 1.0, "seldom": 1.0}, measured)
    by_shares = chosen({"often": 0.9, "seldom": 0.1}, measured)
    assert alike["seldom"] > by_shares["seldom"] > 0
    assert alike["seldom"] > 30 > by_shares["seldom"]
    # With as many rows and the same score as the other it gets as many.
    assert chosen({"often": 1.0, "seldom": 1.0}, {"often": 90, "seldom": 90})["seldom"] == 30


def test_layers_of_a_kind_are_chosen_in_proportion_to_their_scores() -> None:
    kinds, scores = ["any"] * 40_000, [0.1] * 20_000 + [0.4] * 20_000
    places = choose_by_score(
        kinds, scores, weights={"any": 1.0}, learnt={}, have={}, count=500,
        source=random.Random(4),
    )  # fmt: skip
    # Few of many candidates: four times as often.
    assert sum(place >= 20_000 for place in places) / 500 == pytest.approx(0.8, abs=0.05)


def test_candidates_are_drawn_by_more_even_shares() -> None:
    kinds = {
        "dense": {"share": 0.96, "batch": 1, "features_in": LENGTHS, "features_out": LENGTHS},
        "activation": {"share": 0.04, "batch": 1, "values": LENGTHS, "activation": "relu"},
    }

    def drawn(share_power: float) -> float:
        planned = plan(made(kinds=kinds, adaptive={"share_power": share_power}), Plain())
        assert planned.counts["activation"] / len(planned.layers) < 0.07
        found = planned.stream.candidates(Plain(), 1000, 1, frozenset())
        return Counter(layer.kind for layer in found)["activation"] / len(found)

    assert drawn(1.0) == pytest.approx(0.04, abs=0.02)
    # The square roots of the shares are 0.98 and 0.2.
    assert drawn(0.5) == pytest.approx(0.17, abs=0.04)
    assert drawn(0.0) == pytest.approx(0.5, abs=0.05)


class Splits(Plain):
    """Lowers every other layer to one of a kind that the campaign does not name."""

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return [
            Activation(batch=1, values=width(layer), activation="relu") if odd % 2 else layer
            for odd, layer in enumerate(layers)
        ]


def test_kinds_that_only_lowering_produces_are_chosen_too() -> None:
    planned = plan(made(), Plain())
    batches = Batches(planned, lambda _, layers: [1.0] * len(layers), 100)
    known = {layer.key for layer in planned.layers[:100]}
    items = batches.next_items(Splits(), NOWHERE, known)
    kinds = Counter(item.layer.kind for item in items)
    assert kinds["activation"] >= 20
    assert kinds["dense"] >= 20


def test_with_scores_of_zero_kinds_are_chosen_by_their_weights() -> None:
    kinds = ["often"] * 500 + ["seldom"] * 500
    places = choose_by_score(
        kinds, [0.0] * 1000, weights={"often": 8.0, "seldom": 1.0}, learnt={}, have={}, count=100,
        source=random.Random(4),
    )  # fmt: skip
    # Errors that fall with the square root of the rows: 8^(2/3) times as many.
    assert Counter(kinds[place] for place in places) == {"often": 80, "seldom": 20}


def test_the_held_out_layers_are_those_of_a_random_campaign() -> None:
    planned = plan(made(), Plain())
    batches = Batches(planned, about_wide_layers, 100)
    layers = [layer for batch in taken(batches) for layer in batch]
    judging = {v for v, train in zip(layers, is_train(layers), strict=True) if not train}
    assert len(judging) == 30 + is_train(planned.layers[:100]).count(False)
    plain = [v for v, t in zip(planned.layers, is_train(planned.layers), strict=True) if not t]
    assert judging == set(plain[: len(judging)])


def test_what_an_earlier_start_chose_counts() -> None:
    planned = plan(made(), Plain())
    batches = Batches(planned, about_wide_layers, 100)
    first, second, *_ = taken(batches)
    known = {layer.key for layer in [*first, *second]}
    items = batches.next_items(Plain(), NOWHERE, known)
    assert len({item.layer for item in items}) == 75
    assert not {item.layer.key for item in items} & known
    # Half of a batch was measured: the other half of it remains.
    half = known - {layer.key for layer in second[25:]}
    remaining = {item.layer.key for item in batches.next_items(Plain(), NOWHERE, half)}
    assert len(remaining) == 25
    assert not remaining & half


def test_excluded_layers_are_no_candidates() -> None:
    free = plan(made(), Plain())
    chosen = [v for batch in taken(Batches(free, about_wide_layers, 100))[1:] for v in batch]
    excluded = frozenset(layer.key for layer in chosen)
    planned = plan(made(), Plain(), exclude_keys=excluded)
    again = [v for batch in taken(Batches(planned, about_wide_layers, 100)) for v in batch]
    assert len(again) == 400
    assert not {layer.key for layer in again} & excluded


def test_ranges_that_hold_no_other_layer_end_the_campaign() -> None:
    dense = {"batch": 1, "features_in": {"law": "uniform", "low": 1, "high": 60}, "features_out": 5}
    planned = plan(made(kinds={"dense": dense}), Plain())
    assert len(planned.layers) == 60
    batches = Batches(planned, lambda _, layers: [1.0] * len(layers), 15)
    layers = [layer for batch in taken(batches) for layer in batch]
    assert sorted(map(width, layers)) == list(range(1, 61))


def test_the_first_batch_is_a_share_of_what_fits_into_the_time() -> None:
    planned = plan(made(), Plain())
    assert first_batch(planned, None) == first_batch(planned, 10 * planned.hours) == 100
    assert first_batch(planned, planned.hours / 2) == 50


def test_a_campaign_runs_in_batches_and_resumes(tmp_path: Path) -> None:
    campaign = made(60, run={"reference_interval_s": 0.0, "retry_wait_s": 0.0})
    seen: list[int] = []

    def acquisition(dataset: Path, layers: Sequence[Layer]) -> list[float]:
        seen.append(len({row.layer.key for row in read_dataset(dataset).measurements}))
        return about_wide_layers(dataset, layers)

    result = go(campaign, tmp_path / "a.h5", acquisition, samples=40)
    assert result.reason == "complete"
    assert 0 < result.choosing_s < result.elapsed_s
    assert seen == [10, 15, 23, 35]
    go(campaign, tmp_path / "a.h5", acquisition, samples=60)
    rows = read_dataset(tmp_path / "a.h5").measurements
    assert len({row.layer.key for row in rows}) == 60
    assert seen[-1] >= 40
    assert max(width(row.layer) for row in rows) > 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 0.0},
        {"first": 1.5},
        {"growth": 0},
        {"held_out": 2.0},
        {"candidates": 0},
        {"share_power": 1.5},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CampaignError, match=f"adaptive: {next(iter(wrong))}=.* must be "):
        made(adaptive=wrong)


class StopAfter:
    """Returns the same score for all layers, and interrupts the campaign at its first call."""

    def __init__(self, stop: Any) -> None:
        self.stop = stop

    def __call__(self, _: Path, layers: Sequence[Layer]) -> list[float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return [1.0] * len(layers)


def test_what_an_interrupted_start_planned_is_measured(tmp_path: Path) -> None:
    campaign = made(120, repeat_share=1.0, run={"reference_interval_s": 0.0, "retry_wait_s": 0.0})

    output = tmp_path / "a.h5"
    # It stops when the second batch is chosen: none of that is measured, nothing is lost.
    assert go(campaign, output, StopAfter(signal.SIGTERM)).reason == "interrupted"
    first = read_dataset(tmp_path / "a.h5").measurements
    assert len({row.layer.key for row in first}) == 30
    assert go(campaign, output, about_wide_layers).reason == "complete"
    rows = read_dataset(tmp_path / "a.h5").measurements
    assert len({row.layer.key for row in rows}) == 120
    times = Counter(row.layer.key for row in rows)
    assert set(times.values()) == {2}


def test_repeats_of_a_batch_that_was_not_finished_are_not_lost() -> None:
    planned = plan(made(repeat_share=1.0), Plain())
    batches = Batches(planned, about_wide_layers, 100)
    _, second, *_ = taken(batches)
    owed = batches.earlier_items([*planned.layers[:100], *second[:20]])
    assert {item.identity for item in owed} == {
        (layer.key, repeat) for layer in second[:20] for repeat in (0, 1)
    }


def test_no_batch_is_chosen_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(60, run={"reference_interval_s": 0.0, "retry_wait_s": 0.0})
    monkeypatch.setattr(runner, "first_batch", lambda *_: 5)
    monkeypatch.setattr(runner.Run, "_end_reason", lambda self: "hours" * (self._taken >= 5))

    def never(_: Path, layers: Sequence[Layer]) -> list[float]:
        raise AssertionError("no batch should be chosen")

    result = go(campaign, tmp_path / "a.h5", never)
    assert (result.reason, result.rows) == ("hours", 5)
