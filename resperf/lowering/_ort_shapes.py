"""Shapes of what ONNX Runtime puts into a graph and neither writes down nor lets ONNX infer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from resperf.lowering._read import ACTIVATION_OPS
from resperf.network import Tensor
from resperf.network.protos import dtype_name

if TYPE_CHECKING:
    import onnx

Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = "Sequence[Tensor | None]"


def inferred(
    proto: onnx.NodeProto, inputs: Inputs, attributes: Mapping[str, Any]
) -> list[Shape] | None:
    """Return the shapes of a node's outputs, or None where they do not follow from its inputs.

    Parameters
    ----------
    proto : onnx.NodeProto
    inputs : sequence of Tensor or None
        None where an input is absent or not known.
    attributes : mapping of str to Any
    """
    if not inputs or inputs[0] is None:
        return None
    if any(name and each is None for name, each in zip(proto.input, inputs, strict=True)):
        return None
    rule = _RULES.get(proto.op_type)
    return None if rule is None else rule(inputs, attributes, len(proto.output))


def dtype_made(proto: onnx.NodeProto, inputs: Inputs, attributes: Mapping[str, Any]) -> str:
    """Return the type of a node's first output, as far as it follows from its inputs."""
    if proto.op_type in (*COMPARISONS, "Not"):
        return "bool"
    if proto.op_type == "Cast":
        return dtype_name(int(attributes.get("to", 1)))
    # What is chosen by a condition is not of the condition's type.
    like = inputs[min(proto.op_type == "Where", len(inputs) - 1)] if inputs else None
    return "float32" if like is None else like.dtype


def _reshaped(inputs: Inputs, _attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    image, wanted = inputs[0], inputs[1] if len(inputs) > 1 else None
    if image is None or wanted is None or wanted.value is None:
        return None
    shape = [
        length if length else image.shape[axis] if axis < len(image.shape) else 1
        for axis, length in enumerate(map(int, wanted.value.ravel()))
    ]
    if -1 in shape:
        known = -math.prod(shape)
        shape[shape.index(-1)] = math.prod(image.shape) // known if known > 0 else 0
    return [tuple(shape)]


def _kept(inputs: Inputs, _attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    assert inputs[0] is not None
    return [inputs[0].shape]


def _broadcast(inputs: Inputs, _attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    shape = _common(*(each.shape for each in inputs if each is not None))
    return None if shape is None else [shape]


def _common(*shapes: Shape) -> Shape | None:
    """Return the shape along which all of these are repeated; None where they do not fit."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    lengths = [set(each) - {1} for each in zip(*aligned, strict=True)]
    if any(len(each) > 1 for each in lengths):
        return None
    return tuple(each.pop() if each else 1 for each in lengths)


def _turned(inputs: Inputs, attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    assert inputs[0] is not None
    shape = inputs[0].shape
    order = attributes.get("perm") or tuple(reversed(range(len(shape))))
    return [tuple(shape[axis] for axis in order)] if len(order) == len(shape) else None


def _split(inputs: Inputs, attributes: Mapping[str, Any], count: int) -> list[Shape] | None:
    assert inputs[0] is not None
    shape = inputs[0].shape
    axis = int(attributes.get("axis", 0)) % max(len(shape), 1)
    lengths = attributes.get("split")
    if len(inputs) > 1 and inputs[1] is not None:
        if inputs[1].value is None:
            return None
        lengths = tuple(int(each) for each in inputs[1].value.ravel())
    if lengths is None:
        each = -(-shape[axis] // count)
        lengths = (*(each,) * (count - 1), shape[axis] - each * (count - 1))
    return [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]


def _axes(inputs: Inputs, attributes: Mapping[str, Any]) -> list[int] | None:
    """Return an operator's axes, an attribute in old operator sets and an input in new ones."""
    axes = attributes.get("axes")
    if len(inputs) > 1 and inputs[1] is not None:
        axes = None if inputs[1].value is None else inputs[1].value.ravel()
    return None if axes is None else [int(each) for each in axes]


def _squeezed(inputs: Inputs, attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    assert inputs[0] is not None
    shape = inputs[0].shape
    axes = _axes(inputs, attributes)
    if axes is None or not shape:
        return None
    gone = {axis % len(shape) for axis in axes}
    return [tuple(length for axis, length in enumerate(shape) if axis not in gone)]


def _unsqueezed(inputs: Inputs, attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    assert inputs[0] is not None
    axes = _axes(inputs, attributes)
    if axes is None:
        return None
    rank = len(inputs[0].shape) + len(axes)
    new, lengths = {axis % rank for axis in axes}, iter(inputs[0].shape)
    return [tuple(1 if axis in new else next(lengths, 1) for axis in range(rank))]


def _product(inputs: Inputs, attributes: Mapping[str, Any], _count: int) -> list[Shape] | None:
    first, second = inputs[0], inputs[1] if len(inputs) > 1 else None
    if first is None or second is None or min(len(first.shape), len(second.shape)) < 2:
        return None
    rows = first.shape[-1 if attributes.get("transA") else -2]
    columns = second.shape[-2 if attributes.get("transB") else -1]
    outer = _common(first.shape[:-2], second.shape[:-2])
    return None if outer is None else [(*outer, rows, columns)]


COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")

_RULES: Mapping[str, Callable[[Inputs, Mapping[str, Any], int], list[Shape] | None]] = {
    **dict.fromkeys((*ACTIVATION_OPS, "Softmax", "LayerNormalization", "Erf", "Sqrt",
        "Cast", "Not"), _kept),
    **dict.fromkeys(("BiasGelu", "FastGelu", "SkipLayerNormalization"), _kept),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Where", *COMPARISONS),
        _broadcast),
    **dict.fromkeys(("MatMul", "FusedMatMul", "Gemm", "FusedGemm"), _product),
    "Reshape": _reshaped, "Transpose": _turned, "Split": _split, "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
}  # fmt: skip
