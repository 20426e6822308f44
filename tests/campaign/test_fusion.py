"""Whether two operators are fused, decided from noisy times."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Bench, Campaign, run_campaign
from resperf.campaign.fusion import CONFIDENCE, MOST_ROUNDS, CheckedFusion, check_fusion
from resperf.dataset import merge_datasets, read_info
from resperf.layers import Activation, Layer
from resperf.lowering import lower_layers
from resperf.lowering.fusions import FusionRule, fusion_pairs
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform, this_platform
from resperf.settings import Setting
from resperf.targets import target
from resperf.timing import median_interval

RELU = FusionRule("conv", "relu")
WHERE: Any = {"setting": Setting("synthetic"), "platform": Platform("synthetic")}


def measuring(fused: bool, noise: float) -> Callable[[Layer, int], Measurement]:
    """A device on which the second operator takes a tenth of the first, and is free if fused."""
    source = random.Random(4)

    def measure(layer: Layer, repeat: int) -> Measurement:
        function = layer.fields()["activation"]
        time_ms = 0.1 if isinstance(layer, Activation) else 1.0
        if not isinstance(layer, Activation) and function != "none":
            time_ms += 0.01 if fused else 0.095
        time_ms *= source.gauss(1, noise)
        phases = {"execution_ms": Samples((time_ms,), 1, 1, StopReason.PRECISE)}
        return Measurement(layer, Status.OK, phases, repeat=repeat, **WHERE)

    return measure


def test_a_fused_kernel_is_distinguished_from_two_kernels() -> None:
    for fused in (True, False):
        found = check_fusion(RELU, list, measuring(fused, 0.005))
        assert found.fused is fused
        assert len(found.savings) == len(fusion_pairs(RELU)) >= 3
        for saving in found.savings:
            assert saving.low <= saving.saved <= saving.high
            assert saving.saved == pytest.approx(0.9 if fused else 0.05, abs=0.2)
        assert bool(found.warning) is not fused
    assert "conv + relu: two on this machine" in found.warning


def test_noise_as_large_as_the_effect_is_undecided() -> None:
    found = check_fusion(RELU, list, measuring(True, 0.2))
    undecided = [saving for saving in found.savings if saving.fused is None]
    assert undecided
    assert all(saving.rounds == MOST_ROUNDS for saving in undecided)


def test_layers_that_do_not_run_give_no_saving() -> None:
    def refuse(layer: Layer, repeat: int) -> Measurement:
        return Measurement(layer, Status.UNSUPPORTED, repeat=repeat, detail="no", **WHERE)

    found = check_fusion(RELU, list, refuse)
    assert (found.fused, found.savings, found.warning) == (None, (), "")


def test_a_follower_that_takes_no_time_gives_no_saving() -> None:
    def instant(layer: Layer, repeat: int) -> Measurement:
        time_ms = -0.001 if isinstance(layer, Activation) else 1.0
        phases = {"execution_ms": Samples((time_ms,), 1, 1, StopReason.PRECISE)}
        return Measurement(layer, Status.OK, phases, repeat=repeat, **WHERE)

    assert check_fusion(RELU, list, instant).savings == ()


@pytest.mark.parametrize(("count", "left_out"), [(5, 0), (7, 0), (8, 1), (11, 2)])
def test_the_interval_of_a_median_is_that_of_the_sign_test(count: int, left_out: int) -> None:
    # Probability that the median is outside: 6%, 2% (12% with one left out), 7%, 7%.
    values = [float(value) for value in range(count)]
    assert median_interval(values[::-1], CONFIDENCE) == (left_out, count - 1 - left_out)


@pytest.mark.parametrize("framework", ["tensorflow", "synthetic"])
def test_rules_can_be_checked_with_layers_of_their_framework(framework: str) -> None:
    setting = Setting(framework=framework, framework_version="1", provider="CPU", threads=2)
    for rule in target(framework).load("lowering").FUSION_RULES:
        for pair in fusion_pairs(rule):
            layers = lower_layers(
                [pair.alone, pair.follower, pair.both], setting, this_platform("cpu")
            )
            assert [layer.kind for layer in layers] == [rule.kind, "activation", rule.kind]
            assert layers[0].output_bytes == layers[1].output_bytes == layers[2].output_bytes


def go(
    output: Path,
    settings: dict[str, Any],
    samples: int | None = None,
    *,
    check_fusion: bool = False,
) -> Any:
    dense = {"batch": 1, "features_in": {"law": "uniform", "low": 1, "high": 99}, "features_out": 5}
    campaign = Campaign.from_mapping({"name": "t", "samples": 5, "kinds": {"dense": dense}})
    bench = Bench(target("synthetic"), settings, samples=samples)
    return run_campaign(campaign, output, bench, progress=False, check_fusion=check_fusion)


def test_the_result_is_stored_with_the_data(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    result = go(output, {"noise": 0.01}, check_fusion=True)
    assert [found.rule for found in result.fusions] == ["conv + relu", "dense + relu"]
    # On the synthetic device a fused activation is free.
    assert [found.fused for found in result.fusions] == [True, True]
    stored = read_info(output).fusions
    assert tuple(CheckedFusion.from_json(each) for each in stored) == result.fusions
    assert [each["fused"] for each in stored] == [True, True]
    # It is not measured again, and survives a merge.
    assert go(output, {"noise": 0.01}, check_fusion=True, samples=8).fusions == result.fusions
    merge_datasets([output, output], tmp_path / "b.h5")
    assert read_info(tmp_path / "b.h5").fusions == stored
    # Without the option nothing is stored.
    go(tmp_path / "c.h5", {})
    assert read_info(tmp_path / "c.h5").fusions == ()
