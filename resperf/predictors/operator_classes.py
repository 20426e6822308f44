"""Classes of operators of a whole network, and the terms that may cost time in each of them.

A network in PyTorch is a list of operators with the shapes and types that they run on: as
`resperf.lowering.torch` lowers its graph, or as a published list says. Both are read as
`RunOperator`. Operators whose costs follow the same physics are a class, and each class has a few
terms: FLOPs, FLOPs in whole tiles, bytes, the larger of FLOPs and bytes, kernels. Terms are the
milliseconds that the device's data sheet gives, so that coefficients are relative to it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from resperf.devices import DeviceFacts
from resperf.devices.estimate import LAUNCH_MS
from resperf.devices.facts import FP32, ideal_ms
from resperf.errors import Message, UnsupportedError
from resperf.lowering.torch import run_kernels
from resperf.network import Network, Node, Tensor
from resperf.settings import HALF_TYPES, PRECISION_OF, Setting
from resperf.units import DTYPE_BYTES

_LARGEST_VALUE_BYTES = 8
"""Bytes of a value of an unknown type: those of the widest types, int64 and float64."""


class RunTensor(NamedTuple):
    """An input or output of an operator that ran."""

    shape: tuple[int, ...]
    dtype: str
    is_weight: bool = False

    @property
    def values(self) -> float:
        """Number of values."""
        return float(math.prod(self.shape))

    @property
    def bytes(self) -> float:
        """Bytes of all values."""
        return self.values * DTYPE_BYTES.get(self.dtype, _LARGEST_VALUE_BYTES)


@dataclass(frozen=True)
class RunOperator:
    """An operator that PyTorch runs, or several equal ones.

    Attributes
    ----------
    op : str
        PyTorch's name: ``"convolution"``, ``"addmm"``.
    inputs, outputs : tuple of RunTensor
        Absent inputs are left out.
    groups, stride : int
        Of a convolution.
    count : int
        How often the network runs it.
    """

    op: str
    inputs: tuple[RunTensor, ...]
    outputs: tuple[RunTensor, ...]
    groups: int = 1
    stride: int = 1
    count: int = 1

    @property
    def of_weights(self) -> bool:
        """Whether it computes with weights alone: then its work does not grow with the batch."""
        return all(tensor.is_weight for tensor in self.inputs)


@dataclass(frozen=True)
class RunNetwork:
    """A network as the operators that PyTorch runs.

    Attributes
    ----------
    name : str
    operators : tuple of RunOperator
    scale : float
        Batch size over that of the operators' shapes.
    parameters : float
        Number of parameters, which a training step updates; 0 if it is not known.
    left_out : tuple of str
        Why operators are not in the list.
    batch : int or None
        Batch size that it runs at; None if not known.
    architecture : str
        What it has in common with the same network at other image sizes; empty if not known.
    """

    name: str
    operators: tuple[RunOperator, ...]
    scale: float = 1.0
    parameters: float = 0.0
    left_out: tuple[str, ...] = ()
    batch: int | None = None
    architecture: str = ""

    def in_single_precision(self) -> RunNetwork:
        """Return the network as it runs without autocast."""
        return replace(
            self,
            operators=tuple(
                replace(
                    operator, inputs=_single(operator.inputs), outputs=_single(operator.outputs)
                )
                for operator in self.operators
                if operator.op != "_to_copy"
            ),
        )

    def with_attention_of(self, setting: Setting) -> RunNetwork:
        """Return the network with attention in parts where PyTorch's version has no kernel for it.

        Lists hold every attention as one operator, as the version did that they were traced with.
        """
        operators = (
            _attention_run(operator, setting.without_batch())
            if operator.op == _ATTENTION
            else (operator,)
            for operator in self.operators
        )
        return replace(self, operators=tuple(itertools.chain.from_iterable(operators)))


_ATTENTION = "sdpa"


@lru_cache(maxsize=4096)
def _attention_run(whole: RunOperator, setting: Setting) -> tuple[RunOperator, ...]:
    """Return what runs for an attention, as `resperf.lowering.torch` says."""
    names = ("query", "key", "value", "mask")[: len(whole.inputs)]
    tensors = {
        name: Tensor(name, tensor.shape, tensor.dtype)
        for name, tensor in zip((*names, "result"), (*whole.inputs, whole.outputs[0]), strict=True)
    }
    node = Node("attention", "Attention", "", names, ("result",), {})
    alone = Network("attention", (node,), tensors, names, ("result",), {"": 23}, None)
    parts = run_network(alone, setting).operators
    if len(parts) == 1:
        return (whole,)
    return tuple(replace(part, count=part.count * whole.count) for part in parts)


def _single(tensors: Iterable[RunTensor]) -> tuple[RunTensor, ...]:
    return tuple(
        tensor._replace(dtype="float32") if tensor.dtype in HALF_TYPES.values() else tensor
        for tensor in tensors
    )


_INPUTS_LISTED = {"convolution": 2, "native_batch_norm": 1, "native_group_norm": 1,
                  "native_layer_norm": 1}  # fmt: skip
"""Inputs that count. Further ones are small weights, which published lists hold in part."""


def plain_name(op: str) -> str:
    """Return the name of an operator, the same whether it works in place."""
    bare = op.removeprefix("aten.")
    return bare[:-1] if bare.endswith("_") else bare


def run_network(network: Network, setting: Setting) -> RunNetwork:
    """Lower a network to the operators that PyTorch runs.

    Raises
    ------
    NetworkError, UnsupportedError
        If it cannot be lowered, or has no operator of which the work is known.
    """
    operators, left_out = [], []
    for kernel in run_kernels(network, setting):
        if kernel.reason:
            left_out.append(kernel.reason)
            continue
        operator = kernel.operator
        inputs = tuple(
            RunTensor(tensor.shape, tensor.dtype, tensor.is_fixed)
            for tensor in operator.inputs
            if tensor is not None and (tensor.shape or not tensor.is_fixed)
        )
        outputs = tuple(
            RunTensor(s, kernel.output_dtype) for s in operator.outputs if s is not None
        )
        if not outputs:
            unknown = Message("the shape of its output is not known")
            left_out.append(unknown.about(f"{kernel.op} {kernel.name!r}: "))
            continue
        strides = operator.attributes.get("strides", (1,))
        operators.append(
            RunOperator(
                plain_name(kernel.op), inputs[: _INPUTS_LISTED.get(kernel.op)], outputs,
                groups=int(operator.attributes.get("group", 1)), stride=int(max(strides)),
            )
        )  # fmt: skip
    if not operators:
        why = "; ".join(left_out[:1]) or "it only changes shapes"
        raise UnsupportedError(f"{network.name}: there is no predictor for any operator ({why})")
    parameters = float(network.parameters or 0)
    return RunNetwork(
        network.name, tuple(operators), 1.0, parameters, tuple(left_out), network.batch
    )


class Cost(NamedTuple):
    """One term of one class."""

    of: str
    term: str

    def __str__(self) -> str:
        return f"{self.of}: {self.term}"


_POOLS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "batched product"),
    "convolution 1x1": ("convolution 1x1",),
    "copies": ("cast", "concatenation", "copy", "move", "resize"),
    "depthwise": ("depthwise",),
    "normalisation": ("batch norm", "group norm", "layer norm", "softmax"),
    "pointwise": ("gelu", "pointwise", "power", "relu", "sigmoid", "silu"),
    "reduction": ("max pooling", "pooling", "reduction"),
}
"""Pool -> how the names of its classes begin."""
_VARIANTS = (" float32", " channels last", " strided")


def pool_of(cost: Cost) -> Cost:
    """Return the wider class of a term, which a class of few networks is drawn to."""
    if cost.of.endswith(" of weights"):
        return Cost("weights", cost.term)
    for pool, beginnings in _POOLS.items():
        if cost.of.startswith(beginnings):
            return Cost(pool, cost.term)
    bare = cost.of
    for variant in _VARIANTS:
        bare = bare.replace(variant, "")
    return Cost(bare, cost.term)


UPDATE = Cost("update of weights", "bytes")
"""Of a training step only: reading or writing all parameters once."""

Terms = dict[Cost, float]
"""What a data sheet says that each term takes, in ms."""


def class_terms(network: RunNetwork, facts: DeviceFacts) -> Terms:
    """Return the terms of a network on a device, each the sum over its operators."""
    totals: Terms = defaultdict(float)
    last = _channels_last(network.operators)
    for operator in network.operators:
        work = _Work(operator, facts, network.scale, last)
        of, terms = _RULES.get(operator.op, _other)(work)
        totals[Cost(of, "kernels")] += LAUNCH_MS * operator.count
        for term, time_ms in terms.items():
            totals[Cost(of, term)] += time_ms * operator.count
    totals[UPDATE] = facts.moving_ms(network.parameters * 4)
    return dict(totals)


def _channels_last(operators: Iterable[RunOperator]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of images whose channels a layer normalisation made last in memory."""
    return frozenset(
        (shape[0], shape[3], shape[1], shape[2])
        for operator in operators
        if operator.op == "native_layer_norm" and len(shape := operator.inputs[0].shape) == 4
    )


@dataclass(frozen=True)
class _Work:
    """One operator on one device at one batch size."""

    operator: RunOperator
    facts: DeviceFacts
    scale: float
    channels_last: frozenset[tuple[int, ...]]

    @property
    def data(self) -> RunTensor:
        return self.operator.inputs[0] if self.operator.inputs else self.operator.outputs[0]

    @property
    def result(self) -> RunTensor:
        return self.operator.outputs[0] if self.operator.outputs else self.data

    @property
    def dtype(self) -> str:
        """What a class is called by: half precision is the usual one."""
        return "" if self.data.dtype in HALF_TYPES.values() else " float32"

    @property
    def grown(self) -> float:
        return 1.0 if self.operator.of_weights else self.scale

    def computed(self, flops: float) -> float:
        """Return the time of FLOPs that grow with the batch."""
        # float32 is taken to be computed without matrix cores.
        peaks = self.facts.peaks_flops_per_s
        peak = peaks.get(PRECISION_OF.get(self.data.dtype, FP32), peaks[FP32])
        return ideal_ms(flops * self.grown, peak)

    def moved(self, count: float) -> float:
        """Return the time of bytes that grow with the batch."""
        return self.facts.moving_ms(count * self.grown)

    @property
    def traffic(self) -> float:
        """Return the time of reading all inputs and writing the first output."""
        weights = sum(tensor.bytes for tensor in self.operator.inputs if tensor.is_weight)
        given = sum(tensor.bytes for tensor in self.operator.inputs if not tensor.is_weight)
        if self.operator.of_weights:
            given, weights = weights, 0.0
        fixed = self.facts.moving_ms(weights)
        return fixed + self.moved(given + self.result.bytes)


_Rule = Callable[[_Work], tuple[str, dict[str, float]]]


def _whole(count: float, block: int) -> float:
    """Round up to whole blocks."""
    return math.ceil(count / block) * block


def _convolution(work: _Work) -> tuple[str, dict[str, float]]:
    data, weights = work.operator.inputs[:2]
    taps = math.prod(weights.shape[2:])
    channels, filters = weights.shape[1], weights.shape[0]
    groups = work.operator.groups
    places = work.result.values / max(filters, 1)
    flops = 2 * work.result.values * channels * taps
    strided = " strided" if work.operator.stride > 1 else ""
    last = " channels last" if data.shape in work.channels_last else ""
    compute, traffic = work.computed(flops), work.traffic
    terms = {"bytes": traffic, "flops": compute, "roofline": max(compute, traffic)}
    if groups > 1 and channels == 1:
        side = next((size for size in (3, 5, 7) if taps <= size * size), 9)
        return f"depthwise {side}x{side}{strided}{last}{work.dtype}", terms
    if groups > 1:
        deep = _whole(channels, 8) * taps
        terms["tiles"] = work.computed(2 * places * groups * _whole(filters / groups, 32) * deep)
        return f"grouped convolution{strided}{work.dtype}", terms
    depth = channels * taps
    terms["tiles"] = work.computed(2 * places * _whole(filters, 64) * _whole(depth, 32))
    terms["large tiles"] = work.computed(
        2 * places * _whole(filters, 128) * _whole(channels, 8) * taps
    )
    if channels % 8 or filters % 8:
        terms["unaligned"] = work.moved(2 * work.result.values)
    if taps == 1:
        return f"convolution 1x1{strided}{last}{work.dtype}", terms
    terms["unfolded"] = work.moved(2 * places * depth)
    name = "convolution of images" if channels <= 4 else "convolution"
    return f"{name}{strided}{work.dtype}", terms


def _product(work: _Work) -> tuple[str, dict[str, float]]:
    first, second = [tensor for tensor in work.operator.inputs if len(tensor.shape) == 2][-2:]
    if first.is_weight and second.shape[0] != first.shape[1]:
        first, second = work.operator.inputs[1:3]
    rows, depth = first.shape
    columns = second.shape[-1]
    compute, traffic = work.computed(2 * rows * depth * columns), work.traffic
    terms = {
        "flops": compute, "bytes": traffic, "roofline": max(compute, traffic),
        "tiles": work.computed(2 * rows * _whole(columns, 64) * _whole(depth, 64)),
        "large tiles": work.computed(2 * rows * _whole(columns, 128) * _whole(depth, 32)),
    }  # fmt: skip
    if columns % 8 or depth % 8:
        terms["unaligned"] = work.moved(2 * work.result.values)
    return ("product of weights" if work.operator.of_weights else f"product{work.dtype}"), terms


def _batched(work: _Work) -> tuple[str, dict[str, float]]:
    first, second = work.operator.inputs[-2:]
    count, rows, depth = first.shape
    columns = second.shape[2]
    compute, traffic = work.computed(2 * count * rows * depth * columns), work.traffic
    tiles = 2 * count * _whole(rows, 64) * _whole(depth, 32) * _whole(columns, 64)
    return f"batched product{work.dtype}", {
        "flops": compute, "bytes": traffic, "roofline": max(compute, traffic),
        "tiles": work.computed(tiles),
    }  # fmt: skip


def _recurrent(work: _Work) -> tuple[str, dict[str, float]]:
    """One product for the inputs of all steps; then, step after step, one of the state, and gates.

    What the products of a step write, the gates read.
    """
    data, inputs, states = work.operator.inputs[:3]
    steps, sequences, features = data.shape
    gates = steps * sequences * math.prod(inputs.shape[:2])
    value_bytes = data.bytes / max(data.values, 1)
    again = work.facts.moving_ms((steps - 1) * states.bytes)
    return f"recurrent{work.dtype}", {
        "flops": work.computed(2 * gates * (features + states.shape[-1])),
        "bytes": work.traffic + again + work.moved(4 * gates * value_bytes),
        "kernels": 2 * steps * LAUNCH_MS,
    }  # fmt: skip


def _attention(work: _Work) -> tuple[str, dict[str, float]]:
    query, key = work.operator.inputs[:2]
    heads = math.prod(query.shape[:-2])
    rows, size = query.shape[-2:]
    keys = key.shape[-2]
    mask = work.operator.inputs[3] if len(work.operator.inputs) > 3 else None
    terms = {
        "flops": work.computed(4 * heads * rows * keys * size),
        "bytes": work.traffic,
        "tiles": work.computed(4 * heads * _whole(rows, 64) * _whole(keys, 64) * _whole(size, 32)),
        "scores": work.moved(2 * heads * rows * keys),
    }
    if mask is not None:
        terms["mask"] = work.moved(mask.bytes)
    return f"attention{' masked' if mask is not None else ''}{work.dtype}", terms


def _layer_norm(work: _Work) -> tuple[str, dict[str, float]]:
    rows = work.data.values / max(work.data.shape[-1], 1)
    return f"layer norm{work.dtype}", {"bytes": work.traffic, "rows": work.moved(64 * rows)}


def _of_bytes(name: str) -> _Rule:
    return lambda work: (
        f"{name} of weights" if work.operator.of_weights else f"{name}{work.dtype}",
        {"bytes": work.traffic},
    )


def _pointwise(name: str) -> _Rule:
    def rule(work: _Work) -> tuple[str, dict[str, float]]:
        if work.operator.of_weights:
            return "pointwise of weights", {"bytes": work.traffic}
        given = work.operator.inputs
        size = work.result.values
        repeated = " repeated" if any(tensor.values < size for tensor in given) else ""
        mixed = " mixed" if len({tensor.dtype for tensor in given}) > 1 else work.dtype
        return f"{name}{repeated}{mixed}", {"bytes": work.traffic}

    return rule


def _reduction(work: _Work) -> tuple[str, dict[str, float]]:
    name = "reduction of images" if len(work.data.shape) == 4 else "reduction"
    return f"{name}{work.dtype}", {"bytes": work.traffic}


def _other(work: _Work) -> tuple[str, dict[str, float]]:
    return "other", {"bytes": work.traffic}


_POINTWISE = (
    "add", "addcmul", "bitwise_not", "clamp", "clamp_min", "copy", "cos", "div", "exp",
    "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mul", "native_dropout", "neg", "rsqrt",
    "rsub", "sin", "sqrt", "sub", "tanh", "where",
)  # fmt: skip
_MOVES = (
    "as_strided", "col2im", "constant_pad_nd", "embedding", "flip", "im2col", "index",
    "pixel_shuffle", "reflection_pad2d", "repeat", "roll", "stack",
)  # fmt: skip
_RULES: Mapping[str, _Rule] = {
    "convolution": _convolution,
    "addmm": _product,
    "mm": _product,
    "bmm": _batched,
    "baddbmm": _batched,
    "sdpa": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    "native_batch_norm": _of_bytes("batch norm"),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _of_bytes("group norm"),
    "_softmax": _of_bytes("softmax"),
    "_to_copy": _of_bytes("cast"),
    "clone": _of_bytes("copy"),
    "cat": _of_bytes("concatenation"),
    "avg_pool2d": _of_bytes("pooling"),
    "_adaptive_avg_pool2d": _of_bytes("pooling"),
    "max_pool2d_with_indices": _of_bytes("max pooling"),
    "gelu": _pointwise("gelu"),
    "silu": _pointwise("silu"),
    "sigmoid": _pointwise("sigmoid"),
    "relu": _pointwise("relu"),
    "pow": _pointwise("power"),
    **dict.fromkeys(_POINTWISE, _pointwise("pointwise")),
    **dict.fromkeys(_MOVES, _of_bytes("move")),
    **dict.fromkeys(
        ("amax", "amin", "cumsum", "linalg_vector_norm", "max", "mean", "sum", "var"), _reduction
    ),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d",
         "_upsample_bicubic2d_aa", "upsample"), _of_bytes("resize"),
    ),
}  # fmt: skip
"""Operators of PyTorch, without the underscore of those that work in place."""
