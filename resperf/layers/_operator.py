"""What a layer kind in one file says of itself: fields, work, features, terms, kernel, reading.

Convolutions, poolings, dense layers and the like have features and kernels that take files of their
own. Every other operator is simple enough for one: a subclass of `OperatorLayer`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import PlainLayer
from resperf.layers.columns import Array, Columns
from resperf.layers.terms import Term

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "float64", "int64", "int32", "int8", "uint8", "bool")
THREADED_VALUES = 16384
"""Above about so many values frameworks share the work among their threads."""


@dataclass(frozen=True)
class Kernel:
    """One ONNX node, as a framework runs it, with made-up weights.

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

    @property
    def input_dtypes(self) -> tuple[str, ...]:
        """Types of the first input, the weights and the extras."""
        count = 1 + len(self.weight_shapes) + len(self.extra_shapes)
        return self.dtypes or (self.dtype,) * count


@dataclass(frozen=True)
class Operand:
    """An input of an operator: its shape and type, and its value where it is a small constant."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    value: npt.NDArray[Any] | None = None


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
    outputs : tuple of tuple of int
        Shapes of the outputs.
    domain : str
    block : int
        Channels that come together in the layout of the images; 1 where they do not.
    opset : int
        Version of the operator's set, for operators that changed their meaning.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[tuple[int, ...], ...]
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

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input as it lies in memory: channels filled up to whole blocks."""
        return self.filled(self.operand(position).shape)

    def result(self) -> tuple[int, ...]:
        """Shape of the first output as it lies in memory."""
        return self.filled(self.outputs[0])

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


class OperatorLayer(PlainLayer):
    """A kind whose file says everything about it.

    Subclasses are registered in `resperf.layers.KINDS` and need nothing elsewhere.
    """

    PLACED_BY: ClassVar[str] = ""
    """Field whose values share nothing of how they run inside networks, if there is one."""
    PLAIN: ClassVar[tuple[str, ...]]
    """Quantities that are features as they are."""
    LOG2: ClassVar[tuple[str, ...]]
    """Quantities whose log2 is a feature."""
    ENCODED: ClassVar[tuple[str, ...]]
    """Fields of names that are features, one for each name."""
    TERMS: ClassVar[Mapping[str, Term]]
    """Physical terms of the baseline."""
    RANGES: ClassVar[Mapping[str, Any]]
    """Laws that a campaign draws the fields by unless it says otherwise."""
    SCALED: ClassVar[tuple[str, ...]]
    """Lengths that a campaign scales where it takes a layer from a network."""
    OPERATORS: ClassVar[frozenset[str]]
    """ONNX operators (and fused ones of ONNX Runtime) that may become this layer."""

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Make fields of which each was drawn by itself fit each other."""
        del source
        return dict(fields)

    def varied(self, **changes: Any) -> Self:
        """Change some fields, and with them those that hang on them."""
        return self.replace(**changes)

    @classmethod
    @abstractmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Return physical quantities of such layers, each of shape (rows,); bytes in bytes.

        At least ``in_bytes`` (all that is read), ``out_bytes``, ``moved_bytes`` and ``flops``.
        """

    @classmethod
    @abstractmethod
    def read(cls, operator: Operator) -> OperatorLayer:
        """Read an operator of `OPERATORS`; what does the work of another kind becomes one of that.

        Raises
        ------
        LayerError
            If it does not become such a layer, with the reason.
        """

    @abstractmethod
    def kernel(self) -> Kernel:
        """Return the ONNX node that this layer stands for.

        Raises
        ------
        LayerError
            If there is none.
        """


def traffic(
    in_bytes: Array,
    out_bytes: Array,
    flops: Array,
    values: Array,
    weight_bytes: Array | float = 0.0,
) -> dict[str, Array]:
    """Return what every kind tells about bytes and work; `values` decide on threads."""
    return {
        "in_bytes": in_bytes, "out_bytes": out_bytes,
        "moved_bytes": in_bytes + out_bytes + weight_bytes, "flops": flops,
        "threaded": (values >= THREADED_VALUES).astype(float),
        "vector_rest": values % 16,
    }  # fmt: skip


def in_turns(count: int, below: int) -> npt.NDArray[np.int64]:
    """Return numbers below a bound, all equally often, no neighbours beside each other."""
    import numpy as np

    distance = next(each for each in (7, 11, 13, 17, 1) if math.gcd(each, below) == 1)
    return np.arange(count, dtype=np.int64) * distance % below


BATCHES = {"law": "choices", "values": [1, 2, 4, 8, 16, 32], "weights": [4, 3, 3, 3, 3, 1]}
"""How campaigns draw a batch unless they say otherwise."""


def log_uniform(low: int, high: int, *round_to: int) -> dict[str, Any]:
    """Write a law of `resperf.campaign.laws`."""
    law: dict[str, Any] = {"law": "log_uniform", "low": low, "high": high}
    return law | ({"round_to": list(round_to)} if round_to else {})


def choices(values: Sequence[Any], weights: Sequence[float]) -> dict[str, Any]:
    """Write a law of `resperf.campaign.laws`."""
    return {"law": "choices", "values": list(values), "weights": list(weights)}


MOVED_DTYPES = choices(["float32", "int64", "bool", "uint8"], [16, 2, 1, 1])
"""How campaigns draw types of values that are copied and not computed with."""


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
