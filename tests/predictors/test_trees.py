"""Trees as ONNX: the same branches as in the library that trained them, also at thresholds."""

from __future__ import annotations

from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from resperf.predictors._onnx import Comparison, OnnxNetwork, forest_of, onnx_bytes, rounded_down

ABOVE_ONE = float(np.nextafter(np.float32(1), np.float32(2)))

# Each node is a leaf, or a feature, a threshold, and the nodes where the comparison holds or not.
TREES: list[Any] = [
    (0, 1.0, (1, -2.0, 1.0, 2.0), 4.0),
    8.0,
    (1, 0.0, 16.0, (0, 3.0, 32.0, (0, 5.0, 64.0, 128.0))),
]


def answers(tmp_path: Path, comparison: Comparison, rows: list[list[float]]) -> list[float]:
    forest = forest_of(TREES, lambda node: node, comparison)
    (tmp_path / "t.onnx").write_bytes(onnx_bytes(forest, 2))
    onnx.checker.check_model(str(tmp_path / "t.onnx"))
    found = OnnxNetwork(tmp_path / "t.onnx")(np.array(rows))
    assert found.shape == (len(rows), 1)
    return found[:, 0].tolist()


ROWS = [[0.0, -3.0], [0.0, -2.0], [1.0, -1.0], [ABOVE_ONE, 0.0], [3.0, 1.0], [4.0, 1.0], [6.0, 1.0]]


def test_trees_by_hand(tmp_path: Path) -> None:
    # First tree + 8 + third tree, a row on a threshold goes left.
    expected = [1 + 8 + 16, 1 + 8 + 16, 2 + 8 + 16, 4 + 8 + 16, 4 + 8 + 32, 4 + 8 + 64, 4 + 8 + 128]
    assert answers(tmp_path, "<=", ROWS) == expected


def test_a_strict_comparison_sends_a_row_on_a_threshold_right(tmp_path: Path) -> None:
    expected = [1 + 8 + 16, 2 + 8 + 16, 4 + 8 + 16, 4 + 8 + 32, 4 + 8 + 64, 4 + 8 + 64, 4 + 8 + 128]
    assert answers(tmp_path, "<", ROWS) == expected


def test_no_split_has_two_children_of_the_same_index(tmp_path: Path) -> None:
    """ONNX Runtime 1.21 takes a leaf and a split of the same index for one leaf."""
    # Split 1 has leaf 2 and split 2 below it; a tree of one leaf becomes a split with it twice.
    trees: list[Any] = [(0, 1.0, (1, 1.0, (1, 0.0, 1.0, 2.0), 4.0), 8.0), 16.0]
    trees.append((0, 1.0, 32.0, (1, 1.0, 64.0, (1, 3.0, 128.0, 256.0))))
    forest = forest_of(trees, lambda node: node, "<=")
    assert (forest.children[:, 0] == forest.children[:, 1]).sum() >= 2
    (tmp_path / "t.onnx").write_bytes(onnx_bytes(forest, 2))
    graph = onnx.load(tmp_path / "t.onnx").graph
    (node,) = (each for each in graph.node if each.op_type == "TreeEnsemble")
    held = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert all(map(ne, held["nodes_truenodeids"], held["nodes_falsenodeids"]))
    found = OnnxNetwork(tmp_path / "t.onnx")(np.array([[0.0, 0.0], [0.0, 2.0], [2.0, 4.0]]))
    assert found[:, 0].tolist() == [1 + 16 + 32, 4 + 16 + 32, 8 + 16 + 256]


def test_one_row_and_many_rows_are_predicted_alike(tmp_path: Path) -> None:
    many = answers(tmp_path, "<=", ROWS * 100)
    assert many == [answers(tmp_path, "<=", [row])[0] for row in ROWS] * 100


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.0 + 2.0**-30, 1.0),
        (ABOVE_ONE - 2.0**-30, 1.0),
        (-1.0 - 2.0**-30, -ABOVE_ONE),
        (0.0, 0.0),
        (1e300, float(np.finfo(np.float32).max)),
    ],
)
def test_thresholds_are_rounded_down(value: float, expected: float) -> None:
    found = rounded_down(np.array([value]))
    assert found.dtype == np.float32
    assert found[0] == expected


def test_a_threshold_between_float32_numbers_splits_the_same_rows(tmp_path: Path) -> None:
    # 1 + 2^-24 is halfway to the next float32, to which it must not be rounded.
    forest = forest_of([(0, 1.0 + 2.0**-24 + 2.0**-30, 1.0, 2.0)], lambda node: node, "<=")
    (tmp_path / "t.onnx").write_bytes(onnx_bytes(forest, 1))
    found = OnnxNetwork(tmp_path / "t.onnx")(np.array([[1.0], [ABOVE_ONE]]))
    assert found[:, 0].tolist() == [1.0, 2.0]
