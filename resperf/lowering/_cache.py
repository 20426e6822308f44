"""Answers of frameworks, kept on disk: a network's structure lowers the same way every time.

A cache only saves time: what cannot be read or written is left out without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from resperf.errors import LayerError
from resperf.layers import OPERATOR_KINDS, layer_from_key
from resperf.lowering._base import LoweredNode, Role
from resperf.network import Network, structure_digest

_FORMAT = 13
"""Raised when a network lowers to other layers than before, such as those of a new kind."""


def cache_folder() -> Path:
    """Folder of cached answers: ``$XDG_CACHE_HOME/resperf/lowering``, by default in ~/.cache.

    Raises
    ------
    OSError
        If this user has no home.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "resperf" / "lowering"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _file(network: Network, identity: Sequence[str]) -> Path:
    known = sorted((kind, *sorted(cls.OPERATORS)) for kind, cls in OPERATOR_KINDS.items())
    digest = hashlib.sha256(repr((_FORMAT, known, structure_digest(network), *identity)).encode())
    return cache_folder() / f"{digest.hexdigest()}.json"


def load(network: Network, identity: Sequence[str]) -> list[LoweredNode] | None:
    """Return the lowered nodes kept for this structure and `identity`, or None.

    Parameters
    ----------
    network : Network
    identity : sequence of str
        What else decides the answer: framework, version, instruction set, settings.
    """
    try:
        rows = json.loads(_file(network, identity).read_text(encoding="utf-8"))
        return [_node(network, row) for row in rows]
    except (OSError, ValueError, KeyError, IndexError, TypeError, LayerError):
        return None


def _node(network: Network, row: dict[str, object]) -> LoweredNode:
    sources = tuple(network.nodes[i].name for i in cast("list[int]", row["sources"]))
    key = cast("str | None", row["layer"])
    return LoweredNode(
        name=sources[0] if sources else str(row["name"]),
        op=str(row["op"]),
        layer=None if key is None else layer_from_key(key),
        role=cast(Role, row["role"]),
        reason=str(row["reason"]),
        sources=sources,
    )


def store(network: Network, identity: Sequence[str], nodes: Sequence[LoweredNode]) -> None:
    """Keep lowered nodes; a second process never sees half a file."""
    position = {node.name: i for i, node in enumerate(network.nodes)}
    rows = [
        {
            "name": node.name,
            "op": node.op,
            "layer": None if node.layer is None else node.layer.key,
            "role": node.role,
            "reason": node.reason,
            "sources": [position[name] for name in node.sources],
        }
        for node in nodes
    ]
    with contextlib.suppress(OSError):
        target = _file(network, identity)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
            partial = Path(folder) / target.name
            partial.write_text(json.dumps(rows), encoding="utf-8")
            os.replace(partial, target)
