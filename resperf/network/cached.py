"""Networks as an earlier process read them, in the disk cache."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from resperf import disk_cache
from resperf.network._base import MALFORMED, Network, Node, Tensor
from resperf.network.assumed import Sizes, stated
from resperf.network.model import parse, stripped_file
from resperf.network.reader import resolve

_FOLDER = "networks"
_MOST_NODES, _MOST_BYTES = 20_000, 1 << 22
"""Networks with more nodes, or more bytes of small constants, are not cached: files stay small."""
_TAG = "\0"
"""No tensor or attribute has this name."""


def read_network_once(path: Path, **sizes: Unpack[Sizes]) -> Network:
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
    given = stated(**sizes)
    name = disk_cache.name_of(disk_cache.code_state("network"), str(path), content, *given)
    with suppress(*MALFORMED):
        return Network(**disk_cache.load(_FOLDER, name, _value))
    network = resolve(path, parse(path, stripped), given)
    tensors = (*network.tensors.values(), *network.weight_tensors.values())
    value_bytes = sum(tensor.value.nbytes for tensor in tensors if tensor.value is not None)
    nodes = (network.nodes, network.weight_nodes, network.unfolded_nodes, network.dead_nodes)
    if sum(map(len, nodes)) <= _MOST_NODES and value_bytes <= _MOST_BYTES:
        with suppress(TypeError):
            disk_cache.store(_FOLDER, name, vars(network), _plain)
    return network


def _plain(value: Any) -> Any:
    """Write what JSON has no form of as its tag and values; tuples become lists.

    Raises
    ------
    TypeError
        If there is no exact way.
    """
    if isinstance(value, Node | Tensor):
        return {_TAG: [type(value).__name__, *vars(value).values()]}
    if isinstance(value, bytes):
        return {_TAG: ["bytes", _text(value)]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {_TAG: ["array", value.dtype.name, value.shape, _text(value.tobytes())]}
    raise TypeError(f"{type(value).__name__} cannot be cached")


def _value(plain: dict[str, Any]) -> Any:
    """Read what `_plain` wrote; what is damaged raises one of `MALFORMED`."""
    values = {key: _tuples(item) for key, item in plain.items()}
    if values.keys() != {_TAG}:
        return values
    tag, *rest = values[_TAG]
    return _CONSTRUCTORS[tag](*rest)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _array(dtype: str, shape: tuple[int, ...], content: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(content), np.dtype(dtype)).reshape(shape).copy()


_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    "Node": Node, "Tensor": Tensor, "bytes": base64.b64decode, "array": _array,
}  # fmt: skip
"""Tag -> what is made of the values behind it."""


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
