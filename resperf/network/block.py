"""A block of a network: the operators between two places, as a network of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from resperf.errors import NetworkError, did_you_mean
from resperf.network._base import Network, Node, Tensor
from resperf.network.graph import live_nodes


def block_of(network: Network, ends: str) -> Network:
    """Return the operators on the paths from one place of a network to another.

    Parameters
    ----------
    network : Network
    ends : str
        ``FROM:TO``, names of operators or tensors. A tensor begins or ends the block, an operator
        is part of it; of both by one name, the operator counts. Names may contain colons.

    Returns
    -------
    Network
        Named ``NETWORK[FROM:TO]``. Tensors from outside, such as those of shortcuts that begin
        earlier, are its inputs as well.

    Raises
    ------
    NetworkError
        If there is no such place, or no path from one to the other.
    """
    start, end = _places(network, ends)
    written = {node.name: node.outputs for node in network.nodes}
    reached, below = set() if start in written else {start}, set()
    for node in network.nodes:
        if node.name == start or not reached.isdisjoint(node.inputs):
            below.add(node.name)
            reached.update(filter(None, node.outputs))
    above = live_nodes(network.nodes, filter(None, written.get(end, (end,))), {})
    inside = [node for node in above if node.name in below]
    if not inside:
        raise NetworkError(f"{network.name}: no path leads from {start!r} to {end!r}")
    return _alone(network, inside, ends)


def _places(network: Network, ends: str) -> tuple[str, str]:
    """Split ``FROM:TO`` where both sides are names."""
    names = dict.fromkeys(
        name for node in network.nodes for name in (node.name, *node.inputs, *node.outputs)
    )
    words = ends.split(":")
    pairs = [(":".join(words[:index]), ":".join(words[index:])) for index in range(1, len(words))]
    for start, end in pairs:
        if start in names and end in names:
            return start, end
    if not pairs:
        raise NetworkError(f"{ends!r} is no block; write FROM:TO, names of operators or tensors")
    unknown = next(name for name in pairs[0] if name not in names)
    raise NetworkError(
        f"{network.name} has no operator or tensor {unknown!r}{did_you_mean(unknown, names)}; see "
        "the names with --by node"
    )


def _alone(network: Network, inside: list[Node], ends: str) -> Network:
    """Return nodes as a network, with what they read and write."""
    written = {name for node in inside for name in node.outputs if name}
    read = dict.fromkeys(name for node in inside for name in node.inputs if name)
    names = {node.name for node in inside}
    outside = {name for node in network.nodes if node.name not in names for name in node.inputs}
    weights = live_nodes(network.weight_nodes, read, {})
    given = dict.fromkeys(
        name for node in weights for name in (*node.inputs, *node.outputs) if name
    )
    inputs = tuple(
        name
        for name in read
        if name not in written
        and not (name in network.tensors and network.tensors[name].is_weight)
        and name not in given
    )
    outputs = tuple(
        name
        for node in inside
        for name in node.outputs
        if name and (name in outside or name in network.outputs or name not in read)
    )
    return replace(
        network,
        name=f"{network.name}[{ends}]",
        nodes=tuple(inside),
        tensors=_some(network.tensors, (*read, *written)),
        inputs=inputs,
        outputs=outputs,
        weight_nodes=tuple(weights),
        unfolded_nodes=(),
        dead_nodes=(),
        overridable=tuple(name for name in network.overridable if name in read or name in given),
        weight_tensors=_some(network.weight_tensors, given),
        parameters=None,
    )


def _some(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in dict.fromkeys(names) if name in tensors}
