"""Whether a node can take its inputs, as far as ONNX's shape inference does not check it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import le
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf.errors import NetworkError, ShapeError
from resperf.layers._operator import CONTRIB
from resperf.network._base import Tensor
from resperf.network.rebatch import SHAPE_INPUT
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
    inputs = [tensors.get(name) for name in node.input]
    unknown = any(name and name not in tensors for name in node.input)
    if unknown or node.domain not in ("", CONTRIB):
        return
    if why := _misfit(node.op_type, inputs, attributes):
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


def _misfit(op: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> str:
    """Say why weights, a window or a target do not fit an input; empty if they do.

    Also empty if no rule checks it. A wrong input size shows here first: a dense layer after a
    flattened image takes one size.
    """
    shapes = [() if tensor is None else tensor.shape for tensor in inputs]
    if op == "QLinearConv":  # Its weights come behind a scale and a zero point.
        shapes = shapes[:4:3]
    try:
        given, wanted = _RULES[op](shapes, attributes) if op in _RULES else (0, 0)
        if given != wanted:
            return f"is given {given} features, but its weights take {wanted}"
        if op in ("Reshape", "Resize"):
            own = inputs[SHAPE_INPUT[op] : SHAPE_INPUT[op] + 1]
            target = own[0].value if own and own[0] else attributes.get("shape")
            return "" if target is None else _misses(op, target, shapes[0], attributes)
        return _too_wide(shapes, attributes) if op in _WINDOWS else ""
    except (IndexError, TypeError, ValueError):
        return f"cannot take the shapes {' and '.join(map(_words, filter(None, shapes)))}"


def _words(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _misses(
    op: str, target: Iterable[int], shape: Sequence[int], attributes: Mapping[str, Any]
) -> str:
    """Say that a target has another number of values, or of images to resize; else empty."""
    copies = not attributes.get("allowzero")
    dims = [shape[i] if dim == 0 and copies else int(dim) for i, dim in enumerate(target)]
    fits = -1 in dims or math.prod(dims) == math.prod(shape)
    if op == "Resize":
        fits = len(dims) < 3 or bool(attributes.get("axes")) or dims[0] == shape[0]
    if fits:
        return ""
    return f"cannot make {_words(dims)} of its input {_words(shape)}"


def _too_wide(shapes: Shapes, attributes: Mapping[str, Any]) -> str:
    """Say that a window is larger than the image with its padding; empty if it is not."""
    size, ones = shapes[0][2:], (1,) * len(shapes[0])
    window = attributes.get("kernel_shape") or shapes[1][2:]
    pads = attributes.get("pads", (0, 0) * len(size))
    dilations, strides = (attributes.get(name, ones) for name in ("dilations", "strides"))
    spans = [1 + (taps - 1) * step for taps, step in zip(window, dilations, strict=False)]
    # Rounded up, the last window may end outside.
    more = [stride - 1 if attributes.get("ceil_mode") else 0 for stride in strides]
    room = [length + pads[i] + pads[i + len(size)] + more[i] for i, length in enumerate(size)]
    same = str(attributes.get("auto_pad", "")).startswith("SAME")
    if same or 0 in shapes[0] or all(map(le, spans, room)):
        return ""
    return (
        f"has a window of {_words(spans)}, larger than its input of {_words(size)}"
        + f" with pads {_words(pads)}" * any(pads)
    )


def _conv(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    return shapes[0][1], shapes[1][1] * int(attributes.get("group", 1))


def _transposed(shapes: Shapes, _: Mapping[str, Any]) -> Sizes:
    return shapes[0][1], shapes[1][0]


def _gemm(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    (m, k), (k_b, n) = shapes[0], shapes[1]
    return m if attributes.get("transA") else k, n if attributes.get("transB") else k_b


def _recurrent(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    batch = 0 if attributes.get("layout") else 1
    if len(shapes) > 5 and shapes[5] and shapes[5][batch] != shapes[0][batch]:
        raise ValueError("a state of another batch")
    return shapes[0][2], shapes[1][2]


_RULES: Mapping[str, Callable[[Shapes, Mapping[str, Any]], Sizes]] = {
    "BatchNormalization": _transposed,
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "QLinearConv"), _conv),
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "InstanceNormalization": _transposed,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}
_WINDOWS = {"AveragePool", "LpPool", "MaxPool", *(op for op in _RULES if _RULES[op] is _conv)}
