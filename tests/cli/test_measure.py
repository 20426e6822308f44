"""`resperf measure` with ONNX Runtime; only the presence of times is checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from resperf.cli.main import main
from resperf.dataset import check_dataset, read_networks
from resperf.layers import layer_from_key
from resperf.network import read_graph
from resperf.platform import this_platform
from resperf.quantities import PHASES

LENET = str(Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx")
QUICK = ["--seconds", "0.05", "--threads", "1"]


def test_json_has_the_form_of_a_prediction_and_percentiles(capsys):
    words = ["measure", LENET, "--batch", "1", "2", "--no-layers", *QUICK, "--json"]
    assert main(words) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [each["batch"] for each in documents] == [1, 2]
    for document in documents:
        assert document["total_ms"] == pytest.approx(sum(document["phases"].values()))
        assert document["percentiles_ms"]["p50"] <= document["percentiles_ms"]["p99"]
        assert document["layers"] == []


def test_against_a_bundle_both_are_given_per_layer(bundle, capsys):
    words = ["measure", LENET, "--batch", "1", *QUICK, "--against", str(bundle)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    measured = {layer["name"]: layer for layer in document["layers"]}
    predicted = {layer["name"]: layer for layer in document["predicted"]["layers"]}
    assert predicted
    assert set(predicted) <= set(measured)
    assert all(layer["execution_ms"] > 0 for layer in measured.values())
    explained_ms = sum(
        layer["execution_ms"] for layer in measured.values() if layer["phase"] == "execution"
    )
    assert document["phases"]["execution_ms"] == pytest.approx(
        explained_ms + document["session_ms"] + document["views_ms"] + document["remainder_ms"]
    )


def test_a_network_whose_inputs_disagree_is_measured_at_the_batch_asked_for(
    bundle, tmp_path, capsys
):
    """Its inputs begin with 1 and 4, so its batch is not defined."""
    nodes = [helper.make_node("MatMul", ["x", "table"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]),
        helper.make_tensor_value_info("table", TensorProto.FLOAT, [4, 3]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "two.onnx")
    words = ["measure", str(tmp_path / "two.onnx"), "--batch", "8", *QUICK]
    assert main([*words, "--against", str(bundle), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batch"] == document["predicted"]["batch"] == 8
    [measured] = document["layers"]
    assert layer_from_key(measured["key"]).output_shape[-2:] == (8, 3)
    assert [each["op"] for each in document["predicted"]["skipped"]] == ["MatMul"]


def test_the_table_has_a_line_for_what_remains(bundle, capsys):
    words = ["measure", LENET, "--batch", "1", *QUICK, "--against", str(bundle)]
    assert main(words) == 0
    text = capsys.readouterr().out
    for word in ("total", "sum of layers", "remainder", "conv1 (conv)"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--framework", "nonsense"], "no framework 'nonsense'"),
        (["--framework", "tensorflow", "--against", "{bundle}"], "--framework onnxruntime"),
        (["--against", "mars"], "no bundle 'mars'"),
    ],
)
def test_wrong_words_are_one_line(bundle, home, words, part, capsys):
    words = [word.format(bundle=bundle) for word in words]
    assert main(["measure", LENET, "--batch", "1", *words]) == 2
    shown = capsys.readouterr().err
    assert part in shown
    assert shown.count("\n") == 1


def test_runs_are_added_to_a_dataset(tmp_path, capsys):
    runs = tmp_path / "runs.h5"
    words = ["measure", LENET, "--no-layers", *QUICK, "--json", "-o", str(runs)]
    assert main([*words, "--batch", "1", "2"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert main([*words, "--batch", "1"]) == 0
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
