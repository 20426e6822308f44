"""Networks as an earlier process read them, in the disk cache."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
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
        return _network(disk_cache.load(_FOLDER, name))
    network = resolve(path, parse(path, stripped), batch=batch, shapes=shapes, assume=assume)
    if _is_small(network):
        with suppress(TypeError):
            disk_cache.store(_FOLDER, name, _plain_network(network))
    return network


def _is_small(network: Network) -> bool:
    tensors = (*network.tensors.values(), *network.weight_tensors.values())
    value_bytes = sum(tensor.value.nbytes for tensor in tensors if tensor.value is not None)
    nodes = len(network.nodes) + len(network.weight_nodes) + len(network.unfolded_nodes)
    return nodes <= _MOST_NODES and value_bytes <= _MOST_BYTES


def _plain_network(network: Network) -> dict[str, Any]:
    """Turn a network into JSON values.

    Raises
    ------
    TypeError
        If it holds what cannot be written exactly.
    """
    return {
        "name": network.name,
        "nodes": [_plain_node(each) for each in network.nodes],
        "tensors": [_plain_tensor(each) for each in network.tensors.values()],
        "weight_nodes": [_plain_node(each) for each in network.weight_nodes],
        "unfolded_nodes": [_plain_node(each) for each in network.unfolded_nodes],
        "weight_tensors": [_plain_tensor(each) for each in network.weight_tensors.values()],
        "inputs": network.inputs,
        "outputs": network.outputs,
        "opsets": network.opsets,
        "batch": network.batch,
        "notes": network.notes,
        "parameters": network.parameters,
        "assumed": network.assumed,
    }


def _network(plain: Mapping[str, Any]) -> Network:
    """Turn JSON values back into a network; what is damaged raises one of `_DAMAGE`."""
    return Network(
        name=plain["name"],
        nodes=tuple(map(_node, plain["nodes"])),
        tensors={tensor.name: tensor for tensor in map(_tensor, plain["tensors"])},
        weight_nodes=tuple(map(_node, plain["weight_nodes"])),
        unfolded_nodes=tuple(map(_node, plain["unfolded_nodes"])),
        weight_tensors={tensor.name: tensor for tensor in map(_tensor, plain["weight_tensors"])},
        inputs=tuple(plain["inputs"]),
        outputs=tuple(plain["outputs"]),
        opsets=dict(plain["opsets"]),
        batch=plain["batch"],
        notes=tuple(plain["notes"]),
        parameters=plain["parameters"],
        assumed=tuple(plain["assumed"]),
    )


def _plain_node(node: Node) -> tuple[Any, ...]:
    attributes = {name: _plain(value) for name, value in node.attributes.items()}
    return node.name, node.op, node.domain, node.inputs, node.outputs, attributes


def _node(plain: Sequence[Any]) -> Node:
    name, op, domain, inputs, outputs, attributes = plain
    made = {key: _value(value) for key, value in attributes.items()}
    return Node(name, op, domain, tuple(inputs), tuple(outputs), made)


def _plain_tensor(tensor: Tensor) -> tuple[Any, ...]:
    value = None if tensor.value is None else _plain(tensor.value)
    return tensor.name, tensor.shape, tensor.dtype, tensor.is_weight, value


def _tensor(plain: Sequence[Any]) -> Tensor:
    name, shape, dtype, is_weight, value = plain
    return Tensor(name, tuple(shape), dtype, None if value is None else _value(value), is_weight)


def _plain(value: Any) -> Any:
    """Write an attribute or a constant: numbers and texts unchanged, all else as a tagged list.

    Raises
    ------
    TypeError
        If there is no exact way.
    """
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    if isinstance(value, Tensor):
        return ["tensor", *_plain_tensor(value)]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ["array", value.dtype.name, value.shape, _text(value.tobytes())]
    raise TypeError(f"{type(value).__name__} cannot be cached")


def _value(plain: Any) -> Any:
    """Read what `_plain` wrote."""
    if not isinstance(plain, list):
        return plain
    tag, *rest = plain
    if tag == "tuple":
        return tuple(map(_value, rest))
    if tag == "bytes":
        return base64.b64decode(rest[0])
    if tag == "tensor":
        return _tensor(rest)
    dtype, shape, content = rest
    values = np.frombuffer(base64.b64decode(content), np.dtype(dtype))
    return values.reshape(shape).copy()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
