"""Parameters of a network, told from the other constants of its file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resperf.network.model import parse
from resperf.network.wire import strip

if TYPE_CHECKING:
    from onnx import GraphProto

_FLOATS = frozenset({1, 10, 11, 16})
"""ONNX's numbers of float32, float16, float64 and bfloat16."""
_LEARNT = frozenset({
    "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "GroupNormalization",
    "InstanceNormalization", "LayerNormalization", "MatMul",
})  # fmt: skip
_RUNNING = slice(3, 5)
"""Inputs of a batch normalisation that are statistics."""


class Parameters(NamedTuple):
    """How many parameters a network has at least and at most.

    Attributes
    ----------
    least : int
        Values that convolutions, products and normalisations take, without running statistics.
    most : int
        All values that the file holds but running statistics: also scales and embeddings, and what
        is no parameter, such as masks and tables of positions.
    """

    least: int
    most: int


def sizes_of_parameters(graph: GraphProto) -> dict[str, int]:
    """Return how many values each float weight has, without running statistics."""
    norms = (node for node in graph.node if node.op_type == "BatchNormalization")
    running = {name for node in norms for name in node.input[_RUNNING]}
    return {
        tensor.name: math.prod(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type in _FLOATS and tensor.name not in running
    }


def graph_parameters(content: bytes, name: str) -> Parameters:
    """Count the parameters of what `resperf.network.weightless` returned.

    Raises
    ------
    NetworkError
        If it is damaged; the message has the network's name.
    """
    graph = parse(Path(f"{name}.onnx"), strip(content)).graph
    sizes = sizes_of_parameters(graph)
    behind = {tensor.name: {tensor.name} & sizes.keys() for tensor in graph.initializer}
    learnt: set[str] = set()
    for node in graph.node:
        names = [name for name in node.input if name]
        if all(name in behind for name in names):
            reached = set().union(*(behind[name] for name in names))
            behind.update(dict.fromkeys(node.output, reached))
        elif node.op_type in _LEARNT:
            learnt.update(*(behind.get(name, ()) for name in names))
    return Parameters(sum(sizes[name] for name in learnt), sum(sizes.values()))
