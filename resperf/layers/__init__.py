"""Layers: one file per kind, and the table of kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from resperf.errors import LayerError, Message, did_you_mean
from resperf.layers._base import ACTIVATIONS, Layer
from resperf.layers._layouts import BLOCKED_LAYOUTS
from resperf.layers._operator import Kernel, Operand, Operator, spread_indices
from resperf.layers.activation import FUNCTION_OF, OPERATOR_OF, Activation, function_of
from resperf.layers.attention import Attention
from resperf.layers.cast import Cast
from resperf.layers.concat import Concat
from resperf.layers.conv import Conv
from resperf.layers.conv_nd import ConvNd
from resperf.layers.conv_transpose import ConvTranspose
from resperf.layers.conv_transpose_nd import ConvTransposeNd
from resperf.layers.cumulate import Cumulate
from resperf.layers.dense import Dense
from resperf.layers.depth_to_space import DepthToSpace
from resperf.layers.einsum import Einsum
from resperf.layers.elementwise import Elementwise
from resperf.layers.grid_sample import GridSample
from resperf.layers.indexed import Indexed
from resperf.layers.matmul import MatMul
from resperf.layers.move import Move
from resperf.layers.norm import Norm
from resperf.layers.pool import Pool
from resperf.layers.pool_nd import PoolNd
from resperf.layers.quantize import Quantize
from resperf.layers.quantized_concat import QuantizedConcat
from resperf.layers.quantized_conv import QuantizedConv
from resperf.layers.quantized_dense import QuantizedDense
from resperf.layers.quantized_elementwise import QuantizedElementwise
from resperf.layers.quantized_matmul import QuantizedMatMul
from resperf.layers.quantized_pool import QuantizedPool
from resperf.layers.quantized_softmax import QuantizedSoftmax
from resperf.layers.recurrent import Recurrent
from resperf.layers.reduce import Reduce
from resperf.layers.reorder import Reorder
from resperf.layers.resize import Resize
from resperf.layers.resize_nd import ResizeNd
from resperf.layers.select import Select
from resperf.layers.softmax import Softmax
from resperf.layers.top_k import TopK
from resperf.layers.transpose import Transpose

__all__ = [
    "ACTIVATIONS",
    "BLOCKED_LAYOUTS",
    "FUNCTION_OF",
    "KINDS",
    "OPERATOR_DOMAINS",
    "OPERATOR_OF",
    "Activation",
    "Concat",
    "Conv",
    "ConvNd",
    "Dense",
    "Elementwise",
    "Kernel",
    "Layer",
    "Move",
    "Norm",
    "Operand",
    "Operator",
    "Pool",
    "PoolNd",
    "QuantizedConcat",
    "QuantizedDense",
    "Reorder",
    "Resize",
    "Softmax",
    "Transpose",
    "function_of",
    "inter_layer_bytes",
    "key_at_any_batch",
    "kind_of",
    "kind_of_key",
    "layer_from_key",
    "layer_of_operator",
    "parsed_key",
    "spread_indices",
]  # fmt: skip

KINDS: Mapping[str, type[Layer]] = {
    cls.kind: cls
    for cls in (
        Conv, Pool, Dense, Activation, Reorder, ConvTranspose, Elementwise,
        MatMul, Softmax, Norm, Reduce, Concat, Transpose, Move, Resize, Select, Cast, DepthToSpace,
        ConvNd, ConvTransposeNd, PoolNd, ResizeNd, Attention, Recurrent, Quantize, QuantizedConv,
        QuantizedDense, QuantizedElementwise, QuantizedMatMul, QuantizedPool, QuantizedConcat,
        QuantizedSoftmax, Einsum, TopK, Cumulate, Indexed, GridSample,
    )
}  # fmt: skip
"""All layer kinds, by name. The class of a kind holds everything that resperf knows about it."""

OPERATOR_DOMAINS = frozenset({"", "com.microsoft", "com.microsoft.nchwc"})
"""Domains of ONNX's operators and of the operators that ONNX Runtime replaces them with."""

_BATCH = re.compile(r"\bbatch=\d+,?")
_KIND_OF_OPERATOR = {op: cls for cls in KINDS.values() for op in cls.OPERATORS}


def layer_of_operator(operator: Operator) -> Layer:
    """Return the layer of a single operator.

    Raises
    ------
    LayerError
        If no kind reads the operator, or its kind does not support it.
    """
    if operator.op not in _KIND_OF_OPERATOR or operator.domain not in OPERATOR_DOMAINS:
        name = ".".join(filter(None, (operator.domain, operator.op)))
        raise LayerError(Message(f"no layer kind for operator {name}", unread=name))
    return _KIND_OF_OPERATOR[operator.op].read(operator)


def kind_of(kind: str) -> type[Layer]:
    """Return the class of a layer kind.

    Raises
    ------
    LayerError
        If there is no such kind.
    """
    try:
        return KINDS[kind]
    except KeyError as error:
        raise LayerError(
            f"no layer kind {kind!r}{did_you_mean(kind, KINDS)}; known kinds: {', '.join(KINDS)}"
        ) from error


def inter_layer_bytes(layers: Sequence[Layer]) -> int:
    """Bytes that layers of one network read from others: the inputs of all but the first."""
    return sum(layer.input_bytes for layer in layers[1:])


def key_at_any_batch(key: str) -> str:
    """Return a layer's key without its batch size."""
    return _BATCH.sub("", key, count=1)


def kind_of_key(key: str) -> str:
    """Return the kind that a canonical key starts with."""
    return key.partition(":")[0]


def parsed_key(key: str) -> tuple[str, dict[str, str]]:
    """Return the kind that a canonical key starts with, and its fields as text.

    Raises
    ------
    LayerError
        If the key is malformed.
    """
    kind, _, rest = key.partition(":")
    try:
        return kind, dict(item.split("=", 1) for item in rest.split(","))
    except ValueError as error:
        raise LayerError(f"{key!r} is not a layer key") from error


def layer_from_key(key: str) -> Layer:
    """Parse a canonical key: the inverse of `Layer.key`.

    Raises
    ------
    LayerError
        If the key is malformed.
    """
    kind, words = parsed_key(key)
    return kind_of(kind).from_text(words)
