"""Work of operators, counted from the graph alone: also of operators without a layer kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from resperf.errors import LayerError
from resperf.layers import OPERATOR_DOMAINS, Operand, layer_of_operator
from resperf.layers._operator import product_shapes
from resperf.lowering._base import CONTROL_FLOW
from resperf.lowering._ort_attention import by_heads
from resperf.lowering._read import operator_of
from resperf.network import MALFORMED, Network, Node, Tensor
from resperf.units import DTYPE_BYTES

_Shape = tuple[int, ...]
_Count = Callable[[Node, Sequence[_Shape], _Shape], float]
"""(node, shapes of its inputs, shape of its first output) -> multiply-adds."""
_OTHER_FLOATS = frozenset({"float16", "bfloat16", "float64"})
"""Read as float32: the number of multiply-adds does not depend on the type."""


class Work(NamedTuple):
    """Multiply-adds, and bytes read and written; NaN where unknown."""

    macs: float
    moved_bytes: float


def tensor_bytes(tensor: Tensor) -> float:
    """Count the bytes of a tensor's values; NaN for values of variable size (strings)."""
    element_bytes = DTYPE_BYTES.get(tensor.dtype)
    if element_bytes is None:
        try:
            element_bytes = np.dtype(tensor.dtype).itemsize
        except TypeError:
            return math.nan
    return math.prod(tensor.shape) * element_bytes


def work_of(network: Network, names: Sequence[str]) -> Work:
    """Count the work of nodes that run as one kernel.

    Tensors between them are not read or written, as in `resperf.layers.Layer.moved_bytes`.

    Parameters
    ----------
    network : Network
    names : sequence of str
        Names of the nodes.
    """
    network = network.with_unfolded_nodes()
    wanted = set(names)
    nodes = [node for node in network.nodes if node.name in wanted]
    if any(node.op in CONTROL_FLOW for node in nodes):
        return Work(math.nan, math.nan)
    computed = {name for node in nodes for name in node.outputs if name}
    outside = {name for node in network.nodes if node.name not in wanted for name in node.inputs}
    read = {name for node in nodes for name in node.inputs if name} - computed
    written = {name for name in computed if name in outside or name in network.outputs}
    moved_bytes = [
        tensor_bytes(network.tensors[name]) if name in network.tensors else math.nan
        for name in (*read, *written)
    ]
    return Work(sum(macs_of(network, node) for node in nodes), sum(moved_bytes))


def multiplied(network: Network, names: Sequence[str]) -> tuple[str, int]:
    """Return what the products among nodes multiply: type of values, and pixels of a window.

    float32 and 1 without any, and of int8, which not all frameworks have kernels for.
    """
    network = network.with_unfolded_nodes()
    wanted = set(names)
    for node in network.nodes:
        if node.name not in wanted or not macs_of(network, node) > 0:
            continue
        tensors = [network.tensors[name] for name in node.inputs[:2] if name in network.tensors]
        if tensors and "int8" not in tensors[0].dtype:
            return tensors[0].dtype, math.prod(tensors[-1].shape[2:]) if "Conv" in node.op else 1
    return "float32", 1


def macs_of(network: Network, node: Node) -> float:
    """Count the multiply-adds of one node, from its shapes or by its layer kind; NaN if unknown."""
    tensors = [network.tensors.get(name) if name else None for name in node.inputs]
    result = network.tensors.get(next((name for name in node.outputs if name), ""))
    sized = all(
        tensor is not None for name, tensor in zip(node.inputs, tensors, strict=True) if name
    )
    count = _PRODUCTS.get(node.op)
    try:
        if count is not None and node.domain in OPERATOR_DOMAINS and sized and result is not None:
            shapes = [() if tensor is None else tensor.shape for tensor in tensors]
            return count(node, shapes, result.shape)
        if sized and result is not None:
            operator = operator_of(network, node)
            inputs = tuple(map(_in_float32, operator.inputs))
            return float(layer_of_operator(replace(operator, inputs=inputs)).macs)
    except (LayerError, *MALFORMED):
        pass
    return math.nan if node.domain or node.op in _MULTIPLYING else 0.0


def _in_float32(operand: Operand | None) -> Operand | None:
    if operand is None or operand.dtype not in _OTHER_FLOATS:
        return operand
    return replace(operand, dtype="float32")


def _conv(_: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """One per output value and weight of its filter."""
    return math.prod(result) * math.prod(inputs[1][1:])


def _conv_transpose(_: Node, inputs: Sequence[_Shape], _result: _Shape) -> float:
    """One per input value and weight of its filter."""
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _product(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """One per output value and summed value."""
    first, _ = product_shapes(inputs[0], inputs[1], node.attributes)
    return math.prod(result) * first[-1]


def _einsum(node: Node, inputs: Sequence[_Shape], _result: _Shape) -> float:
    """One per combination of all indices, for two operands."""
    terms = str(node.attributes["equation"]).replace(" ", "").partition("->")[0].split(",")
    if len(terms) != 2 or any("." in term for term in terms):
        return math.nan
    lengths: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        for letter, length in zip(term, shape, strict=True):
            lengths[letter] = max(length, lengths.get(letter, 1))
    return math.prod(lengths.values())


def _attention(node: Node, inputs: Sequence[_Shape], _result: _Shape) -> float:
    """Scores and weighted values of ONNX's own operator, with the cache before the new keys."""
    if node.domain:
        raise LayerError("ONNX Runtime's own Attention has other inputs")
    batch, heads, tokens, size = by_heads(inputs[0], int(node.attributes.get("q_num_heads", 0)))
    _, _, rows, value_size = by_heads(inputs[2], int(node.attributes.get("kv_num_heads", 0)))
    rows += inputs[4][2] if len(inputs) > 4 and inputs[4] else 0
    return batch * heads * tokens * rows * (size + value_size)


def _pool(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """One comparison or addition per output value and value of its window."""
    window = node.attributes.get("kernel_shape", inputs[0][2:])
    return float(math.prod(result) * math.prod(window))


_PRODUCTS: Mapping[str, _Count] = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger"), _conv),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger"), _product),
    "Einsum": _einsum,
    "Attention": _attention,
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool
    ),
}  # fmt: skip
"""Operators whose multiply-adds follow from shapes, for any type and rank."""
_MULTIPLYING = frozenset({
    *_PRODUCTS, *CONTROL_FLOW, "DFT", "DeformConv", "GRU", "GlobalLpPool", "LSTM",
    "LpPool", "MaxRoiPool", "QLinearConv", "QLinearMatMul", "RNN", "RoiAlign", "STFT",
    "SequenceMap",
})  # fmt: skip
"""ONNX operators with multiply-adds; other ONNX operators that no kind reads count as 0."""
