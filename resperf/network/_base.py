"""What a network is here: nodes in order and tensors with shapes, free of any weight bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL_ELEMENTS = 4096
"""Constants of at most this many elements are read with their value."""
NETWORKS_CACHED = 256
"""Networks, at one batch size each, that a process caches with what it derived from them."""

MALFORMED = (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading raises where attributes and shapes do not fit their operator."""

TensorType = tuple[str, tuple[int, ...]]
"""Element type and shape of a tensor, as inferred."""
PartialType = tuple[str, tuple[int | None, ...] | None]
"""The same, with None for unknown lengths, or for the shape of unknown rank."""


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type, which numpy puts together at each call."""
    return dtype.name.replace("_", "")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a network.

    Attributes
    ----------
    name : str
        Name as in the ONNX file.
    shape : tuple of int
        Every dimension known.
    dtype : str
        numpy's name of the element type, such as ``"float32"``.
    value : ndarray or None
        The value of a small constant (at most ``SMALL_ELEMENTS`` elements), else None.
    is_weight : bool
        True for a constant, whether or not its bytes are available.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: npt.NDArray[Any] | None = None
    is_weight: bool = False

    @classmethod
    def constant(cls, name: str, value: npt.NDArray[Any]) -> Tensor:
        """Make a small constant of its value."""
        return cls(name, value.shape, _name_of(value.dtype), value, is_weight=True)

    @property
    def is_learnt(self) -> bool:
        """Whether training changes it: neither a shape nor a single number such as an epsilon."""
        return self.is_weight and self.dtype not in ("int64", "bool") and prod(self.shape) > 1


@dataclass(frozen=True)
class Node:
    """One operator of a network.

    Attributes
    ----------
    name : str
        Unique and never empty: generated where the file gives none.
    op : str
        Operator type, such as ``"Conv"``.
    domain : str
        Operator domain, ``""`` for ONNX's own.
    inputs, outputs : tuple of str
        Tensor names; ``""`` for an absent optional one.
    attributes : mapping of str to Any
        Python values: int, float, str, tuples of these, small tensors as arrays.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Network:
    """A network whose shapes are all known.

    Attributes
    ----------
    name : str
        The file's stem.
    nodes : tuple of Node
        In topological order, without nodes that only compute constants.
    tensors : mapping of str to Tensor
        By name. Outputs of an unknown operator may be absent.
    inputs, outputs : tuple of str
        Names of the graph's inputs (without weights) and outputs.
    opsets : mapping of str to int
        Operator-set version per domain.
    batch : int or None
        As requested; else the first dimension of the inputs, if they agree on it.
    notes : tuple of str
        What a user should know about how the file was read.
    weight_nodes : tuple of Node
        Nodes that compute with weights alone, in order. Frameworks that optimise fold them; others
        run them each time.
    unfolded_nodes : tuple of Node
        Nodes that compute shapes or other constants in half precision, or of dequantised values, in
        order. ONNX Runtime runs them each time on a CPU; others fold them.
    dead_nodes : tuple of Node
        Nodes that lead to no output, in order. ONNX Runtime and eager PyTorch run them; others
        leave them out.
    overridable : tuple of str
        Weights that are also inputs, from IR version 4 on. ONNX Runtime does not fold them; others
        do.
    weight_tensors : mapping of str to Tensor
        What weight nodes, unfolded nodes and dead nodes read and write.
    parameters : int or None
        At most so many (`resperf.network.parameters`); None if it was not read from a file.
    assumed : tuple of str
        What a user assumed of operators whose output depends on the data.
    undecided : str
        Which input's values decide shapes that are not known; empty if none do.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]
    batch: int | None
    notes: tuple[str, ...] = ()
    weight_nodes: tuple[Node, ...] = ()
    unfolded_nodes: tuple[Node, ...] = ()
    dead_nodes: tuple[Node, ...] = ()
    overridable: tuple[str, ...] = ()
    weight_tensors: Mapping[str, Tensor] = field(default_factory=dict)
    parameters: int | None = None
    assumed: tuple[str, ...] = ()
    undecided: str = ""

    @property
    def own_type(self) -> str:
        """Type of most of the values that it reads and computes; of floats, if there are any."""
        counts = {"float32": 0}
        for tensor in self.tensors.values():
            if not tensor.is_weight:
                counts[tensor.dtype] = counts.get(tensor.dtype, 0) + prod(tensor.shape)
        floats = [dtype for dtype in counts if "float" in dtype and counts[dtype]]
        return max(floats or counts, key=lambda dtype: counts[dtype])

    @property
    def float_type(self) -> str:
        """Type of most of its floating-point values; float32 without any."""
        return self.own_type if "float" in self.own_type else "float32"

    def with_weight_nodes(self) -> Network:
        """Return the network as a framework sees it that folds nothing."""
        return replace(
            self,
            nodes=(*self.weight_nodes, *self.nodes),
            tensors={**self.weight_tensors, **self.tensors},
            weight_nodes=(),
            unfolded_nodes=(),
            weight_tensors={},
        )

    def with_dead_nodes(self) -> Network:
        """Return the network with its dead nodes, behind all others."""
        if not self.dead_nodes:
            return self
        tensors = {**self.weight_tensors, **self.tensors}
        return replace(self, nodes=(*self.nodes, *self.dead_nodes), tensors=tensors, dead_nodes=())

    def with_overridable(self) -> Network:
        """Return the network whose overridable weights are inputs, as ONNX Runtime sees it.

        What is computed of them is computed each time.
        """
        if not self.overridable:
            return self
        free, nodes = set(self.overridable), list[Node]()
        unfolded = {name for node in self.unfolded_nodes for name in node.outputs}
        for node in self.weight_nodes:
            if unfolded.isdisjoint(node.outputs) and not free.isdisjoint(node.inputs):
                nodes.append(node)
                free.update(node.outputs)
        tensors = {
            name: replace(tensor, is_weight=tensor.is_weight and name not in free)
            for name, tensor in {**self.weight_tensors, **self.tensors}.items()
        }
        inputs = (*self.inputs, *(name for name in self.overridable if name in tensors))
        return replace(
            self, nodes=(*nodes, *self.nodes), tensors=tensors, inputs=inputs, overridable=()
        )

    def as_onnxruntime_runs(self) -> Network:
        """Return the network with all that ONNX Runtime runs on a CPU and others leave out."""
        return self.with_overridable().with_dead_nodes().with_unfolded_nodes()

    def with_unfolded_nodes(self) -> Network:
        """Return the network with its unfolded nodes, each right before the first that reads it."""
        if not self.unfolded_nodes:
            return self
        first: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for name in node.inputs:
                first.setdefault(name, index)
        indices = []
        for node in reversed(self.unfolded_nodes):
            index = min(first.get(name, len(self.nodes)) for name in node.outputs if name)
            first.update((name, min(index, first.get(name, index))) for name in node.inputs)
            indices.append(index)
        # A sort keeps the order of those with the same index.
        placed = [*zip(reversed(indices), self.unfolded_nodes, strict=True), *enumerate(self.nodes)]
        nodes = tuple(node for _, node in sorted(placed, key=itemgetter(0)))
        computed = {name for node in self.unfolded_nodes for name in node.outputs}
        tensors = dict(self.tensors)
        ends = (name for node in self.unfolded_nodes for name in (*node.inputs, *node.outputs))
        for name in ends:
            if (tensor := tensors.get(name, self.weight_tensors.get(name))) is not None:
                tensors[name] = replace(tensor, is_weight=tensor.is_weight and name not in computed)
        return replace(self, nodes=nodes, tensors=tensors, unfolded_nodes=())


@dataclass(frozen=True)
class Rewritten:
    """A network after rewriting.

    Attributes
    ----------
    network : Network
    sources : mapping of str to tuple of str
        Name of a new node -> names of the original nodes that it replaces; helper nodes have none.
    """

    network: Network
    sources: Mapping[str, tuple[str, ...]]
