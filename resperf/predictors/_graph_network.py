"""DNNPerf's network on graphs: one description for training and for the ONNX file.

Its equations are written once, by operations named as in `keras.ops`; `_graph_onnx.Writer` has the
same ones, which write nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from resperf.features.graphs import Graph, matrix
from resperf.features.transforms import Transform

Weights = dict[str, npt.NDArray[np.float32]]
"""Name such as ``"dense_1/kernel"`` -> values."""

BATCH = 64
"""Graphs per step (section IV-C), and per run in prediction."""
ATTENTION = "attention"
"""GAT's softmax over the edges into a node, of scores that read no features of edges."""
_SLOPE, _GAT_SLOPE = 0.01, 0.2
"""Of LeakyReLU in DNNPerf, and in the scores of GAT."""


class Batch(NamedTuple):
    """Graphs side by side; arrays, or names of an ONNX file's inputs.

    Attributes
    ----------
    nodes : array (nodes, node features)
    edges : array (edges, edge features)
    sources, targets : array (edges,)
        Nodes that edges lead from and to.
    graphs : array (nodes,)
        Graph of each node.
    sizes : array (graphs, 1)
        Nodes of each graph.
    """

    nodes: Any
    edges: Any
    sources: Any
    targets: Any
    graphs: Any
    sizes: Any

    @classmethod
    def of(cls, graph: Graph, nodes: Transform, edges: Transform) -> Batch:
        """Scale the features of one graph."""
        size = len(graph.nodes)
        return cls(
            nodes.apply(matrix(graph.nodes, nodes.columns)).astype(np.float32),
            edges.apply(matrix(graph.edges, edges.columns)).astype(np.float32),
            np.array(graph.sources, np.int64), np.array(graph.targets, np.int64),
            np.zeros(size, np.int64), np.array([[size]], np.float32),
        )  # fmt: skip

    @classmethod
    def joined(cls, graphs: Sequence[Batch]) -> Batch:
        """Return the graphs of several batches as one, renumbered."""
        first = np.cumsum([0, *(len(graph.nodes) for graph in graphs)])
        before = np.cumsum([0, *(len(graph.sizes) for graph in graphs)])
        parts = [
            x._replace(sources=x.sources + node, targets=x.targets + node, graphs=x.graphs + index)
            for x, node, index in zip(graphs, first[:-1], before[:-1], strict=True)
        ]
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def in_batches(graphs: Sequence[Batch]) -> list[Batch]:
    """Join graphs by `BATCH`."""
    return [Batch.joined(graphs[at : at + BATCH]) for at in range(0, len(graphs), BATCH)]


READINGS = ("features", "edges", "gate")
"""What the softmax of a message may normalise, which the paper leaves open: the features of each
message, as printed; the edges into a node; one edge, by a sigmoid."""


def _messages(ops: Any, reading: str, scores: Any, passed: Any, targets: Any, nodes: Any) -> Any:
    """Return what passes along edges, (edges, node features)."""
    if reading == "features":
        return ops.softmax(ops.multiply(scores, passed), axis=-1)
    if reading == "gate":
        return ops.multiply(ops.sigmoid(scores), passed)
    # The largest of all scores keeps numbers finite, and cancels out.
    powers = ops.exp(ops.subtract(scores, ops.max(scores)))
    sums = ops.take(ops.segment_sum(powers, targets, nodes), targets, axis=0)
    return ops.multiply(ops.divide(powers, sums), passed)


@dataclass(frozen=True)
class Architecture:
    """ANEE, the Attention-based Node-Edge Encoder (section III-D), and a perceptron.

    Attributes
    ----------
    nodes, edges : int
        Features of each, which all rounds have.
    rounds : int
        Of message passing, by the same weights; without any, features are summed as they are.
    reading : str
        One of `READINGS`, or `ATTENTION`.
    average : bool
        Whether nodes are averaged before the perceptron, not summed.
    with_edges : bool
        Whether the perceptron reads sums of edges as well.
    convolved : int
        Width of plain graph convolutions, each round of its own weights; 0 for ANEE.
    dense : tuple of int
        Widths of the perceptron.
    """

    nodes: int
    edges: int
    rounds: int
    reading: str
    average: bool = False
    with_edges: bool = False
    convolved: int = 0
    dense: tuple[int, ...] = (512, 128, 16, 1)

    def weights(self, seed: int) -> Weights:
        """Draw weights as Glorot and Bengio do; biases are 0."""
        random = np.random.default_rng(seed)
        shapes: dict[str, tuple[int, ...]] = {}
        width = self.nodes
        if self.convolved:
            for index in range(self.rounds):
                shapes[f"round_{index}"] = (width, self.convolved)
                width = self.convolved
        elif self.rounds:
            shapes = {"node": (width, width), "source": (width, 1), "target": (width, 1)}
            if self.reading != ATTENTION:
                shapes |= {"edge": (self.edges, self.edges), "message": (self.edges, 1)}
        width += self.edges * self.with_edges
        for index, units in enumerate(self.dense):
            shapes |= {f"dense_{index}/kernel": (width, units), f"dense_{index}/bias": (units,)}
            width = units

        def drawn(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
            limit = np.sqrt(6 / sum(shape)) * (len(shape) > 1)
            return random.uniform(-limit, limit, shape).astype(np.float32)

        return {name: drawn(shape) for name, shape in shapes.items()}

    def answers(self, ops: Any, weights: Mapping[str, Any], batch: Batch) -> Any:
        """Return one answer for each graph, (graphs, 1).

        Parameters
        ----------
        ops : module or Writer
            ``keras.ops``, or what has the same operations.
        weights : mapping of str to array
        batch : Batch
        """
        (graphs, *_) = ops.shape(batch.sizes)
        nodes, edges = self.encoded(ops, weights, batch)
        x = ops.segment_sum(nodes, batch.graphs, graphs)
        if self.average:
            x = ops.divide(x, batch.sizes)
        if self.with_edges:
            owners = ops.take(batch.graphs, batch.sources, axis=0)
            x = ops.concatenate([x, ops.segment_sum(edges, owners, graphs)], axis=1)
        for index in range(len(self.dense)):
            kernel, bias = (weights[f"dense_{index}/{part}"] for part in ("kernel", "bias"))
            x = ops.add(ops.matmul(x, kernel), bias)
            if index < len(self.dense) - 1:
                x = ops.relu(x)
        return x

    def encoded(self, ops: Any, weights: Mapping[str, Any], batch: Batch) -> tuple[Any, Any]:
        """Return the features of nodes and of edges after all rounds."""
        nodes, edges = batch.nodes, batch.edges
        (count, *_) = ops.shape(nodes)
        for index in range(self.rounds):
            if self.convolved:
                own = ops.matmul(nodes, weights[f"round_{index}"])
                passed = ops.take(own, batch.sources, axis=0)
                nodes = ops.relu(ops.segment_sum(passed, batch.targets, count))
                continue
            own = ops.leaky_relu(ops.matmul(nodes, weights["node"]), _SLOPE)
            scores = ops.add(
                ops.take(ops.matmul(own, weights["source"]), batch.sources, axis=0),
                ops.take(ops.matmul(own, weights["target"]), batch.targets, axis=0),
            )
            if self.reading == ATTENTION:
                scores = ops.leaky_relu(scores, _GAT_SLOPE)
            else:
                edges = ops.sigmoid(ops.multiply(scores, ops.matmul(edges, weights["edge"])))
                scores = ops.matmul(edges, weights["message"])
            passed = ops.take(own, batch.sources, axis=0)
            messages = _messages(ops, self.reading, scores, passed, batch.targets, count)
            nodes = ops.leaky_relu(ops.segment_sum(messages, batch.targets, count), _SLOPE)
        return nodes, edges
