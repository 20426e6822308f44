"""Which nodes compute constants, and their values where these are small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.network._base import Tensor
from resperf.network.constants import evaluate
from resperf.network.graph import captured
from resperf.network.protos import data_type_of

if TYPE_CHECKING:
    from onnx import NodeProto

RANDOM_OPS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"}
)  # fmt: skip


def is_constant(node: NodeProto, tensors: Mapping[str, Tensor]) -> bool:
    """Say whether a node reads constants only, so that its outputs are weights."""
    names = [name for name in _values_read(node) if name]
    if not names:
        return bool(node.op_type == "Constant")
    return (
        node.op_type not in RANDOM_OPS
        and all(name in tensors and tensors[name].is_weight for name in names)
        and not captured(node)
    )


def folded(
    node: NodeProto, attributes: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> list[np.ndarray[Any, Any]] | None:
    """Return the values of a node's outputs where they follow from constants or shapes."""
    if node.domain:
        return None
    if node.op_type in ("Shape", "Size") and node.input and node.input[0] in tensors:
        shape = np.array(tensors[node.input[0]].shape, np.int64)
        return evaluate(node.op_type, [shape], attributes, len(node.output))
    if node.op_type == "CastLike" and len(node.input) == 2 and node.input[1] in tensors:
        attributes = {"to": data_type_of(tensors[node.input[1]].dtype)}
        op = "Cast"
    else:
        op = node.op_type
    names = _values_read(node)
    while names and not names[-1]:
        names.pop()
    if not names and node.op_type != "Constant":
        return None
    values: list[np.ndarray[Any, Any] | None] = []
    for name in names:
        value = tensors[name].value if name in tensors else None
        if name and value is None:
            return None
        values.append(value)
    return evaluate(op, values, attributes, len(node.output))


def _values_read(node: NodeProto) -> list[str]:
    """Return the inputs whose values count: of ``CastLike``'s second only the type does."""
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)
