"""Splits into sequences, as PyTorch's exporter writes them, read as splits into tensors.

``SplitToSequence`` and a ``SequenceAt`` for each piece compute what one ``Split`` does, but a
sequence has no shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from resperf.network._base import Tensor
from resperf.network.graph import captured

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_SMALLEST_OPSET = 18
"""From here on, Split and Squeeze take their sizes and axes as inputs, and pieces may differ."""


@dataclass
class Sequences:
    """The sequences of a graph that are only read piece by piece.

    Attributes
    ----------
    graph : GraphProto
    opset : int
        Version of the default domain.
    pieces : dict of str to list of str
        Sequence -> the tensors that it is read as.
    """

    graph: GraphProto
    opset: int
    pieces: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def _whole(self) -> set[str]:
        """Names of the tensors that are not only read piece by piece."""
        names = {output.name for output in self.graph.output}
        for node in self.graph.node:
            names.update(captured(node), () if node.op_type == "SequenceAt" else node.input)
        return names

    def split(
        self, node: NodeProto, tensors: Mapping[str, Tensor]
    ) -> tuple[list[NodeProto], list[Tensor]] | None:
        """Return the nodes that split a tensor without a sequence, and their new constants.

        None where the sequence is read as a whole, or a size is not constant.
        """
        from onnx import helper

        if self.opset < _SMALLEST_OPSET or node.output[0] in self._whole:
            return None
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
        constants = [Tensor.constant(f"{name}/sizes", np.array(sizes, np.int64))]
        split = helper.make_node(
            "Split", [node.input[0], constants[0].name], pieces, node.name, axis=axis
        )
        nodes = [split]
        self.pieces[name] = pieces
        if len(node.input) < 2 and not given.get("keepdims", 1):
            axes = Tensor.constant(f"{name}/axis", np.array([axis], np.int64))
            constants.append(axes)
            self.pieces[name] = [f"{piece}/squeezed" for piece in pieces]
            nodes += [
                helper.make_node("Squeeze", [piece, axes.name], [f"{piece}/squeezed"])
                for piece in pieces
            ]
        return nodes, constants

    def piece(
        self, node: NodeProto, tensors: Mapping[str, Tensor]
    ) -> tuple[list[NodeProto], list[Tensor]] | None:
        """Return the node that passes a piece of a sequence on; None where it is not known."""
        from onnx import helper

        pieces = self.pieces.get(node.input[0])
        position = tensors.get("".join(node.input[1:2]))
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
