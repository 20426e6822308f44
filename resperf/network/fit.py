"""Whether inputs fit a node's weights, which ONNX's shape inference does not check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resperf.network._base import Tensor

Shapes = Sequence[tuple[int, ...]]
Sizes = tuple[int, int]


def misfit(op: str, inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> str:
    """Say why a node cannot take its inputs; empty if it can, or if no rule checks it.

    A wrong input size shows here first: a dense layer after a flattened image takes one size.
    """
    rule = _RULES.get(op)
    if rule is None or len(inputs) < 2:
        return ""
    try:
        given, wanted = rule([tensor.shape for tensor in inputs], attributes)
    except (IndexError, TypeError, ValueError):
        shapes = " and ".join(",".join(map(str, tensor.shape)) for tensor in inputs[:2])
        return f"cannot take the shapes {shapes}"
    return "" if given == wanted else f"is given {given} features, but its weights take {wanted}"


def _conv(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    return shapes[0][1], shapes[1][1] * int(attributes.get("group", 1))


def _transposed(shapes: Shapes, _: Mapping[str, Any]) -> Sizes:
    return shapes[0][1], shapes[1][0]


def _gemm(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    (m, k), (k_b, n) = shapes[0], shapes[1]
    return m if attributes.get("transA") else k, n if attributes.get("transB") else k_b


_RULES: Mapping[str, Callable[[Shapes, Mapping[str, Any]], Sizes]] = {
    "BatchNormalization": _transposed,
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
}
