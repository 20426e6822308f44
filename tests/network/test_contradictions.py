"""Shapes that contradict each other are errors that name the operator and the sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor,
    make_tensor_value_info,
)

from resperf.errors import ShapeError
from resperf.network import Tensor, read_network
from resperf.network.shapes import partial_outputs

NetworkFile = Callable[..., Path]


def filters(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("op", "image", "weights", "attributes", "words"),
    [
        ("Conv", [1, 3, 8, 8], (4, 3, 16, 16), {}, "window of 16,16, larger than its input of 8,8"),
        ("Conv", [1, 3, 8, 2], (4, 3, 3, 3), {"pads": [1, 0, 1, 0]}, "of 8,2 with pads 1,0,1,0"),
        ("Conv", [1, 3, 8], (4, 3, 3), {"dilations": [8]}, "window of 17, larger than .* of 8"),
        ("Conv", [1, 3, 8, 8, 2], (4, 3, 3, 3, 3), {}, "window of 3,3,3"),
        ("ConvTranspose", [1, 3, 2, 2], (3, 4, 3, 3), {"pads": [3] * 4}, "output would be -2"),
        ("ConvTranspose", [1, 3, 2, 2], (3, 4, 3, 3), {"pads": [2] * 4}, "output would be 0"),
        ("MaxPool", [1, 3, 8, 8], None, {"kernel_shape": [9, 9]}, "window of 9,9"),
        ("AveragePool", [1, 3, 5], None, {"kernel_shape": [9], "strides": [3]}, "window of 9"),
        ("MaxPool", [1, 3, 8, 8, 2], None, {"kernel_shape": [3, 3, 3]}, "window of 3,3,3"),
        ("FusedConv", [1, 3, 8, 8], (4, 3, 9, 9), {}, "window of 9,9"),
        ("LSTM", [5, 1, 10], (1, 32, 12), {"hidden_size": 8}, "10 features.* take 12"),
    ],
)
def test_a_window_or_weights_that_do_not_fit_are_refused(
    network_file: NetworkFile,
    op: str,
    image: list[int],
    weights: tuple[int, ...] | None,
    attributes: dict[str, Any],
    words: str,
) -> None:
    names = ["x"] if weights is None else ["x", "w", *(["r"] if op == "LSTM" else [])]
    values = {"w": filters(*(weights or ())), "r": filters(1, 32, 8)}
    domain = "com.microsoft" if op == "FusedConv" else ""
    node = make_node(op, names, ["y"], "one", domain=domain, **attributes)
    path = network_file("n.onnx", [node], {"x": image}, {"y": None}, values)
    with pytest.raises(ShapeError, match=rf"node 'one' \({op}\) .*{words}"):
        read_network(path)


def test_windows_that_just_fit_are_read(network_file: NetworkFile) -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        make_node("MaxPool", ["a"], ["b"], ceil_mode=1, **attributes),
        make_node("AveragePool", ["b"], ["y"], auto_pad="SAME_UPPER", **attributes),
    ]
    path = network_file(
        "n.onnx", nodes, {"x": [1, 3, 2, 2]}, {"y": None}, {"w": filters(4, 3, 4, 4)}
    )
    with pytest.raises(ShapeError, match=r"MaxPool\) has a window of 3,3"):
        read_network(path)
    tensors = read_network(path, shapes={"x": (1, 3, 3, 3)}).tensors
    assert (tensors["a"].shape[2:], tensors["b"].shape[2:]) == ((2, 2), (1, 1))
    assert tensors["y"].shape == (1, 4, 1, 1)


@pytest.mark.parametrize("target", [[4, 11], [2, 3, 5], [0, 11]])
def test_a_target_of_another_size_is_refused(network_file: NetworkFile, target: list[int]) -> None:
    nodes = [make_node("Reshape", ["x", "t"], ["a"], "two"), make_node("Relu", ["a"], ["y"])]
    path = network_file("n.onnx", nodes, {"x": [4, 10]}, {"y": None}, {"t": np.array(target)})
    with pytest.raises(
        ShapeError, match=r"node 'two' \(Reshape\) cannot make .* of its input 4,10"
    ):
        read_network(path)


def encoder(network_file: NetworkFile, image: list[Any], skip: list[Any]) -> Path:
    nodes = [
        make_node("Conv", ["img", "w"], ["f"], strides=[16, 16]),
        make_node("Add", ["f", "skip"], ["z"]),
    ]
    inputs = {"img": image, "skip": skip}
    return network_file("n.onnx", nodes, inputs, {"z": None}, {"w": filters(8, 3, 16, 16)})


@pytest.mark.parametrize("word", ["?", "", "None", "-1", "unk__7"])
def test_words_for_unknown_dimensions_are_no_names(network_file: NetworkFile, word: str) -> None:
    path = encoder(network_file, [word, 3, word, word], [word, 8, word, word])
    with pytest.raises(ShapeError, match=r"dimension 2 of input 'img' = 4,3,\?,\? is free"):
        read_network(path, batch=4)
    shapes = {"img": (4, 3, 32, 64), "skip": (4, 8, 2, 4)}
    assert read_network(path, shapes=shapes).tensors["z"].shape == (4, 8, 2, 4)


def test_a_name_has_one_length(network_file: NetworkFile) -> None:
    path = encoder(network_file, ["N", 3, "H", "H"], ["N", 8, "h", "h"])
    with pytest.raises(ShapeError, match="'H' has two lengths, 32 and 64 in input 'img'"):
        read_network(path, shapes={"img": (4, 3, 32, 64), "skip": (4, 8, 2, 2)})
    with pytest.raises(ShapeError, match="'N' has two lengths, 4 and 2 in input 'skip'"):
        read_network(path, shapes={"img": (4, 3, 32, 32), "skip": (2, 8, 2, 2)})
    shapes = {"img": (1, 3, 32, 32), "skip": (1, 8, 2, 2)}
    assert read_network(path, batch=4, shapes=shapes).tensors["z"].shape == (4, 8, 2, 2)


def test_windows_of_integer_convolutions_are_checked(network_file: NetworkFile) -> None:
    weights = {"w": np.ones((4, 3, 9, 9), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    quantised = ["s", "z", "w", "s", "z", "s", "z"]
    for node in (
        make_node("ConvInteger", ["x", "w"], ["y"], "one"),
        make_node("QLinearConv", ["x", *quantised], ["y"], "one"),
    ):
        inputs = {"x": (TensorProto.INT8, [1, 3, 8, 8])}
        path = network_file("n.onnx", [node], inputs, {"y": None}, weights)
        with pytest.raises(ShapeError, match="window of 9,9, larger than its input of 8,8"):
            read_network(path)


def test_states_of_another_batch_are_refused(network_file: NetworkFile) -> None:
    weights = {"w": filters(1, 32, 12), "r": filters(1, 32, 8), "h": filters(1, 1, 8)}
    node = make_node("LSTM", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=8)
    path = network_file("n.onnx", [node], {"x": [5, "batch", 12]}, {"y": None}, weights)
    assert read_network(path, shapes={"x": (5, 1, 12)}).tensors["y"].shape == (5, 1, 1, 8)
    with pytest.raises(ShapeError, match=r"cannot take the shapes 5,4,12 .* and 1,1,8"):
        read_network(path, shapes={"x": (5, 4, 12)})


def test_sizes_that_contradict_each_other_are_refused(network_file: NetworkFile) -> None:
    image, rows, own = [1, 64, 8, 8], [1, 128, 96], "com.microsoft"
    cases: list[tuple[str, list[int], list[tuple[int, ...]], dict[str, Any], str]] = [
        ("Conv", image, [(32, 64, 3, 3), (64,)], {}, "1,64,8,8 and 32,64,3,3 and 64"),
        ("Conv", image, [(32, 64, 3, 3)], {"kernel_shape": [5, 5]}, "with kernel_shape 5,5"),
        ("Conv", image, [(30, 16, 3, 3)], {"group": 4}, "with group 4"),
        ("ConvTranspose", image, [(64, 8, 2, 2), (64,)], {}, "and 64"),
        ("Gemm", [8, 96], [(10, 96), (11,)], {"transB": 1}, "8,96 and 10,96 and 11"),
        ("LayerNormalization", rows, [(64,)], {}, "1,128,96 and 64"),
        ("GroupNormalization", image, [(64,), (64,)], {"num_groups": 31}, "with num_groups 31"),
        ("PRelu", image, [(64,)], {}, "1,64,8,8 and 64"),
        ("LSTM", [5, 1, 8], [(1, 48, 8), (1, 48, 16)], {"hidden_size": 16}, "1,48,8"),
        ("Einsum", rows, [(1, 64, 32)], {"equation": "bij,bjk->bik"}, "1,128,96 and 1,64,32"),
        ("ScatterND", rows, [(1, 2), (3, 96)], {}, "1,2 and 3,96"),
        ("Transpose", rows, [], {"perm": [1, 0]}, "with perm 1,0"),
        ("DepthToSpace", image, [], {"blocksize": 3}, "with blocksize 3"),
        ("SpaceToDepth", image, [], {"blocksize": 3}, "with blocksize 3"),
        ("Attention", rows, [(96, 288), (288,)], {"num_heads": 7}, "with num_heads 7"),
        ("MultiHeadAttention", rows, [tuple(rows)] * 2, {"num_heads": 7}, "with num_heads 7"),
        ("BiasGelu", rows, [(64,)], {}, "1,128,96 and 64"),
        ("ConvTranspose", image, [(64, 8, 2, 2)], {"output_shape": [0, 8]}, "output_shape 0,8"),
        ("ScatterND", rows, [(7, 4), (7,)], {}, "1,128,96 and 7,4"),
        ("GatherND", rows, [(2, 5, 1)], {"batch_dims": 1}, "with batch_dims 1"),
        ("GatherElements", rows, [(1, 129)], {"axis": 1}, "and 1,129 with axis 1"),
        ("GatherElements", rows, [(2, 9, 96)], {"axis": 1}, "and 2,9,96"),
        ("ScatterElements", rows, [(1, 5, 96), (1, 4, 96)], {"axis": 1}, "1,5,96 and 1,4,96"),
        ("ScatterElements", rows, [tuple(rows)] * 2, {"axis": 3}, "with axis 3"),
        ("LpNormalization", rows, [], {"axis": -4}, "with axis -4"),
        ("LayerNormalization", rows, [(96,)], {"axis": 3}, "with axis 3"),
        ("MaxPool", image, [], {"kernel_shape": [2, 2], "pads": [0, 2, 0, 0]}, "pads 0,2,0,0"),
        ("AveragePool", image, [], {"kernel_shape": [3, 3], "pads": [3] * 4}, "pads 3,3,3,3"),
        ("CumSum", rows, [()], {}, "with axis 3"),
        ("Pad", [1, 3, 8, 8], [(8,)], {"mode": "reflect"}, "with pads 0,0,8,0,0,0,0,0"),
        ("MaxUnpool", image, [(1, 64, 8, 7)], {"kernel_shape": [2, 2]}, "and 1,64,8,7"),
        ("RoiAlign", image, [(9, 5), (9,)], {}, "and 9,5 and 9"),
        ("MaxRoiPool", image, [(9, 4)], {"pooled_shape": [7, 7]}, "and 9,4"),
        ("NonMaxSuppression", [1, 50, 4], [(1, 3, 49)], {}, "1,50,4 and 1,3,49"),
        ("ReverseSequence", [9, 2, 8], [(3,)], {}, "9,2,8 and 3"),
        ("LSTM", [5, 1, 8], [(1, 64, 8), (1, 64, 16)], {"hidden_size": 8}, "with hidden_size 8"),
        ("QuantizeLinear", image, [(64,), (63,)], {}, "and 64 and 63"),
        ("AffineGrid", [2, 2, 3], [(4,)], {}, "with size 1,3,8,8"),
        ("DeformConv", image, [(32, 64, 3, 3), (1, 17, 6, 6)], {}, "and 1,17,6,6"),
        ("Attention", rows, [tuple(rows), (1, 127, 96)], {"q_num_heads": 8}, "1,127,96"),
        ("Attention", rows, [tuple(rows)] * 2, {"q_num_heads": 7}, "with q_num_heads 7"),
        (
            "MatMulNBits",
            [4, 128],
            [(32, 3, 16), (128,)],
            {"K": 128, "N": 32, "block_size": 32},
            "and 32,3,16",
        ),
    ]
    values = {"CumSum": 3, "Pad": [0, 0, 8, 0, 0, 0, 0, 0], "AffineGrid": [1, 3, 8, 8]}
    for op, given, others, attributes, words in cases:
        names = [f"w{index}" for index in range(len(others))]
        is_own = "num_heads" in attributes or op in ("BiasGelu", "MatMulNBits")
        domain = own if is_own else ""
        node = make_node(op, ["x", *names], ["y"], "one", domain=domain, **attributes)
        weights = {name: filters(*shape) for name, shape in zip(names, others, strict=True)}
        if op in ("GatherElements", "GatherND", "ScatterElements", "ScatterND"):
            weights["w0"] = np.zeros(others[0], np.int64)  # type: ignore[assignment]
        if op in values:
            weights["w0"] = np.array(values[op])
        path = network_file("n.onnx", [node], {"x": given}, {"y": None}, weights)
        with pytest.raises(ShapeError, match=rf"node 'one' \({op}\) cannot take .*{words}"):
            read_network(path)


@pytest.mark.parametrize(
    ("op", "image", "names", "values", "words"),
    [
        ("Resize", [1, 3, 8, 8], ["x", "", "v"], [1.0, 1.0, 0.0, 2.0], "scales 1.0,1.0,0.0,2.0"),
        ("Resize", [1, 3, 8, 8], ["x", "", "", "v"], [1, 3, 0, 16], "1,3,0,16 .* 1,3,8,8"),
        ("TopK", [1, 3, 8], ["x", "v"], [9], "1,3,8 and 1 with k 9"),
        ("GlobalAveragePool", [8], ["x"], [], "the shapes 8;"),
        ("GlobalMaxPool", [4, 8], ["x"], [], "the shapes 4,8;"),
    ],
)
def test_resizes_selections_and_pools_of_what_is_not_there_are_refused(
    network_file: NetworkFile,
    op: str,
    image: list[int],
    names: list[str],
    values: list[float],
    words: str,
) -> None:
    outputs = ["y", "places"] if op == "TopK" else ["y"]
    node = make_node(op, names, outputs, "one")
    dtype = np.float32 if isinstance(values[0] if values else 0, float) else np.int64
    path = network_file("n.onnx", [node], {"x": image}, {"y": None}, {"v": np.array(values, dtype)})
    with pytest.raises(ShapeError, match=rf"node 'one' \({op}\) cannot .*{words}"):
        read_network(path)


@pytest.mark.parametrize(("op", "opset"), [("Resize", 10), ("Upsample", 9), ("TopK", 9)])
def test_older_files_are_checked_as_well(op: str, opset: int, tmp_path: Path) -> None:
    floats = TensorProto.FLOAT
    scales = make_tensor("v", floats, [4], [1.0, 1.0, 2.0, 0.0])
    selects = op == "TopK"  # of which k was an attribute
    node = make_node(op, ["x"] if selects else ["x", "v"], ["y", "i"] if selects else ["y"], "one",
                     **({"k": 9} if selects else {}))  # fmt: skip
    graph = make_graph(
        [node], "old", [make_tensor_value_info("x", floats, [1, 3, 8, 8])],
        [make_tensor_value_info("y", floats, None)], [scales],
    )  # fmt: skip
    path = tmp_path / "old.onnx"
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8), path)
    with pytest.raises(ShapeError, match=rf"node 'one' \({op}\) cannot take the shapes 1,3,8,8"):
        read_network(path)


def test_pads_may_be_as_long_as_a_window_without_its_gaps(network_file: NetworkFile) -> None:
    how = {"kernel_shape": [3, 3], "dilations": [3, 3], "pads": [3] * 4}
    node = make_node("MaxPool", ["x"], ["y"], "one", **how)
    path = network_file("n.onnx", [node], {"x": [1, 64, 8, 8]}, {"y": None}, {})
    assert read_network(path).tensors["y"].shape == (1, 64, 8, 8)


def test_constant_indices_and_steps_are_of_what_there_is(network_file: NetworkFile) -> None:
    def refused(op: str, names: list[str], **values: Any) -> str:
        node = make_node(op, names, ["y"], "one")
        weights = {name: np.asarray(value) for name, value in values.items()}
        path = network_file("n.onnx", [node], {"x": [8, 9, 16]}, {"y": None}, weights)
        with pytest.raises(ShapeError) as error:
            read_network(path)
        return str(error.value)

    new = filters(2, 16)
    assert "writes row 9 of 9" in refused("ScatterND", ["x", "i", "u"], i=[[0, 9], [7, 0]], u=new)
    assert "writes row 8 of 8" in refused("ScatterND", ["x", "i", "u"], i=[[-9, 0], [1, 1]], u=new)
    assert "reads row 8 of 8" in refused("GatherND", ["x", "i"], i=[[0, 0], [8, 0]])
    assert "with delta 0" in refused("Range", ["a", "b", "d"], a=0, b=5, d=0)


def test_what_onnxruntime_refuses_of_its_own_operators_is_refused() -> None:
    node = make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
    tensors = {"x": Tensor("x", (4, 96), "float32"), "w": Tensor("w", (64, 32), "float32")}
    with pytest.raises(ShapeError, match="Incompatible dimensions"):
        partial_outputs(node, tensors, {"com.microsoft": 1})


def test_what_a_value_decides_is_checked_too(network_file: NetworkFile) -> None:
    nodes = [make_node("OneHot", ["i", "d", "v"], ["o"]), make_node("MatMul", ["o", "w"], ["y"])]
    inputs = {name: (TensorProto.INT64, shape) for name, shape in (("i", [5]), ("d", []))}
    weights = {"v": filters(2), "w": filters(64, 8)}
    path = network_file("n.onnx", nodes, inputs, {"y": None}, weights)
    assert read_network(path, values={"d": 64}).tensors["y"].shape == (5, 8)
    with pytest.raises(ShapeError, match=r"node 'y' \(MatMul\) cannot take 5,65 and 64,8"):
        read_network(path, values={"d": 65})


def test_rows_behind_the_end_of_a_table_are_refused(network_file: NetworkFile) -> None:
    nodes = [make_node("Gather", ["t", "i"], ["p"], "one"), make_node("Add", ["x", "p"], ["y"])]
    for count, fits in ((512, True), (513, False)):
        weights = {"t": filters(512, 8), "i": np.arange(count)[None]}
        path = network_file("n.onnx", nodes, {"x": [1, count, 8]}, {"y": None}, weights)
        if fits:
            assert read_network(path).tensors["y"].shape == (1, 512, 8)
        else:
            with pytest.raises(ShapeError, match=r"node 'one' \(Gather\) reads row 512 of 512"):
                read_network(path)


def test_sizes_that_fit_are_read(network_file: NetworkFile) -> None:
    nodes = [
        make_node("Conv", ["x", "w", "b"], ["a"], kernel_shape=[3, 3], group=2, pads=[1] * 4),
        make_node("PRelu", ["a", "slope"], ["p"]),
        make_node("GroupNormalization", ["p", "b", "b"], ["n"], num_groups=4),
        make_node("DepthToSpace", ["n"], ["d"], blocksize=2),
        make_node("Einsum", ["d", "e"], ["y"], equation="bcij, c -> bij"),
    ]
    weights = {"w": filters(32, 4, 3, 3), "b": filters(32), "slope": filters(32, 1, 1),
               "e": filters(8)}  # fmt: skip
    path = network_file("n.onnx", nodes, {"x": [1, 8, 8, 8]}, {"y": None}, weights)
    assert read_network(path).tensors["y"].shape == (1, 16, 16)
    grouped = make_node("Attention", ["q", "k", "k"], ["y"], q_num_heads=8, kv_num_heads=2)
    path = network_file("a.onnx", [grouped], {"q": [1, 64, 512], "k": [1, 9, 128]}, {"y": None})
    assert [node.op for node in read_network(path).nodes] == ["Attention"]
