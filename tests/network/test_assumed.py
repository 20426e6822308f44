"""Operators whose output depends on the data, and assumptions on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from resperf.errors import ShapeError
from resperf.network import read_network, read_network_once


@pytest.fixture
def detector(network_file) -> Path:
    """240 candidates of 3 classes, of which at most 50 per class are kept, and a head on them."""
    nodes = [
        make_node("Relu", ["candidates"], ["boxes"]),
        make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"], "nms"),
        make_node("Gather", ["chosen", "third"], ["places"], axis=1),
        make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        make_node("Gather", ["flat", "places"], ["kept"], axis=0),
        make_node("MatMul", ["kept", "w"], ["y"], "head"),
    ]
    weights = {
        "most": np.int64([50]), "third": np.int64(2), "zero": np.int64([0]),
        "w": np.ones((4, 8), np.float32),
    }  # fmt: skip
    inputs = {"candidates": [1, 240, 4], "scores": [1, 3, 240]}
    return network_file("detector.onnx", nodes, inputs, {"y": None}, weights)


def test_without_an_assumption_the_network_says_what_to_give(detector: Path) -> None:
    network = read_network(detector)
    assert "y" not in network.tensors
    assert network.assumed == ()
    (note,) = [each for each in network.notes if "depends on the data" in each]
    assert "NonMaxSuppression 'nms'" in note
    assert note.endswith("--assume boxes=100")


def test_assumed_boxes_give_everything_behind_them_a_shape(detector: Path) -> None:
    network = read_network(detector, assume={"boxes": 20})
    assert network.tensors["chosen"].shape == (20, 3)
    assert network.tensors["chosen"].dtype == "int64"
    assert network.tensors["y"].shape == (20, 8)
    assert network.assumed == ("NonMaxSuppression returns 20 boxes (--assume boxes=20)",)
    assert network.notes == ()


def test_no_more_boxes_than_the_operator_keeps(detector: Path) -> None:
    network = read_network(detector, assume={"boxes": 1000})
    # 1 image x 3 classes x 50 boxes.
    assert network.tensors["y"].shape == (150, 8)
    assert network.assumed == ("NonMaxSuppression returns 150 boxes at most (--assume boxes=1000)",)


def test_networks_of_other_assumptions_are_other_networks_in_the_cache(detector: Path) -> None:
    for count in (7, 9, 7):
        network = read_network_once(detector, assume={"boxes": count})
        assert network.tensors["y"].shape == (count, 8)
        assert f"returns {count} boxes" in network.assumed[0]


@pytest.mark.parametrize(
    ("assume", "message"),
    [
        ({"rows": 3}, "no assumption 'rows'; known are: boxes, values"),
        ({"boxes": 0}, "boxes=0 must be a whole number of at least 1"),
        ({"boxes": 2.5}, "boxes=2.5 must be a whole number"),
        ({"boxes": 5, "values": 5}, "no operator's output depends on how many values.*leave out"),
    ],
)
def test_an_assumption_that_cannot_be_is_refused(detector: Path, assume, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        read_network(detector, assume=assume)


def test_values_of_other_operators_are_counted(network_file) -> None:
    nodes = [
        make_node("NonZero", ["x"], ["places"]),
        make_node("Compress", ["x", "chosen"], ["rows"], axis=-2),
        make_node("Compress", ["x", "chosen"], ["few"]),
        make_node("Unique", ["x"], ["u", "first", "back", "counts"]),
    ]
    inputs = {"x": [5, 8], "chosen": (TensorProto.BOOL, [5])}
    outputs = dict.fromkeys(("places", "rows", "few", "u", "first", "back", "counts"))
    path = network_file("values.onnx", nodes, inputs, outputs)
    network = read_network(path, assume={"values": 6})
    assert {name: network.tensors[name].shape for name in outputs} == {
        "places": (2, 6), "rows": (5, 8), "few": (6,), "u": (6,), "first": (6,), "back": (40,),
        "counts": (6,),
    }  # fmt: skip
    assert set(network.assumed) == {
        "NonZero returns 6 values (--assume values=6)",
        "Compress returns 5 values at most (--assume values=6)",
        "Compress returns 6 values (--assume values=6)",
        "Unique returns 6 values (--assume values=6)",
    }


def test_a_second_assumption_may_be_needed_before_the_first_counts(network_file) -> None:
    """How often the scores pass decides which branch runs: the boxes are inside it."""
    names = ["boxes", "scores", "most"]
    then = onnx.helper.make_graph(
        [make_node("NonMaxSuppression", names, ["some"], "nms")], "then", [],
        [onnx.helper.make_tensor_value_info("some", TensorProto.INT64, None)],
    )  # fmt: skip
    none = onnx.numpy_helper.from_array(np.zeros((0, 3), np.int64), "none")
    other = onnx.helper.make_graph(
        [make_node("Constant", [], ["nothing"], value=none)], "else", [],
        [onnx.helper.make_tensor_value_info("nothing", TensorProto.INT64, [0, 3])],
    )  # fmt: skip
    nodes = [
        make_node("NonZero", ["scores"], ["passed"]),
        make_node("Size", ["passed"], ["count"]),
        make_node("Greater", ["count", "zero"], ["any"]),
        make_node("If", ["any"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    weights = {"most": np.int64([50]), "zero": np.int64(0)}
    inputs = {"boxes": [1, 240, 4], "scores": [1, 3, 240]}
    path = network_file("late.onnx", nodes, inputs, {"y": (TensorProto.INT64, None)}, weights)
    network = read_network(path, assume={"boxes": 10})
    assert any("--assume values=100" in note for note in network.notes)
    network = read_network(path, assume={"boxes": 10, "values": 30})
    assert network.tensors["y"].shape == (10, 3)
    (note,) = network.notes  # The condition is known: nothing else needs what it counts.
    assert note.startswith("no output needs NonZero_passed (NonZero)")


@pytest.fixture
def decoder(network_file) -> Path:
    """Masks whose size is the value of an input."""
    nodes = [
        make_node("Relu", ["masks"], ["r"]),
        make_node("Cast", ["size"], ["whole"], to=TensorProto.INT64),
        make_node("Concat", ["outer", "whole"], ["sizes"], axis=0),
        make_node("Resize", ["r", "", "", "sizes"], ["y"], mode="linear"),
    ]
    inputs = {"masks": [1, 8, 4, 4], "size": [2]}
    return network_file("decoder.onnx", nodes, inputs, {"y": None}, {"outer": np.int64([1, 8])})


def test_values_of_an_input_decide_shapes(decoder: Path) -> None:
    network = read_network(decoder, values={"size": (30, 40)})
    assert network.tensors["y"].shape == (1, 8, 30, 40)
    assert network.inputs == ("masks", "size")
    assert network.assumed == ("size is 30,40 (--value)",)
    assert read_network(decoder, values={"size": 9}).tensors["y"].shape == (1, 8, 9, 9)
    # In the cache, other values are another network.
    for side in (5, 6):
        network = read_network_once(decoder, values={"size": np.array([side, side])})
        assert network.tensors["y"].shape == (1, 8, side, side)


def test_what_depends_on_an_input_says_which(decoder: Path) -> None:
    notes = read_network(decoder).notes
    expected = "the shape of 'y' (Resize) depends on input size; give its values: --value size=N,N"
    assert notes[-1] == expected
    network = read_network(decoder, shapes={"y": (1, 8, 30, 40)})
    assert network.tensors["y"].shape == (1, 8, 30, 40)
    assert network.assumed == ("y has the shape 1,8,30,40 (--shape)",)


def test_a_shape_stands_for_an_assumption(detector: Path) -> None:
    network = read_network(detector, shapes={"chosen": (20,)})
    assert network.tensors["y"].shape == (20, 8)
    assert network.notes == ()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "values", "shape"),
    [
        ("ConstantOfShape", ["n"], {}, {"n": (3, 4)}, (3, 4)),
        ("Expand", ["x", "n"], {}, {"n": (5, 6)}, (5, 6)),
        ("Tile", ["x", "n"], {}, {"n": (2, 3)}, (2, 18)),
        ("Reshape", ["x", "n"], {}, {"n": (3, 2)}, (3, 2)),
        ("OneHot", ["i", "k", "pair"], {}, {"k": 7}, (5, 7)),
        ("Range", ["zero", "k", "one"], {}, {"k": 11}, (11,)),
        ("Pad", ["x", "p"], {}, {"p": (0, 1, 0, 2)}, (1, 9)),
        ("Slice", ["x", "zeros", "n"], {}, {"n": (1, 4)}, (1, 4)),
        ("Split", ["x", "n"], {"axis": 1}, {"n": (2, 4)}, (1, 2)),
        ("TopK", ["x", "k1"], {}, {"k1": 3}, (1, 3)),
    ],
)
def test_operators_sized_by_an_input(
    network_file, op: str, inputs, attributes, values, shape
) -> None:
    given = {"n": [2], "k": [], "k1": [1], "p": [4]}
    declared = {name: (TensorProto.INT64, dims) for name, dims in given.items() if name in inputs}
    weights = {"i": np.int64([0, 1, 2, 3, 4]), "pair": np.float32([0, 1]), "zero": np.int64(0),
               "one": np.int64(1), "zeros": np.int64([0, 0])}  # fmt: skip
    outputs = ["a", "rest"] if op in ("Split", "TopK") else ["a"]
    nodes = [
        make_node(op, inputs, outputs, "sized", **attributes),
        make_node("Identity", ["a"], ["y"]),
    ]
    path = network_file(
        "sized.onnx", nodes, {"x": [1, 6], **declared}, {"y": None},
        {name: value for name, value in weights.items() if name in inputs},
    )  # fmt: skip
    note = read_network(path).undecided
    assert note in read_network(path).notes
    assert note.startswith(f"the shape of 'a' ({op}) depends on input {next(iter(declared))}")
    assert read_network(path, values=values).tensors["y"].shape == shape


@pytest.fixture
def speech(network_file) -> Path:
    """As many frames as predicted durations say, and a head on them."""
    nodes = [
        make_node("MatMul", ["ids", "w"], ["durations"]),
        make_node("ReduceSum", ["durations"], ["total"], keepdims=0),
        make_node("Cast", ["total"], ["n"], to=TensorProto.INT64),
        make_node("Range", ["zero", "n", "one"], ["frames"]),
        make_node("Cast", ["frames"], ["floats"], to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["floats", "last"], ["column"]),
        make_node("Mul", ["column", "row"], ["y"]),
    ]
    weights = {
        "w": np.ones((80, 1), np.float32), "zero": np.int64(0), "one": np.int64(1),
        "last": np.int64([1]), "row": np.ones((1, 5), np.float32),
    }  # fmt: skip
    return network_file("speech.onnx", nodes, {"ids": [1, "S", 80]}, {"y": None}, weights)


def test_a_tensor_has_the_length_that_is_given(speech: Path) -> None:
    network = read_network(speech, shapes={"S": (7,), "frames": (40,)})
    assert network.tensors["ids"].shape == (1, 7, 80)
    assert network.tensors["y"].shape == (40, 5)
    assert network.assumed == ("frames has the shape 40 (--shape)",)
    # The only unknown length of a tensor of two.
    assert read_network(speech, batch=1, shapes={"S": (7,), "y": (9,)}).tensors["y"].shape == (9, 5)
    notes = read_network(speech, shapes={"S": (7,)}).notes
    assert notes[-1] == "the shape of 'frames' (Range) is not known; give it: --shape frames=N"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"S": (7,), "fraems": (3,)}}, "no input 'fraems', nor a dimension or tensor"),
        ({"shapes": {"S": (7,), "durations": (1, 8, 1)}}, "durations=1,8,1 does not fit.*1,7,1"),
        ({"shapes": {"S": (7,), "frames": (3, 4)}}, r"frames=3,4 does not fit.*is \?"),
        ({"shapes": {"S": (7,), "frames": (0,)}}, "must be a positive number"),
        ({"shapes": {"S": (7,)}, "values": {"total": 3}}, "no input 'total' to give values"),
        ({"shapes": {"S": (7,)}, "values": {"ids": (1, 2)}}, "ids gives 2 numbers.*1,7,80"),
        ({"shapes": {"S": (7,)}, "values": {"ids": "many"}}, "must be numbers"),
    ],
)
def test_what_does_not_fit_is_refused(speech: Path, options, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        read_network(speech, **options)


def test_operators_of_stated_values_alone_are_named(network_file) -> None:
    nodes = [
        make_node("Range", ["zero", "n", "one"], ["r"]),
        make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["f", "one_axis"], ["u"]),
        make_node("MatMul", ["u", "w"], ["y"], "head"),
    ]
    weights = {
        "zero": np.int64(0), "one": np.int64(1), "one_axis": np.int64([1]),
        "w": np.ones((1, 8), np.float32),
    }  # fmt: skip
    path = network_file("n.onnx", nodes, {"n": (TensorProto.INT64, [])}, {"y": None}, weights)
    for count in (3, 1000):
        notes = read_network(path, values={"n": count}).notes
        assert any("head (MatMul)" in x or "1 more is left out" in x for x in notes) == (count > 3)
