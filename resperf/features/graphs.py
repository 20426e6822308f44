"""Graphs of operators as DNNPerf reads them: features of nodes and edges (Gao et al., section III).

"Runtime Performance Prediction for Deep Learning Models with Graph Neural Network" (ICSE-SEIP
2023). A node is one layer call: a convolution with its bias and activation. In training, each
operator and the loss have a twin, the backward pass, and each tensor that v reads of u is three
edges: u -> v, its gradient v' -> u', and the saved tensor u -> v'.

The paper's formulas of a convolution take the image's height and width for the window's; here they
are the window's. What the paper leaves open: a backward pass has the work of the forward pass once
for each gradient that it computes, and the loss has no work: measured steps are given gradients of
the outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from resperf.devices import FP32, DeviceFacts
from resperf.features import Array
from resperf.layers import Layer
from resperf.network import Network, Node, Tensor
from resperf.units import DTYPE_BYTES

Features = Mapping[str, float]
"""Features of a node or an edge by name; those that are 0 may be left out."""
LayerOf = Callable[[Network, Node], tuple[Layer | None, float]]
"""(network, node) -> its layer, None if no kind reads it, and its FLOPs."""

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators without a node: what reads their output reads their input."""


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run, and the edges between them.

    Attributes
    ----------
    nodes, edges : tuple of Features
    sources, targets : tuple of int
        Indices of the nodes that an edge leads from and to.
    """

    nodes: tuple[Features, ...]
    edges: tuple[Features, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def on(self, device: DeviceFacts | None) -> Graph:
        """Add a device's peak and memory to the nodes, its bandwidth to the edges; None adds 0."""
        if device is None:
            return self
        peak = device.peaks_flops_per_s[FP32]
        own = {"device_flops_per_s": peak, "device_memory": float(device.memory_bytes)}
        passed = {"bandwidth": device.bandwidth_bytes_per_s}
        nodes = tuple({**features, **own} for features in self.nodes)
        return replace(self, nodes=nodes, edges=tuple({**f, **passed} for f in self.edges))

    def with_self_loops(self) -> Graph:
        """Add an edge of no bytes from each node to itself, of a type of its own."""
        own = tuple(range(len(self.nodes)))
        return replace(
            self,
            edges=(*self.edges, *({"self": 1.0} for _ in own)),
            sources=self.sources + own,
            targets=self.targets + own,
        )


def matrix(features: Sequence[Features], names: Sequence[str]) -> Array:
    """Return features as a matrix, (rows, names); others than the named ones are left out."""
    values = [[named.get(name, 0.0) for name in names] for named in features]
    return np.array(values, dtype=np.float64).reshape(len(features), len(names))


def graph_of(network: Network, layer_of: LayerOf, *, training: bool) -> Graph:
    """Return the graph of a network: of inference the forward nodes alone.

    Parameters
    ----------
    network : Network
        As it runs, with Dropout.
    layer_of : callable
        Reads an operator.
    training : bool
        Whether to add the loss, and a twin of each node.
    """
    loss = Node("loss", "Loss", "", network.outputs, (), {})
    operators = _Operators(network, layer_of, [*network.nodes, *[loss] * training])
    nodes, tensors = operators.forward, operators.edges
    ends = [(source, target) for source, target, _ in tensors]
    edges: list[Features] = [{"forward": 1.0, "bytes": size} for size in tensors.values()]
    if training:
        last = 2 * len(nodes) - 1  # A node and its twin are as far from the ends.
        gradients = [(last - target, last - source) for source, target in ends]
        saved = [(source, last - target) for source, target in ends]
        ends = [*ends, *gradients, *saved, (len(nodes) - 1, len(nodes))]
        behind: list[Features] = [{"backward": 1.0, "bytes": size} for size in tensors.values()]
        edges += [*behind, *behind, {"backward": 1.0}]
        nodes = [*nodes, *reversed(operators.backward)]
    sources, targets = (tuple(end[side] for end in ends) for side in (0, 1))
    return Graph(tuple(nodes), tuple(edges), sources, targets)


@dataclass
class _Operators:
    """Forward nodes of a network, the twin of each, and what they read of each other."""

    network: Network
    layer_of: LayerOf
    nodes: Sequence[Node]
    forward: list[dict[str, float]] = field(default_factory=list)
    backward: list[dict[str, float]] = field(default_factory=list)
    edges: dict[tuple[int, int, str], float] = field(default_factory=dict)
    """(node that writes, node that reads, tensor) -> bytes."""
    writers: dict[str, int] = field(default_factory=dict)
    """Tensor -> the node that writes it."""
    fusing: dict[str, int] = field(default_factory=dict)
    """Tensor that one node alone reads -> its writer, which an activation may become part of."""

    def __post_init__(self) -> None:
        readers = Counter(name for node in self.nodes for name in node.inputs)
        readers.update(self.network.outputs)
        for node in self.nodes:
            before = next(iter(node.inputs), "")
            if node.op in _VIEWS:
                if before in self.writers:
                    self.writers[node.outputs[0]] = self.writers[before]
                continue
            layer, flops = self.layer_of(self.network, node)
            fields = {} if layer is None else layer.fields()
            if layer is not None and layer.kind == "activation" and before in self.fusing:
                index = self.writers[node.outputs[0]] = self.fusing[before]
                for features in (self.forward[index], self.backward[index]):
                    features[f"activation={fields['activation']}"] = 1.0
                continue
            if layer is not None and fields.get("bias"):
                flops += 2 * math.prod(layer.output_shape)
            if fields.get("activation") == "none" and readers[node.outputs[0]] == 1:
                self.fusing[node.outputs[0]] = len(self.forward)
            self._add(node, flops, _hyperparameters(self.network, node, layer))

    def _add(self, node: Node, flops: float, hyperparameters: Features) -> None:
        """Append a node and its twin, and the edges to it."""
        index, tensors = len(self.forward), self.network.tensors
        read, written = (
            [tensors[name] for name in names if name in tensors]
            for names in (dict.fromkeys(node.inputs), node.outputs)
        )
        computed = [x for x in read if x.name in self.writers]
        weights = [x for x in read if x.is_weight and x.name not in self.writers]
        weight_bytes = sum(_bytes(x) for x in weights if x.is_learnt)
        input_bytes = sum(map(_bytes, read)) - sum(map(_bytes, weights))
        output_bytes = sum(map(_bytes, written))
        temporary = _TEMPORARY_BYTES.get(node.op)
        self.forward.append({
            f"type={node.op}": 1.0, **hyperparameters, "flops": flops, "weight_bytes": weight_bytes,
            "input_bytes": input_bytes, "output_bytes": output_bytes,
            "temporary_bytes": temporary(read, written[0]) if temporary and written else 0.0,
        })  # fmt: skip
        self.backward.append({
            f"type={node.op}_BP": 1.0, **hyperparameters,
            "flops": flops * (len(computed) + (weight_bytes > 0)),
            "weight_bytes": weight_bytes, "weight_gradient_bytes": weight_bytes,
            "input_bytes": input_bytes, "output_gradient_bytes": output_bytes,
            "output_bytes": sum(map(_bytes, computed)),
        })  # fmt: skip
        for x in computed:
            self.edges[self.writers[x.name], index, x.name] = _bytes(x)
        self.writers.update(dict.fromkeys(node.outputs, index))


def _hyperparameters(network: Network, node: Node, layer: Layer | None) -> dict[str, float]:
    """Return the fields of a node's layer: numbers, and each name as a feature of its own."""
    if node.op == "Dropout":
        ratio = network.tensors.get("".join(node.inputs[1:2]))
        rate = node.attributes.get("ratio", 0.5) if ratio is None else ratio.value
        return {} if rate is None else {"rate": float(rate)}
    numbers = dict[str, float]()
    for name, spec in ({} if layer is None else layer.specs).items():
        value = vars(layer)[name]
        if not spec.choices:
            numbers[name] = float(value)
        elif name not in ("dtype", "layout") and value != "none":
            numbers[f"{name}={value}"] = 1.0
    return numbers


def _bytes(tensor: Tensor) -> float:
    return float(math.prod(tensor.shape) * DTYPE_BYTES.get(tensor.dtype, 1))


def _columns_bytes(read: Sequence[Tensor], written: Tensor) -> float:
    """Return the most that a convolution may unfold: all windows of one image."""
    image, filters = read[:2]
    return _bytes(replace(image, shape=(image.shape[1], *filters.shape[2:], *written.shape[2:])))


def _gates_bytes(read: Sequence[Tensor], _: Tensor) -> float:
    """Return the gates of all steps, which the backward pass reads."""
    steps, weights = read[:2]
    return _bytes(replace(steps, shape=(*steps.shape[:2], *weights.shape[:2])))


_TEMPORARY_BYTES: Mapping[str, Callable[[Sequence[Tensor], Tensor], Any]] = {
    "Conv": _columns_bytes,
    "MaxPool": lambda _, written: _bytes(replace(written, dtype="int64")),  # where maxima are
    "Dropout": lambda _, written: _bytes(replace(written, dtype="bool")),  # what is not dropped
    "BatchNormalization": lambda read, _: 2 * _bytes(read[1]),  # means and inverse deviations
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _gates_bytes),
}
"""Operator -> bytes of what it computes besides its outputs."""
