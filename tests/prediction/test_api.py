"""The Python API: what a network may be given as, many networks at once, and answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import resperf
from resperf.errors import NetworkError, ResperfError, ShapeError
from resperf.network import read_network
from resperf.prediction.reading import read

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
LENET = NETWORKS / "lenet5.onnx"
WIDTHS = (8, 300, 24)


def network(width: int) -> onnx.ModelProto:
    """A convolution, an activation and a product; 300 channels are 432 kB of weights."""
    weights = {
        "taps": np.ones((width, 40, 3, 3), np.float32),
        "flat": np.array([0, -1], np.int64),
        "w": np.ones((16 * width, 10), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "taps"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "flat"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w"], ["y"], "product"),
    ]
    graph = helper.make_graph(
        nodes,
        f"of_{width}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def models() -> list[onnx.ModelProto]:
    return [network(width) for width in WIDTHS]


def test_a_network_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    shutil.copy(LENET, path)
    [first] = read(path, 1)
    assert read(path, 1)[0] is first
    assert [each.batch for each in read(path, [1, 8])] == [1, 8]
    path.unlink()
    shutil.copy(NETWORKS / "alexnet.onnx", path)
    assert len(read(path, 1)[0].nodes) != len(first.nodes)
    path.unlink()
    with pytest.raises(NetworkError, match="no file"):
        read(path, 1)


def test_a_shipped_network_is_found_by_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read("lenet5", 1)[0].nodes == read(LENET, 1)[0].nodes
    shutil.copy(NETWORKS / "alexnet.onnx", tmp_path / "lenet5")
    assert read("lenet5", 1)[0].nodes == read(NETWORKS / "alexnet.onnx", 1)[0].nodes
    with pytest.raises(NetworkError, match=r"no file resnet5 \(did you mean resnet50"):
        read("resnet5", 1)
    with pytest.raises(NetworkError, match=r"no file here/lenet5; give the path of an ONNX file$"):
        read("here/lenet5", 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_file_its_content_and_a_model_are_the_same_network(width: int, tmp_path: Path) -> None:
    model, path = network(width), tmp_path / f"of_{width}.onnx"
    before = model.SerializeToString()
    path.write_bytes(before)
    of_file = read_network(path, batch=2)
    for given in (str(path), before, bytearray(before), memoryview(before), model):
        [found] = read(given, 2)
        assert found.name == of_file.name
        assert found.nodes == of_file.nodes
        assert found.inputs == of_file.inputs
        assert {name: each.shape for name, each in found.tensors.items()} == {
            name: each.shape for name, each in of_file.tensors.items()
        }
        assert found.parameters == of_file.parameters
        assert found.tensors["flat"].value.tolist() == [0, -1]
    assert model.SerializeToString() == before


def test_a_model_in_memory_is_read_again_once_it_has_changed() -> None:
    model = network(8)
    [first] = read(model, 1)
    assert read(model, 1)[0] is first
    model.graph.node[1].op_type = "Sigmoid"
    assert [node.op for node in read(model, 1)[0].nodes][1] == "Sigmoid"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"", "the given network is not an ONNX file"),
        (b"nonsense", "the given network is not an ONNX file"),
        (onnx.ModelProto(), "the given network .* holds no graph"),
        (3, "a network is a path, a PyTorch module, .* not int"),
    ],
)
def test_what_is_no_network_is_refused(given: object, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        read(given, 1)  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match=f"^network 1: {message}"):
        resperf.predict_many([LENET, given], device="h100", batch=1)  # type: ignore[list-item]


def test_integers_of_numpy_are_integers() -> None:
    plain = resperf.predict(LENET, device="h100", batch=[1, 8])
    array = resperf.predict(LENET, device="h100", batch=np.array([1, 8]), threads=np.int16(1))
    assert [each.to_json() for each in array] == [each.to_json() for each in plain]
    shapes = {"x": np.array([2, 40, 4, 4])}
    model = network(8)
    assert resperf.predict(model, device="h100", shapes=shapes).subject.batch == 2
    one = resperf.predict(model, device="h100", batch=np.uint8(2))
    assert type(one.subject.batch) is int
    assert one.to_json() == resperf.predict(model, device="h100", batch=2).to_json()
    for wrong in (2.0, "2", np.float32(2)):
        with pytest.raises(ShapeError, match=r"batch .* is not an integer"):
            resperf.predict(model, device="h100", batch=wrong)
    with pytest.raises(ResperfError, match="threads '2' is not an integer"):
        resperf.predict(model, device="h100", batch=1, threads="2")
    with pytest.raises(ShapeError, match=r"a dimension of 'x', 1\.5 is not an integer"):
        resperf.predict(model, device="h100", shapes={"x": [1.5, 40, 4, 4]})


def test_tracebacks_say_what_options_are_in_python() -> None:
    with pytest.raises(ShapeError, match="such as --batch 1") as error:
        resperf.predict_many([LENET], device="h100", batch=0)
    assert error.value.__notes__ == ["in Python, --batch is batch=1"]
    with pytest.raises(ResperfError, match=r"resperf train .* --method gianniti") as error:
        resperf.predict(LENET, device="h100", method="gianniti")
    # That option is the command's.
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("device", ["cpu", "h100", "v100", "l40s"])
def test_many_networks_are_predicted_as_each_alone(device: str, models) -> None:
    given = [*models, LENET]
    together = resperf.predict_many(given, device=device, batch=4)
    alone = [resperf.predict(each, device=device, batch=4) for each in given]
    assert [each.subject.network for each in together] == ["of_8", "of_300", "of_24", "lenet5"]
    for one, other in zip(together, alone, strict=True):
        # Matrix products of many rows add up in another order.
        assert one.total_ms == pytest.approx(other.total_ms, rel=1e-5)
        assert [each.key for each in one.layers] == [each.key for each in other.layers]
        assert one.remarks.notes == other.remarks.notes
        assert one.remarks.warnings == other.remarks.warnings
    assert resperf.predict_many([], device=device) == []


def test_the_predictors_are_asked_once_for_all_networks(models, monkeypatch) -> None:
    from resperf.bundle import Bundle

    asked: list[int] = []
    predict = Bundle.predict

    def counting(self, layers, *words):
        asked.append(len(layers))
        return predict(self, layers, *words)

    monkeypatch.setattr(Bundle, "predict", counting)
    found = resperf.predict_many([*models, models[0]], device="cpu", batch=1)
    distinct = {layer.key for each in found for layer in each.layers}
    assert asked == [len(distinct)]


def test_a_prediction_as_one_line() -> None:
    known = resperf.predict(LENET, device="cpu", batch=1)
    line = str(known)
    assert line.startswith("lenet5, batch 1, on cpu with onnxruntime")
    assert f": {known.total_ms:.4f} ms (90% interval {known.low_ms:.4f} to " in line
    assert "\n" not in line
    assert repr([known]) == f"[<{line}>]"


def test_linear_resizes_of_small_images_take_long_in_eager_torch() -> None:
    """There planes wait for one another: 64 x 512 with 4 input pixels, 45 ns for each of these."""

    def resized_ms(mode: str) -> float:
        graph = helper.make_graph(
            [helper.make_node("Resize", ["x", "", "s"], ["y"], "one", mode=mode)],
            "resized",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 512, 4, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (layer,) = resperf.predict(model, device="v100", framework="torch").layers
        assert (layer.kind, layer.estimated) == ("resize", True)
        return layer.execution_ms

    assert resized_ms("linear") == pytest.approx(0.005 + 64 * 512 * 4 * 45e-6)
    assert resized_ms("nearest") < 0.1


def test_layers_as_rows_of_a_table() -> None:
    prediction = resperf.predict(LENET, device="cpu", batch=2)
    rows = prediction.to_rows()
    assert [row["kind"] for row in rows] == [layer.kind for layer in prediction.layers]
    assert sum(row["execution_ms"] for row in rows) == pytest.approx(
        sum(layer.execution_ms for layer in prediction.layers)
    )
    assert {type(row["macs"]) for row in rows} == {int}
    assert {row["network"] for row in rows} == {"lenet5"}
