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

from resperf.errors import UnsupportedError
from resperf.layers import Operator

Function = Callable[..., Any]
Make = Callable[[Operator], Function]

TYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float64": torch.float64, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
_TYPE_OF_NUMBER: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 16: "bfloat16",
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
        Whether normalisations compute the statistics of the batch.

    Raises
    ------
    UnsupportedError
        If PyTorch has no such operator.
    """
    if operator.op == "BatchNormalization":
        return _batch_norm(operator, training)
    make = _FUNCTIONS.get(operator.op)
    if make is None:
        raise UnsupportedError(f"PyTorch has no {operator.op}: {_why(operator.op)}")
    return make(operator)


def prepared(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    """Return an operator's inputs after the first with weights as PyTorch's own modules hold them.

    A matrix lies in memory as in ``nn.Linear``, and gates of recurrent cells are in its order.
    """
    prepare = _PREPARE.get(operator.op)
    return list(weights) if prepare is None else prepare(operator, weights)


def prepares(op: str) -> bool:
    """Whether an operator's weights are held in another form than in the file."""
    return op in _PREPARE


def _why(op: str) -> str:
    integers = op.startswith(("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "QGemm"))
    if integers or "Integer" in op or op in ("MatMulIntegerToFloat", "QuickQuant"):
        return "eager PyTorch computes with quantised values through other packages only"
    return "no operator does the same, or its shapes depend on values"


def _constant(operator: Operator, place: int, otherwise: Any = None) -> Any:
    """Return the value of a constant input as a number or a list."""
    if not operator.has_input(place):
        return otherwise
    value = operator.operand(place).value
    if value is None:
        raise UnsupportedError(f"{operator.op}: input {place} is computed by the network")
    return value.item() if value.ndim == 0 or value.size == 1 else value.tolist()


def _attribute(operator: Operator, name: str, otherwise: Any) -> Any:
    found = operator.attributes.get(name, otherwise)
    return found.decode() if isinstance(found, bytes) else found


def _chosen(function: Function) -> Function:
    """Return an untyped function of the library."""
    return function


def _always(function: Function) -> Make:
    return lambda _operator: function


# Functions of one or two tensors


def _gelu(operator: Operator) -> Function:
    approximate = str(_attribute(operator, "approximate", "none"))
    return partial(F.gelu, approximate=approximate)


def _clip(operator: Operator) -> Function:
    low = _attribute(operator, "min", None)
    high = _attribute(operator, "max", None)
    if operator.opset >= 11:
        low, high = _constant(operator, 1), _constant(operator, 2)
    if (low, high) in ((0, 6), (-1, 1)):
        return lambda x, *_: F.hardtanh(x, low, high)
    return lambda x, *_: torch.clamp(x, low, high)


def _hard_sigmoid(operator: Operator) -> Function:
    alpha = float(_attribute(operator, "alpha", 0.2))
    beta = float(_attribute(operator, "beta", 0.5))
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


def _mod(operator: Operator) -> Function:
    return _chosen(torch.fmod if _attribute(operator, "fmod", 0) else torch.remainder)


def _folded(function: Function) -> Make:
    """Apply a function of two tensors to all inputs, one after the other."""

    def run(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return _always(run)


def _cast(operator: Operator) -> Function:
    name = _TYPE_OF_NUMBER.get(int(operator.attributes["to"]), "")
    if name not in TYPES:
        raise UnsupportedError(f"Cast to ONNX's type {operator.attributes['to']} has no tensor")
    return lambda x: x.to(TYPES[name])


# Products


def _linear(operator: Operator) -> Function:
    alpha = float(_attribute(operator, "alpha", 1.0))
    beta = float(_attribute(operator, "beta", 1.0))
    flipped = bool(_attribute(operator, "transA", 0))
    # `prepared` holds every constant matrix like nn.Linear: (features_out, features_in).
    as_module = bool(_attribute(operator, "transB", 0)) or operator.operand(1).is_fixed

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
    if operator.operand(1).is_fixed and not _attribute(operator, "transB", 0):
        matrix = matrix.t().contiguous()
    return [matrix, *(None if each is None else each.reshape(_bias_shape(each)) for each in rest)]


def _bias_shape(bias: Any) -> tuple[int, ...]:
    """Return the shape of a bias without leading axes of length 1."""
    shape = tuple(bias.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _prepare_product(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    (matrix,) = weights
    if operator.operand(1).is_fixed and matrix.ndim == 2:
        matrix = matrix.t().contiguous().t()
    return [matrix]


def _fused_product(operator: Operator) -> Function:
    first, second = (bool(_attribute(operator, f"trans{each}", 0)) for each in "AB")
    alpha = float(_attribute(operator, "alpha", 1.0))

    def run(x: Any, y: Any) -> Any:
        x, y = (x.transpose(-1, -2) if first else x), (y.transpose(-1, -2) if second else y)
        return torch.matmul(x, y) if alpha == 1.0 else torch.matmul(x, y) * alpha

    return run


def _einsum(operator: Operator) -> Function:
    return partial(torch.einsum, str(_attribute(operator, "equation", "")))


# Windows


def _window(operator: Operator, kernel: Sequence[int]) -> tuple[Any, Any, list[tuple[int, int]]]:
    """Return strides, dilations, and the pads of each axis."""
    rank = len(kernel)
    attributes = operator.attributes
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    auto = _attribute(operator, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, k, s, d in zip(
            operator.operand(0).shape[2:], kernel, strides, dilations, strict=True
        ):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            pads.append((low, total - low))
        return strides, dilations, pads
    given = tuple(attributes.get("pads") or (0,) * 2 * rank)
    return strides, dilations, list(zip(given[:rank], given[rank:], strict=True))


def _apart(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Return pads as `F.pad` takes them: of the last axis first."""
    return [each for pair in reversed(pads) for each in pair]


def _conv(operator: Operator) -> Function:
    kernel = operator.operand(1).shape[2:]
    strides, dilations, pads = _window(operator, kernel)
    groups = int(_attribute(operator, "group", 1))
    run = _by_rank("conv", len(kernel))
    if all(low == high for low, high in pads):
        padding = tuple(low for low, _ in pads)
        return lambda x, w, b=None: run(x, w, b, strides, padding, dilations, groups)
    margins = _apart(pads)
    return lambda x, w, b=None: run(F.pad(x, margins), w, b, strides, 0, dilations, groups)


def _conv_transpose(operator: Operator) -> Function:
    kernel = operator.operand(1).shape[2:]
    rank = len(kernel)
    strides, dilations, pads = _window(operator, kernel)
    groups = int(_attribute(operator, "group", 1))
    sizes, result = operator.operand(0).shape[2:], operator.result()[2:]
    full = [
        (size - 1) * s + (k - 1) * d + 1
        for size, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    lows = [low for low, _ in pads]
    # PyTorch cuts both ends by the same padding and adds to the far end.
    more = [r - f + 2 * low for r, f, low in zip(result, full, lows, strict=True)]
    run = _by_rank("conv_transpose", rank)
    possible = all(0 <= m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True))
    if possible:
        padding, added = tuple(lows), tuple(more)
        return lambda x, w, b=None: run(x, w, b, strides, padding, added, groups, dilations)
    cut = (..., *(slice(low, low + r) for low, r in zip(lows, result, strict=True)))
    if any(low + r > f for low, r, f in zip(lows, result, full, strict=True)):
        raise UnsupportedError("ConvTranspose: PyTorch adds no such output padding")
    return lambda x, w, b=None: run(x, w, b, strides, 0, 0, groups, dilations)[cut]


def _by_rank(name: str, rank: int) -> Function:
    if rank not in (1, 2, 3):
        raise UnsupportedError(f"{name} along {rank} axes does not exist in PyTorch")
    found: Function = getattr(F, f"{name}{rank}d")
    return found


def _max_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    ceil = bool(_attribute(operator, "ceil_mode", 0))
    places = len(operator.outputs) > 1
    run = partial(_by_rank("max_pool", len(kernel)), return_indices=places)
    fits = all(low == high <= k // 2 for (low, high), k in zip(pads, kernel, strict=True))
    if fits:
        padding = tuple(low for low, _ in pads)
        return lambda x: run(x, kernel, strides, padding, dilations, ceil)
    margins = _apart(pads)
    return lambda x: run(F.pad(x, margins, value=-math.inf), kernel, strides, 0, dilations, ceil)


def _average_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    ceil = bool(_attribute(operator, "ceil_mode", 0))
    counts = bool(_attribute(operator, "count_include_pad", 0))
    if max(dilations) > 1:
        raise UnsupportedError("AveragePool with dilations does not exist in PyTorch")
    run = _by_rank("avg_pool", len(kernel))
    if all(low == high <= k // 2 for (low, high), k in zip(pads, kernel, strict=True)):
        padding = tuple(low for low, _ in pads)
        return lambda x: run(x, kernel, strides, padding, ceil, counts)
    beyond = [
        -(-(size - k) // stride) + 1
        for size, k, stride in zip(operator.operand(0).shape[2:], kernel, strides, strict=True)
    ]
    if not counts and tuple(beyond) == operator.result()[2:] and not any(low for low, _ in pads):
        # Windows that reach beyond the far ends, as with ceil_mode.
        return lambda x: run(x, kernel, strides, 0, ceil_mode=True)
    if not counts:
        raise UnsupportedError(
            f"AveragePool over pads {pads} that do not count does not exist in PyTorch"
        )
    margins = _apart(pads)
    return lambda x: run(F.pad(x, margins), kernel, strides, 0, ceil)


def _lp_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    norm = float(_attribute(operator, "p", 2))
    if max(dilations) > 1:
        raise UnsupportedError("LpPool with dilations does not exist in PyTorch")
    run, margins = _by_rank("lp_pool", len(kernel)), _apart(pads)
    ceil = bool(_attribute(operator, "ceil_mode", 0))
    if any(margins):
        return lambda x: run(F.pad(x, margins), norm, kernel, strides, ceil)
    return lambda x: run(x, norm, kernel, strides, ceil)


def _whole_image(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        axes = tuple(range(2, len(operator.operand(0).shape)))
        return lambda x: function(x, axes, keepdim=True)

    return make


def _global_lp(operator: Operator) -> Function:
    axes = tuple(range(2, len(operator.operand(0).shape)))
    norm = float(_attribute(operator, "p", 2))
    return lambda x: torch.linalg.vector_norm(x, norm, axes, keepdim=True)


# Normalisations


def _batch_norm(operator: Operator, training: bool) -> Function:
    eps = float(_attribute(operator, "epsilon", 1e-5))
    momentum = 1 - float(_attribute(operator, "momentum", 0.9))

    def run(x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)

    return run


def _instance_norm(operator: Operator) -> Function:
    eps = float(_attribute(operator, "epsilon", 1e-5))
    return lambda x, weight, bias: F.instance_norm(x, None, None, weight, bias, eps=eps)


def _group_norm(operator: Operator) -> Function:
    eps = float(_attribute(operator, "epsilon", 1e-5))
    groups = int(operator.attributes["num_groups"])
    return lambda x, weight, bias: F.group_norm(x, groups, weight, bias, eps)


def _normalised_shape(operator: Operator, default: int = -1) -> tuple[int, ...]:
    return operator.operand(0).shape[operator.axis(default) :]


def _epsilon(operator: Operator) -> float:
    """Return the default of an operator; ONNX Runtime's that add first have a smaller one."""
    return 1e-12 if operator.op.startswith("Skip") else 1e-5


def _layer_norm(operator: Operator) -> Function:
    eps = float(_attribute(operator, "epsilon", _epsilon(operator)))
    shape = _normalised_shape(operator)

    def run(x: Any, weight: Any, bias: Any = None) -> Any:
        return F.layer_norm(x, shape, weight, bias, eps)

    return run


def _rms_norm(operator: Operator) -> Function:
    eps = float(_attribute(operator, "epsilon", _epsilon(operator)))
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
        float(_attribute(operator, name, value))
        for name, value in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    return lambda x: F.local_response_norm(x, size, alpha, beta, bias)


def _lp_norm(operator: Operator) -> Function:
    axis, norm = operator.axis(-1), float(_attribute(operator, "p", 2))
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
    causal = bool(_attribute(operator, "is_causal", 0))
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
            each.unflatten(2, (heads, -1)).transpose(1, 2) for each in (query, key, value)
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
        return () if _attribute(operator, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(axis % rank for axis in given)


def _reduction(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        axes, keep = _axes(operator), bool(_attribute(operator, "keepdims", 1))
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


def _place(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        if _attribute(operator, "select_last_index", 0):
            raise UnsupportedError(f"{operator.op} of the last index does not exist in PyTorch")
        axis, keep = operator.axis(0), bool(_attribute(operator, "keepdims", 1))
        return lambda x: function(x, axis, keepdim=keep)

    return make


def _cumsum(operator: Operator) -> Function:
    if _attribute(operator, "exclusive", 0) or _attribute(operator, "reverse", 0):
        raise UnsupportedError("CumSum backwards or exclusive is no operator of PyTorch")
    axis = int(_constant(operator, 1))
    return lambda x, *_: torch.cumsum(x, axis)


def _top_k(operator: Operator) -> Function:
    axis, largest = operator.axis(-1), bool(_attribute(operator, "largest", 1))
    in_order = bool(_attribute(operator, "sorted", 1))
    count = operator.result()[axis]
    return lambda x, *_: torch.topk(x, count, axis, largest, in_order)


# Shapes, copies and indices


def _reshape(operator: Operator) -> Function:
    shape = operator.result()
    return lambda x, *_: x.reshape(shape)


def _permute(operator: Operator) -> Function:
    rank = len(operator.operand(0).shape)
    order = tuple(operator.attributes.get("perm") or reversed(range(rank)))
    return lambda x: x.permute(order)


def _expand(operator: Operator) -> Function:
    shape = operator.result()
    return lambda x, *_: x.expand(shape)


def _tile(operator: Operator) -> Function:
    times = operator.numbers("repeats", 1) or ()
    return lambda x, *_: x.repeat(times)


def _slice(operator: Operator) -> Function:
    shape = operator.operand(0).shape
    starts, ends = operator.numbers("starts", 1) or (), operator.numbers("ends", 2) or ()
    axes = operator.numbers("axes", 3) or tuple(range(len(starts)))
    steps = operator.numbers("steps", 4) or (1,) * len(starts)
    index: list[slice] = [slice(None)] * len(shape)
    backwards = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(shape)
        places = range(*slice(start, end, step).indices(shape[axis]))
        if step < 0 and len(places):
            backwards.append(axis)
            index[axis] = slice(places[-1], places[0] + 1, -step)
        else:
            index[axis] = slice(places.start, max(places.stop, places.start), step)
    window = tuple(index)
    if backwards:
        return lambda x, *_: torch.flip(x[window], backwards)
    return lambda x, *_: x[window]


def _split(operator: Operator) -> Function:
    axis = operator.axis(0)
    lengths = [shape[axis] for shape in operator.outputs if shape is not None]
    return lambda x, *_: torch.split(x, lengths, axis)


def _concat(operator: Operator) -> Function:
    axis = operator.axis(1)
    return lambda *parts: torch.cat(parts, axis)


def _pad(operator: Operator) -> Function:
    rank = len(operator.operand(0).shape)
    given = operator.numbers("pads", 1) or ()
    axes = operator.numbers("axes", 3) or tuple(range(rank))
    pairs = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        pairs[axis % rank] = (int(given[place]), int(given[place + len(axes)]))
    mode = {"edge": "replicate", "wrap": "circular"}.get(
        word := str(_attribute(operator, "mode", "constant")), word
    )
    if mode == "constant":
        margins = _apart(pairs)
        value = _constant(operator, 2, _attribute(operator, "value", 0.0))
        return lambda x, *_: F.pad(x, margins, mode, value)
    while len(pairs) > 2 and pairs[0] == (0, 0) and len(pairs) > rank - 2:
        pairs = pairs[1:]
    margins = _apart(pairs)
    return lambda x, *_: F.pad(x, margins, mode)


def _gather(operator: Operator) -> Function:
    axis, indices = operator.axis(0), operator.operand(1)
    if not indices.shape and indices.value is not None:
        place = int(indices.value)
        return lambda x, _: x.select(axis, place)
    if axis == 0 and operator.operand(0).is_fixed and len(operator.operand(0).shape) == 2:
        return lambda table, rows: F.embedding(rows, table)
    before = (slice(None),) * axis
    return lambda x, rows: x[(*before, rows)]


def _gather_elements(operator: Operator) -> Function:
    axis = operator.axis(0)
    return lambda x, places: torch.gather(x, axis, places)


def _gather_nd(operator: Operator) -> Function:
    if _attribute(operator, "batch_dims", 0):
        raise UnsupportedError("GatherND with batch_dims is no operator of PyTorch")
    return lambda x, places: x[places.unbind(-1)]


def _scatter_elements(operator: Operator) -> Function:
    axis, how = operator.axis(0), str(_attribute(operator, "reduction", "none"))
    if how != "none":
        word = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[how]
        return lambda x, places, new: torch.scatter_reduce(x, axis, places, new, word)
    return lambda x, places, new: torch.scatter(x, axis, places, new)


def _scatter_nd(operator: Operator) -> Function:
    how = str(_attribute(operator, "reduction", "none"))
    if how not in ("none", "add"):
        raise UnsupportedError(f"ScatterND with reduction {how} is no operator of PyTorch")
    adds = how == "add"
    return lambda x, places, new: torch.index_put(x, places.unbind(-1), new, accumulate=adds)


def _triangle(operator: Operator) -> Function:
    function = torch.triu if _attribute(operator, "upper", 1) else torch.tril
    diagonal = int(_constant(operator, 1, 0))
    return lambda x, *_: function(x, diagonal)


_INTERPOLATIONS: Mapping[tuple[str, int], str] = {
    ("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}  # fmt: skip


def _resize(operator: Operator) -> Function:
    sizes = operator.result()[2:]
    mode = str(_attribute(operator, "mode", "nearest"))
    where = str(_attribute(operator, "coordinate_transformation_mode", "half_pixel"))
    word = _INTERPOLATIONS.get((mode, len(sizes)), "")
    if operator.result()[:2] != operator.operand(0).shape[:2]:
        raise UnsupportedError("Resize of batch or channels is no operator of PyTorch")
    if mode == "nearest":
        return lambda x, *_: F.interpolate(x, sizes, mode="nearest")
    if not word:
        raise UnsupportedError(f"Resize of mode {mode} along {len(sizes)} axes is not PyTorch's")
    aligned = where == "align_corners"
    return lambda x, *_: F.interpolate(x, sizes, mode=word, align_corners=aligned)


def _grid_sample(operator: Operator) -> Function:
    mode = str(_attribute(operator, "mode", "bilinear"))
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = str(_attribute(operator, "padding_mode", "zeros"))
    aligned = bool(_attribute(operator, "align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, aligned)


def _depth_to_space(operator: Operator) -> Function:
    side = int(operator.attributes["blocksize"])
    if _attribute(operator, "mode", "DCR") == "CRD":
        return lambda x: F.pixel_shuffle(x, side)
    batch, channels, height, width = operator.operand(0).shape
    blocks = (batch, side, side, channels // side**2, height, width)
    result = operator.result()
    return lambda x: x.reshape(blocks).permute(0, 3, 4, 1, 5, 2).reshape(result)


def _space_to_depth(operator: Operator) -> Function:
    side = int(operator.attributes["blocksize"])
    batch, channels, height, width = operator.operand(0).shape
    blocks = (batch, channels, height // side, side, width // side, side)
    result = operator.result()
    return lambda x: x.reshape(blocks).permute(0, 3, 5, 1, 2, 4).reshape(result)


def _col2im(operator: Operator) -> Function:
    size, kernel = tuple(_constant(operator, 1)), tuple(_constant(operator, 2))
    strides, dilations, pads = _window(operator, kernel)
    if any(low != high for low, high in pads):
        raise UnsupportedError("Col2Im with unequal pads is no operator of PyTorch")
    padding = tuple(low for low, _ in pads)
    return lambda x, *_: F.fold(x, size, kernel, dilations, padding, strides)


# Recurrent layers

_GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Cell -> place in ONNX of each of PyTorch's gates."""


def _recurrent(operator: Operator) -> Function:
    word = str(_attribute(operator, "direction", "forward"))
    directions = operator.operand(1).shape[0]
    if word == "reverse" or operator.has_input(4) or operator.has_input(7):
        raise UnsupportedError(f"{operator.op} backwards, with lengths or peepholes has no module")
    if operator.op == "GRU" and not _attribute(operator, "linear_before_reset", 0):
        raise UnsupportedError("GRU of PyTorch resets behind the product (linear_before_reset=1)")
    if _attribute(operator, "layout", 0) or operator.attributes.get("clip"):
        raise UnsupportedError(f"{operator.op} with another layout, or clipped, has no module")
    hidden = operator.operand(2).shape[-1]
    steps, batch = operator.operand(0).shape[:2]
    cell = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[operator.op]
    has_bias = operator.has_input(3)
    two_states = operator.op == "LSTM"

    def run(x: Any, *given: Any) -> Any:
        initial, weights = given[:2], given[2:]
        states = [
            x.new_zeros((directions, batch, hidden)) if each is None else each
            for each in initial[: 1 + two_states]
        ]
        first = states if two_states else states[0]
        y, *last = cell(x, first, weights, has_bias, 1, 0.0, False, directions == 2, False)
        return (y.view(steps, batch, directions, hidden).permute(0, 2, 1, 3), *last)

    return run


def _prepare_recurrent(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    """Return both initial states, then matrices and biases of each direction in PyTorch's order."""
    given = [*weights, *[None] * 6]
    inputs, states, biases = given[:3]
    order = _GATES[operator.op]

    def ordered(tensor: Any) -> Any:
        gates = tensor.chunk(len(order))
        return torch.cat([gates[place] for place in order]).contiguous()

    flat = []
    for direction in range(inputs.shape[0]):
        flat += [ordered(inputs[direction]), ordered(states[direction])]
        if biases is not None:
            flat += [ordered(each) for each in biases[direction].chunk(2)]
    return [given[4], given[5], *flat]


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
    "Min": _folded(torch.minimum), "Div": _div, "Pow": _pow, "Mod": _mod,
    "Softplus": _always(F.softplus), "Softsign": _always(F.softsign), "Mish": _always(F.mish),
    "HardSwish": _always(F.hardswish), "HardSigmoid": _hard_sigmoid,
    "Elu": lambda o: partial(F.elu, alpha=float(_attribute(o, "alpha", 1.0))),
    "Celu": lambda o: partial(F.celu, alpha=float(_attribute(o, "alpha", 1.0))),
    "LeakyRelu": lambda o: partial(
        F.leaky_relu, negative_slope=float(_attribute(o, "alpha", 0.01))
    ),
    "ThresholdedRelu": lambda o: partial(
        F.threshold, threshold=float(_attribute(o, "alpha", 1.0)), value=0.0
    ),
    "Gelu": _gelu, "FastGelu": _always(partial(F.gelu, approximate="tanh")),
    "QuickGelu": _always(F.silu), "Swish": _always(F.silu), "Silu": _always(F.silu),
    "Clip": _clip, "PRelu": _prelu, "Cast": _cast,
    "CastLike": _always(lambda x, like: x.to(like.dtype)),
    "Gemm": _linear, "FusedMatMul": _fused_product, "Einsum": _einsum,
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "AveragePool": _average_pool, "LpPool": _lp_pool, "GlobalLpPool": _global_lp,
    "GlobalAveragePool": _whole_image(torch.mean), "GlobalMaxPool": _whole_image(torch.amax),
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
    "ArgMax": _place(torch.argmax), "ArgMin": _place(torch.argmin), "CumSum": _cumsum,
    "TopK": _top_k, "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad,
    "Transpose": _permute, "Expand": _expand, "Tile": _tile,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Identity", "Dropout"), _always(lambda x, *_: x)),
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd, "Trilu": _triangle,
    "Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Col2Im": _col2im,
    **dict.fromkeys(_GATES, _recurrent),
}  # fmt: skip
"""ONNX operator -> what makes its function."""
_PREPARE: Mapping[str, Callable[[Operator, Sequence[Any]], list[Any]]] = {
    "Gemm": _prepare_gemm,
    "MatMul": _prepare_product,
    **dict.fromkeys(_GATES, _prepare_recurrent),
}
