"""Disk cache of lowered networks, keyed by the network's structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from resperf import disk_cache
from resperf.errors import LayerError, Message
from resperf.layers import Layer, layer_from_key
from resperf.lowering._base import LoweredNode
from resperf.network import MALFORMED, Network, structure_digest

_FOLDER = "lowering"


def once(
    network: Network, identity: Sequence[str], make: Callable[[], list[LoweredNode]]
) -> list[LoweredNode]:
    """Return the lowered nodes cached for this structure and `identity`, or make and cache them.

    Parameters
    ----------
    network : Network
    identity : sequence of str
        What else the result depends on: framework, version, instruction set, settings.
    make : callable
    """
    code = disk_cache.code_state("layers", "lowering", "network")
    name = disk_cache.name_of(code, structure_digest(network), *identity)
    with suppress(LayerError, *MALFORMED):
        layers: dict[str | None, Layer | None] = {None: None}
        return [_node(network, row, layers) for row in disk_cache.load(_FOLDER, name)]
    nodes = make()
    disk_cache.store(_FOLDER, name, _rows(network, nodes))
    return nodes


def _node(
    network: Network, row: Sequence[Any], layers: dict[str | None, Layer | None]
) -> LoweredNode:
    """Read a node; equal layers, of which networks have many, become one value in `layers`."""
    name, op, key, role, reason, indices = row
    sources = tuple(network.nodes[index].name for index in indices)
    if key not in layers:
        layers[key] = layer_from_key(key)
    return LoweredNode(
        sources[0] if sources else name, op, layers[key], role, Message(*reason), sources
    )


def _rows(network: Network, nodes: Sequence[LoweredNode]) -> list[tuple[Any, ...]]:
    position = {node.name: i for i, node in enumerate(network.nodes)}
    return [
        (
            node.name, node.op, node.layer and node.layer.key, node.role,
            (reason, reason.general, reason.unread), [position[name] for name in node.sources],
        )
        for node in nodes
        for reason in [Message.of(node.reason)]
    ]  # fmt: skip
