"""A whole network in TensorFlow computes what ONNX Runtime computes, and has three phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from onnx import helper

from resperf.backends.tensorflow import TensorFlowBackend
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_operators import build
from resperf.errors import UnsupportedError
from resperf.lowering.tensorflow import without_removed
from resperf.network import read_network
from resperf.network.weights import weights_of
from resperf.quantities import PHASES

Array = np.ndarray[Any, Any]
NetworkFile = Callable[..., Path]


def stored(array: Array) -> Any:
    return tf.constant(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


@pytest.fixture
def every_operator(network_file: NetworkFile) -> Path:
    """Every operator that the backend builds, once; it flattens single pixels only."""
    random = np.random.default_rng(1)
    weights: dict[str, Array] = {
        "w1": random.standard_normal((8, 3, 3, 3), np.float32) / 5,
        "gamma": random.random(8, np.float32) + 0.5,
        "beta": random.standard_normal(8, np.float32),
        "mean": random.standard_normal(8, np.float32),
        "variance": random.random(8, np.float32) + 0.5,
        "w2": random.standard_normal((8, 1, 3, 3), np.float32) / 3,
        "b2": random.standard_normal(8, np.float32),
        "per_channel": random.standard_normal((8, 1, 1), np.float32),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
        "wd": random.standard_normal((5, 16), np.float32),
        "bd": random.standard_normal(5, np.float32),
        "wm": random.standard_normal((5, 4), np.float32),
        "bm": random.standard_normal(4, np.float32),
        "shape": np.array([0, -1], np.int64),
    }
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w1"], ["c1"], auto_pad="SAME_UPPER", strides=[2, 2]),
        n("BatchNormalization", ["c1", "gamma", "beta", "mean", "variance"], ["n1"]),
        n("Relu", ["n1"], ["r1"]),
        n("Conv", ["r1", "w2", "b2"], ["c2"], group=8, pads=[1, 1, 1, 1]),
        n("Clip", ["c2", "low", "high"], ["k2"]),
        n("Add", ["k2", "r1"], ["a2"]),
        n("Add", ["a2", "per_channel"], ["a3"]),
        n("BatchNormalization", ["a3", "gamma", "beta", "mean", "variance"], ["n3"]),
        n("MaxPool", ["n3"], ["p3"], kernel_shape=[2, 2], strides=[2, 2]),
        n("LRN", ["p3"], ["l3"], size=5, alpha=0.1),
        n("Transpose", ["l3"], ["t3"], perm=[0, 1, 3, 2]),
        n("Transpose", ["t3"], ["t4"], perm=[0, 1, 3, 2]),
        n("AveragePool", ["t4"], ["p4"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        n("Tanh", ["p4"], ["h4"]),
        n("Concat", ["p4", "h4"], ["k4"], axis=1),
        n("GlobalAveragePool", ["k4"], ["g4"]),
        n("ReduceMean", ["k4"], ["m4"], axes=[2, 3], keepdims=0),
        n("Reshape", ["g4", "shape"], ["f4"]),
        n("Sum", ["f4", "m4"], ["s4"]),
        n("Dropout", ["s4"], ["d4"]),
        n("Gemm", ["d4", "wd", "bd"], ["y5"], transB=1, alpha=0.5, beta=2.0),
        n("Sigmoid", ["y5"], ["s5"]),
        n("MatMul", ["s5", "wm"], ["y6"]),
        n("Add", ["y6", "bm"], ["b6"]),
        n("Identity", ["b6"], ["i6"]),
        n("Softmax", ["i6"], ["y"]),
    ]
    return network_file(
        "net.onnx", nodes, {"x": ["batch", 3, 16, 12]}, {"y": ["batch", 4]}, weights
    )


def test_a_network_computes_what_onnx_runtime_computes(
    tensorflow: TensorFlowBackend, every_operator: Path
) -> None:
    network = without_removed(read_network(every_operator, batch=2))
    builder = Builder(network, weights_of(every_operator, batch=2))
    x = np.random.default_rng(2).standard_normal((2, 3, 16, 12), np.float32)
    (y,) = builder.outputs(build, stored(x))
    session = onnxruntime.InferenceSession(every_operator, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(y.numpy(), session.run(None, {"x": x})[0], rtol=1e-3, atol=1e-5)


def test_a_network_has_three_phases(tensorflow: TensorFlowBackend, every_operator: Path) -> None:
    with tensorflow.network(every_operator, batch=2) as built:
        assert tuple(built.phases) == (*PHASES, "process_memory_bytes")
        (x,) = built.phases["preprocess_ms"].sampler.run()
        assert tuple(x.shape) == (2, 16, 12, 3)
        (y,) = built.isolated.run()
        (host,) = built.phases["postprocess_ms"].sampler.run()
        np.testing.assert_array_equal(host, y.numpy())
        # The call belongs to a network's execution.
        assert (built.phases["execution_ms"].offset, built.phases["execution_ms"].copies) == (0, 1)


def test_an_unknown_operator_is_named(
    tensorflow: TensorFlowBackend, network_file: NetworkFile
) -> None:
    nodes = [helper.make_node("Det", ["x"], ["y"])]
    path = network_file("det.onnx", nodes, {"x": [4, 4]}, {"y": []})
    with pytest.raises(UnsupportedError, match="operator Det"):
        tensorflow.network(path, batch=None)


@pytest.mark.parametrize("channel_first", [True, False])
def test_a_channel_shuffle_computes_the_same(
    tensorflow: TensorFlowBackend, network_file: NetworkFile, channel_first: bool
) -> None:
    """Reshapes through rank 5 use the file's order of axes, not TensorFlow's."""
    between = [2, 3, 2, 4, 5] if channel_first else [2, 2, 3, 4, 5]
    weights = {
        "apart": np.array(between, np.int64),
        "together": np.array([2, 6, 4, 5], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "together"], ["y"]),
    ]
    shape = [2, 6, 4, 5]
    path = network_file("shuffle.onnx", nodes, {"x": shape}, {"y": shape}, weights)
    builder = Builder(without_removed(read_network(path)), weights_of(path))
    x = np.arange(240, dtype=np.float32).reshape(2, 6, 4, 5)
    (y,) = builder.outputs(build, tf.constant(x))
    expected = x.reshape(between).transpose(0, 2, 1, 3, 4).reshape(2, 6, 4, 5)
    # No operator of images reads it, so that it has the file's order of axes.
    np.testing.assert_array_equal(y.numpy(), expected)
