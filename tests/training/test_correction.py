"""Calibrations, fitted to networks with known times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from resperf.bundle import Calibration, Source
from resperf.errors import TrainingError
from resperf.platform import Platform
from resperf.settings import Setting
from resperf.training.correction import (
    Priors,
    TimedNetwork,
    fit_calibration,
    priors_elsewhere,
    priors_of_runs,
    standard_errors,
)

FACTORS = {"conv": 1.04, "dense": 1.15, "elementwise": 0.8}
NODE_MS, MB_MS, REST_MS = 0.003, 0.02, 0.01
COSTS = {"overhead_ms_per_layer": 0.002, "overhead_ms_per_mb": 0.03}


def networks(count: int, *, noise: float = 0.0) -> list[TimedNetwork]:
    """Networks of two batch sizes each, with times computed from the constants above."""
    random = np.random.default_rng(3)
    placed = []
    for place in range(count):
        layers, shares = int(random.integers(5, 200)), random.dirichlet([2, 1, 1])
        for batch in (1, 8):
            total = float(np.exp(random.uniform(0, 4))) * batch
            kinds = dict(zip(FACTORS, (total * shares).tolist(), strict=True))
            mb = float(random.uniform(1, 20)) * batch
            time_ms = (
                sum(FACTORS[kind] * ms for kind, ms in kinds.items())
                + NODE_MS * layers + MB_MS * mb + REST_MS
            ) * float(np.exp(random.normal(0, noise)))  # fmt: skip
            placed.append(TimedNetwork(f"net{place}", batch, time_ms, kinds, layers, mb, REST_MS))
    return placed


def fitted(
    placed: Sequence[TimedNetwork], costs: Mapping[str, float], priors: Priors | None = None
) -> Calibration:
    """Fit a calibration by networks."""
    about = Calibration(Source.NETWORKS, Setting("onnxruntime"), Platform("cpu"))
    return fit_calibration(about, placed, costs, priors)


def test_factors_and_costs_are_found_again() -> None:
    learnt = fitted(networks(30), COSTS)
    assert learnt.factors == pytest.approx(FACTORS, rel=0.02)
    assert learnt.costs["overhead_ms_per_layer"] == pytest.approx(NODE_MS, rel=0.2)
    assert learnt.costs["overhead_ms_per_mb"] == pytest.approx(MB_MS, rel=0.2)
    errors = learnt.evidence["mape"]
    assert errors["left_out"] < 0.01 < 0.03 < errors["alone"]
    assert learnt.log_width < 0.02


def test_networks_left_out_say_more_than_those_fitted() -> None:
    learnt = fitted(networks(12, noise=0.05), COSTS)
    errors = learnt.evidence["mape"]
    assert errors["fitted"] < errors["left_out"]
    worst: dict[str, float] = {}
    for each in learnt.evidence["networks"]:
        ratio = abs(math.log(each["measured_ms"] / each["left_out_ms"]))
        worst[each["network"]] = max(worst.get(each["network"], 0.0), ratio)
    # Of networks, at all their batch sizes: rank ceil(13 x 0.9) of twelve.
    assert learnt.log_width == pytest.approx(sorted(worst.values())[-1])


def test_the_interval_is_one_of_runs_and_batch_sizes_of_a_network_weigh_as_one() -> None:
    learnt = fitted(networks(25, noise=0.05), COSTS)
    ratios = sorted(
        abs(math.log(each["measured_ms"] / each["left_out_ms"]))
        for each in learnt.evidence["networks"]
    )
    # Two runs of each of 25 networks: the first to reach a weight of 26 x 0.9 is the 47th.
    assert learnt.log_width == pytest.approx(ratios[46])
    assert ratios[46] < ratios[47]


def test_intervals_are_without_what_the_networks_were_measured_inexactly() -> None:
    placed = networks(25, noise=0.05)
    as_exact = fitted(placed, COSTS)
    noisy = fitted([replace(each, noise=0.04) for each in placed], COSTS)
    assert 0.5 < noisy.log_width / as_exact.log_width < 0.8
    # Networks that were hard to measure decide less.
    wrong = [replace(each, measured_ms=1.5 * each.measured_ms) for each in placed[:20]]
    unsure = [replace(each, noise=0.5) for each in wrong]
    off = [
        abs(fitted([*each, *placed[20:]], COSTS).factors["conv"] - FACTORS["conv"])
        for each in (wrong, unsure)
    ]
    assert off[1] < off[0] / 3


def test_a_run_measured_three_times_has_a_standard_error() -> None:
    assert standard_errors([[5.0], [7.0]]) == [0.0, 0.0]
    assert standard_errors([]) == []
    steady, apart = standard_errors([[10.0, 10.0, 10.0], [10.0, 12.0, 14.0]])
    spread = float(np.var(np.log([10.0, 12.0, 14.0]), ddof=1))
    # Of the usual variance, half of that of the second, two count beside each run's own two.
    assert steady == pytest.approx(math.sqrt(2 * spread / 2 / 4 / 3))
    assert apart == pytest.approx(math.sqrt((2 * spread / 2 + 2 * spread) / 4 / 3))


def test_a_kind_without_time_keeps_its_times() -> None:
    placed = [replace(each, kinds_ms={**each.kinds_ms, "softmax": 1e-7}) for each in networks(12)]
    assert fitted(placed, COSTS).factors["softmax"] == pytest.approx(1.0, abs=1e-3)


def test_one_network_in_a_bad_state_does_not_decide() -> None:
    placed = networks(20)
    placed[3] = replace(placed[3], measured_ms=2 * placed[3].measured_ms)
    assert fitted(placed, COSTS).factors == pytest.approx(FACTORS, rel=0.05)


def test_few_networks_give_no_interval_and_very_few_are_refused() -> None:
    assert fitted(networks(6), COSTS).log_width == math.inf
    with pytest.raises(TrainingError, match="4 networks are too few"):
        fitted(networks(4), COSTS)


def test_what_was_learnt_is_read_again_and_damage_is_refused() -> None:
    learnt = fitted(networks(6), COSTS)
    assert Calibration.from_json(learnt.to_json()) == learnt
    assert learnt.factor("conv") == learnt.factors["conv"]
    assert learnt.factor("never seen") == 1.0
    for damage in (
        {"factors": {"conv": 0.0}},
        {"costs": {"overhead_ms_per_layer": -1.0}},
        {"costs": {"overhead_ms_per_layer": math.nan}},
    ):
        with pytest.raises(ValueError, match="damaged"):
            Calibration.from_json({**learnt.to_json(), **damage})


def run(name: str, ratio: float, **kinds_ms: float) -> TimedNetwork:
    """A run that takes so many times what is predicted of it."""
    return TimedNetwork(name, None, ratio * sum(kinds_ms.values()), kinds_ms, 0, 0.0, 0.0)


def test_one_run_moves_a_card_by_how_far_cards_are_apart() -> None:
    """The common factor and the kind's vary by 0.2 each, networks around them by 0.2.

    So two thirds of the ratio are believed, in logarithms: (0.04 + 0.04) / 0.12. A kind that the
    run does not have gets the half of that which is common.
    """
    learnt = fitted([run("a", 1.05, dense=10.0)], {}, priors_of_runs(0.5))
    assert math.log(learnt.factor("dense")) == pytest.approx(math.log(1.05) * 2 / 3, rel=0.03)
    assert math.log(learnt.factor("conv")) == pytest.approx(math.log(1.05) / 3, rel=0.05)
    # One run does not make the interval narrower, and a surprising one makes it wider.
    assert learnt.log_width == 0.5
    far = fitted([run("a", 3.0, dense=10.0)], {}, priors_of_runs(0.5))
    assert far.log_width == pytest.approx(math.log(3.0))


def test_batch_sizes_of_one_network_count_as_one_run() -> None:
    one = fitted([run("a", 1.1, dense=10.0)], {}, priors_of_runs(0.5))
    batches = [run("a", 1.1, dense=10.0 * batch) for batch in (1, 2, 4, 8)]
    several = fitted(batches, {}, priors_of_runs(0.5))
    assert several.others == pytest.approx(one.others, rel=0.01)
    networks = [replace(each, network=str(each.measured_ms)) for each in batches]
    assert fitted(networks, {}, priors_of_runs(0.5)).others > 1.01 * one.others


def test_layers_that_no_network_has_keep_what_calibration_layers_said_of_them() -> None:
    slow = [run(str(place), 1.2, dense=10.0, conv=place + 1.0) for place in range(12)]
    told, guessed = (fitted(slow, {}, priors_elsewhere(scaled=p)) for p in (True, False))
    # What the networks have is fitted, whether layers were measured or not.
    for learnt in (told, guessed):
        assert learnt.evidence["mape"]["left_out"] < 0.02
    assert guessed.factor("quantized_conv") == pytest.approx(1.2, rel=0.02)
    assert 1.0 < told.factor("quantized_conv") < 1.08


def test_more_runs_give_kinds_factors_of_their_own_and_a_narrower_interval() -> None:
    random = np.random.default_rng(2)
    truth = {"dense": 1.5, "conv": 0.9}
    runs = []
    for place in range(30):
        kinds = dict(zip(truth, random.uniform(1, 100, 2).tolist(), strict=True))
        time_ms = sum(truth[kind] * ms for kind, ms in kinds.items())
        time_ms *= float(np.exp(random.normal(0, 0.02)))
        runs.append(TimedNetwork(str(place), None, time_ms, kinds, 0, 0.0, 0.0))
    few, some, many = (fitted(runs[:n], {}, priors_of_runs(0.6)) for n in (3, 10, 30))
    for kind, factor in truth.items():
        assert many.factors[kind] == pytest.approx(factor, rel=0.1)
        assert abs(many.factors[kind] - factor) < abs(few.factors[kind] - factor)
    assert 0.6 > few.log_width > some.log_width > many.log_width > 0.02
    errors = many.evidence["mape"]
    assert errors["left_out"] < 0.08 < 0.15 < errors["alone"]


def test_runs_in_another_unit_are_refused() -> None:
    with pytest.raises(TrainingError, match="check the units of the times"):
        fitted([run("a", 1e3, dense=10.0)], {}, priors_of_runs(0.5))
