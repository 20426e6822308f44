"""Networks as an earlier process read them, in the disk cache."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from resperf import disk_cache
from resperf.network._base import Network, Node, Tensor
from resperf.network.assumed import Assumed, checked
from resperf.network.model import parse, stripped_file
from resperf.network.reader import resolve

_FOLDER = "networks"
_MOST_NODES, _MOST_BYTES = 20_000, 1 << 22
"""Networks with more nodes, or more bytes of small constants, are not cached: files stay small."""
_DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def read_network_once(
    path: Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    assume: Assumed | None = None,
) -> Network:
    """Read a network as `read_network` does, or return the cached one of a file of equal content.

    The file is always scanned, without its weights; ONNX is imported only if it is not cached.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`.
    """
    path = Path(path)
    stripped = stripped_file(path)
    content = hashlib.sha256(stripped.model).hexdigest()
    given = sorted((name, tuple(shape)) for name, shape in (shapes or {}).items())
    name = disk_cache.name_of(
        disk_cache.code_state("network"),
        str(path),
        content,
        batch,
        tuple(given),
        tuple(sorted(checked(assume).items())),
    )
    with suppress(*_DAMAGE):
        return Network(**_value(disk_cache.load(_FOLDER, name)))
    network = resolve(path, parse(path, stripped), batch=batch, shapes=shapes, assume=assume)
    if _is_small(network):
        with suppress(TypeError):
            disk_cache.store(_FOLDER, name, _plain(vars(network)))
    return network


def _is_small(network: Network) -> bool:
    tensors = (*network.tensors.values(), *network.weight_tensors.values())
    value_bytes = sum(tensor.value.nbytes for tensor in tensors if tensor.value is not None)
    nodes = len(network.nodes) + len(network.weight_nodes) + len(network.unfolded_nodes)
    return nodes <= _MOST_NODES and value_bytes <= _MOST_BYTES


def _plain(value: Any) -> Any:
    """Write what a network holds: numbers and texts unchanged, all but mappings as a tagged list.

    Raises
    ------
    TypeError
        If there is no exact way.
    """
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    if isinstance(value, Node | Tensor):
        return [type(value).__name__, *map(_plain, vars(value).values())]
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ["array", value.dtype.name, value.shape, _text(value.tobytes())]
    raise TypeError(f"{type(value).__name__} cannot be cached")


def _value(plain: Any) -> Any:
    """Read what `_plain` wrote; what is damaged raises one of `_DAMAGE`."""
    if isinstance(plain, dict):
        return {key: _value(each) for key, each in plain.items()}
    if not isinstance(plain, list):
        return plain
    tag, *rest = plain
    if tag == "bytes":
        return base64.b64decode(rest[0])
    if tag == "array":
        dtype, shape, content = rest
        values = np.frombuffer(base64.b64decode(content), np.dtype(dtype))
        return values.reshape(shape).copy()
    return _MADE[tag](map(_value, rest))


_MADE: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "tuple": tuple,
    "Node": lambda fields: Node(*fields),
    "Tensor": lambda fields: Tensor(*fields),
}
"""Tag -> what is made of the values behind it."""


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
