"""A graph's consistency: every tensor has one source, and nodes come after those they read from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from resperf.errors import NetworkError
from resperf.network._base import Node

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_GRAPH_TYPES = (5, 10)  # AttributeProto.GRAPH and GRAPHS


def ordered_nodes(path: Path, graph: GraphProto, given: Set[str]) -> list[NodeProto]:
    """Return the nodes so that each comes after those it reads from.

    Parameters
    ----------
    path : Path
        For messages.
    graph : GraphProto
        The main graph; an order that is already valid does not change.
    given : set of str
        Tensors that no node computes: inputs and initializers.

    Raises
    ------
    NetworkError
        If a tensor has two sources or none, or nodes form a cycle.
    """
    source = _sources(path, graph, given)
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.node):
        before = set()
        for name in set(node.input) | captured(node):
            if name in source:
                before.add(source[name])
            elif name and name not in given and name in node.input:
                raise NetworkError(
                    f"{path} is damaged: {_label(node, index)} reads tensor {name!r}, "
                    "which nothing produces; export it again"
                )
        waiting.append(len(before))
        for earlier in before:
            readers.setdefault(earlier, []).append(index)
    for output in graph.output:
        if output.name not in source and output.name not in given:
            raise NetworkError(
                f"{path} is damaged: nothing produces its output {output.name!r}; export it again"
            )
    order = list(range(len(waiting)))
    if any(reader <= index for index, after in readers.items() for reader in after):
        ready = deque(index for index in order if waiting[index] == 0)
        order = []
        while ready:
            order.append(ready.popleft())
            for reader in readers.get(order[-1], ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    if len(order) < len(graph.node):
        stuck = next(index for index, count in enumerate(waiting) if count)
        raise NetworkError(
            f"{path} is damaged: {_label(graph.node[stuck], stuck)} depends on itself"
        )
    return [graph.node[index] for index in order]


def check_text(path: Path, model: ModelProto) -> None:
    """Refuse names that are not UTF-8 (protobuf returns them as bytes) or not printable.

    Subgraphs are checked as well.

    Raises
    ------
    NetworkError
        If there is one.
    """
    shown: list[object] = [opset.domain for opset in model.opset_import]
    names: list[object] = []
    for graph in inner_graphs(model.graph):
        names += (item.name for item in graph.initializer)
        names += (item.values.name for item in graph.sparse_initializer)
        shown += (info.name for infos in (graph.input, graph.output) for info in infos)
        for node in graph.node:
            shown += (node.op_type, node.domain)
            names += (node.name, *node.input, *node.output)
            names += (attribute.name for attribute in node.attribute)
    wrong = [(name, "text") for name in shown + names if not isinstance(name, str)]
    wrong += [(name, "printable") for name in shown if not str(name).isprintable()]
    if wrong:
        name, what = wrong[0]
        raise NetworkError(f"{path} is damaged: the name {name!r} is not {what}; export it again")


def live_nodes(
    nodes: Sequence[Node], outputs: Iterable[str], inner: Mapping[str, Set[str]]
) -> list[Node]:
    """Return the nodes that an output needs.

    `inner` maps the name of a node that runs graphs of its own to what these read.
    """
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs, inner.get(node.name, ()))
            # The empty name stands for an absent optional tensor.
            needed.discard("")
            live.append(node)
    return live[::-1]


def branch_nodes(
    branch: GraphProto, outputs: Sequence[str]
) -> tuple[dict[str, str], list[NodeProto]]:
    """Return a branch's nodes as nodes of the graph that contains it.

    Parameters
    ----------
    branch : GraphProto
    outputs : sequence of str
        Names of its outputs in that graph.

    Returns
    -------
    names : dict of str to str
        The branch's own tensors -> their names in that graph.
    nodes : list of NodeProto
        With an Identity for each output that the branch passes through.
    """
    from onnx import helper

    computed = [name for node in branch.node for name in node.output if name]
    own = {
        name: f"{outputs[0]}/{name}"
        for name in (*(proto.name for proto in branch.initializer), *computed)
    }
    ends = []
    for info, name in zip(branch.output, outputs, strict=True):
        if info.name in computed and own[info.name] not in outputs:
            own[info.name] = name
        elif name:
            ends.append(helper.make_node("Identity", [own.get(info.name, info.name)], [name]))
    return own, [*(renamed(node, own) for node in branch.node), *ends]


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Return a copy of a node in which some tensors have other names."""
    from onnx import NodeProto

    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename tensors in a node and in what its subgraphs read from outside."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        hidden = {name for inner in graph.node for name in inner.output}
        hidden |= {proto.name for proto in (*graph.initializer, *graph.input)}
        outside = {old: new for old, new in names.items() if old not in hidden}
        for inner in graph.node:
            _rename(inner, outside)
        for info in graph.output:
            info.name = outside.get(info.name, info.name)


def captured(node: NodeProto) -> set[str]:
    """Names that a node's subgraphs read, their own tensors included."""
    return {name for graph in subgraphs(node) for name in names_read(graph)}


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node runs."""
    for attribute in node.attribute:
        if attribute.type in _GRAPH_TYPES:
            yield attribute.g
            yield from attribute.graphs


def inner_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all its subgraphs."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from inner_graphs(inner)


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the weights and constants of a graph and its subgraphs, the graph's weights first."""
    for inner in inner_graphs(graph):
        sparse = [*inner.sparse_initializer]
        yield from inner.initializer
        for attribute in (attribute for node in inner.node for attribute in node.attribute):
            yield attribute.t
            yield from attribute.tensors
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def names_read(graph: GraphProto) -> Iterator[str]:
    """Yield every name that a graph and its subgraphs read, their own tensors included."""
    for node in graph.node:
        yield from node.input
        yield from captured(node)
    yield from (output.name for output in graph.output)


def _sources(path: Path, graph: GraphProto, given: Set[str]) -> dict[str, int]:
    source: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        if not node.op_type:
            raise NetworkError(f"{path} is damaged: node {index} names no operator")
        for name in node.output:
            if not name:
                continue
            if name in source or name in given:
                raise NetworkError(
                    f"{path} is damaged: tensor {name!r} has two sources, "
                    f"the second being {_label(node, index)}; export it again"
                )
            source[name] = index
    return source


def _label(node: NodeProto, index: int) -> str:
    return f"node {node.name or index!r} ({node.op_type})"
