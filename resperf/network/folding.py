"""Which nodes compute constants, and their values where these are small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.network._base import Tensor
from resperf.network.constants import evaluate
from resperf.network.graph import captured
from resperf.network.protos import data_type_of
from resperf.settings import HALF_TYPES

if TYPE_CHECKING:
    from onnx import NodeProto

_RANDOM_OPS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"}
)  # fmt: skip

HALF_PRECISION = frozenset(HALF_TYPES.values())
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_HALF_KERNELS = frozenset(
    {"Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather",
     "GatherElements", "GatherND", "Identity", "LayerNormalization", "Max", "Min", "Mod", "Reshape",
     "ReverseSequence", "Round", "ScatterND", "Shrink", "Sign", "Slice", "Split", "Squeeze",
     "Transpose", "Unsqueeze"}
)  # fmt: skip
"""Operators that ONNX Runtime has kernels for in half precision on a CPU."""
SIZED_BY_VALUES: Mapping[str, int] = {
    "ConstantOfShape": 0, "Range": 0, "MaxUnpool": 2,
    **dict.fromkeys(
        ("AffineGrid", "CenterCropPad", "Col2Im", "Expand", "OneHot", "Pad", "Reshape", "Resize",
         "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"), 1
    ),
}  # fmt: skip
"""Operator -> its first input whose values decide the shape that it writes."""


def is_quantising(node: NodeProto) -> bool:
    """Say whether a node is a QuantizeLinear or DequantizeLinear, also that of ONNX Runtime."""
    return node.op_type in _QUANTISING and node.domain in ("", "com.microsoft")


def is_constant(node: NodeProto, tensors: Mapping[str, Tensor]) -> bool:
    """Say whether a node reads constants only, so that its outputs are weights."""
    names = [name for name in _values_read(node) if name]
    if not names:
        return bool(node.op_type == "Constant")
    return (
        node.op_type not in _RANDOM_OPS
        and all(name in tensors and tensors[name].is_weight for name in names)
        and not captured(node)
    )


def folded(
    node: NodeProto, attributes: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> list[np.ndarray[Any, Any]] | None:
    """Return the values of a node's outputs where they follow from constants or shapes."""
    if node.domain and not is_quantising(node):
        return None
    if node.op_type in ("Shape", "Size") and node.input and node.input[0] in tensors:
        shape = np.array(tensors[node.input[0]].shape, np.int64)
        return evaluate(node.op_type, [shape], attributes, len(node.output))
    op = node.op_type
    if op == "CastLike" and len(node.input) == 2 and node.input[1] in tensors:
        op, attributes = "Cast", {"to": data_type_of(tensors[node.input[1]].dtype)}
    names = _values_read(node)
    while names and not names[-1]:
        names.pop()
    if not names and node.op_type != "Constant":
        return None
    values = [tensors[name].value if name in tensors else None for name in names]
    if any(name and value is None for name, value in zip(names, values, strict=True)):
        return None
    return evaluate(op, values, attributes, len(node.output))


def _values_read(node: NodeProto) -> list[str]:
    """Return the inputs whose values count: of ``CastLike``'s second only the type does."""
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)


@dataclass
class Unfolded:
    """Constants that ONNX Runtime computes at each run on a CPU.

    It folds with its kernels, of which it has few for half precision, and no DequantizeLinear.

    Attributes
    ----------
    values : set of str
        Names of the constants.
    shapes : set of str
        Names of tensors whose shape depends on one of them.
    """

    values: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)

    def includes(self, node: NodeProto, tensors: Iterable[Tensor | None]) -> bool:
        """Say whether a node that computes constants is left to each run.

        Parameters
        ----------
        node : NodeProto
        tensors : iterable of Tensor or None
            What it reads and writes.
        """
        if not self.values.isdisjoint(node.input) or node.op_type == "DequantizeLinear":
            return True
        if node.op_type in ("Shape", "Size"):
            return node.input[0] in self.shapes
        return node.op_type not in _HALF_KERNELS and any(
            tensor is not None and tensor.dtype in HALF_PRECISION for tensor in tensors
        )

    def add(self, node: NodeProto) -> None:
        """Add the constants that such a node computes."""
        self.values.update(filter(None, node.output))

    def follow(self, node: NodeProto) -> None:
        """Add what a node writes to `shapes` if its shape depends on them."""
        sized = node.input[SIZED_BY_VALUES.get(node.op_type, len(node.input)) :]
        if not (self.shapes.isdisjoint(node.input) and self.values.isdisjoint(sized)):
            self.shapes.update(filter(None, node.output))
