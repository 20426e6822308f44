"""Loops whose number of turns is known, read as that many copies of their body."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resperf.network._base import MALFORMED, Tensor
from resperf.network.constants import folded
from resperf.network.graph import branch_nodes, inner_graphs, renamed, subgraphs
from resperf.network.protos import attributes_of, weight

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_MOST_NODES = 3_000
"""Of all copies together: a longer loop stays one operator, which no time is given for."""
_AXES_ARE_INPUT = 13
"""From this version on, Unsqueeze takes its axes as an input."""


def unrolled(
    path: Path, node: NodeProto, opsets: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> tuple[list[NodeProto], list[Tensor]] | None:
    """Return the nodes that a ``Loop`` runs and their new constants.

    None where its number of turns depends on data, or the copies would be too many.

    Parameters
    ----------
    path : Path
        For messages.
    node : NodeProto
    opsets : mapping of str to int
        Versions by domain.
    tensors : mapping of str to Tensor
        What is known where the loop stands.
    """
    from onnx import helper

    body = next(subgraphs(node), None)
    if body is None:
        return None
    carried = len(body.input) - 2
    fits = carried == len(node.input) - 2 and len(body.output) > carried >= 0
    fits &= opsets.get("", 1) >= _AXES_ARE_INPUT or len(body.output) == carried + 1
    ops = {inner.op_type for graph in inner_graphs(body) for inner in graph.node}
    # Loops within loops would be copies of copies.
    if not fits or body.sparse_initializer or any("Sequence" in op or op == "Loop" for op in ops):
        return None
    loop = next(filter(None, node.output))
    weights = {proto.name: weight(path, proto) for proto in body.initializer}
    turns = None
    with suppress(*MALFORMED):
        turns = _turns(path, node, body, {**tensors, **weights})
    if turns is None or (not turns and len(node.output) > carried):
        return None
    axes = Tensor.constant(f"{loop}/axes", np.zeros(1, np.int64))
    nodes: list[NodeProto] = []
    constants = [Tensor.constant(f"{loop}/true", np.array(True)), axes]
    constants += [replace(tensor, name=f"{loop}/{name}") for name, tensor in weights.items()]
    state, stacked = list(node.input[2:]), [list[str]() for _ in body.output[carried + 1 :]]
    for turn in range(turns):
        outputs = [f"{loop}/{turn}/{index}" for index in range(len(body.output))]
        own, inner = branch_nodes(body, outputs)
        constants.append(Tensor.constant(f"{loop}/{turn}", np.array(turn)))
        values = (constants[-1].name, constants[0].name, *state)
        given = {info.name: name for info, name in zip(body.input, values, strict=True)}
        given |= {own[name]: f"{loop}/{name}" for name in weights}
        nodes += (renamed(copy, given) for copy in inner)
        state = outputs[1 : carried + 1]
        for parts, name in zip(stacked, outputs[carried + 1 :], strict=True):
            parts.append(f"{name}/unsqueezed")
            nodes.append(helper.make_node("Unsqueeze", [name, axes.name], parts[-1:]))
    ends = [helper.make_node("Identity", [name], [""]) for name in state]
    ends += [helper.make_node("Concat", parts, [""], axis=0) for parts in stacked]
    for end, output in zip(ends, node.output, strict=False):
        end.output[0] = output
    return [*nodes, *(end for end in ends if end.output[0])], constants


def _turns(path: Path, node: NodeProto, body: GraphProto, tensors: dict[str, Tensor]) -> int | None:
    """Return how often a loop runs its body, by what it computes of constants alone."""
    most, is_on = (tensors.get(name) for name in node.input[:2])
    if any(name and (tensor is None or tensor.value is None)
           for name, tensor in zip(node.input, (most, is_on), strict=False)):  # fmt: skip
        return None
    limit = math.inf if most is None or most.value is None else int(most.value.item())
    runs = is_on is None or is_on.value is None or bool(is_on.value.item())
    state = [tensors.get(name) for name in node.input[2:]]
    names = [info.name for info in body.input]
    nodes = [(inner, attributes_of(path, inner)) for inner in body.node]
    turn = 0
    while runs and turn < limit:
        number, on = np.array(turn), np.array(True)
        values = (Tensor.constant(names[0], number), Tensor.constant(names[1], on), *state)
        constants = ChainMap({n: x for n, x in zip(names, values, strict=True) if x}, tensors)
        for inner, attributes in nodes:
            results = folded(inner, attributes, constants) or []
            constants |= {name: Tensor.constant(name, value)
                      for name, value in zip(inner.output, results, strict=False)}  # fmt: skip
        keeps = constants.get(body.output[0].name)
        turn += 1
        if keeps is None or keeps.value is None or turn * (len(nodes) + 1) > _MOST_NODES:
            return None
        runs = bool(keeps.value.item())
        state = [constants.get(info.name) for info in body.output[1 : len(names) - 1]]
    return turn
