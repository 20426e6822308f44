"""Networks given in memory, as bytes or as `onnx.ModelProto`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from resperf.errors import NetworkError, printable
from resperf.network._base import NETWORKS_CACHED, Network
from resperf.network.assumed import Sizes, Stated, stated
from resperf.network.model import parse, strip_file
from resperf.network.reader import resolve
from resperf.network.wire import COPIED_INTEGER_BYTES, Stripped

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

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
    from onnx import ModelProto

    if not isinstance(model, ModelProto):
        raise NetworkError(
            "a network is a path, a PyTorch module, a Keras or ONNX model or its bytes, not "
            f"{type(model).__name__}"
        )
    light = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(light, field.name, value)
    if model.HasField("graph"):
        light.graph.SetInParent()
        _copy_structure(model.graph, light.graph)
    content: bytes = light.SerializeToString()
    return content


def _copy_structure(graph: GraphProto, light: GraphProto) -> None:
    for field, value in graph.ListFields():
        if field.name != "initializer":
            _copy(light, field.name, value)
    for tensor in graph.initializer:
        if tensor.ByteSize() <= COPIED_INTEGER_BYTES:
            light.initializer.append(tensor)
        else:
            light.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _copy(target: ModelProto | GraphProto, name: str, value: object) -> None:
    """Copy a field of a message: a list, a message or a plain value."""
    if isinstance(value, str | bytes | int | float):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)
