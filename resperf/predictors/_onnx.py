"""ONNX files of predictors: from features to numbers, equal bytes for equal values.

The graphs are written here, those of decision trees from arrays. Thresholds are rounded so that
float32 rows take the same branches as in the library that trained the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError
from resperf.features import Array

_OPSETS, _IR_VERSION = {"": 17, "ai.onnx.ml": 5}, 8
"""Version 5 of ai.onnx.ml is the first with TreeEnsemble, which needs a third of the bytes of the
operator before it; ONNX Runtime 1.21, the oldest that resperf runs with, reads it."""


class OnnxGraph:
    """Nodes and constants of an ONNX graph, from input ``x`` to output ``y``."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, npt.NDArray[Any]] = {}

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node named like its output; returns that name."""
        from onnx import helper

        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add a constant array; returns its name."""
        self._constants[name] = values
        return name

    def half(self, name: str, values: npt.NDArray[np.float32]) -> str:
        """Add a float32 constant that is stored in half precision; returns its name."""
        from onnx import TensorProto

        stored = self.constant(f"{name}/half", values.astype(np.float16))
        return self.node("Cast", [stored], name, to=TensorProto.FLOAT)

    def file(self, features: int, *, double: bool = False) -> bytes:
        """Return a file with input ``x`` (rows, features) and output ``y`` (rows, 1).

        The input is float32. The output is too, or float64 with `double`.
        """
        from onnx import TensorProto

        answer = TensorProto.DOUBLE if double else TensorProto.FLOAT
        return self.file_of({"x": (TensorProto.FLOAT, ["rows", features])}, answer)

    def file_of(self, inputs: Mapping[str, tuple[int, Sequence[int | str]]], answer: int) -> bytes:
        """Return a file with inputs of some types and shapes, and output ``y`` (rows, 1)."""
        from onnx import helper, numpy_helper

        graph = helper.make_graph(
            self._nodes,
            "predictor",
            [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
            [helper.make_tensor_value_info("y", answer, ["rows", 1])],
            [numpy_helper.from_array(values, name) for name, values in self._constants.items()],
        )
        domains = {node.domain for node in self._nodes}
        opsets = [helper.make_opsetid(domain, _OPSETS[domain]) for domain in sorted({"", *domains})]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="resperf")
        model.ir_version = _IR_VERSION
        content: bytes = model.SerializeToString(deterministic=True)
        return content


class OnnxNetwork:
    """A stored network, run with one thread; its session is created on first use.

    Parameters
    ----------
    path : Path, or bytes
        The ONNX file, or what it holds.
    rows_at_once : int
        Most rows per run, which bounds its memory.
    """

    def __init__(self, path: Path | bytes, rows_at_once: int = 8192) -> None:
        self._path = path
        self._rows_at_once = rows_at_once
        self._session: Any = None

    def __call__(self, rows: npt.NDArray[np.floating[Any]]) -> Array:
        """Run rows of shape (rows, features); returns (rows, 1)."""
        step = self._rows_at_once
        parts = [
            self.run({"x": rows[at : at + step].astype(np.float32)})
            for at in range(0, max(len(rows), 1), step)
        ]
        return np.concatenate(parts)

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Array:
        """Run a network of several inputs; returns (rows, 1)."""
        if self._session is None:
            self._session = self._opened()
        try:
            return np.asarray(self._session.run(["y"], dict(inputs))[0], dtype=np.float64)
        except Exception as error:  # onnxruntime raises classes of its own
            raise BundleError(f"{self._path!s} does not fit its bundle; train it again") from error

    def _opened(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(
                self._path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises classes of its own
            raise BundleError(f"{self._path!s} cannot be read; the bundle is damaged") from error


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


def _with_unlike_children(forest: Forest) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
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
