"""A network's graph without its weights, as bytes that can be stored and read again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Unpack

from resperf.network._base import Network
from resperf.network.assumed import Sizes, stated
from resperf.network.model import parse, stripped_file
from resperf.network.reader import resolve
from resperf.network.wire import strip


def weightless(path: Path) -> bytes:
    """Return an ONNX file's content without the bytes of its weights; shapes and types stay.

    Raises
    ------
    NetworkError
        If the file is missing, damaged or not ONNX.
    """
    return stripped_file(path).model


def graph_digest(content: bytes) -> str:
    """Return the name that a graph without weights is stored by: its SHA-256 (hex)."""
    return hashlib.sha256(content).hexdigest()


def read_graph(content: bytes, name: str, **sizes: Unpack[Sizes]) -> Network:
    """Read what `weightless` returned as `resperf.network.read_network` reads a file.

    Parameters
    ----------
    content : bytes
    name : str
        Of the network, for messages too.
    sizes
        As in `read_network`.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`.
    """
    path = Path(f"{name}.onnx")
    return resolve(path, parse(path, strip(content)), stated(**sizes))
