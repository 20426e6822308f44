"""Exports of trtexec from the command line: imported, summarized, compared with a prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

EXPORTS = Path(__file__).parents[1] / "dataset" / "importing" / "trtexec"
GRAPH, PROFILE, TIMES, LOG = (
    EXPORTS / f"small.{each}" for each in ("graph.json", "profile.json", "times.json", "log")
)
IMPORT = ("dataset", "import", "--format", "trtexec")
CARD = ("--device", "rtx3090", "--bundle", Path(__file__).parents[2] / "models/bundles/gpus-torch")


@pytest.fixture
def network(network_file) -> Callable[..., Path]:
    """Write the network of the engine; its nodes have the engine's names after a prefix."""

    def write(prefix: str = "", batch: int | str = "n") -> Path:
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        nodes = [
            make_node("Conv", ["x", "w0", "b0"], ["a0"], "Conv_0", **window),
            make_node("Relu", ["a0"], ["c0"], "Relu_1"),
            make_node("MaxPool", ["c0"], ["p2"], "MaxPool_2", kernel_shape=[2, 2], strides=[2, 2]),
            make_node("Conv", ["p2", "w3", "b0"], ["a3"], "Conv_3", **window),
            make_node("Add", ["a3", "p2"], ["a4"], "Add_4"),
            make_node("Relu", ["a4"], ["c3"], "Relu_5"),
            make_node("GlobalAveragePool", ["c3"], ["g6"], "GlobalAveragePool_6"),
            make_node("Flatten", ["g6"], ["f7"], "Flatten_7"),
            make_node("Gemm", ["f7", "w8", "b8"], ["d8"], "Gemm_8", transB=1),
            make_node("Softmax", ["d8"], ["y"], "Softmax_9", axis=1),
        ]
        for node in nodes:
            node.name = prefix + node.name
        shapes = {"w0": (4, 3, 3, 3), "w3": (4, 4, 3, 3), "b0": (4,), "w8": (10, 4), "b8": (10,)}
        weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        file = f"{prefix.strip('/')}small.onnx"
        return network_file(file, nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 10]}, weights)

    return write


@pytest.fixture
def engine(tmp_path: Path, cli) -> Path:
    """Import the small engine."""
    cli.text(*IMPORT, GRAPH, PROFILE, TIMES, LOG, "-o", tmp_path / "engine.h5")
    return tmp_path / "engine.h5"


def test_import_says_what_became_of_every_layer(
    tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = cli.text(*IMPORT, TIMES, LOG, GRAPH, PROFILE, "-o", tmp_path / "a.h5")
    assert "8 rows of preprocess_ms, execution_ms, postprocess_ms" in text
    assert "10 layers, 2 of them views, 2 change formats or types (0.0140 ms)" in text
    # 0.090 / 0.076.
    assert "the sum is 1.18 of it, since profiled layers do not overlap" in text
    assert "layers without a row of their own: 1\n  0.0100 ms Reformat Reformatting" in text
    info = cli.text("dataset", "info", tmp_path / "a.h5")
    assert "engine     small: 10 layers" in info
    assert "the sum is 1.18 of it" in info
    assert "device     rtx3090" in info
    log = tmp_path / "other.log"
    log.write_text(LOG.read_text().replace("profiling: Enabled", "profiling: Disabled"))
    text = cli.text(*IMPORT, TIMES, log, GRAPH, PROFILE, "-o", tmp_path / "c.h5")
    assert "taken while profiling (run trtexec with --separateProfileRun)" in text
    document = cli.json(*IMPORT, GRAPH, PROFILE, "--device", "my card", "-o", tmp_path / "b.h5")
    assert document["device"] == "my card"
    (sums,) = document["engines"]
    assert (sums["layers"], sums["whole_ms"], sums["copies"]) == (10, None, False)
    assert [each["reason"] for each in document["untyped"]] == [
        "it changes type and format at once"
    ]


@pytest.mark.parametrize(("prefix", "found_by"), [("", "names"), ("/net/", "shapes")])
def test_prediction_beside_an_engine(
    network: Callable[..., Path], engine: Path, cli, prefix: str, found_by: str
) -> None:
    question = ("predict", network(prefix), *CARD, "--against", engine)
    document = cli.document(*question)
    # The engine's batch size is predicted.
    assert document["batch"] == 2
    beside = document["against"]
    assert beside["matched_by"].startswith(found_by)
    measured = {row["name"]: row["measured_ms"] for row in beside["layers"]}
    assert measured == {
        "Conv_0 + Relu_1": 0.030, "MaxPool_2": 0.006, "Conv_3 + Add_4 + Relu_5": 0.020,
        "GlobalAveragePool_6": 0.005, "Gemm_8": 0.008, "Softmax_9": 0.007,
    }  # fmt: skip
    predicted = {layer["name"]: layer["execution_ms"] for layer in document["layers"]}
    by_hand = sum(predicted[f"{prefix}{each}"] for each in ("Conv_3", "Add_4", "Relu_5"))
    row = next(row for row in beside["layers"] if row["name"].startswith("Conv_3"))
    assert row["predicted_ms"] == pytest.approx(by_hand)
    assert row["error"] == pytest.approx((by_hand - 0.020) / 0.020)
    assert [(each["type"], each["ms"]) for each in beside["engine_only"]] == [
        ("Reformat", 0.010), ("NoOp", 0.0), ("NoOp", 0.0), ("Reformat", 0.004),
    ]  # fmt: skip
    assert beside["predicted_only"] == []
    assert beside["phases"] == pytest.approx(
        {"preprocess_ms": 0.011, "execution_ms": 0.076, "postprocess_ms": 0.003}
    )
    text = cli.text(*question)
    assert f"layers matched by {found_by}" in text
    assert "beside the engine small, batch 2, on rtx3090 with tensorrt 8.6.1, fp16" in text
    assert "note: predicted for torch, the engine is of tensorrt" in text
    assert "in the engine only: 4 layers, 0.0140 ms" in text


def test_unmeasured_copies_leave_the_total_open(
    network: Callable[..., Path], tmp_path: Path, cli
) -> None:
    times = tmp_path / "t.json"
    times.write_text('[{"h2dMs": 0, "computeMs": 0.5, "d2hMs": 0}]')
    cli.text(*IMPORT, GRAPH, times, LOG, "-o", tmp_path / "a.h5")
    document = cli.document("predict", network(), *CARD, "--against", tmp_path / "a.h5")
    phases = {"preprocess_ms": None, "execution_ms": 0.5, "postprocess_ms": None}
    assert document["against"]["phases"] == phases
    # Without a profile, no layer has a time.
    assert {row["measured_ms"] for row in document["against"]["layers"]} == {None}
    text = cli.text("predict", network(), *CARD, "--against", tmp_path / "a.h5")
    assert "preprocess, postprocess not measured" in text


def test_another_network_has_no_layer_of_the_engine(dense_network, engine: Path, cli) -> None:
    text = cli.text("predict", dense_network(2), *CARD, "--against", engine)
    assert "no layer of the engine computes a node of this network" in text
    assert "predicted, without a layer of the engine: 2 layers" in text


def test_one_line_says_what_is_wrong(
    network: Callable[..., Path], engine: Path, tmp_path: Path, cli
) -> None:
    other = tmp_path / "other.json"
    out = ("-o", tmp_path / "a.h5")
    other.write_text(GRAPH.read_text()[:500])
    assert "other.json is cut short" in cli.error(*IMPORT, other, PROFILE, *out)
    other.write_text('{"Layers": ["Conv_0 + Relu_1"], "Bindings": ["x"]}')
    assert "a profile of another engine" in cli.error(*IMPORT, other, PROFILE, *out)
    other.write_text(PROFILE.read_text().replace("MaxPool_2", "MaxPool_3"))
    assert "a profile of another engine" in cli.error(*IMPORT, GRAPH, other, *out)
    assert not (tmp_path / "a.h5").exists()
    kept = engine.read_bytes()
    assert "cut" not in cli.error(*IMPORT, GRAPH, PROFILE, LOG, "-o", engine)
    assert engine.read_bytes() == kept
    against = ("predict", network(), *CARD, "--against")
    assert "dataset import" in cli.error(*against, GRAPH)
    assert "batch 2, the prediction is of batch 4; give --batch 2" in cli.error(
        *against, engine, "--batch", "4"
    )
    assert "several --batch does not go with --against" in cli.error(
        *against, engine, "--batch", "2", "4"
    )
