"""A network's identity for caches: what decides its kernels, and nothing else."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from resperf.network._base import Network, Tensor
from resperf.network.graph import names_read


def structure_digest(network: Network) -> str:
    """Return a SHA-256 over operators, attributes, connections, shapes and element types.

    Names are ignored. Of the constants only scalars, and integers that may be shapes, are
    included: the same network with other weights has the same digest.
    """
    numbers = defaultdict(count(1).__next__, {"": -1})
    rows: list[Any] = [
        ("input", numbers[name], _described(network.tensors.get(name))) for name in network.inputs
    ]
    for node in network.nodes:
        read = [("constant", name) for name in dict.fromkeys(node.inputs) if name not in numbers]
        # Names that its subgraphs read, their own tensors included.
        captured: set[str] = set()
        for value in node.attributes.values():
            if isinstance(value, bytes):
                from onnx import GraphProto

                # Bytes that are no graph are text that is not UTF-8. protobuf has its own errors.
                with suppress(Exception):
                    captured.update(names_read(GraphProto.FromString(value)))
        read += [("captured", name) for name in sorted(captured)]
        rows += [
            (what, numbers[name], _described(network.tensors.get(name))) for what, name in read
        ]
        rows.append(
            (
                node.op,
                node.domain,
                [numbers[name] for name in node.inputs],
                [(numbers[name], _described(network.tensors.get(name))) for name in node.outputs],
                [(key, _plain(value)) for key, value in sorted(node.attributes.items())],
            )
        )
    rows.append(("outputs", [numbers[name] for name in network.outputs]))
    content = repr(sorted(network.opsets.items())) + "".join(map(repr, rows))
    return hashlib.sha256(content.encode()).hexdigest()


def _described(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    value, numbers = tensor.value, None
    if value is not None and (value.size == 1 or value.dtype in (np.int32, np.int64)):
        numbers = value.tolist()
    return tensor.shape, tensor.dtype, tensor.is_weight, numbers


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.shape, value.tolist())
    if isinstance(value, Tensor):
        return _described(value)
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
