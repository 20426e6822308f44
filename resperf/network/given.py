"""Networks given in memory, as bytes or as `onnx.ModelProto`, and stored without their weights."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from resperf.errors import NetworkError, printable
from resperf.network._base import NETWORKS_CACHED, Network
from resperf.network.assumed import Sizes, Stated, stated
from resperf.network.model import parse, strip_file, stripped_file
from resperf.network.reader import resolve
from resperf.network.wire import COPIED_INTEGER_BYTES, Stripped, strip

if TYPE_CHECKING:
    from onnx import ModelProto

_GIVEN = Path("the given network")
"""Stands for a file's path in messages."""
_UNNAMED = "network"


def read_given_network(
    model: bytes | ModelProto, path: Path = _GIVEN, **sizes: Unpack[Sizes]
) -> Network:
    """Read a network's structure and shapes as `read_network` does; its name is the graph's.

    Errors call it by `path`. The last networks are cached, by their content without weights.

    Raises
    ------
    NetworkError
        If the bytes are not an ONNX model, or the value is neither bytes nor a model.
    ShapeError
        If a dimension is unknown or does not fit.
    """
    content = model if isinstance(model, bytes) else _structure(model)
    return _read(strip_file(path, content).model, path, stated(**sizes))


@lru_cache(maxsize=NETWORKS_CACHED)
def _read(stripped: bytes, path: Path, given: Stated) -> Network:
    model = parse(path, Stripped(stripped))
    return replace(resolve(path, model, given), name=printable(model.graph.name) or _UNNAMED)


def _structure(model: ModelProto) -> bytes:
    """Serialise a model without its large initializers, which need not be copied then.

    Raises
    ------
    NetworkError
        If it is not a model.
    """
    from onnx import ModelProto, TensorProto

    if not isinstance(model, ModelProto):
        raise NetworkError(
            "a network is a path, a PyTorch module, a Keras or ONNX model or its bytes, not "
            f"{type(model).__name__}"
        )
    light = ModelProto()
    _copy(model, light, without="graph")
    if model.HasField("graph"):
        light.graph.SetInParent()
        _copy(model.graph, light.graph, without="initializer")
        for tensor in model.graph.initializer:
            if tensor.ByteSize() > COPIED_INTEGER_BYTES:
                tensor = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            light.graph.initializer.append(tensor)
    content: bytes = light.SerializeToString()
    return content


def _copy(source: Any, target: Any, *, without: str) -> None:
    """Copy the fields of a message but one: lists, messages and plain values."""
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if isinstance(value, str | bytes | int | float):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)


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
