"""Unreadable files: an error in one line, never a traceback, a hang or much memory."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from resperf.errors import NetworkError, ShapeError
from resperf.network import materialise, read_network
from resperf.network.wire import encode_varint


def lenet_bytes() -> bytes:
    path = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
    return path.read_bytes()


def error_of(path: Path, **options: object) -> str:
    with pytest.raises(NetworkError) as caught:
        read_network(path, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def model_of(nodes: list, inputs: list[str], outputs: list[str], weights: list = ()) -> ModelProto:
    def info(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])

    graph = helper.make_graph(
        nodes, "g", [info(name) for name in inputs], [info(name) for name in outputs], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.onnx"


def test_missing_empty_and_folder(path: Path, tmp_path: Path) -> None:
    assert "no file" in error_of(path)
    path.touch()
    assert "empty" in error_of(path)
    assert "is a folder" in error_of(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    assert "tf2onnx.convert --saved-model" in error_of(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    assert "not a regular file" in error_of(path)


@pytest.mark.parametrize(
    ("name", "head", "advice"),
    [
        ("net.keras", b"PK\x03\x04", "keras.saving.load_model"),
        ("net.h5", b"\x89HDF\r\n\x1a\n", "format='onnx'"),
        ("net.pt", b"PK\x03\x04", "torch.onnx.export"),
        ("net.pth", b"\x80\x02\x8a", "torch.onnx.export"),
        ("net.tflite", b"\x1c\0\0\0TFL3", "--tflite"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_other_formats_get_the_command_that_converts_them(
    tmp_path: Path, name: str, head: bytes, advice: str
) -> None:
    path = tmp_path / name
    path.write_bytes(head + bytes(100))
    assert advice in error_of(path)


@pytest.mark.parametrize("data", [b"hello, this is a text file\n" * 9, bytes(1000), b"\xff" * 50])
def test_not_onnx(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert "is not an ONNX file" in error_of(path)


def test_truncated_anywhere(path: Path) -> None:
    data = lenet_bytes()
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        error_of(path, batch=1)


def test_damaged_bytes_never_give_another_exception(path: Path) -> None:
    data = lenet_bytes()
    draw = random.Random(7)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 3))):
            damaged[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(NetworkError):
            read_network(path, batch=2)
            continue
        refused += 1
    assert refused > 200


def test_a_length_beyond_the_file_is_refused(path: Path) -> None:
    path.write_bytes(b"\x08\x08" + b"\x3a" + encode_varint(1 << 62) + bytes(10))
    assert "more bytes" in error_of(path)


def test_deep_nesting_is_refused(path: Path) -> None:
    # node(attribute(graph(node(...)))), 2000 levels: fields 1, 5, 6 of graph, node, attribute.
    inner = b"x" * 2000
    for _ in range(2000):
        for field in (6, 5, 1):
            inner = encode_varint(field << 3 | 2) + encode_varint(len(inner)) + inner
    path.write_bytes(b"\x08\x08\x3a" + encode_varint(len(inner)) + inner)
    assert "nested more than" in error_of(path)


def test_missing_source_cycle_and_double_names(path: Path) -> None:
    relu = helper.make_node
    cases = {
        "reads tensor 'ghost', which nothing produces": model_of(
            [relu("Relu", ["ghost"], ["y"], "r")], ["x"], ["y"]
        ),
        "node 'one' (Add) depends on itself": model_of(
            [relu("Add", ["x", "b"], ["a"], "one"), relu("Relu", ["a"], ["b"], "two")], ["x"], ["b"]
        ),
        "tensor 'y' has two sources, the second being node 'two'": model_of(
            [relu("Relu", ["x"], ["y"], "one"), relu("Tanh", ["x"], ["y"], "two")], ["x"], ["y"]
        ),
        "nothing produces its output 'z'": model_of([relu("Relu", ["x"], ["y"])], ["x"], ["z"]),
        "two inputs or weights have the same name": model_of(
            [relu("Relu", ["x"], ["y"])], ["x", "x"], ["y"]
        ),
        "holds an empty network": model_of([], [], []),
    }
    for message, model in cases.items():
        path.write_bytes(model.SerializeToString())
        assert message in error_of(path)


@pytest.mark.parametrize("dims", [[1 << 40, 1 << 40], [-3, 4]])
def test_absurd_weights_are_refused(path: Path, dims: list[int]) -> None:
    weight = TensorProto(dims=dims, data_type=1, name="w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path.write_bytes(model_of([node], ["x"], ["y"], [weight]).SerializeToString())
    with pytest.raises(ShapeError, match="'w' cannot have the shape"):
        read_network(path)


def test_a_large_weight_without_bytes_costs_nothing(path: Path) -> None:
    weight = TensorProto(dims=[3, 1 << 36], data_type=1, name="w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path.write_bytes(model_of([node], ["x"], ["y"], [weight]).SerializeToString())
    net = read_network(path)
    assert net.tensors["y"].shape == (2, 1 << 36)


def test_bytes_that_do_not_fit_a_constant_are_refused(path: Path) -> None:
    weight = TensorProto(dims=[3, 3], data_type=1, name="w", raw_data=bytes(35))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path.write_bytes(model_of([node], ["x"], ["y"], [weight]).SerializeToString())
    assert "bytes of constant 'w' do not fit" in error_of(path)


def test_constants_of_absurd_size_are_not_filled(path: Path) -> None:
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [3, 1 << 36])
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    path.write_bytes(model_of(nodes, ["x"], ["y"], [shape]).SerializeToString())
    assert read_network(path).tensors["w"].shape == (3, 1 << 36)


def test_a_sequence_as_input_is_named(path: Path) -> None:
    model = model_of([helper.make_node("SequenceLength", ["x"], ["y"])], ["x"], ["y"])
    info = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    model.graph.input[0].CopyFrom(info)
    path.write_bytes(model.SerializeToString())
    assert "input 'x' is not a tensor (sequence)" in error_of(path)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin"])
def test_external_data_outside_the_folder_is_never_opened(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\x01" * 4 * 1200)
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    weight = TensorProto(dims=[3, 400], data_type=1, name="w", data_location=1)
    weight.external_data.add(key="location", value=location)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = folder / "net.onnx"
    path.write_bytes(model_of([node], ["x"], ["y"], [weight]).SerializeToString())
    assert read_network(path).tensors["y"].shape == (2, 400)
    _, weights = materialise(path)
    assert weights["w"].shape == (3, 400)
    # 0x01010101 as a float is 2.4e-38; random weights are of the order of 0.1.
    assert abs(weights["w"]).max() > 0.01


def test_external_data_that_is_too_short_is_refused(path: Path) -> None:
    (path.parent / "net.bin").write_bytes(bytes(100))
    weight = TensorProto(dims=[3, 400], data_type=1, name="w", data_location=1)
    weight.external_data.add(key="location", value="net.bin")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path.write_bytes(model_of([node], ["x"], ["y"], [weight]).SerializeToString())
    with pytest.raises(NetworkError, match=r"does not hold weight 'w'.*too short"):
        materialise(path)


def test_names_inside_a_branch_are_text(path: Path) -> None:
    def branch(name: str) -> GraphProto:
        node = helper.make_node("Neg", ["x"], [name], f"{name}_node")
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info(name, 1, None)])

    then, other = branch("firstmade"), branch("othermade")
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    weights = [numpy_helper.from_array(np.array(True), "c")]
    data = model_of([choice], ["x"], ["y"], weights).SerializeToString()
    path.write_bytes(data)
    assert [node.op for node in read_network(path).nodes] == ["Neg"]
    for damaged in (b"firstmade_node", b"firstmade"):
        path.write_bytes(data.replace(damaged, b"\xff" + damaged[1:]))
        assert "is not text" in error_of(path)


def test_names_are_printable(path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"], "\x1b[2Jclean")
    path.write_bytes(model_of([node], ["x"], ["y"]).SerializeToString())
    assert [node.name for node in read_network(path).nodes] == [r"\x1b[2Jclean"]


def test_intermediate_tensors_of_absurd_size_are_refused(path: Path) -> None:
    for dims in ([2**62] * 17, [2**30, 2**30]):
        shape = numpy_helper.from_array(np.array(dims), "shape")
        nodes = [
            helper.make_node("Expand", ["x", "shape"], ["large"]),
            helper.make_node("ReduceMax", ["large"], ["y"], keepdims=0),
        ]
        model = model_of(nodes, ["x"], ["y"], [shape])
        for info in (model.graph.input[0], model.graph.output[0]):
            info.type.tensor_type.shape.dim[0].dim_value = 1
            info.type.tensor_type.shape.dim[1].dim_value = 1
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ShapeError, match="cannot have the shape"):
            read_network(path)


def test_an_input_that_an_operator_does_not_take_is_no_traceback(path: Path) -> None:
    nodes = [
        helper.make_node("RandomNormal", ["x"], ["r"], shape=[2, 3]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    path.write_bytes(model_of(nodes, ["x"], ["y"]).SerializeToString())
    with contextlib.suppress(NetworkError):
        assert read_network(path).tensors["y"].shape == (2, 3)


def test_types_that_must_be_equal_and_differ_are_named(path: Path) -> None:
    half = numpy_helper.from_array(np.ones(3, np.float16), "half")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Mul", ["r", "half"], ["y"], name="scale"),
    ]
    path.write_bytes(model_of(nodes, ["x"], ["y"], [half]).SerializeToString())
    text = error_of(path)
    assert "'scale' (Mul) is given float32 (r) and float16 (half)" in text
    assert "convert it again" in text


def test_external_weights_of_a_subgraph_are_refused(path: Path) -> None:
    secret = path.parent / "secret.bin"
    secret.write_bytes(bytes(24))
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=secret.name)
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["b"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("a", 1, [2, 3])],
        [info("on", TensorProto.BOOL, []), info("b", 1, [2, 3])],
        [weight],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    count = numpy_helper.from_array(np.array(3), "n")
    path.write_bytes(model_of([loop], ["x"], ["y"], [count]).SerializeToString())
    with pytest.raises(NetworkError, match="weights in another file"):
        materialise(path)


def test_a_long_vector_costs_no_memory(path: Path) -> None:
    # ONNX's data propagation would hold a message for each of its 33 million elements.
    resource = pytest.importorskip("resource")
    model = model_of(
        [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=7)],
        ["x"],
        ["y"],
    )
    vector = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 25])
    model.graph.input[0].CopyFrom(vector)
    path.write_bytes(model.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_network(path).tensors["y"].shape == (1 << 25,)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200_000


@pytest.mark.parametrize(
    ("op", "count", "limit"), [("ReduceMean", 3, "takes 1"), ("MatMul", 1, "needs 2")]
)
def test_a_number_of_inputs_that_no_operator_has_is_an_error(
    path: Path, op: str, count: int, limit: str
) -> None:
    inputs = ["a", "b", "c"][:count]
    path.write_bytes(
        model_of([helper.make_node(op, inputs, ["y"])], inputs, ["y"]).SerializeToString()
    )
    assert f"({op}) has {count} inputs and {limit}" in error_of(path)
