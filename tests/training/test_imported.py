"""Training, evaluation and prediction respect what imported times contain."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from resperf.bundle import Bundle
from resperf.dataset import read_table
from resperf.dataset.importing import (
    import_dataset,
    shipped_mapping,
)
from resperf.errors import DeviceError, TrainingError, UnsupportedError
from resperf.layers import Conv
from resperf.measurement import layer_key
from resperf.network import read_network
from resperf.prediction import predict_layers, predict_network
from resperf.prediction.choice import Query, choose
from resperf.settings import Mode
from resperf.splits import split_of_keys
from resperf.training import evaluate, train
from resperf.training.rows import layer_rows

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
LAYER = Conv(
    batch=8, channels_in=16, height=32, width=32, kernel_height=3, kernel_width=3, pad_top=1,
    pad_left=1, pad_bottom=1, pad_right=1, channels_out=16, layout="nhwc",
)  # fmt: skip


@pytest.fixture(scope="module")
def steps(justus_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "j.h5"
    import_dataset([justus_csv], path, mapping=shipped_mapping("justus"), device="my card")
    return path


@pytest.fixture(scope="module")
def calls(perfnet_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calls") / "p.h5"
    import_dataset([perfnet_csv], path, mapping=shipped_mapping("perfnet"), device="i3")
    return path


@pytest.fixture(scope="module")
def of_calls(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return train(calls, tmp_path_factory.mktemp("b") / "i3-tensorflow", method="baseline")


@pytest.fixture(scope="module")
def of_steps(steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return train(steps, tmp_path_factory.mktemp("b") / "card-tensorflow", method="baseline")


def test_training_steps_are_predicted_under_their_own_setting(
    of_steps: Bundle, steps: Path
) -> None:
    assert of_steps.kinds == ("conv", "conv_step")
    assert of_steps.layer_quantity == "execution_ms"
    optimizers = set(read_table(steps)["conv_step"].columns["optimizer"].tolist())
    assert of_steps.settings == (
        of_steps.setting, *map(of_steps.setting.with_optimizer, sorted(optimizers)),
    )  # fmt: skip
    assert of_steps.setting.mode is Mode.INFERENCE
    training = of_steps.setting.with_optimizer("adam")
    asked = ("conv_step", "step_ms", training, of_steps.platform)
    assert of_steps.part_for(*asked) is of_steps
    assert of_steps.costs.keys() == {"call_ms"}
    assert of_steps.provenance["datasets"][0]["phases"] == ["execution_ms", "step_ms"]
    assert of_steps.provenance["datasets"][0]["source"]["format"] == "justus"
    for kind in of_steps.kinds:
        assert of_steps.errors["test"][kind][of_steps.own_quantity(kind)]["mape"] < 0.1
    found = evaluate(steps, of_steps)
    assert [(row.kind, row.phase) for row in found.rows] == [
        ("conv", "execution_ms"), ("conv_step", "step_ms"),
    ]  # fmt: skip
    layer = LAYER.replace(activation="relu")
    bundle = choose(Query("my card", bundle=of_steps.path)).bundle
    one, step = predict_layers([layer, layer], bundle, ["", "sgd"])
    assert (one.phase, step.phase) == ("execution", "step")
    assert (step.key, step.macs) == (layer_key(layer, "sgd"), 3 * one.macs)
    assert step.execution_ms == pytest.approx(3 * one.execution_ms, rel=0.1)


def test_a_bundle_without_training_steps_gives_no_time(of_calls: Bundle) -> None:
    [step] = predict_layers([LAYER], of_calls, ["sgd"])
    assert math.isnan(step.execution_ms)
    assert step.reason == "no predictor for conv_step"


def test_imported_rows_are_split_by_key(steps: Path) -> None:
    rows = layer_rows(read_table(steps)["conv"])
    split = split_of_keys(rows.keys)
    counts = [int(part.sum()) for part in (split.train, split.validation, split.test)]
    assert sum(counts) == len(rows) == 200
    assert 140 < counts[0] < 180


def test_whole_calls_are_learnt_as_whole_calls(of_calls: Bundle, calls: Path) -> None:
    assert of_calls.layer_quantity == "whole_call_ms"
    assert of_calls.kinds == ("conv",)
    assert not of_calls.has("conv", "execution_ms")
    assert set(of_calls.part["predictors"]["conv"]) == {"whole_call_ms"}
    assert of_calls.validation["conv"] < 0.1
    (found,) = evaluate(calls, of_calls).rows
    assert (found.phase, found.method) == ("whole_call_ms", "baseline")
    assert found.errors.mape < 0.1


def test_a_bundle_is_found_under_every_name_of_its_device(of_calls: Bundle) -> None:
    assert choose(Query("Intel Core i3", bundle=of_calls.path)).bundle.path == of_calls.path
    with pytest.raises(DeviceError, match="is for device i3"):
        choose(Query("Quadro P5000", bundle=of_calls.path))


def test_a_whole_call_is_never_given_as_execution(of_calls: Bundle) -> None:
    times = of_calls.predict([LAYER])
    assert times.reason == ("the bundle predicts whole calls, not execution",)
    assert times.ms[0] != times.ms[0]
    (layer,) = predict_layers([LAYER], of_calls)
    assert layer.phase == "whole_call"
    # 0.2 ms and 8 x 32 x 32 x 16 x 9 x 16 x 2 operations at 10 GFLOP/s.
    expected_ms = 0.2 + LAYER.macs * 2 / 10e6
    document = layer.to_json()
    assert document["execution_ms"] is None
    assert document["whole_call_ms"] == pytest.approx(expected_ms, rel=0.1)


def test_whole_calls_do_not_add_up_to_a_network(of_calls: Bundle) -> None:
    network = read_network(NETWORKS / "lenet5.onnx", batch=1)
    with pytest.raises(UnsupportedError, match="predicts whole calls: each contains a call"):
        predict_network(network, of_calls)


def test_unlike_times_are_not_compared(
    of_calls: Bundle, of_steps: Bundle, steps: Path, calls: Path
) -> None:
    with pytest.raises(
        TrainingError, match=r"holds times of execution_ms, .* predicts whole_call_ms"
    ):
        evaluate(steps, of_calls)
    with pytest.raises(
        TrainingError, match=r"holds times of whole_call_ms, .* predicts execution_ms"
    ):
        evaluate(calls, of_steps)


def test_execution_alone_predicts_a_network_and_says_what_is_missing(of_steps: Bundle) -> None:
    network = read_network(NETWORKS / "lenet5.onnx", batch=1)
    prediction = predict_network(network, of_steps)
    assert prediction.overheads.call_ms == of_steps.costs["call_ms"]
    assert {"transfer"} <= {each.op for each in prediction.skipped}
    assert {layer.kind for layer in prediction.layers} == {"conv"}


def test_the_papers_methods_learn_the_phases_that_there_are(calls: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    bundle = train(calls, tmp_path / "p", method="perfnet", epochs=1)
    assert set(bundle.part["predictors"]["conv"]) == {"whole_call_ms"}


def test_the_papers_methods_learn_training_steps(steps: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    bundle = train(steps, tmp_path / "p", method="perfnet", epochs=1)
    assert bundle.method_of("conv_step", "step_ms") == "perfnet"
    assert bundle.predict([LAYER], "step_ms", ["adam"]).ms[0] > 0
