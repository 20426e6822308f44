"""Networks made runnable: real weights where the file has them, random ones elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save_model

from resperf.network import materialise, read_network

NETWORKS = Path(__file__).parents[2] / "models" / "networks"


def run(model: ModelProto, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.array(w)) for w in weights.values()]
        options.add_external_initializers(list(weights), values)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def dense_net(weight: TensorProto) -> bytes:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 30])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 40])
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture
def values() -> np.ndarray:
    return np.arange(1200, dtype=np.float32).reshape(30, 40) / 1200


def test_embedded_weights_are_the_files(tmp_path: Path, values: np.ndarray) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(dense_net(numpy_helper.from_array(values, "w")))
    model, weights = materialise(path, batch=2)
    assert list(weights) == ["w"]
    np.testing.assert_array_equal(weights["w"], values)
    x = np.ones((2, 30), np.float32)
    np.testing.assert_allclose(run(model, weights, x), x @ values, rtol=1e-5)


def test_weights_as_a_list_of_floats_are_read_too(tmp_path: Path, values: np.ndarray) -> None:
    path = tmp_path / "net.onnx"
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [30, 40], values.ravel().tolist())
    assert not tensor.raw_data
    path.write_bytes(dense_net(tensor))
    assert read_network(path, batch=1).tensors["w"].value is None
    np.testing.assert_array_equal(materialise(path, batch=1)[1]["w"], values)


def test_external_data_in_the_folder_is_read(tmp_path: Path, values: np.ndarray) -> None:
    path = tmp_path / "net.onnx"
    (tmp_path / "net.bin").write_bytes(b"\0" * 64 + values.tobytes())
    weight = TensorProto(dims=[30, 40], data_type=1, name="w", data_location=1)
    weight.external_data.add(key="location", value="net.bin")
    weight.external_data.add(key="offset", value="64")
    path.write_bytes(dense_net(weight))
    np.testing.assert_array_equal(materialise(path, batch=1)[1]["w"], values)


def test_external_data_of_four_bits_is_made_up(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    numbers = np.arange(-8, 7, dtype=np.int8).reshape(3, 5)
    four_bits = helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    weight = numpy_helper.from_array(numbers.astype(four_bits), "q")
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"])
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    scale = numpy_helper.from_array(np.float32(1), "s")
    graph = helper.make_graph([node], "g", [], [info], [weight, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save_model(
        model, path, save_as_external_data=True, location="net.data", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    assert materialise(path)[1]["q"].shape == numbers.shape


def test_the_same_seed_makes_the_same_weights(tmp_path: Path) -> None:
    path = NETWORKS / "lenet5.onnx"
    first, again, other = (materialise(path, batch=1, seed=seed)[1] for seed in (3, 3, 4))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    assert not np.array_equal(first["dense10.bias"][:10], first["dense12.bias"][:10])


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_networks_with_random_weights_run_with_the_shapes_that_were_read(name: str) -> None:
    path = NETWORKS / f"{name}.onnx"
    net = read_network(path, batch=2)
    model, weights = materialise(path, batch=2)
    x = np.random.default_rng(0).standard_normal(net.tensors["input"].shape, np.float32)
    y = run(model, weights, x)
    assert y.shape == net.tensors["output"].shape == (2, net.tensors["output"].shape[1])
    # Neither all zero nor out of range: the outputs of two images differ.
    assert np.isfinite(y).all()
    assert 1e-3 < np.abs(y).max() < 1e6
    assert not np.allclose(y[0], y[1])


def test_variances_are_positive() -> None:
    _, weights = materialise(NETWORKS / "resnet18.onnx", batch=1)
    variances = [array for name, array in weights.items() if name.endswith("variance")]
    assert len(variances) == 20
    assert all(array.min() > 0 for array in variances)


def test_constants_without_bytes_get_random_values(tmp_path: Path) -> None:
    hollow = TensorProto(data_type=TensorProto.FLOAT, dims=(30, 40))
    index = TensorProto(data_type=TensorProto.INT64, dims=(5000,))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=hollow),
        helper.make_node("Constant", [], ["i"], value=index),
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2))),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "two"], ["q"]),
        helper.make_node("Gather", ["q", "i"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 30])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5000])
    graph = helper.make_graph(nodes, "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "net.onnx"
    path.write_bytes(made.SerializeToString())
    model, weights = materialise(path, batch=2)
    assert set(weights) == {"w", "i"}
    assert [node.op_type for node in model.graph.node] == ["Constant", "MatMul", "Mul", "Gather"]
    assert not weights["i"].any()
    assert run(model, weights, np.ones((2, 30), np.float32)).shape == (2, 5000)
