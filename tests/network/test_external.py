"""Shape constants that a converter wrote into another file, beside the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from resperf import predict
from resperf.errors import NetworkError
from resperf.network import read_given_network, read_graph, read_network, weightless
from resperf.network.cached import read_network_once

DATA = "net.onnx.data"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A product, its result split into three, one part reshaped; all constants are outside."""
    weights = {
        "w": np.ones((64, 96), np.float32), "parts": np.array([32, 32, 32]),
        "heads": np.array([0, -1, 4, 8]), "axis": np.array([2], np.int64),
        "scales": np.array([1, 2, 1, 1], np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["all"]),
        helper.make_node("Split", ["all", "parts"], ["q", "k", "v"], axis=2),
        helper.make_node("Reshape", ["q", "heads"], ["h"]),
        helper.make_node("Resize", ["h", "", "scales"], ["wide"]),
        helper.make_node("ReduceSum", ["k", "axis"], ["sum"], keepdims=0),
        helper.make_node("Relu", ["v"], ["last"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in given]
        for given in ([("x", ["B", 5, 64])], [("wide", None), ("sum", None), ("last", None)])
    ]
    values = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", *ends, values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "net.onnx"
    options = {"save_as_external_data": True, "location": DATA, "size_threshold": 0}
    onnx.save(model, path, **options)
    return path


def test_they_are_read_from_that_file(path: Path) -> None:
    for network in (read_network(path, batch=2), read_network_once(path, batch=2)):
        assert network.tensors["wide"].shape == (2, 10, 4, 8)
        assert network.tensors["sum"].shape == (2, 5)
    # What is stored of a network has them inside.
    assert read_graph(weightless(path), "net", batch=2).tensors["wide"].shape == (2, 10, 4, 8)
    assert predict(path, device="cpu", batch=2).complete


@pytest.mark.parametrize("device", ["cpu", "t4"])
def test_one_error_names_the_file_that_is_missing(path: Path, device: str) -> None:
    (path.parent / DATA).unlink()
    with pytest.raises(NetworkError, match=f"3 shape constants are in {DATA}, which is missing"):
        predict(path, device=device, batch=2)
    with pytest.raises(NetworkError, match="the given network: 3 shape constants"):
        read_given_network(path.read_bytes(), batch=2)
    # Once the file is there, nothing remembers that it was not.
    (path.parent / DATA).write_bytes(b"\0" * 100)
    with pytest.raises(NetworkError, match="does not hold weight 'parts'"):
        predict(path, device=device, batch=2)


def test_a_file_that_lacks_only_weights_is_read(path: Path) -> None:
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location=DATA, size_threshold=1024)
    (path.parent / DATA).unlink()
    assert read_network(path, batch=2).tensors["wide"].shape == (2, 10, 4, 8)
