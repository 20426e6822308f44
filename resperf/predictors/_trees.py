"""Decision trees as arrays, and as ONNX graphs.

The ONNX graphs are written here, so that the same trees always give the same bytes. Thresholds are
rounded so that float32 rows take the same branches as in the library that trained the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.predictors._onnx import OnnxGraph

# Values of ai.onnx.ml 5 for the comparisons x <= threshold and x < threshold.
_MODES = {"<=": 0, "<": 1}

Comparison = Literal["<=", "<"]

Split = tuple[int, float, Any, Any]
"""Feature, threshold, node if the comparison holds, node if it does not."""


@dataclass(frozen=True)
class Forest:
    """Trees whose leaves are summed; the arrays hold the splits and leaves of all trees.

    Attributes
    ----------
    comparison : {"<=", "<"}
        Comparison that sends a row to the first child.
    features : array of int64 (splits,)
    thresholds : array of float32 (splits,)
    children : array of int64 (splits, 2)
        Indices of leaves where `are_leaves`, else of splits.
    are_leaves : array of bool (splits, 2)
    leaves : array of float32 (leaves,)
    roots : array of int64 (trees,)
        Indices of splits.
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
    """Convert the trees of a library.

    Parameters
    ----------
    roots : iterable
        One root node per tree, in a form that `read` understands.
    read : callable
        Returns the value of a leaf, or a split.
    comparison : {"<=", "<"}
        Thresholds of ``<=`` are rounded down to float32, which changes no comparison with float32
        values. Those of ``<`` must be float32 already.
    """
    splits: list[tuple[int, float]] = []
    children: list[list[int]] = []
    are_leaves: list[list[bool]] = []
    leaves: list[float] = []

    def add_node(node: Any) -> tuple[int, bool]:
        """Append a node and its descendants; return its index and whether it is a leaf."""
        content = read(node)
        if not isinstance(content, tuple):
            leaves.append(content)
            return len(leaves) - 1, True
        feature, threshold, *below = content
        here = len(splits)
        splits.append((feature, threshold))
        children.append([])
        are_leaves.append([])
        for child in below:
            at, is_leaf = add_node(child)
            children[here].append(at)
            are_leaves[here].append(is_leaf)
        return here, False

    def add_root(node: Any) -> int:
        at, is_leaf = add_node(node)
        if not is_leaf:
            return at
        # ONNX needs a split at the root: both branches lead to the single leaf.
        splits.append((0, 0.0))
        children.append([at, at])
        are_leaves.append([True, True])
        return len(splits) - 1

    root_indices = [add_root(root) for root in roots]
    return Forest(
        comparison,
        np.array([feature for feature, _ in splits], np.int64),
        rounded_down(np.array([threshold for _, threshold in splits], np.float64)),
        np.array(children, np.int64).reshape(-1, 2),
        np.array(are_leaves, np.bool_).reshape(-1, 2),
        np.array(leaves, np.float32),
        np.array(root_indices, np.int64),
    )


def rounded_down(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round to the largest float32 numbers that are at most the values; any shape."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > values, below, nearest)


def onnx_bytes(forest: Forest, features: int) -> bytes:
    """Return an ONNX file with input ``x`` (rows, features) and output ``y`` (rows, 1).

    It holds one TreeEnsemble of ai.onnx.ml 5, which needs a third of the bytes of the older
    TreeEnsembleRegressor: only splits have thresholds and children.
    """
    from onnx import numpy_helper

    children, leaves = _with_unlike_children(forest)
    comparisons = np.full(len(forest.features), _MODES[forest.comparison], np.uint8)
    graph = OnnxGraph()
    graph.node(
        "TreeEnsemble",
        ["x"],
        "y",
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
        tree_roots=forest.roots.tolist(),
        nodes_featureids=forest.features.tolist(),
        nodes_splits=numpy_helper.from_array(forest.thresholds, "thresholds"),
        nodes_modes=numpy_helper.from_array(comparisons, "comparisons"),
        nodes_truenodeids=children[:, 0].tolist(),
        nodes_trueleafs=forest.are_leaves[:, 0].astype(int).tolist(),
        nodes_falsenodeids=children[:, 1].tolist(),
        nodes_falseleafs=forest.are_leaves[:, 1].astype(int).tolist(),
        leaf_targetids=[0] * len(leaves),
        leaf_weights=numpy_helper.from_array(leaves, "leaves"),
    )
    return graph.file(features)


def _with_unlike_children(
    forest: Forest,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return children and leaves of which no split has two children of the same index.

    Leaves and splits are counted apart, so that a split may have leaf 5 and split 5 below it: ONNX
    Runtime 1.21 takes it for a leaf. Such a leaf is written once more, at the end.
    """
    children = forest.children.copy()
    (alike,) = np.nonzero(children[:, 0] == children[:, 1])
    side = np.where(forest.are_leaves[alike, 0], 0, 1)
    added = forest.leaves[children[alike, side]]
    children[alike, side] = len(forest.leaves) + np.arange(len(alike))
    return children, np.concatenate([forest.leaves, added])
