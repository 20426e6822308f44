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


def head() -> list[NodeProto]:
    """A convolution whose channels are split into anchors and values."""
    node = helper.make_node
    return [
        node("Conv", ["x", "w"], ["c"]),
        node("Reshape", ["c", "target"], ["split"]),
        node("Transpose", ["split"], ["turned"], perm=[0, 1, 3, 4, 2]),
        node("Reshape", ["turned", "behind"], ["y"]),
    ]


@pytest.mark.parametrize(
    ("target", "behind"),
    [
        ([1, 3, 5, 8, 8], [1, -1, 5]),
        ([1, 3, 5, 8, 8], [1, 192, 5]),
        ([1, 3, -1, 8, 8], [1, 192, 5]),
    ],
)
def test_a_batch_that_a_tracer_fixed_is_read_as_the_requested_one(
    write: Callable[..., Path], target: list[int], behind: list[int]
) -> None:
    weights = [
        constant("w", np.ones((15, 3, 1, 1)), np.float32),
        constant("target", target),
        constant("behind", behind),
    ]
    path = write(head(), ["batch", 3, 8, 8], weights)
    network = read_network(path, batch=4)
    assert network.tensors["turned"].shape == (4, 3, 8, 8, 5)
    assert network.tensors["y"].shape == (4, 192, 5)
    (note,) = network.notes
    assert note == "batch 1 was fixed in the shapes of split, y; read as 4"
    alone = read_network(path, batch=1)
    assert (alone.tensors["y"].shape, alone.notes) == ((1, 192, 5), ())
    # A size of the image that a tracer fixed is no batch.
    with pytest.raises(ShapeError, match=r"\(Reshape\) cannot make .* of its input 1,"):
        read_network(path, shapes={"x": (1, 3, 16, 16)})


def test_attention_that_a_tracer_fixed_mixes_no_images(write: Callable[..., Path]) -> None:
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "heads"], ["h"]),
        node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("MatMul", ["scores", "q"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "joined"], ["rows"]),
        node("Add", ["rows", "x"], ["y"]),
    ]
    weights = [constant("heads", [1, -1, 2, 4]), constant("joined", [1, -1, 8])]
    network = read_network(write(nodes, ["batch", 6, 8], weights), batch=4)
    assert network.tensors["scores"].shape == (4, 2, 6, 6)


def test_a_batch_behind_the_tokens_is_folded_into_the_heads(write: Callable[..., Path]) -> None:
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "heads"], ["h"]),
        node("Reshape", ["h", "joined"], ["rows"]),
        node("Add", ["rows", "t"], ["y"]),
    ]
    weights = [constant("heads", [6, 2, 4]), constant("joined", [6, 1, 8])]
    network = read_network(write(nodes, ["batch", 6, 8], weights), batch=4)
    assert network.tensors["h"].shape == (6, 8, 4)
    assert network.notes == ("batch 1 was fixed in the shapes of h, rows; read as 4",)


def test_sizes_of_a_resize_keep_the_number_of_images(write: Callable[..., Path]) -> None:
    nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")]
    path = write(nodes, ["batch", 3, 8, 8], [constant("sizes", [1, 3, 16, 16])])
    assert read_network(path, batch=4).tensors["y"].shape == (4, 3, 16, 16)
    path = write(nodes, ["batch", 3, 8, 8], [constant("sizes", [2, 3, 16, 16])])
    with pytest.raises(ShapeError, match=r"\(Resize\) cannot make 2,3,16,16 of its input 4,3,8,8"):
        read_network(path, batch=4)


def test_an_output_that_keeps_the_batch_of_the_file_is_noted(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    nodes = [helper.make_node("Slice", ["x", "from", "to"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [constant("from", [0]), constant("to", [1])])
    network = read_given_network(helper.make_model(graph), batch=4)
    (note,) = network.notes
    assert note.startswith("batch 4 does not reach output y")
    assert read_given_network(helper.make_model(graph), batch=1).notes == ()
