"""Constant folding: which nodes compute constants, and the values of small ones, with numpy.

These are mostly shapes, such as Reshape's target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.network._base import MALFORMED, SMALL_ELEMENTS, Tensor
from resperf.network.graph import captured
from resperf.network.protos import data_type_of
from resperf.settings import HALF_TYPES

if TYPE_CHECKING:
    from onnx import NodeProto

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]
Rule = Callable[[Sequence[Any], Attributes], Array]

_QUANTISED_ELEMENTS = 16
"""Most values that are quantised or dequantised as shape arithmetic: more are weights."""
_NOT_FOLDED = ("batch_dims", "exclusive", "output_dtype", "reverse", "select_last_index")
"""Attributes that these rules do not follow, unless they are 0."""


_RANDOM_OPS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"}
)  # fmt: skip

HALF_PRECISION = frozenset(HALF_TYPES.values())
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_HALF_KERNELS = frozenset(
    {"Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather",
     "GatherElements", "GatherND", "Identity", "LayerNormalization", "Max", "Min", "Mod", "Reshape",
     "ReverseSequence", "Round", "ScatterND", "Shrink", "Sign", "Slice", "Split", "Squeeze",
     "Transpose", "Unsqueeze"}
)  # fmt: skip
"""Operators that ONNX Runtime has kernels for in half precision on a CPU."""
SIZED_BY_VALUES: Mapping[str, int] = {
    "ConstantOfShape": 0, "Range": 0, "MaxUnpool": 2,
    **dict.fromkeys(
        ("AffineGrid", "CenterCropPad", "Col2Im", "Expand", "OneHot", "Pad", "Reshape", "Resize",
         "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"), 1
    ),
}  # fmt: skip
"""Operator -> its first input whose values decide the shape that it writes."""


def is_constant(node: NodeProto, tensors: Mapping[str, Tensor]) -> bool:
    """Say whether a node reads constants only, so that its outputs are weights."""
    names = [name for name in _values_read(node) if name]
    if not names:
        return bool(node.op_type == "Constant")
    return (
        node.op_type not in _RANDOM_OPS
        and all(name in tensors and tensors[name].is_weight for name in names)
        and not captured(node)
    )


def folded(
    node: NodeProto, attributes: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> list[np.ndarray[Any, Any]] | None:
    """Return the values of a node's outputs where they follow from constants or shapes."""
    own = node.domain in ("", "com.microsoft") and node.op_type in _QUANTISING
    if node.domain and not own:
        return None
    if node.op_type in ("Shape", "Size") and node.input and node.input[0] in tensors:
        shape = np.array(tensors[node.input[0]].shape, np.int64)
        return evaluate(node.op_type, [shape], attributes, len(node.output))
    op = node.op_type
    if op == "CastLike" and len(node.input) == 2 and node.input[1] in tensors:
        op, attributes = "Cast", {"to": data_type_of(tensors[node.input[1]].dtype)}
    names = _values_read(node)
    while names and not names[-1]:
        names.pop()
    if not names and node.op_type != "Constant":
        return None
    values = [tensors[name].value if name in tensors else None for name in names]
    if any(name and value is None for name, value in zip(names, values, strict=True)):
        return None
    return evaluate(op, values, attributes, len(node.output))


def _values_read(node: NodeProto) -> list[str]:
    """Return the inputs whose values count: of ``CastLike``'s second only the type does."""
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)


@dataclass
class Unfolded:
    """Constants that ONNX Runtime computes at each run on a CPU.

    It folds with its kernels, of which it has few for half precision, and no DequantizeLinear.

    Attributes
    ----------
    values : set of str
        Names of the constants.
    shapes : set of str
        Names of tensors whose shape depends on one of them.
    """

    values: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)

    def includes(self, node: NodeProto, tensors: Iterable[Tensor | None]) -> bool:
        """Say whether a node that computes constants is left to each run.

        Parameters
        ----------
        node : NodeProto
        tensors : iterable of Tensor or None
            What it reads and writes.
        """
        if not self.values.isdisjoint(node.input) or node.op_type == "DequantizeLinear":
            return True
        if node.op_type in ("Shape", "Size"):
            return node.input[0] in self.shapes
        return node.op_type not in _HALF_KERNELS and any(
            tensor is not None and tensor.dtype in HALF_PRECISION for tensor in tensors
        )

    def follow(self, node: NodeProto) -> None:
        """Add what a node writes to `shapes` if its shape depends on them."""
        sized = node.input[SIZED_BY_VALUES.get(node.op_type, len(node.input)) :]
        if not (self.shapes.isdisjoint(node.input) and self.values.isdisjoint(sized)):
            self.shapes.update(filter(None, node.output))


class TooLargeError(ValueError):
    """The result would not be a small constant."""


def evaluate(
    op: str, values: Sequence[Array | None], attributes: Attributes, output_count: int
) -> list[Array] | None:
    """Compute a node's outputs from constant inputs.

    Parameters
    ----------
    op : str
        ONNX operator, also one that ONNX Runtime has under the same name.
    values : sequence of ndarray or None
        Its inputs: None for an absent optional one, absent trailing ones dropped. For Shape and
        Size, the input's shape.
    attributes : mapping of str to Any
        As in `resperf.network.Node`.
    output_count : int
        Number of outputs of the node.

    Returns
    -------
    list of ndarray or None
        None if the operator is not shape arithmetic, or the result is large.
    """
    given: Sequence[Any] = values
    try:
        if op == "Split":
            return _split(given, attributes, output_count)
        rule = _RULES.get(op)
        if rule is None or output_count != 1 or any(map(attributes.get, _NOT_FOLDED)):
            return None
        with np.errstate(all="ignore"):
            result = np.asarray(rule(given, attributes))
    except MALFORMED:
        # Too large or invalid: shape inference reports the error.
        return None
    return [result] if result.size <= SMALL_ELEMENTS else None


def small(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as integers if a constant of that shape is small.

    Raises
    ------
    TooLargeError
        If it is not.
    """
    dims = tuple(int(dim) for dim in shape)
    if min(dims, default=0) < 0 or math.prod(dims) > SMALL_ELEMENTS:
        raise TooLargeError(str(dims))
    return dims


def _elementwise(function: Callable[..., Any], values: Sequence[Array], _: Attributes) -> Array:
    small(np.broadcast_shapes(*(value.shape for value in values)))
    return np.asarray(function(*values))


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        return np.asarray(np.sign(a) * np.sign(b) * (abs(a) // abs(b)), dtype=a.dtype)
    return np.asarray(a / b)


def _mod(values: Sequence[Array], attributes: Attributes) -> Array:
    return _elementwise(np.fmod if attributes.get("fmod") else np.mod, values, {})


def _variadic(function: Callable[..., Any], values: Sequence[Array], _: Attributes) -> Array:
    return reduce(lambda one, other: _elementwise(function, (one, other), {}), values)


def _axes(values: Sequence[Array], attributes: Attributes) -> tuple[int, ...] | None:
    axes = values[1].tolist() if len(values) > 1 else attributes.get("axes")
    return None if axes is None else tuple(int(axis) for axis in axes)


def _reduce(function: Callable[..., Any], values: Sequence[Array], attributes: Attributes) -> Array:
    axes = _axes(values, attributes)
    keep = bool(attributes.get("keepdims", 1))
    if not axes and attributes.get("noop_with_empty_axes"):
        return values[0]
    return np.asarray(function(values[0], axis=axes or None, keepdims=keep), dtype=values[0].dtype)


def _slice(values: Sequence[Any], attributes: Attributes) -> Array:
    data: Array = values[0]
    if len(values) > 1:
        starts, ends = values[1].tolist(), values[2].tolist()
        named = len(values) > 3 and values[3] is not None
        axes = values[3].tolist() if named else range(len(starts))
        steps = values[4].tolist() if len(values) > 4 else [1] * len(starts)
    else:
        starts, ends = attributes["starts"], attributes["ends"]
        axes = attributes.get("axes", range(len(starts)))
        steps = [1] * len(starts)
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # ONNX marks "up to and including the first" by a very negative end.
        stop = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


def _split(
    values: Sequence[Array], attributes: Attributes, output_count: int
) -> list[Array] | None:
    axis = attributes.get("axis", 0)
    sizes = values[1].tolist() if len(values) > 1 else attributes.get("split")
    if sizes is None:
        chunk = -(-values[0].shape[axis] // output_count)
        return np.split(values[0], [chunk * i for i in range(1, output_count)], axis)
    if len(sizes) != output_count or sum(sizes) != values[0].shape[axis]:
        return None
    return np.split(values[0], np.cumsum(sizes)[:-1].tolist(), axis)


def _cast(values: Sequence[Array], attributes: Attributes) -> Array:
    from onnx import helper

    return values[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))


def _quantize(values: Sequence[Any], _: Attributes) -> Array:
    data, scale, zero = _quantised(values)
    zero = np.zeros(1, np.uint8) if zero is None else zero
    limits = np.iinfo(zero.dtype)
    steps = np.rint(data.astype(np.float32) / np.float32(scale.item())) + float(zero.item())
    return np.asarray(np.clip(steps, limits.min, limits.max), zero.dtype)


def _dequantize(values: Sequence[Any], _: Attributes) -> Array:
    data, scale, zero = _quantised(values)
    steps = data.astype(np.float64) - (0 if zero is None else zero.item())
    return np.asarray(steps * scale.item(), scale.dtype)


def _quantised(values: Sequence[Any]) -> tuple[Array, Array, Array | None]:
    """Return data, scale and zero point of one pair for all values; weights are no arithmetic."""
    data, scale, *zero = values
    if data.ndim > 1 or data.size > _QUANTISED_ELEMENTS:
        raise TooLargeError(str(data.shape))
    return data, scale, zero[0] if zero else None


def _clip(values: Sequence[Any], attributes: Attributes) -> Array:
    bounds = [attributes.get("min"), attributes.get("max")]
    bounds[: len(values) - 1] = values[1:]
    small(np.broadcast_shapes(*(value.shape for value in values if value is not None)))
    return np.asarray(np.clip(values[0], *bounds), dtype=values[0].dtype)


def _cumsum(values: Sequence[Array], _: Attributes) -> Array:
    return np.cumsum(values[0], int(values[1].item()), dtype=values[0].dtype)


def _triangle(values: Sequence[Array], attributes: Attributes) -> Array:
    diagonal = int(values[1].item()) if len(values) > 1 else 0
    return (np.triu if attributes.get("upper", 1) else np.tril)(values[0], diagonal)


def _gather(values: Sequence[Array], attributes: Attributes) -> Array:
    data, index = values[0], values[1]
    axis = attributes.get("axis", 0)
    rest = data.shape[:axis] + data.shape[axis:][1:]
    small(index.shape + rest)
    return np.take(data, index, axis)


def _gather_elements(values: Sequence[Array], attributes: Attributes) -> Array:
    data, index = values[0], values[1]
    return np.take_along_axis(data, index, _fitting_axis(data, index, attributes))


def _fitting_axis(data: Array, index: Array, attributes: Attributes) -> int:
    """Return the axis of indices that have all other lengths of the data: numpy would broadcast."""
    axis = int(attributes.get("axis", 0)) % data.ndim
    lengths = [(a, b) for at, (a, b) in enumerate(zip(data.shape, index.shape, strict=True))
               if at != axis]  # fmt: skip
    if any(a != b for a, b in lengths):
        raise ValueError("not shape arithmetic")
    return axis


def _gather_nd(values: Sequence[Array], _: Attributes) -> Array:
    data, index = values[0], values[1]
    small(index.shape[:-1] + data.shape[index.shape[-1] :])
    return np.asarray(data[tuple(np.moveaxis(index, -1, 0))])


def _scatter_elements(values: Sequence[Array], attributes: Attributes) -> Array:
    _refuse_reduction(attributes)
    data, index, updates = values[0].copy(), values[1], values[2]
    axis = _fitting_axis(data, index, attributes)
    if index.shape != updates.shape:
        raise ValueError("updates do not fit their indices")
    np.put_along_axis(data, index, updates, axis)
    return data


def _scatter_nd(values: Sequence[Array], attributes: Attributes) -> Array:
    _refuse_reduction(attributes)
    data, index, updates = values[0].copy(), values[1], values[2]
    if updates.shape != index.shape[:-1] + data.shape[index.shape[-1] :]:
        raise ValueError("updates do not fit their indices")
    data[tuple(np.moveaxis(index, -1, 0))] = updates
    return data


def _refuse_reduction(attributes: Attributes) -> None:
    if attributes.get("reduction", "none") != "none":
        raise ValueError("not shape arithmetic")


def _one_hot(values: Sequence[Array], attributes: Attributes) -> Array:
    index, depth, (off, on) = values[0], int(values[1].item()), values[2]
    small((*index.shape, depth))
    axis = attributes.get("axis", -1)
    at = np.expand_dims(np.where(index < 0, index + depth, index), axis)
    places = np.moveaxis(np.arange(depth).reshape(-1, *[1] * index.ndim), 0, axis)
    return np.asarray(np.where(at == places, on, off))


def _index_of(
    function: Callable[..., Any], values: Sequence[Array], attributes: Attributes
) -> Array:
    keep = bool(attributes.get("keepdims", 1))
    return np.asarray(function(values[0], axis=attributes.get("axis", 0), keepdims=keep), np.int64)


def _concat(values: Sequence[Array], attributes: Attributes) -> Array:
    small((sum(value.size for value in values),))
    return np.concatenate(list(values), attributes.get("axis", 1))


def _range(values: Sequence[Array], _: Attributes) -> Array:
    start, limit, delta = (value.item() for value in values)
    small((max(0, math.ceil((limit - start) / delta)),))
    return np.arange(start, limit, delta, dtype=values[0].dtype)


def _reshape(values: Sequence[Array], attributes: Attributes) -> Array:
    target = values[1].tolist() if len(values) > 1 else attributes["shape"]
    if not attributes.get("allowzero"):
        target = [values[0].shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    return values[0].reshape(target)


def _expand(values: Sequence[Array], _: Attributes) -> Array:
    shape = np.broadcast_shapes(values[0].shape, tuple(values[1].tolist()))
    return np.broadcast_to(values[0], small(shape)).copy()


def _tile(values: Sequence[Array], _: Attributes) -> Array:
    repeats = values[1].tolist()
    small([dim * n for dim, n in zip(values[0].shape, repeats, strict=True)])
    return np.tile(values[0], repeats)


def _constant_of_shape(values: Sequence[Array], attributes: Attributes) -> Array:
    fill = attributes.get("value")
    fill = np.zeros(1, np.float32) if fill is None else fill
    return np.full(small(values[0].tolist()), fill.item(), fill.dtype)


def _constant(_: Sequence[Array], attributes: Attributes) -> Array:
    ((name, value),) = attributes.items()
    kind = {"value_int": np.int64, "value_ints": np.int64}.get(name, np.float32)
    if isinstance(value, np.ndarray):
        return value
    if not name.startswith(("value_int", "value_float")):
        raise TypeError(name)
    return np.asarray(value, kind)


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos,
    "Div": _divide, "Equal": np.equal, "Exp": np.exp, "Floor": np.floor, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Identity": np.array, "Less": np.less,
    "LessOrEqual": np.less_equal, "Log": np.log, "Mul": np.multiply, "Neg": np.negative,
    "Not": np.logical_not, "Or": np.logical_or, "Pow": lambda a, b: np.power(a, b).astype(a.dtype),
    "Reciprocal": lambda a: 1 / a, "Round": np.round, "Sign": np.sign, "Sin": np.sin,
    "Sqrt": np.sqrt, "Sub": np.subtract, "Where": np.where, "Xor": np.logical_xor,
}  # fmt: skip
_RULES: Mapping[str, Rule] = {
    **{op: partial(_elementwise, function) for op, function in _ELEMENTWISE.items()},
    "ArgMax": partial(_index_of, np.argmax),
    "ArgMin": partial(_index_of, np.argmin),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "DequantizeLinear": _dequantize,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Max": partial(_variadic, np.maximum),
    "Min": partial(_variadic, np.minimum),
    "Mod": _mod,
    "NonZero": lambda values, _: np.asarray(np.nonzero(values[0]), np.int64),
    "OneHot": _one_hot,
    "QuantizeLinear": _quantize,
    "Range": _range,
    "ReduceMax": partial(_reduce, np.max),
    "ReduceMean": partial(_reduce, np.mean),
    "ReduceMin": partial(_reduce, np.min),
    "ReduceProd": partial(_reduce, np.prod),
    "ReduceSum": partial(_reduce, np.sum),
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": lambda shape, attributes: shape[0][attributes.get("start", 0) : attributes.get("end")],
    "Size": lambda shape, _: np.asarray(np.prod(shape[0], dtype=np.int64)),
    "Slice": _slice,
    "Squeeze": lambda values, attributes: np.squeeze(values[0], _axes(values, attributes)),
    "Sum": partial(_variadic, np.add),
    "Tile": _tile,
    "Transpose": lambda values, attributes: np.transpose(values[0], attributes.get("perm")),
    "Trilu": _triangle,
    "Unsqueeze": lambda values, attributes: np.expand_dims(
        values[0], _axes(values, attributes) or ()
    ),
}
