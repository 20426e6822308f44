"""Costs of operator classes: recovered from whole networks whose costs are known exactly."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resperf.devices import device_facts
from resperf.errors import TrainingError, UnsupportedError
from resperf.features import Array
from resperf.network import read_network
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors._class_fit import ClassFit, Relative, Shrinkage, alike, group_of
from resperf.predictors.class_costs import ClassCosts, described
from resperf.predictors.operator_classes import (
    Cost,
    RunNetwork,
    RunOperator,
    RunTensor,
    class_terms,
    pool_of,
    run_network,
)
from resperf.settings import Mode, Setting

pytest.importorskip("scipy")

FACTS = device_facts("rtx3090")
assert FACTS is not None
SETTING = Setting("torch", "2.4.0", precision="amp", layout="nchw", compiled="eager", batch=64)
PLATFORM = Platform("rtx3090")
LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"


def half(*shape: int, weight: bool = False) -> RunTensor:
    return RunTensor(shape, "float16", weight)


def relu(*shape: int, count: int = 1) -> RunOperator:
    return RunOperator("relu", (half(*shape),), (half(*shape),), count=count)


def product(rows: int, depth: int, made: int, count: int = 1) -> RunOperator:
    given = (half(rows, depth), half(depth, made, weight=True))
    return RunOperator("mm", given, (half(rows, made),), count=count)


def softmax(*shape: int, count: int = 1) -> RunOperator:
    return RunOperator("_softmax", (half(*shape),), (half(*shape),), count=count)


def networks(count: int, seed: int = 0) -> list[RunNetwork]:
    """Random networks of products, activations and softmax, at several sizes."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        rows, width = (int(2 ** random.integers(8, 14)) for _ in range(2))
        counts = [int(each) for each in random.integers(1, 20, 3)]
        operators = (
            product(rows, 512, 512, counts[0]), relu(rows, width, count=counts[1]),
            softmax(rows, width // 2, count=counts[2]),
        )  # fmt: skip
        found.append(RunNetwork(f"net{number}", operators, scale=float(random.integers(1, 9))))
    return found


def measured_ms(network: RunNetwork) -> float:
    """1.25 times the data sheet for products, 1.5 for activations, 3 for softmax's bytes."""
    assert FACTS is not None
    terms = class_terms(network, FACTS)
    return (
        1.25 * terms[Cost("product", "flops")]
        + 1.5 * terms[Cost("relu", "bytes")]
        + 3.0 * terms[Cost("softmax", "bytes")]
    )


def examples(some: list[RunNetwork], groups: list[str] | None = None) -> Examples:
    times = np.array([measured_ms(each) for each in some])
    settings, platforms = [SETTING] * len(some), [PLATFORM] * len(some)
    return Examples(some, "execution_ms", times, settings, platforms, groups=groups or ())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted() -> ClassCosts:
    rows = examples(networks(120), [f"family{number % 12}" for number in range(120)])
    return ClassCosts("network").fit(rows, validation=rows, seed=0)


def test_terms_are_what_the_data_sheet_says() -> None:
    """A product of 1024 x 512 x 512 on 71.2 TFLOP/s of half precision, 936.2 GB/s."""
    assert FACTS is not None
    terms = class_terms(RunNetwork("one", (product(1024, 512, 512, count=2),)), FACTS)
    flops_ms = 2 * 2 * 1024 * 512 * 512 / FACTS.peaks_flops_per_s["fp16"] * 1e3
    assert terms[Cost("product", "flops")] == pytest.approx(flops_ms)
    moved = 2 * (1024 * 512 + 512 * 512 + 1024 * 512) * 2
    assert terms[Cost("product", "bytes")] == pytest.approx(
        moved / FACTS.bandwidth_bytes_per_s * 1e3
    )
    assert terms[Cost("product", "kernels")] == pytest.approx(0.01)


def test_weights_do_not_grow_with_the_batch() -> None:
    assert FACTS is not None
    cast = RunOperator("_to_copy", (RunTensor((512,), "float32", True),), (half(512),))
    once, more = (class_terms(RunNetwork("w", (cast,), scale), FACTS) for scale in (1.0, 8.0))
    assert once == more
    assert pool_of(Cost("cast of weights", "bytes")) == Cost("weights", "bytes")


def test_a_convolution_behind_a_normalisation_of_channels_runs_channels_last() -> None:
    assert FACTS is not None
    image, weights = half(2, 96, 56, 56), half(96, 1, 7, 7, weight=True)
    conv = RunOperator("convolution", (image, weights), (image,), groups=96)
    norm = RunOperator("native_layer_norm", (half(2, 56, 56, 96),), (half(2, 56, 56, 96),))
    alone = {cost.of for cost in class_terms(RunNetwork("a", (conv,)), FACTS)}
    behind = {cost.of for cost in class_terms(RunNetwork("b", (conv, norm)), FACTS)}
    assert "depthwise 7x7" in alone
    assert "depthwise 7x7 channels last" in behind


def test_costs_of_classes_are_recovered_from_totals(fitted: ClassCosts) -> None:
    new = networks(40, seed=1)
    predicted = fitted.predict(new, SETTING, PLATFORM)["execution_ms"]  # type: ignore[arg-type]
    truth = np.array([measured_ms(each) for each in new])
    assert np.abs(predicted.values / truth - 1).max() < 0.03
    assert (predicted.low <= predicted.values).all()
    assert (predicted.values <= predicted.high).all()
    account = fitted.account(new[0], SETTING, PLATFORM)
    groups, classes = account.groups, account.classes
    assert (account.inferred_from, account.extrapolated) == ("whole networks on this device", "")
    terms = class_terms(new[0], FACTS)  # type: ignore[arg-type]
    assert classes["softmax"].value == pytest.approx(3 * terms[Cost("softmax", "bytes")], rel=0.1)
    assert sum(each.value for each in groups.values()) == pytest.approx(predicted.values[0])
    for band in classes.values():
        assert band.low <= band.value <= band.high


def test_times_follow_the_batch_size_beyond_the_data(fitted: ClassCosts) -> None:
    base = networks(1, seed=5)[0]
    large = RunNetwork(base.name, base.operators, 1000.0)
    found = fitted.predict([large], SETTING, PLATFORM)["execution_ms"]  # type: ignore[list-item]
    assert found.values[0] == pytest.approx(measured_ms(large), rel=0.05)
    tiny = RunNetwork("tiny", (relu(2, 2),))
    assert (
        "networks of the data take at least" in fitted.account(tiny, SETTING, PLATFORM).extrapolated
    )
    short = fitted.predict([tiny], SETTING, PLATFORM)["execution_ms"]  # type: ignore[list-item]
    assert short.low[0] <= short.values[0] / 2
    assert short.high[0] >= short.values[0] * 2


def test_a_smaller_batch_than_all_of_the_data_is_extrapolated(fitted: ClassCosts) -> None:
    """The data is of batch 64."""
    some = networks(1, seed=3)[0]
    alone, inside = (replace(some, batch=batch) for batch in (1, 64))
    account = fitted.account(alone, SETTING, PLATFORM)
    assert account.extrapolated == "the smallest batch size of the data is 64"
    assert fitted.account(inside, SETTING, PLATFORM).extrapolated == ""
    wide, usual = (
        fitted.predict([each], SETTING, PLATFORM)["execution_ms"]  # type: ignore[list-item]
        for each in (alone, inside)
    )
    assert wide.values[0] == usual.values[0]
    assert wide.low[0] < usual.low[0]
    assert wide.high[0] > usual.high[0]


def test_compiled_networks_have_no_attribution(fitted: ClassCosts) -> None:
    compiled = Setting("torch", "2.4.0", precision="amp", layout="nchw", compiled="dynamo")
    # Only eager networks are known, so that one that is compiled needs a fit of its own.
    rows = examples(networks(30))
    rows = replace(rows, settings=[replace(SETTING, compiled="dynamo")] * 30)
    other = ClassCosts("network").fit(rows, validation=rows, seed=0)
    account = other.account(networks(1)[0], compiled, PLATFORM)
    assert (account.groups, account.classes) == ({}, {})
    with pytest.raises(UnsupportedError, match="amp nchw dynamo"):
        fitted.account(networks(1)[0], compiled, PLATFORM)


def test_terms_that_only_occur_together_are_named() -> None:
    """Kernels and bytes of a class whose operators are all equal."""
    random = np.random.default_rng(0)
    free, tied = random.uniform(0.2, 1, (60, 2)), random.uniform(0.2, 1, 60)
    matrix = np.column_stack([free, tied, 2 * tied])
    costs = [Cost("a", "bytes"), Cost("b", "bytes"), Cost("c", "bytes"), Cost("c", "kernels")]
    told = Relative(matrix, np.ones(4)).identified(costs)
    assert (told.rank, told.terms) == (3, 4)
    assert told.collinear == (("c: bytes", "c: kernels"),)
    full = Relative(matrix[:, :3], np.ones(3)).identified(costs[:3])
    assert (full.rank, full.collinear) == (3, ())
    assert full.condition < 100


def test_collinear_terms_follow_the_data_sheet() -> None:
    tied = np.random.default_rng(0).uniform(0.2, 1, 60)
    matrix = np.column_stack([tied, tied])
    matrix /= matrix.sum(axis=1, keepdims=True)
    found = Relative(matrix, np.array([1.0, 1.0])).solve(Shrinkage(0.1, 0.1))
    assert found == pytest.approx([1.0, 1.0])


def test_a_family_that_is_left_out_does_not_teach() -> None:
    """The family's times are ten times too long: only predictions of others follow that."""
    some = networks(60)
    terms = [class_terms(each, FACTS) for each in some]  # type: ignore[arg-type]
    costs = sorted({cost for each in terms for cost in each})
    times = np.array([measured_ms(each) for each in some])
    odd = np.arange(60) % 6 == 0
    sheet = np.array([[each.get(cost, 0.0) for cost in costs] for each in terms])
    families = ["odd" if each else f"f{number % 5}" for number, each in enumerate(odd)]
    expected = np.array([float(cost.term in ("bytes", "flops")) for cost in costs])
    relative = Relative(sheet / np.where(odd, 10 * times, times)[:, None], expected)
    shrinkage = Shrinkage(0.01, 0.01)
    ratios = relative.left_out(families, shrinkage)
    assert ratios[odd] == pytest.approx(np.full(odd.sum(), 0.1), rel=0.05)


def test_sizes_and_twins_share_a_name() -> None:
    assert FACTS is not None
    first, other = (class_terms(each, FACTS) for each in networks(2))
    names = alike(["vit_base-224", "vit_base-384", "deit_base-224", "resnet-224"],
                  [first, first, first, other])  # fmt: skip
    assert names[0] == names[1] == names[2] != names[3]


def test_operators_that_few_networks_have_are_warned_of(fitted: ClassCosts) -> None:
    strange = RunNetwork("strange", (RunOperator("cumsum", (half(4096, 4096),),
                                                 (half(4096, 4096),)),))  # fmt: skip
    notes = fitted.account(strange, SETTING, PLATFORM).notes
    assert any("100% of the work is in operators" in note for note in notes)
    assert any("most of it reduction:" in note for note in notes)
    found = fitted.predict([strange], SETTING, PLATFORM)["execution_ms"]  # type: ignore[arg-type]
    assert found.high[0] >= 2 * found.values[0] >= 4 * found.low[0]


def test_steps_of_a_recurrent_layer_run_one_after_the_other() -> None:
    """100 steps of 32 sequences, 64 features and 128 values of a state in both directions."""
    assert FACTS is not None
    weights = (half(2, 512, 64, weight=True), half(2, 512, 128, weight=True))
    lstm = RunOperator("lstm", (half(100, 32, 64), *weights), (half(100, 2, 32, 128),))
    terms = class_terms(RunNetwork("lstm", (lstm,)), FACTS)
    gates = 100 * 32 * 2 * 512
    flops = 2 * gates * (64 + 128)
    assert terms[Cost("recurrent", "flops")] == pytest.approx(
        flops / FACTS.peak_of("float16") * 1e3
    )
    values = 100 * 32 * (64 + 2 * 128) + 2 * 512 * (64 + 100 * 128) + 4 * gates
    assert terms[Cost("recurrent", "bytes")] == pytest.approx(FACTS.moving_ms(2 * values))
    # Two kernels a step, and one for all inputs.
    assert terms[Cost("recurrent", "kernels")] == pytest.approx(201 * 0.005)
    assert group_of("recurrent float32") == "recurrent layers"


def test_what_a_fit_does_not_have_is_priced_by_the_data_sheet(fitted: ClassCosts) -> None:
    """Of a class of a pool that it has by that pool, of others by the data sheet alone."""
    assert FACTS is not None
    (fit,) = fitted.fits_.values()
    single = RunTensor((8192, 4096), "float32")
    copied = RunNetwork("copied", (RunOperator("concat_of_tomorrow", (single,), (single,)),))
    other = Cost("cumulated", "bytes")
    assert fit.predict([{other: 50.0}]).values[0] == pytest.approx(50.0, rel=1e-6)
    sheet = Cost("convolution of tomorrow", "flops")
    assert fit.predict([{sheet: 40.0}]).values[0] == pytest.approx(40.0, rel=1e-6)
    # Softmax in float32 is of the same pool as softmax, three times its bytes here.
    known, near = (
        fit.predict([{Cost(of, "bytes"): 20.0}]).values[0] for of in ("softmax", "softmax float32")
    )
    assert near == pytest.approx(known, rel=0.5)
    assert near > 40
    account = fitted.account(copied, SETTING, PLATFORM)
    assert sum(each.value for each in account.classes.values()) > 0


def test_what_is_loaded_predicts_the_same(fitted: ClassCosts, tmp_path: Path) -> None:
    values = json.loads(json.dumps(fitted.export(tmp_path, "stem")))
    loaded = ClassCosts.load(values, tmp_path)
    assert (tmp_path / values["network"]).exists()
    some = networks(10, seed=2)

    def of(predictor: ClassCosts) -> Array:
        found = predictor.predict(some, SETTING, PLATFORM)["execution_ms"]  # type: ignore[arg-type]
        return np.array([found.values, found.low, found.high])

    np.testing.assert_allclose(of(loaded), of(fitted), rtol=1e-4)
    (key,), (fit,) = loaded.fits_, loaded.fits_.values()
    assert fit.identified == fitted.fits_[key].identified
    assert f"rank {fit.identified.rank} of" in described(key, fit, 120)


def test_a_network_is_lowered_to_the_same_classes() -> None:
    """LeNet: two convolutions, three products, whatever is between them."""
    network = run_network(read_network(LENET, batch=4), SETTING)
    assert not network.left_out
    counts = [each.op for each in network.operators]
    assert counts.count("convolution") == 2
    assert counts.count("addmm") + counts.count("mm") == 3
    assert FACTS is not None
    terms = class_terms(network, FACTS)
    assert terms[Cost("product", "flops")] > 0
    single = {cost.of for cost in class_terms(network.in_single_precision(), FACTS)}
    assert "product float32" in single
    assert not any(of.startswith("cast") for of in single)


def test_intervals_near_known_networks_hold_whole_families() -> None:
    """Of nine families a small one is slower: a tenth family may be as far off."""
    some = networks(324)
    families = [f"family{min(number // 40, 8)}" for number in range(324)]
    terms = [class_terms(each, FACTS) for each in some]  # type: ignore[arg-type]
    times = np.array([measured_ms(each) for each in some])
    times[320:] *= 1.3
    fit = ClassFit.fit(terms, times, families, training=False)
    assert fit.near is not None
    assert max(fit.near.high) > 0.2


def test_training_steps_expect_three_passes() -> None:
    some = networks(60)
    terms = [class_terms(each, FACTS) for each in some]  # type: ignore[arg-type]
    times = np.array([3 * measured_ms(each) for each in some])
    fit = ClassFit.fit(terms, times, [each.name for each in some], training=True)
    assert np.abs(fit.predict(terms).values / times - 1).max() < 0.05
    assert fit.expected.max() == 3.0


def test_unknown_settings_devices_and_missing_facts_are_refused(fitted: ClassCosts) -> None:
    some = networks(1)
    # One card does not say how cards differ.
    with pytest.raises(UnsupportedError, match="no network was measured with rtx4090 inference"):
        fitted.predict(some, SETTING, Platform("rtx4090"))  # type: ignore[arg-type]
    training = Setting("torch", "2.4.0", mode=Mode.TRAINING, precision="amp")
    with pytest.raises(UnsupportedError, match="rtx3090 training amp nchw eager"):
        fitted.predict(some, training, PLATFORM)  # type: ignore[arg-type]
    rows = Examples(networks(9), "execution_ms", np.ones(9))  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="rows without setting and platform"):
        ClassCosts("network").fit(rows, validation=rows, seed=0)


def test_another_version_of_the_framework_is_answered_by_the_latest(fitted: ClassCosts) -> None:
    newer = Setting("torch", "2.9.1", precision="amp", layout="nchw", compiled="eager")
    assert fitted.fit_for(newer, PLATFORM) is next(iter(fitted.fits_.values()))


CARDS = {"rtx3090": 1.0, "rtx4090": 1.3, "rtx5090": 0.8}
"""Card -> how many times what the data sheet lets expect from the RTX 3090's costs."""


def time_on(network: RunNetwork, card: str) -> float:
    facts = device_facts(card)
    assert facts is not None
    terms = class_terms(network, facts)
    ours = sum(terms[Cost(of, "bytes")] for of in ("relu", "softmax"))
    return CARDS[card] * (1.5 * ours + 1.25 * terms[Cost("product", "flops")])


@pytest.fixture(scope="module")
def several() -> ClassCosts:
    """Fits of three cards, on 60 networks each."""
    some = networks(60)
    rows = Examples(
        [each for _ in CARDS for each in some],  # type: ignore[arg-type]
        "execution_ms",
        np.array([time_on(each, card) for card in CARDS for each in some]),
        [SETTING] * 180,
        [Platform(card) for card in CARDS for _ in some],
        groups=[f"family{number % 12}" for _ in CARDS for number in range(60)],
    )
    return ClassCosts("network").fit(rows, validation=rows, seed=0)


def test_a_card_that_nobody_measured_is_between_the_others(several: ClassCosts) -> None:
    new = networks(10, seed=7)
    h100 = device_facts("h100")
    assert h100 is not None
    found = several.predict(new, SETTING, Platform("h100"))["execution_ms"]  # type: ignore[arg-type]
    mean = np.exp(np.mean([np.log(each) for each in CARDS.values()]))
    for network, value in zip(new, found.values, strict=True):
        terms = class_terms(network, h100)
        bytes_ms = sum(terms[Cost(of, "bytes")] for of in ("relu", "softmax"))
        truth = mean * (1.5 * bytes_ms + 1.25 * terms[Cost("product", "flops")])
        assert value == pytest.approx(truth, rel=0.1)
    # Factors of cards of 0.8 to 1.3 do not let expect less than as much for the next.
    assert (found.high / found.values > 1.3).all()
    assert (found.low / found.values < 0.8).all()
    (spread,) = several.spreads_.values()
    assert (spread.devices, spread.coverage) == (3, 1.0)
    account = several.account(new[0], SETTING, Platform("h100"))
    assert account.inferred_from == "whole networks on other devices"
    assert sum(each.value for each in account.groups.values()) == pytest.approx(
        found.values[0], rel=0.1
    )
    own = several.account(new[0], SETTING, Platform("rtx4090"))
    assert own.inferred_from == "whole networks on this device"


def test_a_card_that_nobody_measured_is_no_surer_of_operators_that_few_networks_have(
    several: ClassCosts,
) -> None:
    alike = copy(several)
    alike.spreads_ = {kind: replace(own, width=0.1) for kind, own in several.spreads_.items()}
    strange, usual = (
        RunNetwork("net", (RunOperator(op, (half(4096, 4096),), (half(4096, 4096),), count=500),))
        for op in ("cumsum", "relu")
    )
    found = alike.predict([strange, usual], SETTING, Platform("h100"))["execution_ms"]  # type: ignore[arg-type]
    assert alike.account(strange, SETTING, Platform("h100")).extrapolated == ""
    assert found.high[0] > 1.99 * found.values[0] > 3.9 * found.low[0]
    assert found.high[1] < 1.2 * found.values[1]


def test_half_precision_is_answered_by_what_operators_cost_under_autocast(
    several: ClassCosts,
) -> None:
    some = networks(1, seed=8)
    for precision in ("fp16", "bf16"):
        half_setting = replace(SETTING, precision=precision)
        found = several.predict(some, half_setting, PLATFORM)["execution_ms"]  # type: ignore[arg-type]
        under_amp = several.predict(some, SETTING, PLATFORM)["execution_ms"]  # type: ignore[arg-type]
        assert found.values[0] == under_amp.values[0]
        [note] = several.account(some[0], half_setting, PLATFORM).notes
        assert note.startswith(f"no network was measured in {precision}: ")
    with pytest.raises(UnsupportedError, match="fp32 nchw eager"):
        several.predict(some, replace(SETTING, precision="fp32"), PLATFORM)  # type: ignore[arg-type]


def test_groups_follow_the_names_of_classes() -> None:
    assert group_of("convolution 1x1 strided") == "convolutions with normalisation and activation"
    assert group_of("batched product") == "attention"
    assert group_of("copy of weights") == "other operators"


def test_attention_without_a_fused_kernel_runs_in_parts() -> None:
    """Lists hold it as one operator on any number of axes; kernels take four, since version 2."""

    def run(version: str, *shape: int) -> list[RunOperator]:
        data = RunTensor(shape, "float16")
        whole = RunOperator("sdpa", (data, data, data), (data,), count=3)
        setting = Setting("torch", version, precision="amp")
        return list(RunNetwork("net", (whole,)).with_attention_of(setting).operators)

    assert [each.op for each in run("2.9.1", 2, 4, 49, 32)] == ["sdpa"]
    for version, dtype in (("2.4.0", "float16"), ("2.9.1", "float32")):
        parts = run(version, 2, 6, 4, 49, 32)
        products = [each for each in parts if each.op == "bmm"]
        assert [each.outputs[0].dtype for each in products] == [dtype] * 2
        assert products[0].inputs[0].shape == (2 * 6 * 4, 49, 32)
        assert all(each.count == 3 for each in parts)
    assert "sdpa" not in {each.op for each in run("1.13.1", 2, 4, 49, 32)}
