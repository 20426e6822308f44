"""A model is read again at another batch size as if it were read for the first time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from resperf.errors import ShapeError
from resperf.network import Network, read_given_network, read_network, reader, shapes
from resperf.network.cached import _plain_network

REFERENCE = sorted((Path(__file__).parents[2] / "models" / "networks").glob("*.onnx"))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Keep nothing of other tests."""
    reader._readings.clear()
    yield
    reader._readings.clear()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a whole model is inferred: a first reading does it once."""
    found: list[int] = []
    infer = shapes._infer_model

    def counted(model: Any) -> Any:
        found.append(1)
        return infer(model)

    monkeypatch.setattr(shapes, "_infer_model", counted)
    return found


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


def plain(network: Network) -> Any:
    return copy.deepcopy(_plain_network(network))


def read_at(path: Path, *batches: int) -> list[Any]:
    """Read a model at several batch sizes, none of which is its first reading but the first."""
    return [plain(read_network(path, batch=batch)) for batch in batches]


def anew(path: Path, batch: int) -> Any:
    reader._readings.clear()
    return plain(read_network(path, batch=batch))


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_a_reference_network_is_the_same_as_read_anew(path: Path, readings: list[int]) -> None:
    found = read_at(path, 1, 8, 3)
    assert len(readings) == 1
    assert found[1:] == [anew(path, 8), anew(path, 3)]


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


def test_shape_arithmetic_follows_the_batch(
    write: Callable[..., Path], readings: list[int]
) -> None:
    path = write(windows(), ["n", 8, 8, 6], window_weights())
    found = read_at(path, 1, 8, 1)
    assert len(readings) == 1
    assert found == [anew(path, 1), anew(path, 8), anew(path, 1)]
    rows = {name: shape for name, shape, *_ in found[1]["tensors"]}
    assert rows["rows"] == (32, 16, 6)
    assert rows["y"] == (32, 6)


def test_what_the_batch_does_not_change_is_not_computed_again(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Range", ["zero", "many", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "numbers"], ["y"]),
    ]
    weights = [constant("zero", 0), constant("many", 5), constant("one", 1)]
    path = write(nodes, ["n", 5], weights)
    read_network(path, batch=1)
    folded: list[str] = []
    evaluate = reader.folded

    def noted(node: NodeProto, *more: Any) -> Any:
        folded.append(node.op_type)
        return evaluate(node, *more)

    monkeypatch.setattr(reader, "folded", noted)
    assert read_network(path, batch=4).tensors["y"].shape == (4, 5)
    assert folded == []


def test_a_target_that_holds_the_batch_is_replaced_as_at_first(write: Callable[..., Path]) -> None:
    nodes = [helper.make_node("Reshape", ["x", "target"], ["y"])]
    path = write(nodes, [1, 4, 6], [constant("target", [1, 24])])
    found = read_at(path, 1, 8, 2)
    assert found == [anew(path, 1), anew(path, 8), anew(path, 2)]
    assert any("batch 1 was fixed" in note for note in found[1]["notes"])


def test_constants_that_grow_with_the_batch_are_folded_while_they_are_small(
    write: Callable[..., Path],
) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    path = write(nodes, ["n", 1000])
    found = read_at(path, 2, 8, 4)
    assert found == [anew(path, 2), anew(path, 8), anew(path, 4)]


def test_a_batch_that_does_not_fit_is_refused_as_at_first(write: Callable[..., Path]) -> None:
    path = write([helper.make_node("Add", ["x", "w"], ["y"])], ["n", 3], [
        constant("w", np.zeros((2, 3)), np.float32)
    ])  # fmt: skip
    read_network(path, batch=2)
    with pytest.raises(ShapeError) as again:
        read_network(path, batch=3)
    reader._readings.clear()
    with pytest.raises(ShapeError) as first:
        read_network(path, batch=3)
    assert str(again.value) == str(first.value)


RULED = {*shapes._SCALED, *shapes._PER_IMAGE, *shapes._ALONG_AXES}


@pytest.mark.parametrize("op", sorted(RULED))
def test_the_rules_for_shapes_are_those_of_onnx(
    op: str, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operator that has a rule, in a network: the same as read anew, by the rule."""
    node, zeros = helper.make_node, {"scale": np.ones(8), "shift": np.zeros(8)}
    dims: list[int | str] = ["n", 8, 4, 4]
    given: dict[str, list[str]] = {
        "BatchNormalization": ["x", "scale", "shift", "shift", "scale"],
        "InstanceNormalization": ["x", "scale", "shift"],
        "LayerNormalization": ["x", "side", "side"],
        "Concat": ["x", "x"], "MatMul": ["x", "square"], "Reshape": ["x", "target"],
        "Where": ["truth", "x", "x"], "Conv": ["x", "filters"], "ConvTranspose": ["x", "filters"],
        "QuantizeLinear": ["x", "one", "zero"], "DequantizeLinear": ["q", "one", "zero"],
        "ConvInteger": ["q", "bytes"],
        "QLinearConv": ["q", "one", "zero", "bytes", "one", "zero", "one", "zero"],
        **{name: ["x", "x"] for name in ("Add", "Div", "Mul", "Pow", "Sub")},
        "Gather": ["x", "places"], "Gemm": ["rows", "columns"], "Squeeze": ["u", "second"],
        "Unsqueeze": ["x", "second"], "Pad": ["x", "pads"],
        "Slice": ["x", "second", "third", "second"],
    }  # fmt: skip
    attributes: dict[str, dict[str, Any]] = {
        "Concat": {"axis": 1}, "Cast": {"to": TensorProto.FLOAT16},
        "Transpose": {"perm": [0, 2, 3, 1]}, "DepthToSpace": {"blocksize": 2},
        "SpaceToDepth": {"blocksize": 2}, "AveragePool": {"kernel_shape": [2, 2]},
        "MaxPool": {"kernel_shape": [2, 2]}, "Gather": {"axis": 1}, "Gemm": {"transB": 1},
        "Split": {"axis": 1, "num_outputs": 2},
    }  # fmt: skip
    weights = [
        *(constant(name, each, np.float32) for name, each in zeros.items()),
        constant("side", np.ones(4), np.float32), constant("square", np.ones((4, 4)), np.float32),
        constant("filters", np.ones((8, 8, 1, 1)), np.float32), constant("target", [0, 8, -1]),
        constant("truth", True, np.bool_), constant("one", 1.0, np.float32),
        constant("zero", 0, np.uint8), constant("bytes", np.ones((8, 8, 1, 1)), np.uint8),
        constant("places", [[3, 1]]), constant("columns", np.ones((5, 128)), np.float32),
        constant("flat", [0, -1]), constant("second", [1]), constant("third", [2]),
        constant("pads", [0, 2, 0, 0, 0, 1, 0, 0]),
    ]  # fmt: skip
    names = given.get(op, ["x"])
    makers = {
        "q": node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        "rows": node("Reshape", ["x", "flat"], ["rows"]),
        "u": node("Unsqueeze", ["x", "second"], ["u"]),
    }
    before = [makers[names[0]]] if names[0] in makers else []
    results = ["y", "z"] if op == "Split" else ["y"]
    path = write([*before, node(op, names, results, **attributes.get(op, {}))], dims, weights, 20)
    ruled: list[Any] = []
    rules = reader.shapes_at_batch

    def noted(op: str, *more: Any) -> Any:
        ruled.append((op, rules(op, *more)))
        return ruled[-1][1]

    monkeypatch.setattr(reader, "shapes_at_batch", noted)
    found = read_at(path, 1, 6)
    assert len(reader._readings) == 1
    assert dict(ruled)[op] is not None
    assert found == [anew(path, 1), anew(path, 6)]


@pytest.mark.parametrize(
    ("op", "more", "attributes"),
    [
        ("Gather", ["first"], {"axis": 0}),
        ("Slice", ["first", "second", "first"], {}),
        ("Pad", ["pads"], {}),
        ("Split", [], {"axis": 0, "num_outputs": 1}),
    ],
)
def test_what_works_along_the_batch_follows_no_rule_that_keeps_it(
    op: str, more: list[str], attributes: dict[str, Any], write: Callable[..., Path]
) -> None:
    node = helper.make_node(op, ["x", *more], ["y"], **attributes)
    weights = [constant("first", [0]), constant("second", [1]), constant("pads", [1, 0, 0, 0])]
    path = write([node], ["n", 4], weights, 20)
    assert read_at(path, 1, 6) == [anew(path, 1), anew(path, 6)]


def test_a_class_token_of_one_image_does_not_fit_more(write: Callable[..., Path]) -> None:
    token = constant("token", np.zeros((1, 1, 8)), np.float32)
    path = write([helper.make_node("Concat", ["token", "x"], ["y"], axis=1)], ["n", 4, 8], [token])
    assert read_network(path, batch=1).tensors["y"].shape == (1, 5, 8)
    with pytest.raises(ShapeError):
        read_network(path, batch=8)


def test_a_batch_that_is_too_large_is_refused_as_at_first(write: Callable[..., Path]) -> None:
    node = helper.make_node("Concat", ["x"] * 400, ["y"], axis=1)
    path = write([node], ["n", 300])
    read_network(path, batch=2)
    with pytest.raises(ShapeError, match="tensor 'y' cannot have the shape 100000000,120000"):
        read_network(path, batch=100_000_000)
    weights = [constant("w", np.zeros((3, 20_000)), np.float32)]
    path = write([helper.make_node("Gemm", ["x", "w"], ["y"])], ["n", 3], weights)
    read_network(path, batch=2)
    with pytest.raises(ShapeError, match="tensor 'y' cannot have the shape 100000000,20000"):
        read_network(path, batch=100_000_000)


def test_the_last_models_are_kept(write: Callable[..., Path]) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    for size in range(2, 3 + reader._READINGS_KEPT):
        read_network(write([node], ["n", size]), batch=1)
    assert len(reader._readings) == reader._READINGS_KEPT
    path = write([node], ["n", "m"])
    for length in (3, 5):
        network = read_network(path, batch=4, shapes={"x": (2, length)})
        assert network.tensors["y"].shape == (4, length)


def test_a_file_that_changes_is_read_anew(write: Callable[..., Path]) -> None:
    node = helper.make_node
    read_network(write([node("Relu", ["x"], ["y"])], ["n", 3]), batch=1)
    path = write([node("Tanh", ["x"], ["y"])], ["n", 3])
    assert [each.op for each in read_network(path, batch=2).nodes] == ["Tanh"]


def test_assumed_lengths_are_of_one_reading(write: Callable[..., Path]) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    path = write(nodes, ["n", 9])
    known = [read_network(path, batch=n, assume={"values": n}) for n in (2, 3)]
    assert [each.tensors["y"].shape for each in known] == [(2, 2), (2, 3)]
    unknown = [read_network(path, batch=n) for n in (2, 3)]
    assert all("y" not in each.tensors for each in unknown)


def test_a_network_in_memory_keeps_its_name(readings: list[int]) -> None:
    content = next(path for path in REFERENCE if path.stem == "lenet5").read_bytes()
    found = [read_given_network(content, batch=batch) for batch in (5, 6)]
    assert len(readings) == 1
    assert found[0].name == found[1].name != "the given network"
    assert [each.batch for each in found] == [5, 6]
