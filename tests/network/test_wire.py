"""The wire format: what is copied, what is dropped, and files larger than memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from resperf.network import read_network, stripped_model
from resperf.network.wire import encode_varint, strip


def model_with(weights: list[TensorProto], **options: object) -> ModelProto:
    nodes = [
        helper.make_node(
            "Constant", [], ["c"], value=numpy_helper.from_array(np.ones((20, 20), np.float32))
        ),
        helper.make_node("Relu", ["x"], ["y"], doc_string="stack trace " * 200),
    ]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "g", [info], [out], weights, value_info=[out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("value", "encoded"), [(1, b"\x01"), (300, b"\xac\x02"), (0, b"\0")])
def test_varints_are_protobufs(value: int, encoded: bytes) -> None:
    assert encode_varint(value) == encoded


def test_large_tensors_lose_their_bytes_and_nothing_else() -> None:
    small = numpy_helper.from_array(np.arange(200, dtype=np.float32), "small")
    shape = numpy_helper.from_array(np.arange(4096, dtype=np.int64), "shape")
    large = numpy_helper.from_array(np.zeros((40, 50), np.float32), "large")
    packed = helper.make_tensor("packed", TensorProto.FLOAT, [300], [0.5] * 300)
    half = helper.make_tensor("half", TensorProto.FLOAT16, [1000], [0.5] * 1000)
    original = model_with([small, shape, large, packed, half])
    stripped = strip(original.SerializeToString())
    model = ModelProto.FromString(stripped.model)
    copied = {tensor.name: tensor for tensor in model.graph.initializer}
    assert copied["small"] == small
    assert copied["shape"] == shape
    for tensor in (large, packed, half):
        assert list(copied[tensor.name].dims) == list(tensor.dims)
        assert copied[tensor.name].data_type == tensor.data_type
        assert copied[tensor.name].ByteSize() < 40
    assert len(stripped.weights) == 3
    # The attribute's 400 floats and the stack trace are gone too.
    assert list(model.graph.node[0].attribute[0].t.dims) == [20, 20]
    assert not model.graph.node[0].attribute[0].t.raw_data
    assert not model.graph.node[1].doc_string
    assert model.graph.node[1].op_type == "Relu"
    assert model.opset_import == original.opset_import


def test_keep_attributes_copies_what_running_needs() -> None:
    data = model_with([]).SerializeToString()
    model = ModelProto.FromString(strip(data, keep_attributes=True).model)
    assert len(model.graph.node[0].attribute[0].t.raw_data) == 1600


def test_a_list_of_separate_floats_is_dropped() -> None:
    # float_data written one by one: field 4, 32 bits, 1000 times.
    element = encode_varint(4 << 3 | 5) + np.float32(1.5).tobytes()
    tensor = b"\x08" + encode_varint(1000) + b"\x10\x01" + element * 1000 + b"\x42\x01w"
    graph = b"\x2a" + encode_varint(len(tensor)) + tensor
    data = b"\x08\x08\x3a" + encode_varint(len(graph)) + graph
    (weight,) = ModelProto.FromString(strip(data).model).graph.initializer
    assert (weight.name, list(weight.dims), len(weight.float_data)) == ("w", [1000], 0)


def test_the_weights_of_a_file_of_three_gigabytes_are_skipped(tmp_path: Path) -> None:
    """The file is sparse: it takes no disk space, but three gigabytes of memory if read whole."""
    dims = [3, 250_000_000]
    bytes_ = 3_000_000_000
    head = TensorProto(dims=dims, data_type=1, name="w").SerializeToString()
    head += encode_varint(9 << 3 | 2) + encode_varint(bytes_)
    rest = model_with([])
    rest.graph.node[1].CopyFrom(helper.make_node("MatMul", ["x", "w"], ["y"]))
    tail = rest.graph.SerializeToString()
    tensor_bytes = len(head) + bytes_
    start = encode_varint(5 << 3 | 2) + encode_varint(tensor_bytes) + head
    graph_bytes = len(start) + bytes_ + len(tail)
    rest.ClearField("graph")
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.write(rest.SerializeToString())
        file.write(encode_varint(7 << 3 | 2) + encode_varint(graph_bytes) + start)
        file.seek(bytes_, 1)
        file.write(tail)
    assert path.stat().st_size > bytes_
    stripped_model(path)
    tracemalloc.start()
    net = read_network(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert net.tensors["w"].shape == (3, 250_000_000)
    assert net.tensors["y"].shape == (2, 250_000_000)
    assert peak_bytes < 1_000_000
