"""Graphs of primitive operators as GHN-2 reads them (PredictDDL, section III-B and figure 3).

The types are those of GHN-2's code. A bias is a node of its own behind its weights, a norm's are
not; attention is one node; pointwise functions, reshapes, slices and dropout have none: what reads
their output reads their input.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from resperf.errors import NetworkError
from resperf.features import Array
from resperf.layers import KINDS, OPERATOR_DOMAINS
from resperf.network import Network, Node
from resperf.network.canonical import canonical

TYPES = (
    "max_pool", "avg_pool", "sep_conv", "dil_conv", "conv", "msa", "cse", "sum", "concat", "input",
    "bias", "bn", "ln", "pos_enc", "glob_avg",
)  # fmt: skip
UNKNOWN = "unknown"
"""Type of a node that no rule reads; its vector starts at zeros."""
LONGEST_PATH = 50
_MOST_UNKNOWN = 0.1
"""Share of unknown nodes above which a vector would be of another network."""


@dataclass(frozen=True)
class PrimitiveGraph:
    """Primitive operators in topological order.

    Attributes
    ----------
    types : tuple of str
        Of `TYPES`, or `UNKNOWN`.
    shapes : tuple of tuple of int
        (outputs, inputs, height, width) of a node's weights, (channels,) of a bias or a norm, ()
        without weights.
    edges : tuple of (int, int)
        (from, to), from < to.
    unknown : mapping of str to int
        Operators that no rule reads, and how many there are.
    """

    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    unknown: Mapping[str, int] = field(default_factory=dict)

    def path_weights(self) -> tuple[Array, Array]:
        """Return what node v reads of node u in equation 4, each (nodes, nodes).

        Returns
        -------
        direct : ndarray
            1 where an edge leads from u to v.
        virtual : ndarray
            1 / s, where the shortest path from u to v has s edges and 1 < s <= 50.
        """
        count = len(self.types)
        lengths = np.full((count, count), np.inf)
        np.fill_diagonal(lengths, 0)
        for source, target in sorted(self.edges, key=lambda edge: edge[1]):
            np.minimum(lengths[target], lengths[source] + 1, out=lengths[target])
        direct = np.where(lengths == 1, 1.0, 0.0)
        is_virtual = (lengths > 1) & (lengths <= LONGEST_PATH)
        return direct, np.where(is_virtual, 1 / np.where(is_virtual, lengths, 1), 0.0)

    def folded(self) -> PrimitiveGraph:
        """Return the graph with a batch normalisation behind a convolution as its bias.

        Some exporters fold it so, others do not: both write the same network then.
        """
        read = {target: self.types[source] for source, target in self.edges}
        types = (
            "bias" if kind == "bn" and read.get(index, "").endswith("conv") else kind
            for index, kind in enumerate(self.types)
        )
        return replace(self, types=tuple(types))


def primitive_graph(network: Network) -> PrimitiveGraph:
    """Return the graph of a network, the parts of its operators joined first.

    Raises
    ------
    NetworkError
        If more than a tenth of its nodes are unknown.
    """
    graph = _Reading(canonical(network).network, _biases(network)).graph()
    unknown, count = sum(graph.unknown.values()), len(graph.types)
    if unknown > _MOST_UNKNOWN * count:
        names = ", ".join(f"{op} ({times})" for op, times in graph.unknown.items())
        raise NetworkError(
            f"{network.name}: GHN-2 has no type for {unknown} of {count} operators ({names}), at "
            "most a tenth may be without; give a network of convolutions, products or attention"
        )
    return graph


def _biases(network: Network) -> set[str]:
    """Return the outputs of convolutions with a bias that counts.

    Whether it is zeros does not matter, or a network would be another one when it is trained;
    behind it, a batch normalisation takes it away again.
    """
    normed = {node.inputs[0] for node in network.nodes if node.op == "BatchNormalization"}
    return {
        node.outputs[0]
        for node in network.nodes
        if node.op in ("Conv", "ConvTranspose") and any(node.inputs[2:3])
    } - normed


class _Reading:
    """Nodes of a network, and which of them each tensor is computed by."""

    def __init__(self, network: Network, biases: set[str]) -> None:
        self.network, self.biases = network, biases
        self.tensor_shapes = {name: tensor.shape for name, tensor in network.tensors.items()}
        self.types: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.edges: set[tuple[int, int]] = set()
        self.unknown = Counter[str]()
        self.sources = defaultdict[str, tuple[int, ...]](tuple)
        """Tensor -> nodes that it is computed by; without any, it is a constant."""
        self.scores = set[str]()
        """Tensors that a Softmax reads, maybe through operators without a node."""
        for node in reversed(network.nodes):
            passes = node.op in _WITHOUT_NODE or node.op in ("Add", "Mul")
            if node.op == "Softmax" or (passes and not self.scores.isdisjoint(node.outputs)):
                self.scores.update(node.inputs)
        self.weighted = set[str]()
        """Outputs of a Softmax, maybe through operators without a node."""

    def graph(self) -> PrimitiveGraph:
        for name in self.network.inputs:
            self.sources[name] = (self.add("input", ()),)
        for node in self.network.nodes:
            read = dict.fromkeys(index for name in node.inputs for index in self.sources[name])
            kind, shape = self.typed(node)
            if kind:
                read = dict.fromkeys([self.add(kind, shape, read)])
            if node.outputs[0] in self.biases or (node.op == "Gemm" and any(node.inputs[2:3])):
                read = dict.fromkeys([self.add("bias", shape[:1], read)])
            self.sources.update(dict.fromkeys(filter(None, node.outputs), tuple(read)))
            softmax = node.op == "Softmax" or (not kind and self.weighted & {*node.inputs})
            self.weighted.update(node.outputs if softmax else ())
        return PrimitiveGraph(
            tuple(self.types), tuple(self.shapes), tuple(sorted(self.edges)), self.unknown
        )

    def add(self, kind: str, shape: tuple[int, ...], read: Iterable[int] = ()) -> int:
        """Append a node behind those that it reads."""
        self.edges.update((index, len(self.types)) for index in read)
        self.types.append(kind)
        self.shapes.append(shape)
        return len(self.types) - 1

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensor_shapes.get(name, ())

    def is_weight(self, name: str) -> bool:
        """Whether a tensor is learnt or computed of what is: not of an input, nor one number."""
        return bool(name) and not self.sources[name] and math.prod(self.shape(name)) > 1

    def typed(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Return a node's type, empty for none, and the shape of its weights."""
        written = self.network.tensors.get(node.outputs[0])
        if written is not None and written.dtype in ("int64", "bool"):
            return _NONE  # It computes a shape, an index or a mask.
        if node.domain not in OPERATOR_DOMAINS:
            return self.unread(node)
        if node.op in _RULES:
            return _RULES[node.op](self, node)
        return _NONE if node.op in _WITHOUT_NODE else self.unread(node)

    def unread(self, node: Node) -> tuple[str, tuple[int, ...]]:
        self.unknown[node.op] += 1
        return UNKNOWN, ()

    def conv(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read a convolution of any rank; its window's last two sides count."""
        if len(self.shape(node.inputs[1])) < 3:
            return self.unread(node)
        outputs, inputs, *window = self.shape(node.inputs[1])
        if node.op == "ConvTranspose":
            outputs, inputs = inputs, outputs
        shape = (outputs, inputs, *(1, 1, *window)[-2:])
        if max(node.attributes.get("dilations", (1,))) > 1:
            return "dil_conv", shape
        return "sep_conv" if node.attributes.get("group", 1) > 1 else "conv", shape

    def product(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read a product: with weights a convolution, of two activations a part of attention."""
        for name in node.inputs[1::-1]:
            if self.is_weight(name):
                inputs, outputs = self.shape(name)[-2:] if len(self.shape(name)) > 1 else (1, 1)
                if node.attributes.get("transB"):
                    inputs, outputs = outputs, inputs
                return "conv", (outputs, inputs, 1, 1)
        if self.weighted & {*node.inputs}:
            return "msa", ()
        return _NONE if self.scores & {*node.outputs} else self.unread(node)

    def sum(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read a sum, a bias, or a table of positions, of which a square has as many."""
        if self.scores & {*node.outputs}:
            return _NONE
        rank = len(self.shape(node.outputs[0]))
        for name in node.inputs:
            if self.is_weight(name):
                # A table may have been written once for each image of the batch.
                sides = [side for side in self.shape(name)[1 - rank :] if side > 1] or [1]
                if len(sides) == 1:
                    return "bias", (sides[0],)
                window = round(math.prod(sides[:-1]) ** 0.5)
                return "pos_enc", (sides[-1], 1, window, window)
        return ("sum", ()) if self.joins(node) else _NONE

    def gate(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read a product of two different activations, element by element."""
        is_score = self.scores & {*node.outputs}
        return ("cse", ()) if self.joins(node) and not is_score else _NONE

    def joins(self, node: Node) -> bool:
        """Whether a node reads values that come by different ways."""
        return len({self.sources[name] for name in node.inputs if self.sources[name]}) > 1

    def mean(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read a mean over all but batch and channels; a norm's, over these, has no type."""
        kept = [side for side in self.shape(node.outputs[0])[1:] if side > 1]
        return ("glob_avg", ()) if len(kept) <= 1 else self.unread(node)

    def mean_of_windows(self, node: Node) -> tuple[str, tuple[int, ...]]:
        is_global = math.prod(self.shape(node.outputs[0])[2:]) == 1
        return "glob_avg" if is_global else "avg_pool", ()

    def norm(self, node: Node) -> tuple[str, tuple[int, ...]]:
        kind = "bn" if node.op == "BatchNormalization" else "ln"
        return kind, (math.prod(self.shape(node.inputs[1])),)

    def rows(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """Read rows of a learnt table, its product with one-hot vectors."""
        table = self.shape(node.inputs[0])
        if self.is_weight(node.inputs[0]) and len(table) == 2:
            return "conv", (table[1], table[0], 1, 1)
        return _NONE


_NONE: tuple[str, tuple[int, ...]] = ("", ())
_RULES: Mapping[str, Callable[[_Reading, Node], tuple[str, tuple[int, ...]]]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _Reading.conv),
    **dict.fromkeys(("Gemm", "MatMul"), _Reading.product),
    **dict.fromkeys(("Add", "Sum"), _Reading.sum),
    "Mul": _Reading.gate,
    "MaxPool": lambda *_: ("max_pool", ()),
    "AveragePool": _Reading.mean_of_windows,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), lambda *_: ("glob_avg", ())),
    "ReduceMean": _Reading.mean,
    **dict.fromkeys(
        ("BatchNormalization", "LayerNormalization", "GroupNormalization",
         "InstanceNormalization", "RMSNormalization"),
        _Reading.norm,
    ),
    "Gather": _Reading.rows,
    **dict.fromkeys(("Attention", "MultiHeadAttention"), lambda *_: ("msa", ())),
    "Concat": lambda self, node: ("concat", ()) if self.joins(node) else _NONE,
}  # fmt: skip
_WITHOUT_NODE = {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "CastLike",
      "Trilu"),
    *(op for kind in ("activation", "elementwise", "softmax", "transpose", "move", "select", "cast",
                      "depth_to_space", "quantize") for op in KINDS[kind].OPERATORS),
} - _RULES.keys()  # fmt: skip
"""Operators that pass on what they read; a linear interpolation (Resize) is none of them."""
