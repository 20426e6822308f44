"""What a network computes follows the batch size that it is read at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from resperf.errors import ShapeError
from resperf.network import read_given_network, read_network

NETWORKS = Path(__file__).parents[2] / "models" / "networks"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(
        nodes: Sequence[NodeProto],
        dims: Sequence[int | str],
        weights: Sequence[TensorProto] = (),
        opset: int = 17,
    ) -> Path:
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph: GraphProto = helper.make_graph(nodes, "g", [image], [result], list(weights))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        path = tmp_path / "net.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return written


def constant(name: str, data: Any, kind: Any = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(data, kind), name)


def windows() -> list[NodeProto]:
    """Shift, divide into windows, normalise, attend, join: as PyTorch exports a Swin block."""
    node = helper.make_node
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axis"], ["batch1"]),
        node("Concat", ["batch1", "split"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["six"]),
        node("Transpose", ["six"], ["swapped"], perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", ["swapped", "flat"], ["rows"]),
        node("LayerNormalization", ["rows", "scale", "shift"], ["normal"], axis=-1),
        node("Transpose", ["normal"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["normal", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["share"], axis=-1),
        node("MatMul", ["share", "normal"], ["mixed"]),
        node("Concat", ["mixed", "normal"], ["joined"], axis=-1),
        node("Slice", ["joined", "from", "to", "last"], ["half"]),
        node("Mul", ["half", "normal"], ["gated"]),
        node("ReduceMean", ["gated"], ["y"], axes=[1], keepdims=0),
    ]


def window_weights() -> list[TensorProto]:
    return [
        constant("zero", 0), constant("axis", [0]), constant("split", [2, 4, 2, 4, 6]),
        constant("flat", [-1, 16, 6]), constant("scale", np.ones(6), np.float32),
        constant("shift", np.zeros(6), np.float32), constant("from", [0]), constant("to", [6]),
        constant("last", [2]),
    ]  # fmt: skip


def test_shape_arithmetic_follows_the_batch(write: Callable[..., Path]) -> None:
    path = write(windows(), ["n", 8, 8, 6], window_weights())
    tensors = read_network(path, batch=8).tensors
    assert tensors["rows"].shape == (32, 16, 6)
    assert tensors["y"].shape == (32, 6)


def test_constants_that_grow_with_the_batch_are_folded_while_they_are_small(
    write: Callable[..., Path],
) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    path = write(nodes, ["n", 1000])
    folded = [read_network(path, batch=batch).tensors["zeros"].value for batch in (4, 8)]
    assert folded[0] is not None
    assert folded[1] is None


def test_a_class_token_of_one_image_does_not_fit_more(write: Callable[..., Path]) -> None:
    token = constant("token", np.zeros((1, 1, 8)), np.float32)
    path = write([helper.make_node("Concat", ["token", "x"], ["y"], axis=1)], ["n", 4, 8], [token])
    assert read_network(path, batch=1).tensors["y"].shape == (1, 5, 8)
    with pytest.raises(ShapeError):
        read_network(path, batch=8)


def test_a_batch_that_is_too_large_is_refused(write: Callable[..., Path]) -> None:
    node = helper.make_node("Concat", ["x"] * 400, ["y"], axis=1)
    path = write([node], ["n", 300])
    with pytest.raises(ShapeError, match="tensor 'y' cannot have the shape 100000000,120000"):
        read_network(path, batch=100_000_000)
    weights = [constant("w", np.zeros((3, 20_000)), np.float32)]
    path = write([helper.make_node("Gemm", ["x", "w"], ["y"])], ["n", 3], weights)
    with pytest.raises(ShapeError, match="tensor 'y' cannot have the shape 100000000,20000"):
        read_network(path, batch=100_000_000)


def test_a_network_in_memory_keeps_its_name() -> None:
    content = (NETWORKS / "lenet5.onnx").read_bytes()
    network = read_given_network(content, batch=5)
    assert network.name != "the given network"
    assert network.batch == 5
