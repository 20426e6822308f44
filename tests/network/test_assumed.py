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
