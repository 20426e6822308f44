"""In-network corrections, fitted to networks with known times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from resperf.bundle import Correction
from resperf.errors import TrainingError
from resperf.training.correction import Placed, fit_correction

FACTORS = {"conv": 1.04, "dense": 1.15, "elementwise": 0.8}
NODE_MS, MB_MS, REST_MS = 0.003, 0.02, 0.01
COSTS = {"node_ms": 0.002, "handover_ms_per_mb": 0.03}


def networks(count: int, *, noise: float = 0.0) -> list[Placed]:
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
            placed.append(Placed(f"net{place}", batch, time_ms, kinds, layers, mb, REST_MS))
    return placed


def test_factors_and_costs_are_found_again() -> None:
    learnt = fit_correction(networks(30), COSTS)
    assert learnt.factors == pytest.approx(FACTORS, rel=0.02)
    assert learnt.node_ms == pytest.approx(NODE_MS, rel=0.2)
    assert learnt.handover_ms_per_mb == pytest.approx(MB_MS, rel=0.2)
    errors = learnt.evidence["mape"]
    assert errors["left_out"] < 0.01 < 0.03 < errors["alone"]
    assert learnt.log_width < 0.02


def test_networks_left_out_say_more_than_those_fitted() -> None:
    learnt = fit_correction(networks(12, noise=0.05), COSTS)
    errors = learnt.evidence["mape"]
    assert errors["fitted"] < errors["left_out"]
    worst: dict[str, float] = {}
    for each in learnt.evidence["networks"]:
        ratio = abs(math.log(each["measured_ms"] / each["left_out_ms"]))
        worst[each["network"]] = max(worst.get(each["network"], 0.0), ratio)
    # Of networks, at all their batch sizes: rank ceil(13 x 0.9) of twelve.
    assert learnt.log_width == pytest.approx(sorted(worst.values())[-1])


def test_the_interval_is_one_of_networks_however_many_batch_sizes_they_have() -> None:
    learnt = fit_correction(networks(25, noise=0.05), COSTS)
    worst: dict[str, float] = {}
    for each in learnt.evidence["networks"]:
        ratio = abs(math.log(each["measured_ms"] / each["left_out_ms"]))
        worst[each["network"]] = max(worst.get(each["network"], 0.0), ratio)
    inside = [ratio <= learnt.log_width * (1 + 1e-12) for ratio in worst.values()]
    assert (len(inside), sum(inside)) == (25, 24)  # rank ceil(26 x 0.9)


def test_a_kind_without_time_keeps_its_times() -> None:
    placed = [replace(each, kinds_ms={**each.kinds_ms, "softmax": 1e-7}) for each in networks(12)]
    assert fit_correction(placed, COSTS).factors["softmax"] == pytest.approx(1.0, abs=1e-3)


def test_one_network_in_a_bad_state_does_not_decide() -> None:
    placed = networks(20)
    placed[3] = replace(placed[3], measured_ms=2 * placed[3].measured_ms)
    assert fit_correction(placed, COSTS).factors == pytest.approx(FACTORS, rel=0.05)


def test_few_networks_give_no_interval_and_very_few_are_refused() -> None:
    assert fit_correction(networks(6), COSTS).log_width == math.inf
    with pytest.raises(TrainingError, match="4 networks are too few"):
        fit_correction(networks(4), COSTS)


def test_what_was_learnt_is_read_again_and_damage_is_refused() -> None:
    learnt = fit_correction(networks(6), COSTS)
    assert Correction.from_json(learnt.to_json()) == learnt
    assert learnt.factor("conv") == learnt.factors["conv"]
    assert learnt.factor("never seen") == 1.0
    for damage in ({"factors": {"conv": 0.0}}, {"node_ms": -1.0}, {"node_ms": math.nan}):
        with pytest.raises(ValueError, match="damaged"):
            Correction.from_json({**learnt.to_json(), **damage})
