"""Nodes that no output needs, and weights that a run may override."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from resperf import predict
from resperf.backends.onnxruntime import OnnxRuntimeBackend
from resperf.lowering import lower
from resperf.network import block_of, read_network
from resperf.platform import Platform
from resperf.settings import Setting

NetworkFile = Callable[..., Path]
WEIGHTS = {
    name: np.ones(shape, np.float32)
    for name, shape in {"w": (16, 3, 3, 3), "more": (8, 16, 3, 3), "f": (16, 4)}.items()
}
PADS = {"pads": [1] * 4}


@pytest.fixture
def cut(network_file: NetworkFile) -> Path:
    """A convolution with a head, and a second head whose output was cut off."""
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], "stem", **PADS),
        make_node("Conv", ["a", "more"], ["b"], "second", **PADS),
        make_node("Sigmoid", ["b"], ["c"], "gate"),
        make_node("Relu", ["a"], ["y"], "head"),
    ]
    return network_file("cut.onnx", nodes, {"x": [1, 3, 8, 8]}, {"y": None}, WEIGHTS)


def test_nodes_that_no_output_needs_are_noted_and_apart(cut: Path) -> None:
    network = read_network(cut)
    assert [node.name for node in network.nodes] == ["stem", "head"]
    assert [node.name for node in network.dead_nodes] == ["second", "gate"]
    (note,) = network.notes
    assert note.startswith("no output needs second (Conv), gate (Sigmoid): ONNX Runtime and eager")
    assert block_of(network, "stem:head").dead_nodes == ()


@pytest.mark.parametrize(
    ("framework", "compiled", "runs_them"),
    [
        ("onnxruntime", "", True), ("torch", "eager", True), ("torch", "inductor", False),
        ("tensorflow", "", False), ("tensorrt", "", False),
    ],
)  # fmt: skip
def test_frameworks_that_optimise_leave_them_out(
    cut: Path, framework: str, compiled: str, runs_them: bool, request: pytest.FixtureRequest
) -> None:
    if framework == "tensorrt":
        request.getfixturevalue("tensorrt_rtx")
    setting = Setting(framework=framework, compiled=compiled)
    platform = Platform("cpu" if framework == "onnxruntime" else "cuda")
    lowered = lower(read_network(cut), setting, platform)
    names = {name for node in lowered.nodes for name in node.sources}
    assert ({"second", "gate"} <= names) == runs_them


def test_onnxruntime_itself_runs_them(cut: Path) -> None:
    prediction = predict(cut, device="cpu")
    assert "second" in {name for layer in prediction.layers for name in layer.sources}
    assert any("no output needs second" in warning for warning in prediction.remarks.warnings)


def test_what_only_computes_a_weight_is_not_noted(network_file: NetworkFile) -> None:
    nodes = [
        make_node("DequantizeLinear", ["q", "scale"], ["d"]),
        make_node("Identity", ["d"], ["e"]),
        make_node("MatMul", ["x", "e"], ["y"]),
    ]
    weights = {"q": np.ones((4, 4), np.int8), "scale": np.float32(0.1)}
    path = network_file("q.onnx", nodes, {"x": [2, 4]}, {"y": None}, weights)
    network = read_network(path)
    assert (network.notes, network.dead_nodes) == ((), ())
    assert predict(path, device="cpu").complete


@pytest.fixture
def overridable(network_file: NetworkFile) -> Callable[..., Path]:
    """Write convolution, normalisation, product; these weights are inputs as well."""

    def write(*names: str, ir_version: int = 8) -> Path:
        nodes = [
            make_node("Conv", ["x", "w"], ["a"], "conv", **PADS),
            make_node("BatchNormalization", ["a", "s", "s", "s", "s"], ["b"], "norm"),
            make_node("GlobalAveragePool", ["b"], ["p"], "mean"),
            make_node("Flatten", ["p"], ["r"], "flat"),
            make_node("Mul", ["f", "two"], ["f2"], "twice"),
            make_node("MatMul", ["r", "f2"], ["y"], "last"),
        ]
        weights = {**WEIGHTS, "s": np.ones(16, np.float32), "two": np.float32(2)}
        path = network_file("n.onnx", nodes, {"x": [1, 3, 8, 8]}, {"y": None}, weights)
        model = onnx.load(path)
        model.ir_version = ir_version
        for name in names:
            shape = np.shape(weights[name])
            info = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            model.graph.input.append(info)
        onnx.save(model, path)
        return path

    return write


def ops_on_cpu(path: Path) -> list[str]:
    backend = OnnxRuntimeBackend(threads=1)
    lowered = lower(read_network(path), backend.setting(), backend.platform())
    assert [tensor.name for tensor in lowered.inputs] == ["x"]
    return [node.op for node in lowered.nodes if node.role == "execution"]


def test_onnxruntime_folds_nothing_into_overridable_weights(
    overridable: Callable[..., Path],
) -> None:
    plain = ops_on_cpu(overridable())
    assert "BatchNormalization" not in plain
    assert "Mul" not in plain
    assert "BatchNormalization" in ops_on_cpu(overridable("w"))
    some = ops_on_cpu(overridable("two"))
    assert "Mul" in some
    assert "BatchNormalization" not in some
    # Before IR version 4 every weight was an input.
    assert ops_on_cpu(overridable("w", "two", "s", "f", ir_version=3)) == plain


def test_other_frameworks_fold_them(overridable: Callable[..., Path]) -> None:
    setting, platform = Setting(framework="tensorflow"), Platform("cuda")
    ops = [
        [node.op for node in lower(read_network(path), setting, platform).nodes]
        for path in (overridable(), overridable("w", "two", "s", "f"))
    ]
    assert ops[0] == ops[1]


def test_a_network_with_overridable_and_unread_weights_is_measured(
    overridable: Callable[..., Path],
) -> None:
    path = overridable("w", "f", "two")
    assert "more" not in {name for node in read_network(path).nodes for name in node.inputs}
    built = OnnxRuntimeBackend(threads=1).network(path, batch=None)
    assert built.phases["execution_ms"].sampler() > 0
