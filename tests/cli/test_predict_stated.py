"""`resperf predict --assume` and `--custom`: what a user states, and a prediction repeats."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

import resperf
from resperf.errors import UnsupportedError


@pytest.fixture
def detector(network_file) -> Path:
    """A dense layer on the boxes that are kept, of 64 candidates."""
    nodes = [
        make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"], "nms"),
        make_node("Cast", ["chosen"], ["rows"], to=TensorProto.FLOAT),
        make_node("MatMul", ["rows", "w"], ["y"], "head"),
    ]
    weights = {"most": np.int64([64]), "w": np.ones((3, 80), np.float32)}
    inputs = {"boxes": [1, 64, 4], "scores": [1, 1, 64]}
    return network_file("detector.onnx", nodes, inputs, {"y": None}, weights)


@pytest.fixture
def warped(network_file) -> Path:
    """Two dense layers, and two custom operators behind them."""
    nodes = [
        make_node("Gemm", ["x", "w1"], ["a"], "first"),
        make_node("Gemm", ["a", "w2"], ["b"], "second"),
        make_node("Warp", ["b"], ["c"], "w1", domain="my.ops"),
        make_node("Warp", ["c"], ["y"], "w2", domain="my.ops"),
    ]
    weights = {"w1": np.ones((64, 100), np.float32), "w2": np.ones((100, 64), np.float32)}
    return network_file("warped.onnx", nodes, {"x": [4, 64]}, {"y": None}, weights)


def names(document, key: str = "layers") -> list[str]:
    return [each["name"] for each in document[key]]


def test_what_depends_on_the_data_is_named_with_what_to_give(detector, bundle, cli):
    words = ("predict", detector, "--bundle", bundle)
    document = cli.document(*words)
    assert {"nms", "head"} <= set(names(document, "skipped"))
    assert document["assumed"] == []
    text = cli.text(*words)
    assert "INCOMPLETE" in text
    assert "--assume boxes=100" in text
    assert "--custom NonMaxSuppression=0.5ms" in text


def test_an_assumption_predicts_what_is_behind_it_and_is_stated(detector, bundle, cli):
    words = ("predict", detector, "--bundle", bundle, "--assume", "boxes=20")
    document = cli.document(*words)
    assert "head" in names(document)
    assert "nms" in names(document, "skipped")
    stated = "NonMaxSuppression returns 20 boxes (--assume boxes=20)"
    assert document["assumed"] == [stated]
    assert f"\nassumed: {stated}\n" in cli.text(*words)
    everywhere = cli.text(
        "predict", detector, "--device", "all", "--bundle", bundle, "--assume", "boxes=20"
    )
    assert everywhere.count(f"assumed: {stated}") == 1
    more = cli.document(*words[:-1], "boxes=60")
    head_ms, longer_ms = (
        next(x["execution_ms"] for x in each["layers"] if x["name"] == "head")
        for each in (document, more)
    )
    assert longer_ms > head_ms


def test_a_stated_time_counts_as_it_is_and_is_stated(warped, bundle, cli):
    words = ("predict", warped, "--bundle", bundle)
    without = cli.document(*words)
    assert sorted(names(without, "skipped"))[:2] == ["w1", "w2"]
    words = (*words, "--custom", "my.ops.Warp=500us")
    document = cli.document(*words)
    assert document["total_ms"] == pytest.approx(without["total_ms"] + 1.0, rel=1e-6)
    # Twice 0.5 ms, without a doubt of their own.
    for bound in ("low_ms", "high_ms"):
        assert document[bound] == pytest.approx(without[bound] + 1.0, rel=1e-6)
    assert document["origins"]["given_ms"] == pytest.approx(1.0)
    assert document["coverage"]["in_range_ms"] == without["coverage"]["in_range_ms"]
    warps = [each for each in document["layers"] if each["kind"] == "my.ops.Warp"]
    assert [(each["name"], each["execution_ms"], each["given"]) for each in warps] == [
        ("w1", 0.5, True), ("w2", 0.5, True)
    ]  # fmt: skip
    assert document["assumed"] == ["2 x my.ops.Warp takes 0.5 ms each (--custom)"]
    text = cli.text(*words)
    assert "assumed: 2 x my.ops.Warp takes 0.5 ms each (--custom)" in text
    assert "given by the user" in text
    assert "--custom my.ops.Warp=0.5ms" in cli.text("predict", warped, "--bundle", bundle)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_gpus_take_stated_times_beside_estimates(warped, cli, framework):
    words = ("predict", warped, "--device", "h100", "--framework", framework)
    document = cli.document(*words, "--custom", "my.ops.Warp=0.5ms", "--host-dispatch-us", "0.001")
    assert document["origins"]["given_ms"] == pytest.approx(1.0)
    assert document["complete"] or document["skipped"][0]["op"] == "transfer"


def test_times_of_operators_are_refused_where_networks_are_predicted_as_a_whole(
    warped, cli, tensorrt_rtx
):
    for words in (("--precision", "amp"), ("--framework", "tensorrt")):
        words = ("--device", "rtx4090", *words, "--custom", "my.ops.Warp=0.5ms")
        assert "predicts networks as a whole" in cli.error("predict", warped, *words)


def test_what_no_latency_of_whole_networks_tells_is_left_out(warped, cli, tensorrt_rtx):
    document = cli.document("predict", warped, "--device", "t4", "--framework", "tensorrt")
    assert not document["complete"]
    assert any("my.ops.Warp" in skipped["reason"] for skipped in document["skipped"])


def test_a_recurrence_in_tensorrt_is_incomplete(network_file, cli, tensorrt_rtx):
    node = make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=8)
    weights = {"w": np.ones((1, 32, 4), np.float32), "r": np.ones((1, 32, 8), np.float32)}
    path = network_file("lstm.onnx", [node], {"x": [5, 1, 4]}, {"y": None}, weights)
    text = cli.text("predict", path, "--device", "t4", "--framework", "tensorrt")
    assert "1 x operator: a recurrence runs step after step" in text
    assert "INCOMPLETE" in text


def test_operators_of_onnx_without_a_layer_take_a_time_too(detector, bundle, cli):
    stated = ("--assume", "boxes=20", "--custom", "NonMaxSuppression=2ms")
    document = cli.document("predict", detector, "--bundle", bundle, *stated)
    assert "nms" in names(document)
    assert "nms" not in names(document, "skipped")
    assert len(document["assumed"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--assume", "boxes=0"], "'boxes=0' must look like boxes=100"),
        (["--assume", "boxes"], "'boxes' must look like boxes=100"),
        (["--assume", "boxes=many"], "must look like boxes=100"),
        (["--assume", "rows=3"], "no assumption 'rows'; known are: boxes, values"),
        (["--assume", "boxes=2"], "boxes is given twice"),
        (["--custom", "my.ops.Warp"], "must look like my.domain.MyOp=0.5ms"),
        (["--custom", "my.ops.Warp=0.5"], "must look like my.domain.MyOp=0.5ms"),
        (["--custom", "my.ops.Warp=-1ms"], "must look like my.domain.MyOp=0.5ms"),
        (["--custom", "my.ops.Warp=0ms"], "a time above 0"),
        (["--custom", "my.ops.Warp=1.2.3ms"], "must look like my.domain.MyOp=0.5ms"),
        (["--custom", "my.ops.Warp=1e999ms"], "a time above 0"),
        (["--custom", "a.B=1ms", "--custom", "a.B=2ms"], "a.B is given twice"),
        (["--custom", "my.ops.Wrap=1ms"], "no operator 'my.ops.Wrap'.*it has: NonMaxSuppression"),
        (["--custom", "MatMul=1ms"], "MatMul of detector is predicted by layers"),
        (
            ["--custom", "NonMaxSuppression=1ms", "--device", "all"],
            "--custom does not go with --device all",
        ),
        (["--shape", "boxes=1x"], "must look like input=1,3,640,640"),
        (["--shape", "future*=1x2"], "no input 'future"),
    ],
)
def test_what_cannot_be_stated_is_refused(detector, bundle, cli, words, message):
    alone = words[0] == "--assume" and words[1] != "boxes=2"
    stated = words if alone else ["--assume", "boxes=20", *words]
    shown = cli.error("predict", detector, "--bundle", bundle, *stated)

    assert re.search(message, " ".join(shown.split()))


def test_python_takes_the_same_and_refuses_times_that_are_none(warped, bundle):
    prediction = resperf.predict(warped, bundle=bundle, custom_ms={"my.ops.Warp": 0.25})
    assert prediction.origins["given_ms"] == 0.5
    with pytest.raises(UnsupportedError, match="nan ms is not a time above 0"):
        resperf.predict(warped, bundle=bundle, custom_ms={"my.ops.Warp": float("nan")})


def test_shapes_by_pattern_and_with_x_between_numbers(network_file, bundle, cli):
    nodes = [make_node("Concat", ["p.a", "p.b"], ["y"], axis=0)]
    inputs = {"p.a": ["n", 64], "p.b": ["m", 64]}
    path = network_file("two.onnx", nodes, inputs, {"y": None})
    words = ("predict", path, "--bundle", bundle)
    assert cli.document(*words, "--shape", "p.*=2x64") == cli.document(
        *words, "--shape", "p.a=2,64", "--shape", "p.b=2,64"
    )
