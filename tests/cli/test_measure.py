"""`resperf measure` with ONNX Runtime; only the presence of times is checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from resperf.backends.onnxruntime import filled_input
from resperf.dataset import check_dataset, read_networks
from resperf.layers import layer_from_key
from resperf.network import read_graph
from resperf.platform import this_platform
from resperf.quantities import PHASES

LENET = str(Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx")
QUICK = ["--seconds", "0.05", "--threads", "1"]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    """Measure at once, also while a shared host's cores are far apart."""
    monkeypatch.setattr("resperf.campaign.measure.PATIENCE_S", 0.0)
    monkeypatch.setattr("resperf.campaign.measure.EXTRA_ROUNDS", 0)


def test_json_has_the_form_of_a_prediction_and_percentiles(cli):
    documents = cli.json("measure", LENET, "--batch", "1", "2", "--no-layers", *QUICK)
    assert [each["batch"] for each in documents] == [1, 2]
    for document in documents:
        assert document["total_ms"] == pytest.approx(sum(document["phases"].values()))
        assert document["percentiles_ms"]["p50"] <= document["percentiles_ms"]["p99"]
        assert document["layers"] == []


def test_a_network_whose_inputs_disagree_is_measured_at_the_batch_asked_for(network_file, cli):
    """Its inputs begin with 1 and 4, so its batch is not defined."""
    node = make_node("MatMul", ["x", "table"], ["y"])
    path = network_file("two.onnx", [node], {"x": [1, 4], "table": [4, 3]}, {"y": None})
    document = cli.document("measure", path, "--batch", "8", *QUICK)
    assert document["batch"] == 8
    [measured] = document["layers"]
    assert layer_from_key(measured["key"]).output_shape[-2:] == (8, 3)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--framework", "nonsense"], "no framework 'nonsense'; known"),
        (["--framework", "tensorflw"], "no framework 'tensorflw' (did you mean tensorflow or"),
    ],
)
def test_wrong_words_are_one_line(home, words, part, cli):
    shown = cli.error("measure", LENET, "--batch", "1", *words)
    assert part in shown


def test_runs_are_added_to_a_dataset(tmp_path, cli):
    runs = tmp_path / "runs.h5"
    words = ["measure", LENET, "--no-layers", *QUICK, "-o", str(runs)]
    documents = cli.json(*words, "--batch", "1", "2")
    cli.text(*words, "--batch", "1")
    dataset = read_networks(runs)
    assert check_dataset(runs) == []
    assert [(row.setting.batch, row.repeat) for row in dataset.measurements] == [
        (1, 0), (2, 0), (1, 1),
    ]  # fmt: skip
    first = dataset.measurements[0]
    assert first.setting.threads == 1
    assert first.platform == this_platform("cpu")
    for name in PHASES:
        assert first.value(name) == pytest.approx(documents[0]["phases"][name], rel=0.05)
    assert len(read_graph(dataset.graphs[first.subject.digest], "lenet5", batch=2).nodes) > 5


def test_runs_of_another_target_are_refused_before_measuring(tmp_path, cli, monkeypatch):
    words = ["measure", LENET, "-o", str(tmp_path / "runs.h5"), "--no-layers", *QUICK]
    cli.text(*words)
    before = (tmp_path / "runs.h5").read_bytes()
    monkeypatch.setattr("resperf.workflows.measure.measure_network", None)
    error = cli.error(*words, "--framework", "synthetic")
    assert "framework: onnxruntime here, synthetic there" in error
    assert "choose another file" in error
    assert (tmp_path / "runs.h5").read_bytes() == before


def test_a_training_step_in_pytorch_is_shown_in_its_parts(perceptron, cli):
    path = perceptron("two.onnx", 64, 32, 10)
    words = ["measure", path, "--framework", "torch", "--training", "sgd", "--batch", "1"]
    words += QUICK
    document = cli.document(*words)
    assert document["phases"]["execution_ms"] is None
    assert list(document["quantities"]) == [
        "forward_ms", "backward_ms", "update_ms", "step_ms", "peak_memory_bytes",
        "process_memory_bytes",
    ]  # fmt: skip
    assert min(document["quantities"].values()) > 0
    assert {layer["kind"] for layer in document["layers"]} >= {"dense"}
    text = cli.text(*words, "--no-layers")
    assert "forward " in text
    assert "unknown" not in text


def test_a_setting_that_a_framework_lacks_is_one_line(perceptron, cli):
    words = ["measure", perceptron("two.onnx", 8, 8), "--batch", "1", "--layout", "nhwc"]
    assert cli.run(*words, code=2).err.strip() == (
        "resperf: error: framework onnxruntime on cpu has no setting 'layout'; it has: threads"
    )


def test_several_batches_end_in_one_table(cli):
    words = ["measure", LENET, "--batch", "1", "2", "--no-layers", *QUICK]
    last = cli.text(*words).split("\n\n")[-1].splitlines()
    assert last[0] == "all batch sizes"
    assert " ".join(last[1].split()) == "batch total ms ms per sample samples/s"
    for batch, line in zip((1, 2), last[3:], strict=True):
        cells = [float(cell) for cell in line.split()]
        assert cells[0] == batch
        assert cells[2] * batch == pytest.approx(cells[1], rel=0.01)


def test_sequences_are_measured_at_full_length(network_file, cli, monkeypatch):
    nodes = [
        make_node("Cast", ["lengths"], ["n"], to=TensorProto.INT32),
        make_node("LSTM", ["x", "w", "r", "", "n"], ["y"], hidden_size=4),
    ]
    inputs = {"x": [7, 2, 3], "lengths": (TensorProto.INT64, [2])}
    weights = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}
    path = network_file("lstm.onnx", nodes, inputs, {"y": None}, weights)
    fed = {}
    monkeypatch.setattr(
        "resperf.backends.onnxruntime.filled_input",
        lambda value, given: fed.setdefault(value.name, filled_input(value, given)),
    )
    cli.json("measure", path, "--no-layers", *QUICK)
    assert fed["lengths"].tolist() == [7, 7]
