"""Splits into sequences, as PyTorch's exporter writes them, read as splits into tensors.

``SplitToSequence`` and a ``SequenceAt`` for each piece compute what one ``Split`` does, but a
sequence has no shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from resperf.network._base import Tensor
from resperf.network.graph import captured

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_SMALLEST_OPSET = 18
"""From here on, Split and Squeeze take their sizes and axes as inputs, and pieces may differ."""


class Sequences:
    """The sequences of a graph that are only read piece by piece.

    Parameters
    ----------
    graph : GraphProto
    opset : int
        Version of the default domain.
    """

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self._pieces: dict[str, list[str]] = {}
        self._graph = graph
        self._readable = opset >= _SMALLEST_OPSET

    @cached_property
    def _whole(self) -> set[str]:
        """Names of the tensors that are not only read piece by piece."""
        names = {output.name for output in self._graph.output}
        for node in self._graph.node:
            names.update(captured(node), () if node.op_type == "SequenceAt" else node.input)
        return names

    def as_tensors(
        self, node: NodeProto, tensors: Mapping[str, Tensor]
    ) -> tuple[list[NodeProto], list[Tensor]] | None:
        """Return the nodes that compute the same without a sequence, and their new constants.

        None for all other nodes, and where a size or a position is not constant.
        """
        if node.domain or not self._readable:
            return None
        if node.op_type == "SplitToSequence" and node.output[0] not in self._whole:
            return self._split(node, tensors)
        if node.op_type == "SequenceAt":
            return self._piece(node, tensors)
        return None

    def _split(
        self, node: NodeProto, tensors: Mapping[str, Tensor]
    ) -> tuple[list[NodeProto], list[Tensor]] | None:
        from onnx import helper

        data = tensors.get(node.input[0])
        given = {attribute.name: attribute.i for attribute in node.attribute}
        axis = given.get("axis", 0)
        if data is None or not -len(data.shape) <= axis < len(data.shape):
            return None
        sizes = _sizes(node, data.shape[axis], tensors)
        if sizes is None:
            return None
        name = node.output[0]
        pieces = [f"{name}/{index}" for index in range(len(sizes))]
        constants = [_constant(f"{name}/sizes", sizes)]
        split = helper.make_node(
            "Split", [node.input[0], constants[0].name], pieces, node.name, axis=axis
        )
        nodes = [split]
        self._pieces[name] = pieces
        if len(node.input) < 2 and not given.get("keepdims", 1):
            axes = _constant(f"{name}/axis", [axis])
            constants.append(axes)
            self._pieces[name] = [f"{piece}/squeezed" for piece in pieces]
            nodes += [
                helper.make_node("Squeeze", [piece, axes.name], [f"{piece}/squeezed"])
                for piece in pieces
            ]
        return nodes, constants

    def _piece(
        self, node: NodeProto, tensors: Mapping[str, Tensor]
    ) -> tuple[list[NodeProto], list[Tensor]] | None:
        from onnx import helper

        pieces = self._pieces.get(node.input[0])
        position = tensors.get(node.input[1])
        if pieces is None or position is None or position.value is None:
            return None
        index = int(position.value.item())
        if not -len(pieces) <= index < len(pieces):
            return None
        return [helper.make_node("Identity", [pieces[index]], node.output, node.name)], []


def _sizes(node: NodeProto, length: int, tensors: Mapping[str, Tensor]) -> list[int] | None:
    """Return the length of each piece; None if they are not constant or do not fit."""
    if len(node.input) < 2:
        return [1] * length
    given = tensors.get(node.input[1])
    if given is None or given.value is None:
        return None
    if given.value.ndim:
        sizes = [int(size) for size in given.value]
        return sizes if sum(sizes) == length else None
    size = int(given.value.item())
    if size <= 0:
        return None
    return [min(size, length - start) for start in range(0, length, size)]


def _constant(name: str, values: list[int]) -> Tensor:
    value = np.array(values, np.int64)
    return Tensor(name, value.shape, "int64", value, is_weight=True)
