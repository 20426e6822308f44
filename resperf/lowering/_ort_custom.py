"""Operators that ONNX Runtime does not know: the rest of the network is lowered around them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from resperf.errors import UnsupportedError
from resperf.lowering._base import LoweredNode, qualified_by_domain
from resperf.network import Network, Node

KNOWN_DOMAINS = frozenset({
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten",
})  # fmt: skip
"""Domains that ONNX Runtime has schemas of."""


def custom_nodes(network: Network) -> list[Node]:
    """Return the nodes of other domains, which a library registers at run time."""
    return [node for node in network.nodes if node.domain not in KNOWN_DOMAINS]


def without_custom(network: Network, custom: Sequence[Node]) -> tuple[Network, Network]:
    """Return the rest of a network: as ONNX Runtime can load it, and to be read against.

    What custom operators read is an output of the first, what they write an input.

    Raises
    ------
    UnsupportedError
        If the shape of what the rest reads of them is not known.
    """
    names = {node.name for node in custom}
    rest = tuple(node for node in network.nodes if node.name not in names)
    made = {name for node in rest for name in node.outputs if name}
    read = {name for node in rest for name in node.inputs if name} | set(network.outputs)
    written = dict.fromkeys(name for node in custom for name in node.outputs if name in read)
    for name in written:
        if name not in network.tensors:
            raise UnsupportedError(
                f"the shape of {name!r}, which a custom operator writes, is not declared"
            )
    taken = dict.fromkeys(name for node in custom for name in node.inputs if name in made)
    outputs = dict.fromkeys((*(n for n in network.outputs if n not in written), *taken))
    domains = {node.domain for node in custom}
    opsets = {name: each for name, each in network.opsets.items() if name not in domains}
    reading = replace(network, nodes=rest, opsets=opsets)
    loaded = replace(reading, inputs=(*network.inputs, *written), outputs=tuple(outputs))
    return loaded, reading


def with_custom(
    network: Network, lowered: Sequence[LoweredNode], custom: Sequence[Node]
) -> list[LoweredNode]:
    """Put custom operators back: behind what they read, before what reads them."""
    if not custom:
        return list(lowered)
    stages = _stages(network, {node.name for node in custom})
    own = [max((stages[name] for name in each.sources), default=None) for each in lowered]
    found: list[tuple[tuple[int, bool], LoweredNode]] = []
    for place, kernel in enumerate(lowered):
        # A re-layout has no sources: of an input it runs for the kernel behind it.
        near = own[place:] if kernel.op == "ReorderInput" else own[place::-1]
        found.append(((next((each for each in near if each is not None), 0), False), kernel))
    for node in custom:
        op = qualified_by_domain(node).op
        reason = f"no layer kind for operator {op}"
        kernel = LoweredNode(node.name, op, None, "unknown", reason, (node.name,))
        found.append(((stages[node.name], True), kernel))
    return [kernel for _, kernel in sorted(found, key=lambda each: each[0])]


def _stages(network: Network, custom: Set[str]) -> dict[str, int]:
    """Count for each node the custom operators before it, along the longest path."""
    behind: dict[str, int] = {}
    stages = {}
    for node in network.nodes:
        stage = max((behind.get(name, 0) for name in node.inputs), default=0)
        stages[node.name] = stage
        behind |= dict.fromkeys(node.outputs, stage + (node.name in custom))
    return stages
