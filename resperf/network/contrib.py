"""Output shapes of ONNX Runtime's own (contrib) operators, which ONNX cannot infer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from resperf.layers._operator import product_shapes
from resperf.layers._sliding import window_length
from resperf.network._base import MALFORMED, Tensor, TensorType

_EMBEDDINGS = ("EmbedLayerNormalization", "QEmbedLayerNormalization")
Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = "Sequence[Tensor | None]"


def contrib_outputs(
    op: str, inputs: Inputs, attributes: Mapping[str, Any]
) -> list[TensorType] | None:
    """Return types and shapes of the outputs of an operator of ONNX Runtime, as far as known.

    Parameters
    ----------
    op : str
    inputs : sequence of Tensor or None
        None where an input is absent.
    attributes : mapping of str to Any

    Returns
    -------
    list or None
        Of the leading outputs, as many as can be derived; None for any other operator.
    """
    rule = _OWN.get(op)
    if rule is None:
        return None
    try:
        dtype, shape = rule(inputs, attributes)
        # Attributes may be of any type in a damaged file.
        first = dtype, tuple(operator.index(length) for length in shape)
    except MALFORMED:
        return []
    return [first, *_further(op, first, inputs, attributes)]


def _further(
    op: str, first: TensorType, inputs: Inputs, attributes: Mapping[str, Any]
) -> list[TensorType]:
    """Return types and shapes of the outputs behind the first."""
    dtype, shape = first
    if op.startswith("Skip"):
        # It can also output the sum that it normalises, after two statistics.
        return [first, first, first]
    if op in _EMBEDDINGS:
        # How many tokens each sample has, and the sum that it normalises.
        return [("int32", shape[:1]), first]
    if op == "DynamicQuantizeLSTM":
        return [(dtype, shape[1:])] * 2
    with suppress(*MALFORMED):
        return _CACHES[op](inputs, attributes) if op in _CACHES else []
    return []


def shape_of(inputs: Inputs, position: int = 0) -> Shape:
    """Return the shape of a required input."""
    tensor = inputs[position]
    if tensor is None:
        raise ValueError(position)
    return tensor.shape


def dtype_of(inputs: Inputs) -> str:
    """Return the element type of the first input."""
    return "float32" if inputs[0] is None else inputs[0].dtype


def _same(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    return dtype_of(inputs), shape_of(inputs)


def _product(
    inputs: Inputs, attributes: Mapping[str, Any], *, position: int = 1, dtype: str = ""
) -> TensorType:
    """Type and shape of a product with the matrix at this input position."""
    given = shape_of(inputs), shape_of(inputs, position)
    first, second = product_shapes(*given, attributes)
    outer = np.broadcast_shapes(first[:-2], second[:-2])
    # What makes a vector a matrix is no axis of the result.
    rows, columns = first[-2:-1][: len(given[0]) - 1], second[-1:][: len(given[1]) - 1]
    return dtype or dtype_of(inputs), (*outer, *rows, *columns)


def _quantized_product(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    # Without a zero point for its output, it returns float32.
    is_quantized = len(inputs) > 8 and inputs[8] is not None
    return _product(inputs, attributes, position=3, dtype="" if is_quantized else "float32")


def _quantized_sum(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    return dtype_of(inputs), np.broadcast_shapes(shape_of(inputs), shape_of(inputs, 3))


def _quantized_concat(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    # Scale and zero point of the output, then each input with its scale and zero point.
    pieces = [shape_of(inputs, position) for position in range(2, len(inputs), 3)]
    axis = int(attributes["axis"]) % len(pieces[0])
    whole = list(pieces[0])
    whole[axis] = sum(piece[axis] for piece in pieces)
    first = inputs[2]
    return "uint8" if first is None else first.dtype, tuple(whole)


def _conv(inputs: Inputs, attributes: Mapping[str, Any], *, position: int) -> TensorType:
    weight = shape_of(inputs, position)
    kernel = tuple(attributes.get("kernel_shape") or weight[2:])
    return dtype_of(inputs), _windows(shape_of(inputs), attributes, kernel, weight[0])


def _pooled(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    kernel = tuple(attributes["kernel_shape"])
    return dtype_of(inputs), _windows(shape_of(inputs), attributes, kernel, None)


def _pooled_channels_last(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    return _pooled(inputs, {**attributes, "channels_last": 1})


def _windows(
    shape: Shape, attributes: Mapping[str, Any], kernel: Shape, channels: int | None
) -> Shape:
    """Return the output shape of a convolution or pooling, with channels last or second."""
    last = bool(attributes.get("channels_last"))
    sizes = shape[1:-1] if last else shape[2:]
    rank = len(sizes)
    strides = attributes.get("strides") or (1,) * rank
    dilations = attributes.get("dilations") or (1,) * rank
    pads = attributes.get("pads") or (0,) * 2 * rank
    if str(attributes.get("auto_pad", "NOTSET")) not in ("NOTSET", "VALID"):
        raise ValueError("auto_pad")
    windows = zip(
        sizes, kernel, strides, dilations, pads[:rank], pads[rank : 2 * rank], strict=True
    )
    ceil = bool(attributes.get("ceil_mode"))
    counts = tuple(window_length(window, ceil=ceil) for window in windows)
    width = (shape[-1] if last else shape[1]) if channels is None else channels
    return (shape[0], *counts, width) if last else (shape[0], width, *counts)


def _pooled_globally(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    shape = shape_of(inputs)
    ones = (1,) * (len(shape) - 2)
    last = bool(attributes.get("channels_last"))
    whole = (shape[0], *ones, shape[-1]) if last else (*shape[:2], *ones)
    return dtype_of(inputs), whole


def _attention(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    batch, tokens, _ = shape_of(inputs)
    sizes = attributes.get("qkv_hidden_sizes")
    width = sizes[2] if sizes else shape_of(inputs, 1)[-1] // 3
    return dtype_of(inputs), (batch, tokens, width)


def _multi_head_attention(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    query = shape_of(inputs)
    value = inputs[2] if len(inputs) > 2 else None
    if len(query) == 3:
        return dtype_of(inputs), (*query[:2], query[2] if value is None else _width(value.shape))
    # Queries, keys and values are packed per head: (batch, tokens, heads, 3, width).
    batch, tokens, heads, _, width = query
    return dtype_of(inputs), (batch, tokens, heads * width)


def _quantized_attention(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    batch, tokens, _ = shape_of(inputs)
    return "float32", (batch, tokens, shape_of(inputs, 1)[-1] // 3)


def _embedded(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    table = inputs[2]
    dtype = "float32" if table is None or table.dtype in ("uint8", "int8") else table.dtype
    return dtype, (*shape_of(inputs), shape_of(inputs, 2)[-1])


def _quantized(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    zero_point = inputs[2] if len(inputs) > 2 else None
    return "uint8" if zero_point is None else zero_point.dtype, shape_of(inputs)


def _dequantized(inputs: Inputs, _attributes: Mapping[str, Any]) -> TensorType:
    return dtype_of(inputs[1:]), shape_of(inputs)


def _recurrent(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    steps, batch, _ = shape_of(inputs)
    return "float32", (steps, shape_of(inputs, 1)[0], batch, attributes["hidden_size"])


def _multi_head_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of all tokens: those of the cache and the new ones."""
    heads = int(attributes["num_heads"])
    caches: list[TensorType] = []
    for index in (1, 2):
        new, past = shape_of(inputs, index), inputs[index + 5] if len(inputs) > index + 5 else None
        batch, tokens, size = (new[0], new[2], new[3]) if len(new) == 4 else (
            new[0], new[1], new[2] // heads
        )  # fmt: skip
        earlier = 0 if past is None else past.shape[2]
        caches.append((dtype_of(inputs), (batch, heads, earlier + tokens, size)))
    return caches


def _grouped_attention(inputs: Inputs, attributes: Mapping[str, Any]) -> TensorType:
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    batch, tokens, width = shape_of(inputs)
    packed = inputs[1] is None
    return dtype_of(inputs), (batch, tokens, width * heads // (heads + 2 * groups * packed))


def _grouped_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of all tokens; a cache of more than these keeps its length."""
    _, (batch, tokens, width) = _grouped_attention(inputs, attributes)
    size = width // int(attributes["num_heads"])
    past, total = inputs[3], inputs[6]
    earlier = 0 if past is None else past.shape[2]
    length = None if total is None or total.value is None else int(total.value.item())
    rows = earlier + tokens if length is None else max(earlier, length)
    return [(dtype_of(inputs), (batch, int(attributes["kv_num_heads"]), rows, size))] * 2


def _width(value: Shape) -> int:
    """Width of all heads' values, (batch, tokens, width) or (batch, heads, tokens, width)."""
    return value[2] if len(value) == 3 else value[1] * value[3]


_OWN: Mapping[str, Callable[[Inputs, Mapping[str, Any]], TensorType]] = {
    **dict.fromkeys(
        ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization",
         "SkipSimplifiedLayerNormalization", "QLinearSigmoid", "QLinearLeakyRelu",
         "QLinearSoftmax", "RotaryEmbedding"), _same
    ),
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _dequantized,
    **dict.fromkeys(_EMBEDDINGS, _embedded),
    "DynamicQuantizeLSTM": _recurrent,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _grouped_attention,
    **dict.fromkeys(("FusedMatMul", "FusedGemm"), _product),
    **dict.fromkeys(
        ("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), partial(_product, dtype="float32")
    ),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _quantized_sum),
    "QGemm": _quantized_product,
    "QLinearConcat": _quantized_concat,
    "QLinearConv": partial(_conv, position=3),
    "FusedConv": partial(_conv, position=1),
    "NhwcMaxPool": _pooled_channels_last,
    "QLinearAveragePool": _pooled,
    "QLinearGlobalAveragePool": _pooled_globally,
}  # fmt: skip
"""Operator -> type and shape of its first output."""
_CACHES: Mapping[str, Callable[[Inputs, Mapping[str, Any]], list[TensorType]]] = {
    "MultiHeadAttention": _multi_head_caches,
    "GroupQueryAttention": _grouped_caches,
}
"""Operator -> types and shapes of the keys and values that it returns after its first output."""
