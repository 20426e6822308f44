"""ONNX operators as layer kinds read and write them, and helpers that several kinds share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resperf.errors import LayerError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
FLOATS = ("float32", "float16", "bfloat16")
INT8_TYPES = ("uint8", "int8")
DTYPES = (*FLOATS, "float64", "int64", "int32", "int8", "uint8", "bool")


def product_shapes(
    first: tuple[int, ...], second: tuple[int, ...], attributes: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a product's operands with the batch first and rows by columns last.

    ``transBatchA`` and ``transBatchB`` of ONNX Runtime's FusedMatMul say that the first axis is the
    last but one of the matrices; ``transA`` and ``transB`` then exchange the last two. A vector is
    a row on the left and a column on the right, whatever these say.
    """
    shapes = []
    for shape, side in ((first, "A"), (second, "B")):
        if len(shape) < 2:
            shape = (1, *shape) if side == "A" else (*shape, 1)
        else:
            if attributes.get(f"transBatch{side}"):
                shape = (*shape[1:-1], shape[0], shape[-1])
            if attributes.get(f"trans{side}"):
                shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return shapes[0], shapes[1]


@dataclass(frozen=True)
class Kernel:
    """One ONNX node that does a layer's work, with random weights.

    Attributes
    ----------
    op, domain : str
    attributes : mapping of str to Any
        As `onnx.helper.make_node` takes them.
    input_shape, output_shape : tuple of int
        As the kernel sees them: in blocked layouts, with padded channels.
    weight_shapes : tuple of tuple of int
        Shapes of the constant inputs after the first input.
    extra_shapes : tuple of tuple of int
        Shapes of further computed inputs, such as a residual; they follow the weights.
    order : tuple of int
        Position of each operator input in (first input, weights, extras), -1 for an absent one;
        empty for this order.
    constants : tuple of (tuple of int or None)
        Integer constants that come last, such as a slice's start; None for an absent optional
        input.
    index_bound : int
        Rows of the table that the first extra indexes. Indices are spread over all of them
        (`spread_indices`). 0 where the first extra holds no indices.
    more_outputs : int
        Unused outputs after the first.
    dtype : str
        Type of the first input, and the default of all other types.
    dtypes : tuple of str
        Types of the first input, the weights and the extras; empty if all are `dtype`.
    output_dtype : str
        Type of the output; empty if it is `dtype`.
    positive : bool
        Whether inputs must be above zero, as for logarithms.
    activation : str
        Activation that frameworks fuse into the kernel; ``"none"`` if there is none.
    in_place : bool
        Whether ONNX Runtime may run the kernel in place, if nothing else reads its input. Copies
        are then chained instead of sharing one input.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    weight_shapes: tuple[tuple[int, ...], ...] = ()
    extra_shapes: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()
    index_bound: int = 0
    constants: tuple[tuple[int, ...] | None, ...] = ()
    more_outputs: int = 0
    dtype: str = "float32"
    dtypes: tuple[str, ...] = ()
    output_dtype: str = ""
    positive: bool = False
    in_place: bool = False
    activation: str = "none"

    @property
    def input_dtypes(self) -> tuple[str, ...]:
        """Types of the first input, the weights and the extras."""
        count = 1 + len(self.weight_shapes) + len(self.extra_shapes)
        return self.dtypes or (self.dtype,) * count

    def in_floats(self, dtype: str) -> Kernel:
        """Return the kernel with floats of another type; a kernel that has it stays as it is."""
        if dtype not in FLOATS or dtype == self.dtype or dtype in self.dtypes:
            return self
        types = tuple(dtype if old == "float32" else old for old in self.dtypes)
        own, result = (dtype if t == "float32" else t for t in (self.dtype, self.output_dtype))
        return replace(self, dtypes=types, dtype=own, output_dtype=result)


@dataclass(frozen=True)
class Operand:
    """An input of an operator.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    value : ndarray or None
        Value of a small constant.
    is_fixed : bool
        Whether it is a constant of any size, such as weights.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    value: npt.NDArray[Any] | None = None
    is_fixed: bool = False


@dataclass(frozen=True)
class Operator:
    """One operator of a graph with everything that its time depends on.

    Attributes
    ----------
    op : str
        ONNX operator, or a fused operator of ONNX Runtime.
    attributes : mapping of str to Any
    inputs : tuple of Operand or None
        None for an absent optional input.
    outputs : tuple of (tuple of int or None)
        Shapes of the outputs; None for an unknown shape.
    domain : str
    block : int
        Channels per block of a blocked layout; 1 for other layouts.
    opset : int
        Version of the operator set: some operators changed their meaning.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[tuple[int, ...] | None, ...]
    domain: str = ""
    block: int = 1
    opset: int = 17

    def operand(self, position: int) -> Operand:
        """Return an input.

        Raises
        ------
        LayerError
            If it is absent.
        """
        operand = self.inputs[position] if position < len(self.inputs) else None
        if operand is None:
            raise LayerError(f"input {position} is absent")
        return operand

    def has_input(self, position: int) -> bool:
        """Whether there is an input at this position."""
        return position < len(self.inputs) and self.inputs[position] is not None

    @property
    def layout(self) -> str:
        """Memory layout of images."""
        return "nchw" if self.block == 1 else f"nchwc{self.block}"

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input in memory: channels padded to full blocks."""
        return self.filled(self.operand(position).shape)

    def result(self) -> tuple[int, ...]:
        """Shape of the first output in memory.

        Raises
        ------
        LayerError
            If it is unknown.
        """
        first = self.outputs[0] if self.outputs else None
        if first is None:
            raise LayerError("the shape of its output is unknown")
        return self.filled(first)

    def filled(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Pad the channels of an image to full blocks."""
        if len(shape) < 3 or self.block == 1:
            return shape
        return (shape[0], -(-shape[1] // self.block) * self.block, *shape[2:])

    def numbers(self, name: str, position: int) -> tuple[int, ...] | None:
        """Return integers that old operator sets write as an attribute, new ones as an input.

        None if the operator has neither.

        Raises
        ------
        LayerError
            If the network computes them.
        """
        if name in self.attributes:
            value = self.attributes[name]
            return tuple(int(v) for v in (value if isinstance(value, Sequence) else (value,)))
        if not self.has_input(position):
            return None
        value = self.operand(position).value
        if value is None:
            raise LayerError(f"its {name} are computed by the network, not constant")
        return tuple(int(v) for v in value.ravel())

    def axis(self, default: int, position: int = 0) -> int:
        """Return the attribute ``axis`` counted from the front."""
        rank = len(self.operand(position).shape)
        axis = int(self.attributes.get("axis", default))
        if not -rank <= axis < rank:
            raise LayerError(f"axis={axis} does not exist in shape {self.operand(position).shape}")
        return axis % rank


def spread_indices(count: int, below: int) -> npt.NDArray[np.int64]:
    """Return indices below a bound, all equally often, never two neighbours in a row.

    Neighbours in a row would read memory in order, as real indices seldom do.
    """
    import numpy as np

    step = next(candidate for candidate in (7, 11, 13, 17, 1) if math.gcd(candidate, below) == 1)
    return np.arange(count, dtype=np.int64) * step % below


def split_at_axis(shape: Sequence[int], axis: int) -> tuple[int, int, int, int]:
    """Split a shape at an axis: (batch, other axes before it, the axis, axes behind it).

    The first dimension is the batch unless it is the axis itself.
    """
    batch, outer = split_rows(math.prod(shape[:axis]), shape[0] if axis > 0 else 1)
    return batch, outer, shape[axis], math.prod(shape[axis + 1 :])


def joined(parts: Sequence[Operand | None], axis: int, result: Sequence[int]) -> dict[str, int]:
    """Return the fields of a concatenation; empty parts do not count."""
    given = [part for part in parts if part is not None and 0 not in part.shape]
    batch, outer, length, inner = split_at_axis(result, axis)
    return {"batch": batch, "outer": outer, "parts": len(given), "inner": length * inner}


def rows_and_rest(shape: Sequence[int]) -> tuple[int, int]:
    """Return the first dimension and the product of all others."""
    first, *rest = (*shape, 1)
    return first, math.prod(rest)


def split_rows(rows: int, batch: int) -> tuple[int, int]:
    """Split rows into (batch, rest); (1, rows) if they are no multiple of the batch."""
    batch = batch if batch > 0 and rows % batch == 0 else 1
    return batch, rows // batch


def dtype_of(operator: Operator, allowed: Sequence[str] = FLOATS, position: int = 0) -> str:
    """Return the type of an input.

    Raises
    ------
    LayerError
        If the type is not allowed.
    """
    dtype = operator.operand(position).dtype
    if dtype not in allowed:
        raise LayerError(f"{operator.op} of type {dtype} has no layer")
    return dtype
