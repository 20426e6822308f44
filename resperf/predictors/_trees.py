"""Ensembles of decision trees as plain values, and as ONNX graphs of these values.

Like the networks' graphs they are written here: the same trees always give the same bytes, and
thresholds are rounded so that float32 rows take the same branches as in the library that grew them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.predictors._onnx import onnx_file

# Numbers that ai.onnx.ml 5 gives to the comparisons x <= threshold and x < threshold.
_MODES = {"<=": 0, "<": 1}

Comparison = Literal["<=", "<"]

Split = tuple[int, float, Any, Any]
"""Feature, threshold, and the nodes where the comparison holds and where it does not."""


@dataclass(frozen=True)
class Forest:
    """Trees whose leaves are added up; splits and leaves of all trees stand one after the other.

    Attributes
    ----------
    comparison : {"<=", "<"}
        What sends a row to the first child.
    features : array of int64 (splits,)
    thresholds : array of float32 (splits,)
    children : array of int64 (splits, 2)
        Places of splits, or of leaves where `are_leaves` says so.
    are_leaves : array of bool (splits, 2)
    leaves : array of float32 (leaves,)
    roots : array of int64 (trees,)
        Places of splits.
    """

    comparison: Comparison
    features: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float32]
    children: npt.NDArray[np.int64]
    are_leaves: npt.NDArray[np.bool_]
    leaves: npt.NDArray[np.float32]
    roots: npt.NDArray[np.int64]


def forest_of(
    roots: Iterable[Any], read: Callable[[Any], Split | float], comparison: Comparison
) -> Forest:
    """Lay out the trees of a library.

    Parameters
    ----------
    roots : iterable
        One node per tree, in whatever form `read` understands.
    read : callable
        Says of a node what it is: the value of a leaf, or a split.
    comparison : {"<=", "<"}
        Thresholds of ``<=`` are rounded down to float32: a float32 x is at most t exactly if it is
        at most the largest float32 that is at most t. Those of ``<`` must be float32 already.
    """
    splits: list[tuple[int, float]] = []
    children: list[list[int]] = []
    are_leaves: list[list[bool]] = []
    leaves: list[float] = []

    def place(node: Any) -> tuple[int, bool]:
        """Append a node with all below it; returns its place, and whether it is a leaf."""
        found = read(node)
        if not isinstance(found, tuple):
            leaves.append(found)
            return len(leaves) - 1, True
        feature, threshold, *below = found
        here = len(splits)
        splits.append((feature, threshold))
        children.append([])
        are_leaves.append([])
        for child in below:
            at, is_leaf = place(child)
            children[here].append(at)
            are_leaves[here].append(is_leaf)
        return here, False

    def place_root(node: Any) -> int:
        at, is_leaf = place(node)
        if not is_leaf:
            return at
        # A tree that never split: ONNX wants a split at the root, so both ways lead to the leaf.
        splits.append((0, 0.0))
        children.append([at, at])
        are_leaves.append([True, True])
        return len(splits) - 1

    places = [place_root(root) for root in roots]
    return Forest(
        comparison,
        np.array([feature for feature, _ in splits], np.int64),
        rounded_down(np.array([threshold for _, threshold in splits], np.float64)),
        np.array(children, np.int64).reshape(-1, 2),
        np.array(are_leaves, np.bool_).reshape(-1, 2),
        np.array(leaves, np.float32),
        np.array(places, np.int64),
    )


def rounded_down(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the largest float32 numbers that are at most the values; any shape."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > values, below, nearest)


def onnx_bytes(forest: Forest, features: int) -> bytes:
    """Return an ONNX file with input ``x`` (rows, features) and output ``y`` (rows, 1).

    It holds one TreeEnsemble of ai.onnx.ml 5, which takes a third of the bytes of the older
    TreeEnsembleRegressor: only splits have thresholds and children, and comparisons are numbers.
    """
    from onnx import helper, numpy_helper

    comparisons = np.full(len(forest.features), _MODES[forest.comparison], np.uint8)
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        name="trees",
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
        tree_roots=forest.roots.tolist(),
        nodes_featureids=forest.features.tolist(),
        nodes_splits=numpy_helper.from_array(forest.thresholds, "thresholds"),
        nodes_modes=numpy_helper.from_array(comparisons, "comparisons"),
        nodes_truenodeids=forest.children[:, 0].tolist(),
        nodes_trueleafs=forest.are_leaves[:, 0].astype(int).tolist(),
        nodes_falsenodeids=forest.children[:, 1].tolist(),
        nodes_falseleafs=forest.are_leaves[:, 1].astype(int).tolist(),
        leaf_targetids=[0] * len(forest.leaves),
        leaf_weights=numpy_helper.from_array(forest.leaves, "leaves"),
    )
    return onnx_file([node], {}, features=features, trees=True)
