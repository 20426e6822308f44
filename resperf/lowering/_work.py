"""Work and memory of operators, counted from the graph alone, also of those without a kind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import OPERATOR_DOMAINS, layer_of_operator
from resperf.layers._operator import CONTRIB, product_shapes
from resperf.lowering._base import CONTROL_FLOW, LoweredNode
from resperf.lowering._ort_attention import by_heads
from resperf.lowering._proto import shared_weights
from resperf.lowering._read import operator_of
from resperf.network import MALFORMED, Network, Node, Tensor
from resperf.network.canonical import canonical
from resperf.units import DTYPE_BYTES, LOW_BITS, format_bytes

_Shape = tuple[int, ...]
_Count = Callable[[Node, Sequence[_Shape], _Shape], float]
"""(node, shapes of its inputs, shape of its first output) -> multiply-adds."""
_OTHER_FLOATS = frozenset({"float16", "bfloat16", "float64"})
"""Read as float32: the number of multiply-adds does not depend on the type."""

_SHARES: Mapping[str, tuple[float, float]] = {
    "amp": (1, 0.5), "fp16": (0.5, 0.5), "bf16": (0.5, 0.5), "int8": (0.25, 0.25)
}  # fmt: skip
"""Precision -> what float32 weights and other float32 values have of their bytes at least."""
_NOT_IN_PLACE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that read inputs until their end: others may write over them."""


class Work(NamedTuple):
    """Multiply-adds, and bytes read and written; NaN where unknown."""

    macs: float
    moved_bytes: float


def tensor_bytes(tensor: Tensor) -> float:
    """Count the bytes of a tensor's values; NaN for values of variable size (strings)."""
    values = math.prod(tensor.shape)
    if tensor.dtype in LOW_BITS:
        return math.ceil(values * LOW_BITS[tensor.dtype] / 8)
    element_bytes = DTYPE_BYTES.get(tensor.dtype)
    if element_bytes is None:
        try:
            element_bytes = np.dtype(tensor.dtype).itemsize
        except TypeError:
            return math.nan
    return values * element_bytes


def too_large(network: Network, precision: str, memory_bytes: float) -> str:
    """Say what of a network does not fit into memory; empty if it may fit.

    Counted are weights, inputs, outputs, and the values between operators that are alive at the
    same time, in the order of the file. Frameworks need more, for workspaces and themselves.

    Parameters
    ----------
    network : Network
    precision : str
        As in `resperf.settings.Setting`.
    memory_bytes : float
    """
    weight_bytes, value_bytes = _needed(network, precision)
    if weight_bytes + value_bytes > memory_bytes:
        # Attention that runs as one kernel holds no scores.
        weight_bytes, value_bytes = _needed(canonical(network).network, precision)
    if weight_bytes + value_bytes <= memory_bytes:
        return ""
    parts = [f"{format_bytes(weight_bytes)} of weights"] if weight_bytes else []
    if weight_bytes <= memory_bytes:
        parts.append(f"{format_bytes(value_bytes)} of inputs, outputs and values between operators")
    return f"{' and '.join(parts)} do not fit into {format_bytes(memory_bytes)}"


def _needed(network: Network, precision: str) -> tuple[float, float]:
    """Return the bytes of weights, and the most bytes of other values that are alive at once."""
    shared, shares = shared_weights(network), _SHARES.get(precision, (1, 1))
    computed = {name for node in network.nodes for name in node.outputs}
    weight_sizes, sizes = dict[str, float](), dict[str, float]()
    for name, tensor in network.tensors.items():
        is_weight = tensor.is_weight and name not in computed
        share = shares[not is_weight] if tensor.dtype == "float32" else 1
        own = weight_sizes if is_weight else sizes
        own[shared.get(name, name)] = max(0.0, tensor_bytes(tensor) * share)  # Texts have none.
    last = {name: node.name for node in network.nodes for name in node.inputs}
    # Inputs and outputs always are.
    kept = {*network.inputs, *network.outputs}
    alive = most = sum(sizes.get(name, 0) for name in kept)
    for node in network.nodes:
        ends = {name for name in node.inputs if last[name] == node.name} - kept
        freed = sum(sizes.get(name, 0) for name in ends)
        written = sum(sizes.get(x, 0) for x in node.outputs if x in last and x not in kept)
        most = max(most, alive + written - freed * (node.op not in _NOT_IN_PLACE))
        alive += written - freed
    return sum(weight_sizes.values()), most


def work_of(network: Network, names: Sequence[str]) -> Work:
    """Count the work of nodes that run as one kernel.

    Tensors between them are not read or written, as in `resperf.layers.Layer.moved_bytes`.

    Parameters
    ----------
    network : Network
    names : sequence of str
        Names of the nodes.
    """
    network = network.as_onnxruntime_runs()
    wanted = set(names)
    nodes = [node for node in network.nodes if node.name in wanted]
    if any(node.op in CONTROL_FLOW for node in nodes):
        return Work(math.nan, math.nan)
    computed = {name for node in nodes for name in node.outputs if name}
    outside = {name for node in network.nodes if node.name not in wanted for name in node.inputs}
    read = {name for node in nodes for name in node.inputs if name} - computed
    written = {name for name in computed if name in outside or name in network.outputs}
    moved_bytes = [_read_bytes(network.tensors, nodes, name) for name in read]
    moved_bytes += [_read_bytes(network.tensors, [], name) for name in written]
    return Work(sum(macs_of(network, node) for node in nodes), sum(moved_bytes))


def _read_bytes(tensors: Mapping[str, Tensor], nodes: Sequence[Node], name: str) -> float:
    """Count the bytes that nodes read of a tensor: of tables and experts, only what is chosen."""
    if (tensor := tensors.get(name)) is None:
        return math.nan
    read = tensor_bytes(tensor)
    for node in nodes:
        result = tensors.get(node.outputs[0])
        if node.op in _CHOOSING and name != node.inputs[1] and result is not None:
            read = min(read, tensor_bytes(replace(tensor, shape=result.shape)))
        if _PRODUCTS.get(node.op) is _experts and name in node.inputs[2:] and result is not None:
            tokens = math.prod(result.shape[:-1]) * int(node.attributes.get("k", 1))
            read *= min(1.0, tokens / max(tensor.shape[:1], default=1))
    return read


def multiplied(network: Network, names: Sequence[str]) -> tuple[str, int]:
    """Return what the products among nodes multiply: type of values, and pixels of a window.

    float32 and 1 without any, and of int8, which not all frameworks have kernels for.
    """
    network = network.as_onnxruntime_runs()
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
            return float(count(node, shapes, result.shape))
        if node.op in _TRANSFORMS and not node.domain and sized and result is not None:
            axis = tensors[2] if node.op == "DFT" and len(tensors) > 2 else None
            return _fourier(node, axis, result.shape)
        if sized and result is not None:
            operator = operator_of(network, node)
            inputs = tuple(
                replace(x, dtype="float32") if x and x.dtype in _OTHER_FLOATS else x
                for x in operator.inputs
            )
            return float(layer_of_operator(replace(operator, inputs=inputs)).macs)
    except (LayerError, *MALFORMED):
        pass
    if node.domain:
        return 0.0 if node.domain == CONTRIB and node.op in _OWN_WITHOUT_PRODUCTS else math.nan
    return math.nan if node.op in _MULTIPLYING else 0.0


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
    """One per combination of the indices of two operands, of each pair from the left."""
    before, _, after = str(node.attributes["equation"]).replace(" ", "").partition("->")
    terms = [tuple(term.replace("...", ".")) for term in before.split(",")]
    lengths: dict[str, int] = {}
    for index, (term, shape) in enumerate(zip(terms, inputs, strict=True)):
        # Axes of an ellipsis are numbered from the last.
        dots = [str(axis) for axis in reversed(range(len(shape) - len(term) + 1))]
        terms[index] = letters = tuple(
            axis for letter in term for axis in (dots if letter == "." else letter)
        )
        for letter, length in zip(letters, shape, strict=True):
            lengths[letter] = max(length, lengths.get(letter, 1))
    if len(terms) == 1:
        return math.nan
    macs, first = 0, set(terms[0])
    for index, term in enumerate(terms[1:], 2):
        first |= set(term)
        macs += math.prod(lengths[letter] for letter in first)
        later = {*(after or before), *(letter for rest in terms[index:] for letter in rest)}
        first = {letter for letter in first if letter in later or letter.isdigit()}
    return macs


def slow_kernel(network: Network, node: LoweredNode) -> str:
    """Name the kernel if ONNX Runtime runs it value by value or across the order in memory.

    Layers of its kind tell little about its time. Empty if it does not.
    """
    op = node.op.rpartition(".")[2]
    # Bernoulli becomes three kernels, of which the last has its name.
    sources = (n for n in network.nodes if n.op in (op, "Bernoulli") and n.name in node.sources)
    source = next(sources, None)
    if source is None or source.op not in _SLOW:
        return ""
    if source.op == "Bernoulli":
        return "Bernoulli"
    attributes, (default, least) = source.attributes, _SLOW[op]
    if op == "Einsum":
        first, second, *later = re.split("->|,", str(attributes["equation"]).replace(" ", ""))
        is_outer = len(source.inputs) > 2 and (set(first) & set(second)).issubset("".join(later))
        return "outer Einsum" if is_outer else ""
    if op == "MatMulNBits":
        whole = attributes.get("bits", 4) == 4 or attributes.get("accuracy_level", 0) >= 4
        return "" if whole else "unpacked MatMulNBits"
    try:
        operator = operator_of(network, source)
        axes = operator.numbers(*_AXES[op]) if op in _AXES else None
    except (LayerError, UnsupportedError):  # Shapes or axes are not known before it runs.
        return ""
    shape = operator.shape()
    if op == "Div":
        whole = operator.operand(0).dtype in ("int64", "int32")
        is_slow = whole and math.prod(operator.result()) >= _FEWEST_QUOTIENTS
        return "slow Div" if is_slow else ""
    if op in _REDUCING:
        reduced = [
            index in (axes or ()) or index - len(shape) in (axes or ())
            for index, length in enumerate(shape)
            if length > 1
        ]
        # It has loops for axes that change up to twice between kept and reduced ones.
        return f"slow {op}" if sum(a != b for a, b in pairwise(reduced)) > 2 else ""
    (axis,) = axes or (int(attributes.get("axis", default)),)
    behind = sum(length > 1 for length in shape[axis:][1:])
    is_slow = behind >= least
    if op in ("DequantizeLinear", "QuantizeLinear"):
        scales = operator.operand(1).shape
        is_slow = not behind and len(scales) == 1 and scales > (1,)
    elif op == "CumSum":
        is_slow = not behind
    return f"slow {op}" if is_slow else ""


def _recurrent(_: Node, inputs: Sequence[_Shape], _result: _Shape) -> float:
    """One per step, sequence and weight."""
    return math.prod(inputs[0][:2]) * (math.prod(inputs[1]) + math.prod(inputs[2]))


def _experts(node: Node, inputs: Sequence[_Shape], _result: _Shape) -> float:
    """Two or three products of each token, by the experts that it is given to."""
    tokens, width = math.prod(inputs[0][:-1]), inputs[0][-1]
    products = 3 if node.op == "MoE" and len(inputs) > 6 and inputs[6] else 2
    return tokens * int(node.attributes.get("k", 1)) * width * inputs[2][1] * products


def _cached_attention(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """Scores and weighted values of ONNX Runtime's attention, the cache before the new keys."""
    new, past = inputs[1] or inputs[0], 3 if node.op == "GroupQueryAttention" else 6
    # (batch, heads, tokens, size), or tokens second, with the heads packed or not.
    rows = new[2] if len(new) == 4 else new[1]
    rows += inputs[past][2] if len(inputs) > past and inputs[past] else 0
    return 2 * math.prod(result) * rows


def _fourier(node: Node, axis: Tensor | None, result: _Shape) -> float:
    """Half the operations of Fourier transforms: 5 n log2 n of powers of two.

    Other lengths take three transforms of the next power of two from 2n - 1 on (Bluestein).
    """
    of_frames = node.op == "STFT"  # (batch, frames, bins, 2)
    number = int(node.attributes.get("axis", -2) if axis is None else np.asarray(axis.value).item())
    bins = result[2 if of_frames else number]
    is_half = node.attributes.get("onesided", of_frames) and not node.attributes.get("inverse")
    length = 2 * (bins - 1) if is_half else bins
    whole, times = 1 << (length - 1).bit_length(), 1
    if whole != length:
        whole, times = 1 << (2 * length - 2).bit_length(), 3
    return 2.5 * math.prod(result[:-1]) / bins * times * whole * max(1.0, math.log2(whole))


def _regions(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """Four per sample of an output value (RoiAlign), or one per pixel of its part of the region.

    Regions are taken to have half the image's sides, where their size decides how many.
    """
    ratio = int(node.attributes.get("sampling_ratio", 0))
    sides = zip(inputs[0][2:], result[2:], strict=True)
    samples = ratio**2 or math.prod(math.ceil(side / 2 / bins) for side, bins in sides)
    return math.prod(result) * samples * (4 if node.op == "RoiAlign" else 1)


def _deformed_conv(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """Those of a convolution, and four for each value that it samples."""
    samples = math.prod(result[2:]) * math.prod(inputs[1][2:]) * inputs[0][1] * result[0]
    return _conv(node, inputs, result) + 4 * samples


def _boxes(_: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """Sorting the scores of each class, and comparing boxes with those that were chosen before."""
    lists, boxes = math.prod(inputs[1][:2]), inputs[1][2]
    return lists * boxes * math.log2(max(boxes, 2)) + 2 * result[0] ** 2 / max(lists, 1)


def _sampled(node: Node, _inputs: Sequence[_Shape], result: _Shape) -> float:
    """Of volumes, each value that is read; its index takes longer than the product."""
    taps = {"nearest": 1, "cubic": 4}.get(str(node.attributes.get("mode", "linear")), 2)
    return 8.0 * math.prod(result) * taps ** (len(result) - 2) if len(result) > 4 else 0.0


def _attention(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """Scores and weighted values of ONNX's own operator, with the cache before the new keys."""
    if node.domain:  # with the projections of queries, keys and values
        past = inputs[4][3] if len(inputs) > 4 and inputs[4] else 0
        scores = 2 * math.prod(result) * (inputs[0][1] + past)
        return math.prod(inputs[0]) * inputs[1][1] + scores
    batch, heads, tokens, size = by_heads(inputs[0], int(node.attributes.get("q_num_heads", 0)))
    _, _, rows, value_size = by_heads(inputs[2], int(node.attributes.get("kv_num_heads", 0)))
    rows += inputs[4][2] if len(inputs) > 4 and inputs[4] else 0
    return batch * heads * tokens * rows * (size + value_size)


def _pool(node: Node, inputs: Sequence[_Shape], result: _Shape) -> float:
    """One comparison or addition per output value and value of its window."""
    window = node.attributes.get("kernel_shape", inputs[0][2:])
    return float(math.prod(result) * math.prod(window))


_PRODUCTS: Mapping[str, _Count] = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger", "NhwcConv", "NhwcFusedConv"), _conv),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(
        ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "MatMulNBits",
         "MatMulBnb4", "MatMulFpQ4"), _product
    ),
    "Einsum": _einsum,
    "Attention": _attention,
    **dict.fromkeys(("GroupQueryAttention", "MultiHeadAttention"), _cached_attention),
    **dict.fromkeys(("MoE", "QMoE"), _experts),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), _regions),
    "DeformConv": _deformed_conv,
    "NonMaxSuppression": _boxes,
    "GridSample": _sampled,
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool
    ),
}  # fmt: skip
"""Operators whose multiply-adds follow from shapes, for any type and rank."""
_REDUCING = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})
_AXES = {**dict.fromkeys(_REDUCING, ("axes", 1)), "CumSum": ("axis", 1)}
"""Operators whose axes may be an input -> name as an attribute, and position as an input."""
_SLOW: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_AXES, (0, 0)),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), (1, 0)),
    **dict.fromkeys(("ArgMax", "ArgMin"), (0, 1)), "LpNormalization": (-1, 1),
    **dict.fromkeys(("Hardmax", "LogSoftmax"), (-1, 2)),
    **dict.fromkeys(
        ("Bernoulli", "Div", "Einsum", "GatherElements", "MatMulNBits", "ReduceL1",
         "ReduceLogSumExp", "ScatterElements"), (0, 0)
    ),
}  # fmt: skip
"""Operators with slow kernels -> their usual axis, and the axes behind it that make them slow."""
_FEWEST_QUOTIENTS = 2048
"""Of integers; fewer take less time than an estimated kernel takes to begin."""
_CHOOSING = frozenset({"Gather", "GatherElements", "GatherND", "GatherBlockQuantized"})
"""Operators that read some rows of a table, and of its scales; the second input says which."""
_TRANSFORMS = frozenset({"DFT", "STFT"})
_MULTIPLYING = frozenset({
    *_PRODUCTS, *_TRANSFORMS, *CONTROL_FLOW, "GlobalLpPool", "LpPool", "QLinearConv",
    "QLinearMatMul", "SequenceMap",
})  # fmt: skip
"""ONNX operators with multiply-adds; other ONNX operators that no kind reads count as 0."""
_OWN_WITHOUT_PRODUCTS = frozenset({
    "BiasAdd", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "DequantizeLinear", "FastGelu",
    "GatherBlockQuantized", "GatherND", "Gelu", "GemmaRotaryEmbedding", "GroupNorm", "QuickGelu",
    "QuantizeLinear", "RotaryEmbedding", "SkipGroupNorm", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
})  # fmt: skip
"""The same of ONNX Runtime's own operators; those that are neither here nor above are unknown."""
