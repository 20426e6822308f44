"""TensorFlow's training step: gradients as PyTorch's, its parts, its memory, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from onnx import helper

from resperf.backends import Backend, backend
from resperf.backends._process_memory import process_peak, resident_bytes
from resperf.backends._torch_modules import TorchNetwork
from resperf.backends.monitors import Monitor
from resperf.backends.tensorflow import OPTIMIZERS, TensorFlowStep, _computing_weights
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import CPU
from resperf.backends.torch import TorchStep
from resperf.campaign.measure import measure_layer
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import Dense
from resperf.lowering.tensorflow import without_removed
from resperf.lowering.torch import as_run
from resperf.measurement import Status
from resperf.network import read_network
from resperf.network.weights import weights_of
from resperf.settings import Setting
from resperf.timing import SamplingProtocol
from resperf.workflows.measure import measure_network, reference_monitor

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
NetworkFile = Callable[..., Path]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def trained() -> Backend:
    """Start TensorFlow with its threads, which its first operation fixes."""
    return backend("tensorflow", threads=1, optimizer="momentum")


@pytest.fixture
def normalised(network_file: NetworkFile) -> Path:
    """Normalisations of images and of rows, a few weights each; the first has its bias twice."""
    random = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) / 3

    weights = {
        "w": normal(6, 3, 3, 3), "scale": np.ones(6, np.float32), "zeros": np.zeros(6, np.float32),
        "deep": normal(6, 1, 3, 3), "factor": normal(6, 1, 1), "wd": normal(6, 5),
        "bd": normal(5), "gamma": normal(5), "beta": normal(5), "mean": normal(5),
        "variance": np.ones(5, np.float32),
    }  # fmt: skip
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        n("BatchNormalization", ["c", "scale", "zeros", "zeros", "scale"], ["n"], epsilon=0.01),
        n("Relu", ["n"], ["r"]),
        n("Conv", ["r", "deep"], ["d"], group=6, pads=[1, 1, 1, 1]),
        n("Mul", ["d", "factor"], ["f"]),
        n("GlobalAveragePool", ["f"], ["g"]),
        n("Flatten", ["g"], ["v"]),
        n("Gemm", ["v", "wd", "bd"], ["p"]),
        n("BatchNormalization", ["p", "gamma", "beta", "mean", "variance"], ["q"]),
        n("Sigmoid", ["q"], ["y"]),
    ]
    return network_file("n.onnx", nodes, {"x": [4, 3, 8, 8]}, {"y": None}, weights)


def step_of(path: Path, x: Array, optimizer: str = "sgd") -> tuple[TensorFlowStep, Builder]:
    network = without_removed(_computing_weights(read_network(path)))
    builder = Builder(network, weights_of(path), training=True)
    image = tf.constant(x.transpose(0, 2, 3, 1))
    body = lambda *inputs: builder.outputs(build, *inputs)  # noqa: E731
    return TensorFlowStep(body, [image], builder.held, optimizer, CPU), builder


def tensorflow_gradients(path: Path, x: Array) -> list[Array]:
    step, builder = step_of(path, x)
    step.forward()
    step.backward()
    found = [each.numpy() for each in step._gradients]
    step.free()
    assert not builder.held
    return found


def pytorch_gradients(path: Path, x: Array) -> list[Array]:
    network = as_run(read_network(path), Setting(framework="torch"))
    module = TorchNetwork(network, weights_of(path), torch.device("cpu"), training=True)
    weights = [each for each in module.parameters() if each.requires_grad]
    # The first step, of its making, moves the weights by nothing that shows.
    step = TorchStep(lambda: module(torch.from_numpy(x)), [], weights, "sgd")
    step.forward()
    step.backward()
    return [each.grad.numpy() for each in weights]


def sizes(gradients: list[Array]) -> list[float]:
    """Return a number for each gradient that does not depend on the order of its axes."""
    return sorted(float(np.abs(each).sum()) for each in gradients)


def test_gradients_are_those_of_pytorch(normalised: Path) -> None:
    x = np.random.default_rng(2).standard_normal((4, 3, 8, 8), np.float32)
    found = tensorflow_gradients(normalised, x)
    assert len(found) == 9
    expected = sizes(pytorch_gradients(normalised, x))
    np.testing.assert_allclose(sizes(found), expected, rtol=2e-3, atol=1e-4)


def test_a_step_updates_weights_and_moves_the_running_statistics(normalised: Path) -> None:
    x = np.ones((4, 3, 8, 8), np.float32)
    step, builder = step_of(normalised, x)
    mean, variance = builder.statistics[builder.network.nodes[1].name]
    assert not any(each.trainable for each in (mean, variance))
    before = [each.numpy() for each in builder.held], mean.numpy(), variance.numpy()
    step.step()
    assert any((old != new.numpy()).any() for old, new in zip(before[0], builder.held, strict=True))
    assert (before[1] != mean.numpy()).all()
    assert (before[2] != variance.numpy()).all()


def test_weights_that_are_computed_are_computed_in_each_step(network_file: NetworkFile) -> None:
    """A standardised filter, a matrix that two operators read, and a copy of a constant."""
    random = np.random.default_rng(3)
    weights = {
        "raw": random.standard_normal((4, 3, 1, 1), np.float32), "axes": np.array([1], np.int64),
        "scale": np.ones(4, np.float32), "w": random.standard_normal((4, 4), np.float32),
    }  # fmt: skip
    n = helper.make_node
    nodes = [
        n("ReduceMean", ["raw"], ["mean"], axes=[1], keepdims=1),
        n("Sub", ["raw", "mean"], ["filter"]),
        n("Identity", ["scale"], ["copy"]),
        n("Conv", ["x", "filter"], ["c"]),
        n("BatchNormalization", ["c", "scale", "copy", "copy", "scale"], ["b"]),
        n("GlobalAveragePool", ["b"], ["g"]),
        n("Flatten", ["g"], ["f"]),
        n("MatMul", ["f", "w"], ["h"]),
        n("MatMul", ["h", "w"], ["y"]),
    ]
    path = network_file("n.onnx", nodes, {"x": [2, 3, 4, 4]}, {"y": None}, weights)
    x = random.standard_normal((2, 3, 4, 4), np.float32)
    found = tensorflow_gradients(path, x)
    # The raw filter, scale and shift of the normalisation, and one matrix.
    assert sorted(each.size for each in found) == [4, 4, 12, 16]
    np.testing.assert_allclose(
        sizes(found), sizes(pytorch_gradients(path, x)), rtol=2e-3, atol=1e-4
    )


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_optimizer_updates(optimizer: str, network_file: NetworkFile) -> None:
    weights = {"w": np.zeros((1, 3), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = network_file("n.onnx", nodes, {"x": [2, 1]}, {"y": None}, weights)
    network = read_network(path)
    builder = Builder(network, weights_of(path), training=True)
    body = lambda *inputs: builder.outputs(build, *inputs)  # noqa: E731
    step = TensorFlowStep(body, [tf.ones((2, 1))], builder.held, optimizer, CPU)
    (weight,) = builder.held
    for run in (step.step, lambda: (step.forward(), step.backward(), step.update())):
        before = weight.numpy()
        run()
        assert (weight.numpy() < before).all()


def test_a_network_s_training_step_is_offered_in_its_parts(trained: Backend) -> None:
    assert trained.setting().optimizer == "momentum"
    assert not trained.overheads_between_layers()
    with trained.network(NETWORKS / "lenet5.onnx", batch=64) as built:
        values = {name: phase.sampler() for name, phase in built.phases.items()}
        assert built.isolated() > 0
    names = ["forward_ms", "backward_ms", "update_ms", "step_ms", "process_memory_bytes"]
    assert list(values) == names
    assert all(value > 0 for name, value in values.items() if name.endswith("_ms"))


@pytest.mark.parametrize("optimizer", ["", "momentum"])
def test_the_peak_of_a_network_has_its_weights(optimizer: str, network_file: NetworkFile) -> None:
    side = 4096
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.ones((side, side), np.float32)}
    path = network_file("n.onnx", nodes, {"x": [1, side]}, {"y": None}, weights)
    of = backend("tensorflow", threads=1, optimizer=optimizer)
    with of.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        if "process_memory_bytes" not in built.phases:
            pytest.skip("this system does not tell the peak of a process")
        small_bytes = built.phases["process_memory_bytes"].sampler()
    with of.network(path, batch=None) as built:
        peak_bytes = built.phases["process_memory_bytes"].sampler() - small_bytes
    # In training the gradient, and the optimizer's momentum.
    fewest = 3 if optimizer else 1
    assert 0.9 * fewest * 4 * side**2 <= peak_bytes <= (fewest + 4) * 4 * side**2


def test_a_file_s_training_step_is_measured_beside_the_reference(trained: Backend) -> None:
    lenet = NETWORKS / "lenet5.onnx"
    with reference_monitor(trained) as monitor:
        found = measure_network(lenet, trained, monitor=monitor, batch=2, seconds=0.3)
    assert found.row.setting.optimizer == "momentum"
    assert found.quantities["step_ms"] > 0
    assert found.layers == ()
    assert any("whole networks only" in each for each in found.warnings)


@pytest.mark.parametrize("as_attribute", [True, False])
def test_dropout_drops_values(
    as_attribute: bool, network_file: NetworkFile, trained: Backend
) -> None:
    share = {"ratio": 0.2} if as_attribute else {}
    inputs = ["x"] if as_attribute else ["x", "ratio"]
    nodes = [
        helper.make_node("Dropout", inputs, ["d"], **share),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    weights = {"w": np.eye(1000, dtype=np.float32), "ratio": np.array(0.2, np.float32)}
    path = network_file("n.onnx", nodes, {"x": [10, 1000]}, {"y": None}, weights)
    network = without_removed(read_network(path), training=True)
    builder = Builder(network, weights_of(path), training=True)
    (y,) = builder.outputs(build, tf.ones((10, 1000)))
    assert set(np.unique(y)) == {0.0, 1.25}
    # Of 10,000 values, 40 is a standard deviation of the number that is dropped.
    assert abs(np.sum(y == 0) - 2000) < 400
    with trained.network(path, batch=None) as built:
        assert built.phases["step_ms"].sampler() > 0


def test_embeddings_are_trained(network_file: NetworkFile, trained: Backend) -> None:
    """Their gradients hold the rows that were read."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    weights = {"table": np.ones((100, 8), np.float32)}
    path = network_file("n.onnx", nodes, {"x": (7, [2, 3])}, {"y": None}, weights)
    with trained.network(path, batch=None) as built:
        assert built.phases["update_ms"].sampler() > 0


def test_what_has_no_training_step_says_so(network_file: NetworkFile, trained: Backend) -> None:
    path = network_file("n.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": None})
    with pytest.raises(UnsupportedError, match="no gradient"):
        trained.network(path, batch=None)
    assert "whole networks only" in trained.without_layers()
    layer = Dense(batch=1, features_in=4, features_out=4)
    row = measure_layer(trained, layer, SamplingProtocol(), monitor=Monitor())
    assert (row.status, row.detail) == (Status.UNSUPPORTED, trained.without_layers())
    with pytest.raises(ResperfError, match="optimizer=lion does not exist in TensorFlow"):
        backend("tensorflow", threads=1, optimizer="lion")


def test_the_peak_of_the_process_is_that_of_the_run() -> None:
    held_bytes, sampler_of = resident_bytes(), process_peak()
    if held_bytes is None or sampler_of is None:
        pytest.skip("this system does not tell the peak of a process")
    size = 64_000_000
    nothing_bytes = sampler_of(lambda: None)()
    # Never more than what it holds: what came before the first network.
    assert 0 < nothing_bytes < held_bytes + size / 2
    assert 0.9 * size <= sampler_of(lambda: np.ones(size, np.uint8))() - nothing_bytes < 1.5 * size
