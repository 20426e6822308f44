"""Layers: one file per kind, and the table of kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from resperf.errors import LayerError, Message, did_you_mean
from resperf.layers._base import ACTIVATIONS, Layer
from resperf.layers._operator import Kernel, Operand, Operator, spread_indices
from resperf.layers.activation import FUNCTION_OF, OPERATOR_OF, Activation, function_of
from resperf.layers.columns import BLOCKED_LAYOUTS

if TYPE_CHECKING:
    from resperf.layers.concat import Concat
    from resperf.layers.conv import Conv
    from resperf.layers.conv_nd import ConvNd
    from resperf.layers.dense import Dense
    from resperf.layers.elementwise import Elementwise
    from resperf.layers.move import Move
    from resperf.layers.norm import Norm
    from resperf.layers.pool import Pool
    from resperf.layers.pool_nd import PoolNd
    from resperf.layers.quantized_concat import QuantizedConcat
    from resperf.layers.quantized_dense import QuantizedDense
    from resperf.layers.reorder import Reorder
    from resperf.layers.resize import Resize
    from resperf.layers.softmax import Softmax
    from resperf.layers.transpose import Transpose

__all__ = [
    "ACTIVATIONS", "BLOCKED_LAYOUTS", "FUNCTION_OF", "KINDS", "OPERATOR_DOMAINS", "OPERATOR_OF",
    "Activation", "Concat", "Conv", "ConvNd", "Dense", "Elementwise", "Kernel", "Layer", "Move",
    "Norm", "Operand", "Operator", "Pool", "PoolNd", "QuantizedConcat", "QuantizedDense", "Reorder",
    "Resize", "Softmax", "Transpose", "bytes_between_layers", "function_of", "key_at_any_batch",
    "kind_of", "kind_of_key", "layer_from_key", "layer_of_operator", "parsed_key", "spread_indices",
]  # fmt: skip

_CLASSES: Mapping[str, str] = {
    "conv": "Conv",
    "pool": "Pool",
    "dense": "Dense",
    "activation": "Activation",
    "reorder": "Reorder",
    "conv_transpose": "ConvTranspose",
    "elementwise": "Elementwise",
    "matmul": "MatMul",
    "softmax": "Softmax",
    "norm": "Norm",
    "reduce": "Reduce",
    "concat": "Concat",
    "transpose": "Transpose",
    "move": "Move",
    "resize": "Resize",
    "select": "Select",
    "cast": "Cast",
    "depth_to_space": "DepthToSpace",
    "conv_nd": "ConvNd",
    "conv_transpose_nd": "ConvTransposeNd",
    "pool_nd": "PoolNd",
    "resize_nd": "ResizeNd",
    "attention": "Attention",
    "recurrent": "Recurrent",
    "quantize": "Quantize",
    "quantized_conv": "QuantizedConv",
    "quantized_dense": "QuantizedDense",
    "quantized_elementwise": "QuantizedElementwise",
    "quantized_matmul": "QuantizedMatMul",
    "quantized_pool": "QuantizedPool",
    "quantized_concat": "QuantizedConcat",
    "quantized_softmax": "QuantizedSoftmax",
    "einsum": "Einsum",
    "top_k": "TopK",
    "cumulate": "Cumulate",
    "indexed": "Indexed",
    "grid_sample": "GridSample",
}
"""Kind -> its class, in the module of the kind's name."""


class _Kinds(Mapping[str, type[Layer]]):
    """Layer kinds by name; a kind is imported when its class is asked for."""

    def __getitem__(self, kind: str) -> type[Layer]:
        class_name = _CLASSES[kind]
        layer_class: type[Layer] = getattr(import_module(f"{__name__}.{kind}"), class_name)
        return layer_class

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


KINDS: Mapping[str, type[Layer]] = _Kinds()
"""All layer kinds, by name. The class of a kind holds everything that resperf knows about it."""

OPERATOR_DOMAINS = frozenset({"", "com.microsoft", "com.microsoft.nchwc"})
"""Domains of ONNX's operators and of the operators that ONNX Runtime replaces them with."""

_BATCH = re.compile(r"\bbatch=\d+,?")


def __getattr__(name: str) -> type[Layer]:
    for kind, class_name in _CLASSES.items():
        if class_name == name:
            return KINDS[kind]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _kind_of_operator(op: str) -> type[Layer] | None:
    """Return the kind that reads an operator; kinds are imported in their order up to that one."""
    return next((cls for cls in KINDS.values() if op in cls.OPERATORS), None)


def layer_of_operator(operator: Operator) -> Layer:
    """Return the layer of a single operator.

    Raises
    ------
    LayerError
        If no kind reads the operator, or its kind does not support it.
    """
    cls = _kind_of_operator(operator.op)
    if cls is None or operator.domain not in OPERATOR_DOMAINS:
        name = ".".join(filter(None, (operator.domain, operator.op)))
        raise LayerError(Message(f"no layer kind for operator {name}", unread=name))
    return cls.read(operator)


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


def bytes_between_layers(layers: Sequence[Layer]) -> int:
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
