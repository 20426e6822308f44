"""A training step as layers: counted by hand on networks of a few operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from resperf.errors import UnsupportedError
from resperf.layers import Elementwise
from resperf.lowering import lower
from resperf.lowering.torch_training import require_trainable, training_step
from resperf.network import read_network
from resperf.platform import this_platform
from resperf.settings import Setting

EAGER, PLATFORM = Setting("torch", "2.9.1"), this_platform("cpu")
NetworkFile = Callable[..., Path]


def behind(path: Path, optimizer: str = "sgd") -> list[str]:
    """Return what a step runs behind the forward pass, each as its key without its batch."""
    network = read_network(path, batch=4)
    forward = lower(network, EAGER, PLATFORM)
    step = training_step(network, EAGER.with_optimizer(optimizer), PLATFORM)
    assert step.nodes[: len(forward.nodes)] == forward.nodes
    assert step.inputs == step.outputs == ()
    layers = [node.layer for node in step.nodes[len(forward.nodes) :]]
    return [layer.key for layer in layers if layer is not None]


def test_products_run_twice_more_and_gradients_of_one_tensor_are_added_up(
    network_file: NetworkFile,
) -> None:
    """A residual of two products: y = relu(h + h w2), h = x w1."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["m"]),
        helper.make_node("Add", ["h", "m"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    weights = {"w1": np.ones((8, 16), np.float32), "w2": np.ones((16, 16), np.float32)}
    path = network_file("n.onnx", nodes, {"x": ["n", 8]}, {"y": None}, weights)
    first, second = (
        f"dense:batch=4,features_in={width},features_out=16,bias=0,activation=none,dtype=float32"
        for width in (8, 16)
    )
    values = Elementwise(batch=4, inner=16, function="mul")
    # The gradient of relu; of both products; the sum of the two of h; and 384 weights.
    assert behind(path) == [
        values.key, second, second, first, first,
        values.replace(function="add").key,
        Elementwise(batch=1, inner=8 * 16 + 16 * 16, function="add").key,
    ]  # fmt: skip
    # Adam reads and writes 19 tensors of weights in place of 3.
    assert f"inner={19 * 384 // 3}," in behind(path, "adam")[-1]


def test_normalisations_move_three_times_their_bytes_more(network_file: NetworkFile) -> None:
    """A training step reads and writes eight tensors, a run two: gradients take the other six."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["n"]),
        helper.make_node("Dropout", ["n"], ["d"]),
        helper.make_node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2]),
    ]
    weights = {name: np.ones(6, np.float32) for name in "sbmv"}
    weights["w"] = np.ones((6, 3, 3, 3), np.float32)
    path = network_file("n.onnx", nodes, {"x": ["n", 3, 10, 10]}, {"y": None}, weights)
    network = read_network(path, batch=4)
    step = training_step(network, EAGER.with_optimizer("sgd"), PLATFORM)
    layers = [node.layer for node in step.nodes if node.layer is not None]
    kinds = Counter(layer.kind for layer in layers)
    # Dropout is a product forward and backward, and the update an addition.
    assert kinds == {"conv": 3, "norm": 1, "elementwise": 2 + 2 + 1, "pool": 2}
    images = 4 * 6 * 8 * 8 * 4
    moved = [layer.moved_bytes for layer in layers if layer.kind == "elementwise"][:-1]
    assert moved == [3 * images] * 4


def test_what_training_cannot_change_is_refused(network_file: NetworkFile) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["h"], "product")
    first, weights = helper.make_node("ArgMax", ["h"], ["y"]), {"w": np.ones((8, 8), np.float32)}
    shapes = {"x": [4, 8]}
    integers = network_file("i.onnx", [product, first], shapes, {"y": None}, weights)
    alone = network_file("a.onnx", [helper.make_node("Relu", ["x"], ["y"])], shapes, {"y": None})
    scale = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    to_int8 = helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"], "round")
    back = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])
    rounded = network_file(
        "q.onnx", [product, to_int8, back], shapes, {"y": None}, {**weights, **scale}
    )
    for path, why in (
        (integers, "no output is of floats"), (alone, "no weight is of floats"),
        (rounded, "Linear. has no gradient"),
    ):  # fmt: skip
        with pytest.raises(
            UnsupportedError, match=f"cannot be trained: .*{why}.*leave out --train"
        ):
            require_trainable(read_network(path))
    whole = network_file("p.onnx", [product], shapes, {"h": None}, weights)
    require_trainable(read_network(whole))
