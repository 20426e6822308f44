"""Linear forms over totals of networks: totals by hand, exact recovery, what rows do not say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.errors import BundleError, TrainingError, UnsupportedError
from resperf.network import read_network
from resperf.platform import Platform
from resperf.predictors import Examples, predictor_class
from resperf.predictors.convmeter import (
    ConvMeter,
    ConvMeterRelative,
    OperatorTotals,
)
from resperf.predictors.network_totals import Counted, Operation, counted
from resperf.predictors.operator_classes import RunNetwork, RunOperator, RunTensor
from resperf.settings import Mode, Setting

SETTING, PLATFORM = Setting("torch", "2.13.0", threads=2, compiled="eager"), Platform("cpu")
TRAINING = Setting("torch", "2.13.0", threads=2, mode=Mode.TRAINING, optimizer="sgd")


@pytest.fixture
def small(network_file) -> Path:
    """Write a convolution in two groups, an activation, and a dense layer behind a view."""
    nodes = [
        make_node("Conv", ["x", "w", "b"], ["c"], "conv", group=2, pads=[1, 1, 1, 1]),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Flatten", ["r"], ["f"], "flat"),
        make_node("Gemm", ["f", "v"], ["y"], "fc"),
    ]
    weights = {
        "w": np.zeros((6, 2, 3, 3), np.float32), "b": np.zeros(6, np.float32),
        "v": np.zeros((6 * 5 * 5, 10), np.float32),
    }  # fmt: skip
    return network_file("small.onnx", nodes, {"x": ["n", 4, 5, 5]}, {"y": None}, weights)


def net(name: str, seed: int, layers: int = 0) -> Counted:
    """Some convolutions of random sizes, and an activation behind each."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(layers or int(random.integers(3, 30))):
        made, given, taps = (float(each) for each in random.integers(1000, 100_000, 3))
        found.append(
            Operation("convolution", made * taps / 1000, given, made, given + made, taps, 1)
        )
        found.append(Operation("other", 0.0, made, made, 2 * made, 0.0, 1))
    return Counted(name, tuple(found), float(sum(each.weights for each in found)))


def rows(networks, values, quantity="execution_ms", settings=(SETTING,), platforms=(PLATFORM,)):
    return Examples(networks, quantity, np.array(values, float), settings, platforms)


def fitted(cls, examples):
    return cls("network").fit(examples, validation=examples, seed=0)


def published_ms(network: Counted) -> float:
    totals = network.totals
    return 2e-8 * totals.flops + 3e-7 * totals.inputs + 5e-7 * totals.outputs + 0.7


NETWORKS = [net(f"net{place}", place) for place in range(30)]
NEW = [net(f"new{place}", 100 + place) for place in range(8)]


def test_totals_of_a_graph_by_hand(small):
    found = counted(read_network(small, batch=3))
    totals = found.totals
    conv, relu, dense = 3 * 6 * 25 * 2 * 9, 3 * 6 * 25, 3 * 150 * 10
    assert totals.flops == 2 * (conv + dense)
    assert (totals.inputs, totals.outputs) == (3 * 4 * 25, 3 * 6 * 25)
    assert totals.weights == 6 * 2 * 9 + 6 + 1500
    assert (totals.layers, totals.summed) == (2, "convolutions")
    assert [each.sort for each in found.operations] == ["grouped convolution", "other", "product"]
    assert found.operations[1].data == 2 * relu
    assert found.operations[0].weights == 6 * 2 * 9 + 6
    larger = counted(read_network(small, batch=12))
    assert found.scaled(4.0) == larger


def test_totals_of_a_list_are_those_of_the_graph():
    image, made = RunTensor((2, 4, 5, 5), "float32"), RunTensor((2, 6, 5, 5), "float32")
    filters = RunTensor((6, 2, 3, 3), "float32", True)
    data, matrix = RunTensor((2, 150), "float32"), RunTensor((150, 10), "float32", True)
    operators = (
        RunOperator("convolution", (image, filters), (made,), groups=2, count=3),
        RunOperator("mm", (data, matrix), (RunTensor((2, 10), "float32"),)),
    )
    totals = counted(RunNetwork("listed", operators, 4.0, 1000.0)).totals
    assert totals.flops == 2 * 4 * (3 * 2 * 6 * 25 * 18 + 2 * 150 * 10)
    assert (totals.inputs, totals.outputs) == (4 * 3 * 200, 4 * 3 * 300)
    assert (totals.weights, totals.layers) == (1000, 4)


@pytest.mark.parametrize("cls", [ConvMeter, ConvMeterRelative])
def test_the_coefficients_of_equation_2_are_recovered(cls, tmp_path):
    predictor = fitted(cls, rows(NETWORKS, [published_ms(each) for each in NETWORKS]))
    (fit,) = predictor.fits_
    assert fit.coefficients == pytest.approx(
        {"flops": 2e-8, "constant": 0.7, "outputs": 5e-7, "inputs": 3e-7}, rel=1e-6
    )
    values = json.loads(json.dumps(predictor.export(tmp_path, "s")))
    loaded = cls.load(values, tmp_path)
    found = loaded.predict(NEW, SETTING, PLATFORM)["execution_ms"]
    np.testing.assert_allclose(found.values, [published_ms(each) for each in NEW], rtol=1e-6)
    # Nothing is off, so that the intervals of these networks are narrow.
    assert (found.high / found.low < 1.001).all()


def test_a_training_step_has_the_seven_coefficients_of_its_parts():
    """Rows on one device and several; the sum of the parts' forms is the form of the sum."""
    random = np.random.default_rng(0)
    devices = [int(each) for each in random.choice([1, 2, 4, 8], len(NETWORKS))]
    platforms = [Platform("cpu", devices=each) for each in devices]

    def update_ms(network, count):
        own = 0.02 * network.totals.layers
        return own if count == 1 else own + 1e-6 * network.totals.weights + 0.3 * count

    settings = [TRAINING] * len(NETWORKS)
    parts = {
        "forward_ms": [published_ms(each) for each in NETWORKS],
        "backward_ms": [2 * published_ms(each) for each in NETWORKS],
        "update_ms": [update_ms(*each) for each in zip(NETWORKS, devices, strict=True)],
    }
    parts["step_ms"] = [sum(each) for each in zip(*parts.values(), strict=True)]
    predictors = {
        name: fitted(ConvMeter, rows(NETWORKS, values, name, settings, platforms))
        for name, values in parts.items()
    }
    sizes = {name: len(each.fits_[0].coefficients) for name, each in predictors.items()}
    assert sizes == {"forward_ms": 4, "backward_ms": 4, "update_ms": 3, "step_ms": 7}
    for count in (1, 2, 16):
        where = Platform("cpu", devices=count)
        found = {
            name: each.predict(NEW, TRAINING, where)[name].values
            for name, each in predictors.items()
        }
        np.testing.assert_allclose(
            found["step_ms"], 3 * np.array([published_ms(each) for each in NEW])
            + [update_ms(each, count) for each in NEW], rtol=1e-6,
        )  # fmt: skip
        np.testing.assert_allclose(
            found["step_ms"],
            found["forward_ms"] + found["backward_ms"] + found["update_ms"], rtol=1e-6,
        )  # fmt: skip
    account = predictors["step_ms"].account(NETWORKS[0], TRAINING, Platform("cpu", devices=64))
    assert "devices: 8 times as many as in any that was measured" in account.extrapolated


def test_what_has_no_term_for_devices_is_learnt_on_one():
    alone = [published_ms(each) for each in NETWORKS]
    platforms = [Platform("cpu", devices=each) for each in (1, 2) for _ in NETWORKS]
    values = [*alone, *(3 * each for each in alone)]
    given = rows(NETWORKS * 2, values, "backward_ms", [TRAINING] * len(values), platforms)
    found = fitted(ConvMeter, given).predict(NEW, TRAINING, PLATFORM)["backward_ms"]
    np.testing.assert_allclose(found.values, [published_ms(each) for each in NEW], rtol=1e-6)


def test_sorts_of_operators_tell_networks_apart_that_convmeter_cannot():
    """Activations cost as much as convolutions here; they are no convolution's input or output."""

    def time_ms(network):
        work = ((each.macs, each.data + each.weights) for each in network.operations)
        return sum(2e-9 * macs + 1e-6 * moved for macs, moved in work) + 0.1

    extra = [
        Counted(each.name, (*each.operations, *(each.operations[1:2] * (place % 7 * 10))), 1.0)
        for place, each in enumerate(NETWORKS)
    ]
    examples = rows(extra, [time_ms(each) for each in extra])
    off = {}
    for cls in (ConvMeterRelative, OperatorTotals):
        found = fitted(cls, examples).predict(extra, SETTING, PLATFORM)["execution_ms"].values
        off[cls] = float(np.abs(found / examples.values - 1).mean())
    assert off[OperatorTotals] < 1e-6
    assert off[ConvMeterRelative] > 0.05


def test_a_sort_that_hardly_any_network_has_costs_what_others_do():
    """Small classifiers that take 250 times as long for each MAC do not say what products cost."""
    sizes = np.random.default_rng(0).integers(1000, 10_000, len(NETWORKS))
    seen, times = [], []
    for each, size in zip(NETWORKS, sizes.tolist(), strict=True):
        classifier = Operation("product", float(size), 10, 10, 20, 1e3, 1)
        seen.append(replace(each, operations=(*each.operations, classifier)))
        times.append(0.1 + sum(2e-6 * one.macs for one in each.operations) + 5e-4 * size)
    predictor = fitted(OperatorTotals, rows(seen, times))
    work = sum(one.macs for one in NETWORKS[0].operations)
    mixer = Counted("mixer", (Operation("product", work, 1e4, 1e4, 2e4, 1e3, 1),) * 10, 1.0)
    found = predictor.predict([mixer], SETTING, PLATFORM)["execution_ms"].values[0]
    assert found == pytest.approx(20e-6 * work, rel=0.3)


def test_costs_of_an_earlier_version_are_named():
    predictor = fitted(OperatorTotals, rows(NETWORKS, [published_ms(each) for each in NETWORKS]))
    (fit,) = predictor.fits_
    old = replace(fit, coefficients={"values of convolutions": 1e-6})
    with pytest.raises(BundleError, match="values of convolutions are of an earlier version"):
        old.predict([predictor.columns(NETWORKS[0], 1)])


def test_what_the_rows_do_not_tell_apart_gets_no_coefficient():
    """One network at several batch sizes: all its totals grow together."""
    base = net("alone", 3)
    batches = [1, 2, 4, 8, 16, 32]
    same = [base.scaled(each) for each in batches]
    predictor = fitted(ConvMeter, rows(same, [0.5 + 2.0 * each for each in batches]))
    (fit,) = predictor.fits_
    assert set(fit.coefficients) == {"flops", "constant"}
    assert all(cost > 0 for cost in fit.coefficients.values())
    (note,) = predictor.notes_
    assert "outputs, inputs cannot be told apart from flops, constant" in note
    found = predictor.predict([base.scaled(64)], SETTING, PLATFORM)["execution_ms"]
    assert found.values[0] == pytest.approx(128.5)
    # A single network says nothing about how far others are off.
    assert found.low[0] <= found.values[0] / 2
    assert found.high[0] >= found.values[0] * 2


def test_lines_below_zero_answer_half_the_shortest_measured_time():
    """As published, the constant may become negative: tiny networks would take no time."""
    values = [max(published_ms(each) - 2.0, 0.05) for each in NETWORKS]
    predictor = fitted(ConvMeter, rows(NETWORKS, values))
    tiny = net("tiny", 5, layers=1).scaled(1e-6)
    found = predictor.predict([tiny], SETTING, PLATFORM)["execution_ms"]
    assert found.values[0] == pytest.approx(min(values) / 2)
    account = predictor.account(tiny, SETTING, PLATFORM)
    assert "less than half the shortest measured time" in " ".join(account.notes)
    assert account.extrapolated.startswith("flops: ")
    never = fitted(OperatorTotals, rows(NETWORKS, values))
    assert min(never.fits_[0].coefficients.values()) >= 0


def test_each_device_and_setting_has_coefficients_of_its_own():
    other = Setting("onnxruntime", "1.31.1", threads=2)
    settings = [SETTING] * 30 + [other] * 30
    values = [published_ms(each) for each in NETWORKS]
    platforms = [PLATFORM] * 60
    examples = rows([*NETWORKS, *NETWORKS], [*values, *(3 * each for each in values)],
                    settings=settings, platforms=platforms)  # fmt: skip
    predictor = fitted(ConvMeter, examples)
    assert len(predictor.fits_) == 2
    slow = predictor.predict(NEW, other, PLATFORM)["execution_ms"].values
    fast = predictor.predict(NEW, SETTING, PLATFORM)["execution_ms"].values
    np.testing.assert_allclose(slow, 3 * fast, rtol=1e-6)
    for setting, platform in ((TRAINING, PLATFORM), (SETTING, Platform("h100"))):
        with pytest.raises(UnsupportedError, match="convmeter learnt from networks on cpu, onnx"):
            predictor.predict(NEW, setting, platform)


def test_networks_without_convolutions_are_said_to_be_summed_by_products():
    made = Operation("product", 1e6, 500.0, 700.0, 1200.0, 2000.0, 1)
    network = Counted("dense", (made,), 2000.0)
    assert network.totals[1:3] == (500.0, 700.0)
    predictor = fitted(ConvMeter, rows(NETWORKS, [published_ms(each) for each in NETWORKS]))
    notes = predictor.account(network, SETTING, PLATFORM).notes
    assert any("dense has no convolutions: inputs and outputs of its products" in n for n in notes)
    assert predictor.account(NETWORKS[0], SETTING, PLATFORM).notes == ()


def test_too_few_rows_are_refused():
    few = NETWORKS[:5]
    training = rows(few, [1.0, 2, 3, 4, 5], "step_ms", [TRAINING], [PLATFORM])
    fitted(ConvMeter, training)
    wide = rows(few, [1.0, 2, 3, 4, 5], "step_ms", [TRAINING] * 5,
                [Platform("cpu", devices=1 + place) for place in range(5)])  # fmt: skip
    with pytest.raises(TrainingError, match="5 rows do not determine 7 coefficients"):
        fitted(ConvMeter, wide)
    with pytest.raises(TrainingError, match="3 rows to learn from"):
        fitted(ConvMeter, rows(few[:3], [1, 2, 3]))


def test_methods_are_found_by_their_names():
    for cls in (ConvMeter, ConvMeterRelative, OperatorTotals):
        assert predictor_class(cls.method) is cls


def test_vgg16_has_the_totals_of_giannitis_table_2():
    """Weights 1.38E+8, activations 1.52E+7, complexity 4.65E+10: a forward and a backward pass."""
    path = Path(__file__).parents[2] / "models" / "networks" / "vgg16.onnx"
    network = read_network(path, batch=1)
    found = counted(network)
    assert found.weights == pytest.approx(1.38e8, rel=0.005)
    main = [each for each in found.operations if each.sort != "other"]
    assert 3 * sum(each.macs for each in main) == pytest.approx(4.65e10, rel=0.005)
    # Convolutions and products are 99.70% of the forward pass, poolings 0.04% (Table 3).
    pooled = sum(each.macs for each in found.operations if each.sort == "other")
    assert pooled / sum(each.macs for each in main) == pytest.approx(0.0004, abs=5e-5)
    made = [node.outputs[0] for node in network.nodes if node.op in ("Conv", "MaxPool", "Gemm")]
    values = sum(float(np.prod(network.tensors[name].shape)) for name in (*made, *network.inputs))
    assert values == pytest.approx(1.52e7, rel=0.005)
