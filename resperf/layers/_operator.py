"""ONNX operators as layer kinds read and write them, and what several kinds read alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resperf.errors import LayerError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "float64", "int64", "int32", "int8", "uint8", "bool")


@dataclass(frozen=True)
class Kernel:
    """One ONNX node that does a layer's work, with made-up weights.

    Attributes
    ----------
    op, domain : str
    attributes : mapping of str to Any
        As `onnx.helper.make_node` takes them.
    input_shape, output_shape : tuple of int
        As the kernel sees them: blocked layouts count padded channels.
    weight_shapes : tuple of tuple of int
        Of the constant inputs behind the first.
    extra_shapes : tuple of tuple of int
        Of further computed inputs, which come after the weights (a residual).
    order : tuple of int
        Where the operator takes the inputs from so far (0 is the first, then the weights, then the
        extras), if not in this order.
    given : tuple of (tuple of int or None)
        Whole numbers that come last as constant inputs, such as a slice's start; None stands for
        an optional input that is absent.
    places_below : int
        Where the first of the extras says which rows are read or written: how many there are. All
        have their turn, none beside its neighbour. 0 for other extras.
    more_outputs : int
        Outputs behind the first, which nothing reads.
    dtype : str
        Type of the first input, and of everything for which nothing else is said.
    dtypes : tuple of str
        Types of the first input, the weights and the extras where they differ from each other.
    output_dtype : str
        Type of the output where it differs from the input's.
    positive : bool
        Whether what it reads must be above zero, as with logarithms.
    activation : str
        Function of the layer that the result goes through, which frameworks compute in the same
        kernel; ``"none"`` where there is none.
    in_place : bool
        Whether ONNX Runtime lets it write over its input, where nothing else reads that. Copies
        then read each other's output rather than one common input.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    weight_shapes: tuple[tuple[int, ...], ...] = ()
    extra_shapes: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()
    places_below: int = 0
    given: tuple[tuple[int, ...] | None, ...] = ()
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


@dataclass(frozen=True)
class Operand:
    """An input of an operator.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    value : ndarray or None
        Where it is a small constant.
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
        ONNX operator, or a fused one of ONNX Runtime.
    attributes : mapping of str to Any
    inputs : tuple of Operand or None
        None where an optional input is absent.
    outputs : tuple of (tuple of int or None)
        Shapes of the outputs; None where one is not known.
    domain : str
    block : int
        Channels that come together in the layout of the images; 1 where they do not.
    opset : int
        Version of the operator's set, for operators that changed their meaning.
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
        found = self._optional(position)
        if found is None:
            raise LayerError(f"input {position} is absent")
        return found

    def _optional(self, position: int) -> Operand | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def has_input(self, position: int) -> bool:
        """Whether there is an input at this position."""
        return self._optional(position) is not None

    @property
    def layout(self) -> str:
        """How images lie in memory."""
        return "nchw" if self.block == 1 else f"nchwc{self.block}"

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input as it lies in memory: channels filled up to whole blocks."""
        return self.filled(self.operand(position).shape)

    def result(self) -> tuple[int, ...]:
        """Shape of the first output as it lies in memory.

        Raises
        ------
        LayerError
            If it is not known.
        """
        first = self.outputs[0] if self.outputs else None
        if first is None:
            raise LayerError("the shape of its output is not known")
        return self.filled(first)

    def filled(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Fill the channels of an image up to whole blocks."""
        if len(shape) < 3 or self.block == 1:
            return shape
        return (shape[0], -(-shape[1] // self.block) * self.block, *shape[2:])

    def numbers(self, name: str, position: int) -> tuple[int, ...] | None:
        """Whole numbers that are an attribute in old operator sets and a constant input in new.

        None where they are not given.

        Raises
        ------
        LayerError
            If they are computed by the network itself.
        """
        if name in self.attributes:
            value = self.attributes[name]
            return tuple(int(v) for v in (value if isinstance(value, Sequence) else (value,)))
        found = self._optional(position)
        if found is None:
            return None
        if found.value is None:
            raise LayerError(f"its {name} are computed by the network itself")
        return tuple(int(v) for v in found.value.ravel())

    def axis(self, default: int, position: int = 0) -> int:
        """Return the attribute ``axis`` counted from the front."""
        rank = len(self.operand(position).shape)
        axis = int(self.attributes.get("axis", default))
        if not -rank <= axis < rank:
            raise LayerError(f"axis={axis} does not exist in shape {self.operand(position).shape}")
        return axis % rank


def in_turns(count: int, below: int) -> npt.NDArray[np.int64]:
    """Return numbers below a bound, all equally often, no neighbours beside each other."""
    import numpy as np

    distance = next(each for each in (7, 11, 13, 17, 1) if math.gcd(each, below) == 1)
    return np.arange(count, dtype=np.int64) * distance % below


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int, int]:
    """Split a shape at an axis: (batch, rest before it, the axis, what comes after).

    The first dimension is the batch unless it is the axis itself.
    """
    batch, outer = split_rows(math.prod(shape[:axis]), shape[0] if axis > 0 else 1)
    return batch, outer, shape[axis], math.prod(shape[axis + 1 :])


def joined(parts: Sequence[Operand | None], axis: int, result: Sequence[int]) -> dict[str, int]:
    """Return the fields of parts joined along an axis; parts without values do not count."""
    given = [each for each in parts if each is not None and 0 not in each.shape]
    batch, outer, length, inner = around(result, axis)
    return {"batch": batch, "outer": outer, "parts": len(given), "inner": length * inner}


def rows_and_rest(shape: Sequence[int]) -> tuple[int, int]:
    """Return the first dimension and the values of all others together."""
    first, *rest = (*shape, 1)
    return first, math.prod(rest)


def split_rows(rows: int, batch: int) -> tuple[int, int]:
    """Split rows into the batch and the rest, where the batch is part of them; else (1, rows)."""
    batch = batch if batch > 0 and rows % batch == 0 else 1
    return batch, rows // batch


def dtype_of(operator: Operator, allowed: Sequence[str] = FLOATS, position: int = 0) -> str:
    """Return the type of an input.

    Raises
    ------
    LayerError
        If it is none of those allowed.
    """
    dtype = operator.operand(position).dtype
    if dtype not in allowed:
        raise LayerError(f"{operator.op} of type {dtype} has no layer")
    return dtype
