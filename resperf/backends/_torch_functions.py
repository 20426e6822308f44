"""ONNX operators as PyTorch runs them: one table, for the kernels of layers and nodes of networks.

A function is made once from an operator's attributes, constants and shapes, and takes the
operator's inputs, None for absent ones. Views are views, as in PyTorch. What has no operator of
PyTorch is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from resperf.backends._attributes import Function, Make, attribute, constant
from resperf.backends._torch_shapes import SHAPES, WINDOWS
from resperf.errors import UnsupportedError
from resperf.layers import Operator
from resperf.layers.cast import DTYPE_OF

GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Cell -> index in ONNX of each of PyTorch's gates."""


def recurrent(operator: Operator, *, training: bool = False) -> Function:
    word = str(attribute(operator, "direction", "forward"))
    directions = operator.operand(1).shape[0]
    if word == "reverse" or operator.has_input(4) or operator.has_input(7):
        raise UnsupportedError(f"{operator.op} backwards, with lengths or peepholes has no module")
    if operator.op == "GRU" and not attribute(operator, "linear_before_reset", 0):
        raise UnsupportedError("GRU of PyTorch resets behind the product (linear_before_reset=1)")
    if attribute(operator, "layout", 0) or operator.attributes.get("clip"):
        raise UnsupportedError(f"{operator.op} with another layout, or clipped, has no module")
    hidden = operator.operand(2).shape[-1]
    steps, batch = operator.operand(0).shape[:2]
    cell = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[operator.op]
    has_bias = operator.has_input(3)
    two_states = operator.op == "LSTM"

    def run(x: Any, *given: Any) -> Any:
        initial, weights = given[:2], given[2:]
        states = [
            x.new_zeros((directions, batch, hidden)) if state is None else state
            for state in initial[: 1 + two_states]
        ]
        first = states if two_states else states[0]
        y, *last = cell(x, first, weights, has_bias, 1, 0.0, training, directions == 2, False)
        return (y.view(steps, batch, directions, hidden).permute(0, 2, 1, 3), *last)

    return run


def prepare_recurrent(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    """Return both initial states, then matrices and biases of each direction in PyTorch's order."""
    given = [*weights, *[None] * 6]
    inputs, states, biases = given[:3]
    if not all(weight is None or isinstance(weight, torch.Tensor) for weight in given[:3]):
        raise UnsupportedError(f"{operator.op} with computed weights has no module")
    order = GATES[operator.op]

    def ordered(tensor: Any) -> Any:
        gates = tensor.chunk(len(order))
        return torch.cat([gates[index] for index in order]).contiguous()

    flat = []
    for direction in range(inputs.shape[0]):
        flat += [ordered(inputs[direction]), ordered(states[direction])]
        if biases is not None:
            flat += [ordered(bias) for bias in biases[direction].chunk(2)]
    if inputs.is_cuda:  # cuDNN reads them from one buffer, and else copies them there in each run.
        module = getattr(torch.nn, operator.op)(
            inputs.shape[2], states.shape[2], bias=biases is not None,
            bidirectional=len(inputs) == 2, device=inputs.device, dtype=inputs.dtype,
        )  # fmt: skip
        for parameter, weight in zip(module.parameters(), flat, strict=True):
            parameter.data.copy_(weight)
        flat = [parameter.detach() for parameter in module.parameters()]
    return [given[4], given[5], *flat]


TYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float64": torch.float64, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
STATISTICS: Mapping[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
"""Operator -> weights that no optimizer updates."""


def function_of(operator: Operator, *, training: bool = False) -> Function:
    """Return what runs an operator in PyTorch.

    Parameters
    ----------
    operator : Operator
        One of ONNX, or of ONNX Runtime where a layer has no other form.
    training : bool
        Whether normalisations compute the statistics of the batch, and Dropout drops values.

    Raises
    ------
    UnsupportedError
        If PyTorch has no such operator.
    """
    if operator.op == "BatchNormalization":
        return _batch_norm(operator, training)
    if operator.op in GATES:
        return recurrent(operator, training=training)
    if operator.op == "Dropout" and training:
        ratio = float(constant(operator, 1, attribute(operator, "ratio", 0.5)))
        return lambda x, *_: F.dropout(x, ratio)
    make = _FUNCTIONS.get(operator.op)
    if make is None:
        raise UnsupportedError(f"PyTorch has no {operator.op}: {_why(operator.op)}")
    return make(operator)


def prepared(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    """Return an operator's inputs after the first with weights as PyTorch's own modules hold them.

    A matrix lies in memory as in ``nn.Linear``, and gates of recurrent cells are in its order. What
    is no tensor stays as it is.
    """
    prepare = PREPARE.get(operator.op)
    return list(weights) if prepare is None else prepare(operator, weights)


def _why(op: str) -> str:
    integers = op.startswith(("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "QGemm"))
    if integers or "Integer" in op or op in ("MatMulIntegerToFloat", "QuickQuant"):
        return "eager PyTorch computes with quantised values through other packages only"
    return "no operator does the same, or its shapes depend on values"


def _chosen(function: Function) -> Function:
    """Return an untyped function of the library."""
    return function


def _always(function: Function) -> Make:
    return lambda _operator: function


# Functions of one or two tensors


def _clip(operator: Operator) -> Function:
    low = attribute(operator, "min", None)
    high = attribute(operator, "max", None)
    if operator.opset >= 11:
        bounds = [bound for bound in operator.inputs[1:3] if bound is not None]
        if any(bound.value is None for bound in bounds):
            return lambda x, low=None, high=None: torch.clamp(x, low, high)
        low, high = constant(operator, 1), constant(operator, 2)
    if (low, high) in ((0, 6), (-1, 1)):
        return lambda x, *_: F.hardtanh(x, low, high)
    return lambda x, *_: torch.clamp(x, low, high)


def _hard_sigmoid(operator: Operator) -> Function:
    alpha = float(attribute(operator, "alpha", 0.2))
    beta = float(attribute(operator, "beta", 0.5))
    if abs(alpha - 1 / 6) < 1e-3 and beta == 0.5:
        return F.hardsigmoid
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


def _prelu(operator: Operator) -> Function:
    x, slope = operator.operand(0).shape, operator.operand(1).shape
    channels = x[1] if len(x) > 1 else 1
    if math.prod(slope) in (1, channels) and len(slope) < len(x):
        return lambda x, slope: F.prelu(x, slope.reshape(-1))
    return lambda x, slope: torch.where(x >= 0, x, x * slope)


def _div(operator: Operator) -> Function:
    if operator.operand(0).dtype.startswith(("int", "uint")):
        return partial(torch.div, rounding_mode="trunc")
    return _chosen(torch.div)


def _pow(operator: Operator) -> Function:
    exponent = operator.operand(1).value
    if exponent is None or exponent.size != 1:
        return _chosen(torch.pow)
    number = exponent.item()
    return lambda x, *_: torch.pow(x, number)


def _folded(function: Function) -> Make:
    """Apply a function of two tensors to all inputs, one after the other."""

    def run(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return _always(run)


def _cast(operator: Operator) -> Function:
    name = DTYPE_OF.get(int(operator.attributes["to"]), "")
    if name not in TYPES:
        raise UnsupportedError(f"Cast to ONNX's type {operator.attributes['to']} has no tensor")
    return lambda x: x.to(TYPES[name])


# Products


def _linear(operator: Operator) -> Function:
    alpha = float(attribute(operator, "alpha", 1.0))
    beta = float(attribute(operator, "beta", 1.0))
    flipped = bool(attribute(operator, "transA", 0))
    # `prepared` holds every constant matrix like nn.Linear: (features_out, features_in).
    as_module = bool(attribute(operator, "transB", 0)) or operator.operand(1).is_fixed

    def run(x: Any, matrix: Any, bias: Any = None) -> Any:
        x = x.t() if flipped else x
        matrix = matrix if as_module else matrix.t()
        if alpha == 1.0 and (bias is None or (beta == 1.0 and bias.ndim == 1)):
            return F.linear(x, matrix, bias)
        product = F.linear(x, matrix)
        product = product if alpha == 1.0 else alpha * product
        return product if bias is None else torch.add(product, bias, alpha=beta)

    return run


def _prepare_gemm(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    matrix, *rest = weights
    if operator.operand(1).is_fixed and not attribute(operator, "transB", 0):
        matrix = matrix.t().contiguous()
    return [matrix, *map(_without_ones, rest)]


def _without_ones(bias: Any) -> Any:
    """Return a constant bias without leading axes of length 1."""
    while isinstance(bias, torch.Tensor) and bias.ndim > 1 and bias.shape[0] == 1:
        bias = bias[0]
    return bias


def _prepare_product(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    (matrix,) = weights
    if operator.operand(1).is_fixed and len(operator.operand(1).shape) == 2:
        matrix = matrix.t().contiguous().t()
    return [matrix]


def _fused_product(operator: Operator) -> Function:
    alpha = float(attribute(operator, "alpha", 1.0))
    names = ("transBatchA", "transA", "transBatchB", "transB")
    batch_a, matrix_a, batch_b, matrix_b = (bool(attribute(operator, name, 0)) for name in names)

    def plain(matrix: Any, batch: bool, turned: bool) -> Any:
        matrix = matrix.movedim(0, -2) if batch else matrix
        return matrix.transpose(-1, -2) if turned else matrix

    def run(x: Any, y: Any) -> Any:
        z = torch.matmul(plain(x, batch_a, matrix_a), plain(y, batch_b, matrix_b))
        return z if alpha == 1.0 else z * alpha

    return run


# Normalisations


def _batch_norm(operator: Operator, training: bool) -> Function:
    eps = float(attribute(operator, "epsilon", 1e-5))
    momentum = 1 - float(attribute(operator, "momentum", 0.9))

    def run(x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
        # Of weights that are normalised, a network computes the statistics itself.
        mean, variance = mean.detach(), variance.detach()
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)

    return run


def _instance_norm(operator: Operator) -> Function:
    eps = float(attribute(operator, "epsilon", 1e-5))
    return lambda x, weight, bias: F.instance_norm(x, None, None, weight, bias, eps=eps)


def _group_norm(operator: Operator) -> Function:
    eps = float(attribute(operator, "epsilon", 1e-5))
    groups, channels = int(operator.attributes["num_groups"]), operator.operand(0).shape[1]

    def run(x: Any, *scales: Any) -> Any:  # Each for all channels, or one for each.
        weight, bias = (scale.flatten().expand(channels) for scale in scales)
        return F.group_norm(x, groups, weight, bias, eps)

    return run


def _normalised_shape(operator: Operator) -> tuple[int, ...]:
    return operator.operand(0).shape[operator.axis(-1) :]


def _epsilon(operator: Operator) -> float:
    """Return the default of an operator; ONNX Runtime's that add first have a smaller one."""
    return 1e-12 if operator.op.startswith("Skip") else 1e-5


def _layer_norm(operator: Operator) -> Function:
    eps = float(attribute(operator, "epsilon", _epsilon(operator)))
    shape = _normalised_shape(operator)

    def run(x: Any, weight: Any, bias: Any = None) -> Any:
        return F.layer_norm(x, shape, weight, bias, eps)

    return run


def _rms_norm(operator: Operator) -> Function:
    eps = float(attribute(operator, "epsilon", _epsilon(operator)))
    shape = _normalised_shape(operator)
    return lambda x, weight: F.rms_norm(x, shape, weight, eps)


def _skip_norm(norm: Make) -> Make:
    """Add two tensors, then normalise: two operators of PyTorch."""

    def make(operator: Operator) -> Function:
        run = norm(operator)
        return lambda x, skip, *weights: run(x + skip, *weights)

    return make


def _local_response(operator: Operator) -> Function:
    size = int(operator.attributes["size"])
    alpha, beta, bias = (
        float(attribute(operator, name, value))
        for name, value in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    return lambda x: F.local_response_norm(x, size, alpha, beta, bias)


def _lp_norm(operator: Operator) -> Function:
    axis, norm = operator.axis(-1), float(attribute(operator, "p", 2))
    return lambda x: F.normalize(x, norm, axis)


def _softmax(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        if operator.opset >= 13:
            axis = operator.axis(-1)
            return lambda x: function(x, axis)
        axis, shape = operator.axis(1), operator.operand(0).shape
        if math.prod(shape[axis + 1 :]) == 1:
            return lambda x: function(x, axis)
        return lambda x: function(x.flatten(axis), axis).reshape(shape)

    return make


# Attention


def _attention(operator: Operator) -> Function:
    """Run scaled-dot-product attention on (batch, heads, tokens, size)."""
    scale = operator.attributes.get("scale")
    causal = bool(attribute(operator, "is_causal", 0))
    if len(operator.operand(0).shape) != 4:
        raise UnsupportedError("Attention on other than four axes is no operator of PyTorch")

    def run(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale
        )

    return run


def _heads_attention(operator: Operator) -> Function:
    """Run attention on views of (batch, tokens, heads x size), as PyTorch's modules do."""
    heads = int(operator.attributes["num_heads"])
    attend = F.scaled_dot_product_attention

    def run(query: Any, key: Any, value: Any, *others: Any) -> Any:
        mask = others[2] if len(others) > 2 else None
        query, key, value = (
            tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key, value)
        )
        return attend(query, key, value, attn_mask=mask)

    return run


def _projected_attention(_operator: Operator) -> Function:
    raise UnsupportedError(
        "attention with its projections is no operator of PyTorch, which runs a dense layer and "
        "attention; use features=0"
    )


# Reductions and orders


def _axes(operator: Operator) -> tuple[int, ...]:
    rank = len(operator.operand(0).shape)
    given = operator.numbers("axes", 1)
    if not given:
        return () if attribute(operator, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(axis % rank for axis in given)


def _reduction(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        axes, keep = _axes(operator), bool(attribute(operator, "keepdims", 1))
        if not axes:
            return lambda x, *_: x
        return lambda x, *_: function(x, axes, keep)

    return make


def _product_along(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _norm_of(order: int) -> Function:
    return lambda x, axes, keep: torch.linalg.vector_norm(x, order, axes, keepdim=keep)


def _arg(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        if attribute(operator, "select_last_index", 0):
            raise UnsupportedError(f"{operator.op} of the last index does not exist in PyTorch")
        axis, keep = operator.axis(0), bool(attribute(operator, "keepdims", 1))
        return lambda x: function(x, axis, keepdim=keep)

    return make


def _cumsum(operator: Operator) -> Function:
    if attribute(operator, "exclusive", 0) or attribute(operator, "reverse", 0):
        raise UnsupportedError("CumSum backwards or exclusive is no operator of PyTorch")
    axis = int(constant(operator, 1))
    return lambda x, *_: torch.cumsum(x, axis)


def _top_k(operator: Operator) -> Function:
    axis, largest = operator.axis(-1), bool(attribute(operator, "largest", 1))
    in_order = bool(attribute(operator, "sorted", 1))
    count = operator.result()[axis]
    return lambda x, *_: torch.topk(x, count, axis, largest, in_order)


_FUNCTIONS: Mapping[str, Make] = {
    **{op: _always(getattr(torch, name or op.lower())) for op, name in (
        ("Abs", ""), ("Acos", ""), ("Asin", ""), ("Atan", ""), ("Ceil", ""), ("Cos", ""),
        ("Cosh", ""), ("Erf", ""), ("Exp", ""), ("Floor", ""), ("Log", ""), ("Neg", ""),
        ("Reciprocal", ""), ("Relu", ""), ("Round", ""), ("Sigmoid", ""), ("Sign", ""),
        ("Sin", ""), ("Sinh", ""), ("Sqrt", ""), ("Tan", ""), ("Tanh", ""),
        ("Not", "logical_not"), ("IsNaN", "isnan"), ("IsInf", "isinf"), ("Selu", ""),
        ("And", "logical_and"), ("Or", "logical_or"), ("Xor", "logical_xor"), ("Equal", "eq"),
        ("Greater", "gt"), ("GreaterOrEqual", "ge"), ("Less", "lt"), ("LessOrEqual", "le"),
        ("Where", ""), ("Sub", ""), ("Mul", ""), ("MatMul", ""), ("Det", ""),
    )},
    "Add": _always(torch.add), "Sum": _folded(torch.add), "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum), "Div": _div, "Pow": _pow,
    "Mod": lambda o: _chosen(torch.fmod if attribute(o, "fmod", 0) else torch.remainder),
    "Softplus": _always(F.softplus), "Softsign": _always(F.softsign), "Mish": _always(F.mish),
    "HardSwish": _always(F.hardswish), "HardSigmoid": _hard_sigmoid,
    "Elu": lambda o: partial(F.elu, alpha=float(attribute(o, "alpha", 1.0))),
    "Celu": lambda o: partial(F.celu, alpha=float(attribute(o, "alpha", 1.0))),
    "LeakyRelu": lambda o: partial(
        F.leaky_relu, negative_slope=float(attribute(o, "alpha", 0.01))
    ),
    "ThresholdedRelu": lambda o: partial(
        F.threshold, threshold=float(attribute(o, "alpha", 1.0)), value=0.0
    ),
    "Gelu": lambda o: partial(F.gelu, approximate=str(attribute(o, "approximate", "none"))),
    "FastGelu": _always(partial(F.gelu, approximate="tanh")),
    "QuickGelu": _always(F.silu), "Swish": _always(F.silu), "Silu": _always(F.silu),
    "Clip": _clip, "PRelu": _prelu, "Cast": _cast,
    "CastLike": _always(lambda x, like: x.to(like.dtype)),
    "Gemm": _linear, "FusedMatMul": _fused_product,
    "Einsum": lambda o: partial(torch.einsum, str(attribute(o, "equation", ""))),
    "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm, "SkipLayerNormalization": _skip_norm(_layer_norm),
    "SkipSimplifiedLayerNormalization": _skip_norm(_rms_norm), "LRN": _local_response,
    "LpNormalization": _lp_norm, "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax), "Attention": _attention,
    "MultiHeadAttention": _heads_attention, "PackedAttention": _projected_attention,
    "ReduceMean": _reduction(torch.mean), "ReduceSum": _reduction(torch.sum),
    "ReduceMax": _reduction(torch.amax), "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product_along), "ReduceL1": _reduction(_norm_of(1)),
    "ReduceL2": _reduction(_norm_of(2)), "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: torch.sum(x * x, axes, keep)),
    "ReduceLogSum": _reduction(lambda x, axes, keep: torch.log(torch.sum(x, axes, keep))),
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "CumSum": _cumsum,
    "TopK": _top_k,
    **dict.fromkeys(("Identity", "Dropout"), _always(lambda x, *_: x)),
    **SHAPES,
    **WINDOWS,
}  # fmt: skip
"""ONNX operator -> what makes its function."""
PREPARE: Mapping[str, Callable[[Operator, Sequence[Any]], list[Any]]] = {
    "Gemm": _prepare_gemm,
    "MatMul": _prepare_product,
    **dict.fromkeys(GATES, prepare_recurrent),
}
