"""Whether a node can take its inputs, as far as ONNX's shape inference does not check it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf.errors import NetworkError, ShapeError
from resperf.network._base import Tensor
from resperf.network.shapes import schema_of

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnx.defs import OpSchema

Shapes = Sequence[tuple[int, ...]]
Sizes = tuple[int, int]


def check_inputs(
    path: Path,
    node: NodeProto,
    opsets: Mapping[str, int],
    tensors: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
) -> None:
    """Refuse a node that cannot take its inputs.

    Parameters
    ----------
    path : Path
        For messages.
    node : NodeProto
    opsets : mapping of str to int
        Version of each domain.
    tensors : mapping of str to Tensor
        Those before the node.
    attributes : mapping of str to Any

    Raises
    ------
    NetworkError
        If there are too few, or of types that may not differ.
    ShapeError
        If their shapes do not fit the node's weights.
    """
    schema = schema_of(node.op_type, opsets.get(node.domain) or 1, node.domain)
    if schema is not None and len(node.input) < schema.min_input:
        raise NetworkError(
            f"{path} is damaged: node {node.name or node.output[0]!r} ({node.op_type}) "
            f"has {len(node.input)} inputs and needs {schema.min_input}"
        )
    if schema is not None and (unequal := _unequal_types(schema, node, tensors)):
        raise NetworkError(
            f"{path}: node {node.name or node.output[0]!r} ({node.op_type}) is given "
            f"{unequal}, which must be of one type; no framework runs this file: export or "
            "convert it again"
        )
    inputs = [tensors.get(name) for name in node.input if name]
    if node.domain or None in inputs:
        return
    if why := _misfit(node.op_type, [tensor.shape for tensor in inputs if tensor], attributes):
        raise ShapeError(
            f"{path}: node {node.name or node.output[0]!r} ({node.op_type}) {why}; "
            "check --batch and --shape"
        )


def _unequal_types(schema: OpSchema, node: NodeProto, tensors: Mapping[str, Tensor]) -> str:
    """Say which inputs differ in element type that must not; empty if none do.

    Converters to float16 leave such files, and no framework runs them.
    """
    first: dict[str, Tensor] = {}
    for index, name in enumerate(node.input if schema.inputs else ()):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        tensor = tensors.get(name)
        if tensor is None or not formal.is_homogeneous:
            continue
        other = first.setdefault(formal.type_str, tensor)
        if other.dtype != tensor.dtype:
            return f"{other.dtype} ({other.name}) and {tensor.dtype} ({tensor.name})"
    return ""


def _misfit(op: str, shapes: Shapes, attributes: Mapping[str, Any]) -> str:
    """Say why weights do not fit an input; empty if they do, or if no rule checks it.

    A wrong input size shows here first: a dense layer after a flattened image takes one size.
    """
    rule = _RULES.get(op)
    if rule is None or len(shapes) < 2:
        return ""
    try:
        given, wanted = rule(shapes, attributes)
    except (IndexError, TypeError, ValueError):
        words = " and ".join(",".join(map(str, shape)) for shape in shapes[:2])
        return f"cannot take the shapes {words}"
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
