"""`resperf predict`, `predict-layer` and `devices` with a real, small bundle."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

import resperf
from resperf.bundle import Bundle
from resperf.layers import Dense, layer_from_key
from resperf.prediction.calibrated import STATE_WIDTH
from resperf.testing.synthetic import closed_form_ms

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
LENET = str(NETWORKS / "lenet5.onnx")
PROMISED = ["network", "device", "framework", "batch", "total_ms", "phases", "layers", "skipped"]


def test_json_of_one_batch_is_a_list_of_one_whose_parts_add_up(bundle, cli):
    document = cli.document("predict", LENET, "--bundle", bundle, "--batch", "4")
    assert list(document)[:9] == ["schema_version", *PROMISED]
    assert (document["network"], document["device"], document["batch"]) == ("lenet5", "cpu", 4)
    phases = document["phases"]
    assert document["total_ms"] == pytest.approx(sum(phases.values()))
    layers_ms = sum(
        layer["execution_ms"] for layer in document["layers"] if layer["phase"] == "execution"
    )
    assert phases["execution_ms"] == pytest.approx(
        layers_ms + document["call_ms"] + document["reshapes_ms"] + document["overhead_ms"]
    )
    assert document["call_ms"] == pytest.approx(0.02)


def test_dense_layers_are_predicted_as_the_rows_were_made(bundle, cli):
    document = cli.document("predict", LENET, "--bundle", bundle, "--batch", "4")
    dense = [layer for layer in document["layers"] if layer["kind"] == "dense"]
    assert len(dense) == 3
    for layer in dense:
        expected_ms = closed_form_ms(layer_from_key(layer["key"]), "execution_ms", 50.0, 5.0)
        assert layer["execution_ms"] == pytest.approx(expected_ms, rel=0.05)


def test_reorders_have_no_predictor_here_and_are_said_to_be_skipped(bundle, cli):
    document = cli.document("predict", LENET, "--bundle", bundle, "--batch", "1")
    for skipped in document["skipped"]:
        assert skipped["reason"] == "the bundle has no predictor for reorder"
    text = cli.text("predict", LENET, "--bundle", bundle, "--batch", "1")
    assert ("does not include" in text) == bool(document["skipped"])


def test_layers_and_totals_have_intervals_and_say_what_they_rest_on(bundle, cli):
    document = cli.document("predict", LENET, "--bundle", bundle, "--batch", "4")
    layers = document["layers"]
    for layer in layers:
        assert layer["low_ms"] < layer["execution_ms"] < layer["high_ms"]
    assert document["low_ms"] < document["total_ms"] < document["high_ms"]
    # Different layers err independently, around an error that all share; LeNet-5 repeats none.
    off_ms = math.hypot(*(layer["high_ms"] - layer["execution_ms"] for layer in layers))
    share = off_ms / sum(layer["execution_ms"] for layer in layers)
    width = math.hypot(math.log1p(share), STATE_WIDTH)
    assert document["high_ms"] == pytest.approx(document["total_ms"] * math.exp(width))
    coverage = document["coverage"]
    assert coverage["in_range_ms"] + coverage["out_of_range_ms"] == pytest.approx(
        sum(layer["execution_ms"] for layer in layers)
    )
    assert coverage["unknown"] == len(document["skipped"])
    assert coverage["in_range"] + coverage["out_of_range"] + coverage["other"] == pytest.approx(1.0)
    assert coverage["in_range"] == pytest.approx(coverage["in_range_ms"] / document["total_ms"])
    text = cli.text("predict", LENET, "--bundle", bundle, "--batch", "4")
    assert "90% interval" in text
    outside = coverage["out_of_range_ms"] / document["total_ms"]
    assert f"; {outside:.0%} outside the trained range" in text
    assert f"100% measured with {document['framework']} " in text


def test_lowering_is_shown_on_request_node_by_node(bundle, cli):
    words = ["predict", LENET, "--bundle", str(bundle), "--batch", "1"]
    plain = cli.text(*words)
    shown = cli.text(*words, "--by", "node").removeprefix(plain.rstrip("\n"))
    assert "in the order they run" in shown
    names = [node.name for node in onnx.load(LENET, load_external_data=False).graph.node]
    assert names
    for name in names:
        assert name in shown
    assert "--by node" in cli.error(*words, "--by", "node", "--json")


def test_kinds_and_other_costs_add_up_to_the_total(bundle, cli):
    words = ["predict", LENET, "--bundle", str(bundle), "--batch", "4"]
    text = cli.text(*words, "--by", "kind")
    document = cli.document(*words)
    kinds = {kind["kind"]: kind for kind in document["kinds"]}
    assert (kinds["conv"]["layers"], kinds["dense"]["layers"]) == (2, 3)
    dense_ms = [x["execution_ms"] for x in document["layers"] if x["kind"] == "dense"]
    assert kinds["dense"]["ms"] == pytest.approx(sum(dense_ms))
    assert sum(kind["ms"] for kind in document["kinds"]) == pytest.approx(document["total_ms"])
    rows = [line.split() for line in text.split("\n\n")[1].splitlines()[3:]]
    assert {"conv", "dense", "pool", "preprocess", "postprocess"} <= {row[0] for row in rows}
    assert len(rows) == len(kinds)
    assert "layers, slowest first" not in text


def test_layers_kinds_and_devices_are_written_as_csv_or_json(bundle, tmp_path, cli):
    words = ["predict", LENET, "--bundle", str(bundle)]
    layers, kinds, devices = (tmp_path / f"{name}.csv" for name in ("layers", "kinds", "devices"))
    whole = tmp_path / "whole.json"
    documents = cli.json(*words, "--batch", "1", "8", "-o", layers)
    cli.text(*words, "--batch", "8", "--by", "kind", "-o", kinds)
    cli.text(*words, "--device", "all", "-o", devices)
    cli.text(*words, "--batch", "1", "8", "-o", whole)

    def read(path):
        return list(csv.DictReader(path.open()))

    assert [(row["batch"], row["name"], float(row["execution_ms"])) for row in read(layers)] == [
        (str(document["batch"]), layer["name"], layer["execution_ms"])
        for document in documents
        for layer in document["layers"]
    ]
    assert read(layers)[0]["sources"] == "conv1 relu2"
    assert [row["kind"] for row in read(kinds)] == [x["kind"] for x in documents[1]["kinds"]]
    rows = {row["device"]: row for row in read(devices)}
    assert rows["h100"]["rests_on"] == "other devices"
    assert float(rows["cpu"]["total_ms"]) == pytest.approx(documents[0]["total_ms"])
    assert json.loads(whole.read_text()) == documents
    assert "must end in .csv or .json" in cli.error(*words, "-o", tmp_path / "a.txt")


def test_the_largest_batch_within_a_latency(bundle, cli):
    words = ["predict", LENET, "--bundle", str(bundle)]
    times_ms = {x["batch"]: x["total_ms"] for x in cli.json(*words, "--batch", "1", "5", "6")}
    limit = f"{(times_ms[5] + times_ms[6]) / 2}ms"
    document = cli.document(*words, "--within", limit)
    assert (document["batch"], document["total_ms"]) == (5, times_ms[5])
    rate = 5 / times_ms[5] * 1e3
    assert document["samples_per_s"] == pytest.approx(rate)
    first = cli.text(*words, "--within", limit).splitlines()[0]
    assert first.endswith(f" ms: batch 5 at most, {rate:.0f} samples/s")
    short = f"{times_ms[1] / 2 * 1000}us"
    assert cli.document(*words, "--within", short)["batch"] == 1
    assert " ms: not even batch 1, which takes 0." in cli.text(*words, "--within", short)
    prediction = resperf.predict_within(LENET, times_ms[6], bundle=bundle)
    assert prediction.subject.batch == 6
    assert resperf.predict_within(LENET, limit, bundle=bundle).subject.batch == 5
    for wrong in ("10", 0, math.nan, None):
        with pytest.raises(resperf.ResperfError, match=f"within_ms={wrong!r} must be a time above"):
            resperf.predict_within(LENET, wrong, bundle=bundle)
    assert "must look like 10ms" in cli.error(*words, "--within", "10")
    assert "--batch does not go with --within" in cli.error(
        *words, "--within", "1ms", "--batch", "2"
    )


def test_a_batch_that_does_not_fit_is_not_within(network_file):
    node = make_node("Relu", ["x"], ["y"])
    path = network_file("relu.onnx", [node], {"x": ["n", 1 << 26]}, {"y": None})
    prediction = resperf.predict_within(path, 1e6, device="t4")
    # 16 GiB hold 32 times the input and the output, of 256 MiB each.
    assert prediction.subject.batch == 32
    assert "batch 33 is too large: " in prediction.remarks.notes[-1]


def test_values_and_lengths_are_given_and_stated(bundle, network_file, cli):
    nodes = [
        make_node("Expand", ["x", "size"], ["large"]),
        make_node("MatMul", ["large", "w"], ["y"]),
    ]
    inputs = {"x": [1, 1], "size": (TensorProto.INT64, [2])}
    weights = {"w": np.ones((40, 5), np.float32)}
    path = network_file("expanded.onnx", nodes, inputs, {"y": None}, weights)
    options = ("predict", path, "--bundle", bundle)
    assert "give its values: --value size=N,N" in cli.text(*options)
    for given in ("--value=size=30,40", "--shape=large=30,40"):
        document = cli.document(*options, given)
        (dense,) = (layer for layer in document["layers"] if layer["kind"] == "dense")
        assert dense["macs"] == 30 * 40 * 5
        assert given.split("=")[0] in document["assumed"][0]


def test_several_batches_make_a_list(bundle, cli):
    words = ["predict", "--bundle", bundle, LENET, "--batch"]
    documents = cli.json(*words, "1", "8")
    assert [each["batch"] for each in documents] == [1, 8]
    assert documents[0]["total_ms"] < documents[1]["total_ms"]
    assert [each["schema_version"] for each in documents] == [1, 1]
    assert [each["batch"] for each in cli.json(*words, "8")] == [8]
    assert [next(iter(each)) for each in cli.json(*words, "8")] == ["schema_version"]


def test_several_batches_end_in_one_table(bundle, cli):
    words = ["predict", "--bundle", bundle, LENET, "--batch"]
    last = cli.text(*words, "1", "8").split("\n\n")[-1].splitlines()
    assert last[0] == "all batch sizes"
    assert " ".join(last[1].split()) == "batch total ms 90% interval ms per sample samples/s"
    for line, document in zip(last[3:], cli.json(*words, "1", "8"), strict=True):
        # The bundle of this test does not know what lies between the layers.
        batch, mark, total_ms, _, ms_per_sample, samples_per_s = line.split()
        assert mark == "INCOMPLETE"
        assert int(batch) == document["batch"]
        assert float(total_ms) == pytest.approx(document["total_ms"], rel=0.01)
        assert float(ms_per_sample) * int(batch) == pytest.approx(float(total_ms), rel=0.01)
        assert float(samples_per_s) == pytest.approx(1000 / float(ms_per_sample), rel=0.01)
    assert "all batch sizes" not in cli.text(*words, "8")
    # What is said of all batches is said once.
    text = cli.text(*words, "1", "8", "--threads", "7")
    assert text.count("warning: the bundle was measured with 1 threads, not 7") == 1


def test_the_python_api_says_the_same(bundle, cli):
    document = cli.document("predict", LENET, "--bundle", bundle, "--batch", "4")
    prediction = resperf.predict(LENET, device="cpu", batch=4, bundle=bundle)
    assert prediction.total_ms == pytest.approx(document["total_ms"])
    assert [each.subject.batch for each in resperf.predict(LENET, batch=[1, 2], bundle=bundle)] == [
        1,
        2,
    ]


def test_other_threads_than_the_bundles_are_a_warning(bundle, cli):
    words = ["predict", LENET, "--bundle", str(bundle), "--batch", "1"]
    document = cli.document(*words, "--threads", "7")
    assert any("1 threads, not 7" in warning for warning in document["warnings"])


def test_every_bundle_is_compared(bundle, home, cli):
    words = ["predict", LENET, "--device", "all", "--bundle", str(bundle.parent), "--batch", "1,2"]
    documents = cli.json(*words)
    assert [each["batch"] for each in documents if each["device"] == "cpu"] == [1, 2]
    # Cards without a bundle stand beside them; each batch is sorted by time.
    of_one = [each for each in documents if each["batch"] == 1]
    times_ms = [each["total_ms"] for each in of_one]
    assert times_ms == sorted(times_ms)
    assert {"h100", "rtx4090", "1080ti", "mi210"} <= {each["device"] for each in of_one}
    text = cli.text(*words)
    assert "total ms" in text
    assert text.count("note: ") == 1


def test_what_no_bundle_predicts_is_said_and_is_no_success(bundle, network_file, cli):
    node = make_node("Sparkle", ["x"], ["y"], domain="com.example")
    path = network_file("unusual.onnx", [node], {"x": [2, 3]}, {"y": [2, 3]})
    words = ["predict", path, "--device", "all", "--strict", "--bundle", bundle]
    failures = json.loads(cli.run(*words, "--json", code=2).out)
    assert failures
    assert all("no predictor" in each["error"] for each in failures)
    cli.run(*words, code=2)


def test_texts_have_no_size_to_be_copied(bundle, network_file, cli):
    node, text = make_node("Identity", ["x"], ["y"], "same"), TensorProto.STRING
    path = network_file("texts.onnx", [node], {"x": [2, 3]}, {"y": [2, 3]}, dtype=text)
    document = cli.document("predict", path, "--bundle", bundle)
    assert [each["op"] for each in document["skipped"]] == ["transfer", "transfer"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--device", "mars", "--batch", "1"], "no device or bundle 'mars'; devices: cpu"),
        (
            ["--device", "cpuu", "--batch", "1"],
            "no device or bundle 'cpuu'; did you mean cpu? See: ",
        ),
        (["--framework", "onnxruntme"], "'onnxruntme' (did you mean onnxruntime?); devices: cpu"),
        (["--batch", "1", "--shape", "nonsense=1,2"], "nonsense"),
        (
            ["--bundle", "absent", "--batch", "1"],
            "no device or bundle 'absent'; devices: cpu (onnxruntime)",
        ),
        (["--device", "all", "--devices", "1", "2"], "--device all does not go with --devices"),
        (["--against", "engine.h5", "--devices", "2"], "--against does not go with --devices"),
        (["--strict-range", "--devices", "2"], "--strict does not go with --devices"),
    ],
)
def test_wrong_words_are_one_line(bundle, home, words, part, cli):
    (home / "bundles").mkdir()
    (home / "bundles" / "mine").symlink_to(bundle)
    assert part in cli.error("predict", LENET, *words)


def test_free_dimensions_without_a_value_name_the_option(bundle, tmp_path, cli):
    model = onnx.load(LENET, load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    free = tmp_path / "free.onnx"
    free.write_bytes(model.SerializeToString())
    assert "is free; give it: --batch 1" in cli.error("predict", free, "--bundle", bundle)
    cli.text("predict", free, "--bundle", bundle, "--batch", "2")


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x08\x07\x12\xff\xff"])
def test_a_file_that_is_no_network_is_one_line(bundle, tmp_path, content, cli):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    cli.error("predict", path, "--bundle", bundle)


def test_strict_refuses_what_is_not_in_the_total(bundle, cli):
    words = ["predict", str(NETWORKS / "densenet121.onnx"), "--bundle", str(bundle)]
    line = cli.error(*words, "--batch", "1", "--strict")
    assert "densenet121: " in line
    assert "operators have no predictor" in line


def test_a_network_in_another_precision_is_incomplete_and_says_so(bundle, network_file, cli):
    nodes = [
        make_node("Gemm", ["x", "w"], ["d"], "dense"), make_node("Relu", ["d"], ["y"], "relu"),
    ]  # fmt: skip
    ends, weights = ({"x": [4, 8]}, {"y": [4, 3]}), {"w": np.zeros((8, 3))}
    path = network_file("double.onnx", nodes, *ends, weights, TensorProto.DOUBLE)
    document = cli.document("predict", path, "--bundle", bundle)
    assert document["complete"] is False
    assert document["coverage"]["macs"] == 0
    dense = next(each for each in document["skipped"] if each["name"] == "dense")
    # 12 values of 8 products each; 32 values read, 12 written, and 24 weights, of 8 bytes.
    assert (dense["macs"], dense["moved_bytes"]) == (96, (32 + 12 + 24) * 8)
    second = cli.text("predict", path, "--bundle", bundle).splitlines()[1]
    assert second.startswith("INCOMPLETE: the total covers 0% of the network's multiply-adds")


def test_what_onnx_runtime_refuses_is_one_line_with_its_reason(bundle, network_file, cli):
    node, weights = make_node("Conv", ["x", "w"], ["y"], "conv"), {"w": np.zeros((3, 3, 1, 1))}
    shape = [1, 3, 8, 8]
    path = network_file(
        "double.onnx", [node], {"x": shape}, {"y": shape}, weights, TensorProto.DOUBLE
    )
    line = cli.error("predict", path, "--bundle", bundle)
    assert "ONNX Runtime cannot run this network: " in line
    assert "Could not find an implementation for Conv(11) node with name 'conv'" in line


def test_an_output_that_cannot_be_reached_is_unknown(bundle, network_file, cli):
    node, places = make_node("NonZero", ["x"], ["y"], "places"), (TensorProto.INT64, None)
    path = network_file("places.onnx", [node], {"x": [1, 3, 8, 8]}, {"y": places})
    document = cli.document("predict", path, "--bundle", bundle)
    assert document["phases"]["postprocess_ms"] is None
    assert [(each["name"], each["op"]) for each in document["skipped"]] == [
        ("places", "NonZero"), ("y", "transfer"),
    ]  # fmt: skip
    assert "\npostprocess     unknown" in cli.text("predict", path, "--bundle", bundle)


def test_strict_range_refuses_to_extrapolate_and_names_layers(bundle, network_file, cli):
    node, weights = make_node("MatMul", ["x", "w"], ["y"], "fc"), np.zeros((300, 2000), np.float32)
    ends = {"x": [4096, 300]}, {"y": [4096, 2000]}
    path = network_file("wide.onnx", [node], *ends, {"w": weights})
    words = ["predict", path, "--bundle", bundle]
    [layer] = cli.document(*words, "--strict")["layers"]
    assert layer["in_range"] is False
    line = cli.error(*words, "--strict-range")
    assert "fc: batch=4096 above 16, features_out=2000 above 1" in line
    everywhere = ["predict", str(path), "--device", "all", "--bundle", str(bundle)]
    failures = [each for each in cli.json(*everywhere, "--strict-range") if "error" in each]
    assert any("fc: batch=4096 above 16" in each["error"] for each in failures)


def test_layers_on_another_machine_say_so_too(bundle, tmp_path, cli):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(bundle, elsewhere)
    manifest = json.loads((elsewhere / "bundle.json").read_text())
    manifest["platforms"]["1"] |= {"device": "cpu", "processor": "Another 9000"}
    (elsewhere / "bundle.json").write_text(json.dumps(manifest))
    words = ["predict-layer", "dense", "batch=8", "features_in=300", "features_out=100"]
    assert "warning: " in (shown := cli.text(*words, "--bundle", elsewhere))
    assert "Another 9000" in shown
    shown = cli.run(*words, "--bundle", elsewhere, "--json")
    assert len(json.loads(shown.out)) == 1
    assert "Another 9000" in shown.err
    assert "Another 9000" not in cli.text(*words, "--bundle", bundle)


def test_a_layer_is_predicted_as_typed(bundle, cli):
    words = ["batch=8", "features_in=300", "features_out=100"]
    [typed] = cli.json("predict-layer", "dense", *words, "--bundle", bundle)
    layer = Dense(batch=8, features_in=300, features_out=100)
    assert typed["key"] == layer.key
    expected_ms = closed_form_ms(layer, "execution_ms", 50.0, 5.0)
    assert typed["execution_ms"] == pytest.approx(expected_ms, rel=0.05)


def test_a_step_is_not_estimated_where_only_inference_is(cli):
    pool = ["batch=8", "channels_in=64", "size=56", "kernel=3"]
    [alone] = cli.json("predict-layer", "pool", *pool, "--device", "v100")
    [step] = cli.json("predict-layer", "pool_step", *pool, "optimizer=adam", "--device", "v100")
    assert alone["estimated"]
    assert (step["execution_ms"], step["reason"]) == (None, "no predictor for pool_step")
    assert not step["estimated"]


def test_devices_lists_whole_and_damaged_bundles(bundle, home, cli):
    bundles = home / "bundles"
    bundles.mkdir()
    (bundles / "whole").symlink_to(bundle)
    (bundles / "broken").mkdir()
    (bundles / "broken" / "bundle.json").write_text("{")
    entries = {each["bundle"]["name"]: each for each in cli.json("devices") if each["bundle"]}
    whole = entries["cpu-onnxruntime"]
    assert (whole["device"], whole["framework"]) == ("cpu", "onnxruntime")
    assert whole["machine"] == Bundle.load(bundle).platform.machine != ""
    assert set(whole["validation_error"]) == {"conv", "pool", "dense"}
    assert "damaged" in entries["broken"]
    text = cli.text("devices")
    assert "damaged: " in text
    assert "onnxruntime" in text
    # Where many bundles are listed, their provenance is left out.
    assert "provenance" not in whole
    [own] = (each for each in cli.json("devices", "--bundle", bundle) if "provenance" in each)
    assert own["provenance"]["rebuildable"]["answer"] == "no"
    assert "rows.h5 has no published source; " in own["provenance"]["rebuildable"]["why"]


def test_without_bundles_devices_says_how_to_make_one(home, cli):
    assert {each["bundle"] for each in cli.json("devices")} == {None}
    assert "resperf train" in cli.text("devices")


def test_predict_loads_nothing_heavy(bundle):
    script = (
        "import sys\n"
        "from resperf.cli.main import main\n"
        f"assert main(['predict', {LENET!r}, '--bundle', {str(bundle)!r}, '--batch', '1']) == 0\n"
        "heavy = {'tensorflow', 'keras', 'h5py', 'scipy', 'sklearn', 'torch', 'matplotlib',\n"
        "         'pandas', 'psutil', 'tqdm', 'tf2onnx', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "ours = {'resperf.timing', 'resperf.backends', 'resperf.campaign', 'resperf.training',\n"
        "        'resperf.testing'}\n"
        "assert not ours & set(sys.modules), ours & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lenet5, batch 1, on cpu with onnxruntime: ")
