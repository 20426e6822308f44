"""Element-wise operators of one operand, or of two with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number
from resperf.layers._operator import DTYPES, FLOATS, Kernel, Operator, dtype_of, split_rows
from resperf.layers.columns import either, is_in

SECONDS = ("none", "same", "scalar", "inner", "middle", "outer", "sides", "both")
"""Axes of the second operand. ``same``: all; ``scalar``: none; ``inner``: the last; ``middle``: one
value per channel; ``outer``: one per row; ``sides``: all but the middle. ``both``: the first
operand has the rows, the second the last axis. ``none``: there is no second operand."""
CONTIGUOUS = ("none", "same", "scalar")
"""Operands with which the kernel runs once over all values, not once per row."""
_WITH_MIDDLE = ("middle", "sides")
"""Operands for which the middle axis cannot be merged with another."""


class BroadcastLayer(Layer):
    """Kinds whose result has three axes, of which another tensor may lack some."""

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("length of the last axis")
    second: str
    """Which axes the other tensor has; each kind declares its own choices."""

    def _check(self) -> None:
        has_middle = self.middle != 1 and self.second not in _WITH_MIDDLE
        if has_middle or (self.outer != 1 and self.second in CONTIGUOUS):
            raise LayerError(f"{self.kind}: second={self.second} has redundant axes: merge them")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, self.middle, self.inner)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second tensor; empty for a scalar or for none."""
        rows, middle, inner = self.output_shape
        shapes: Mapping[str, tuple[int, ...]] = {
            "same": (rows, middle, inner), "inner": (inner,), "both": (inner,),
            "middle": (middle, 1), "outer": (rows, 1, 1), "sides": (rows, 1, inner),
        }  # fmt: skip
        return shapes.get(self.second, ())

    @property
    def _second_values(self) -> int:
        """Values of the second tensor."""
        rows, middle, inner = self.output_shape
        counts = {
            ("same",): rows * middle * inner, ("scalar",): 1, ("inner", "both"): inner,
            ("middle",): middle, ("outer",): rows, ("sides",): rows * inner,
        }  # fmt: skip
        return sum(is_in(self.second, words) * count for words, count in counts.items())


class OperandLayer(BroadcastLayer):
    """Functions of one operand, or of two."""

    function: str

    UNARY: ClassVar[tuple[str, ...]]
    """Functions of one operand; all others have a second."""
    LOG2 = ("values", "rows", "inner", "moved_bytes", "second_bytes")
    ENCODED = ("function", "second")
    FLOPS_PER_VALUE = 1

    def _check(self) -> None:
        if (self.second == "none") != (self.function in self.UNARY):
            raise LayerError(
                f"{self.kind}: {self.function} does not take second={self.second}; functions of "
                "one operand, and only these, have second=none"
            )
        super()._check()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, 1, 1) if self.second == "both" else self.output_shape

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        rows, values = self.batch * self.outer, self.value_count
        first = values - is_in(self.second, ("both",)) * (values - rows)
        return (first + self._second_values) * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Values and rows; ``loops`` counts inner loops along the last axis."""
        rows, repeated = self.batch * self.outer * self.middle, 1 - is_in(self.second, CONTIGUOUS)
        return {
            "values": self.value_count, "rows": rows, "repeated": repeated,
            "second_bytes": self._second_values * self.element_bytes, "loops": repeated * rows,
        }  # fmt: skip

    @classmethod
    def _fields_of(cls, operator: Operator, second: int | None) -> dict[str, Any]:
        """Return the axes of an operator whose second operand is this input; None if it has none.

        Axes beyond three are merged into the rows.
        """
        result = operator.result()
        if second is not None:
            shapes = in_order(result, operator.shape(0), operator.shape(second))
            return broadcast_axes(result, *shapes)
        batch = result[0] if result else 1
        return rows_of(batch, batch, inner=math.prod(result) // max(batch, 1), second="none")


COMPARISONS = ("equal", "less", "less_or_equal", "greater", "greater_or_equal")
LOGIC = ("and", "or", "xor")
BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "prelu", "mod", *COMPARISONS, *LOGIC)
UNARY = (
    "square", "cube", "sqrt", "exp", "log", "erf", "abs", "neg", "reciprocal", "floor", "ceil",
    "round", "sign", "cos", "sin", "not", "is_nan",
)  # fmt: skip
BOOLEAN_FUNCTIONS = (*COMPARISONS, *LOGIC, "not", "is_nan")
"""Functions whose results are booleans."""

_OPS: Mapping[str, str] = {
    **{function: function.capitalize() for function in (*BINARY, *UNARY)}, "prelu": "PRelu",
    "square": "Pow", "cube": "Pow", "less_or_equal": "LessOrEqual",
    "greater_or_equal": "GreaterOrEqual", "is_nan": "IsNaN",
}  # fmt: skip
_EXPONENTS: Mapping[str, int] = {"square": 2, "cube": 3}
"""ONNX Runtime multiplies for these exponents; others call a power function."""
_FUNCTIONS: Mapping[str, str] = {
    **{op: function for function, op in _OPS.items() if function not in _EXPONENTS},
    "Sum": "add",
}
_WEIGHTS: Mapping[str, float] = {
    **dict.fromkeys((*BINARY, *UNARY), 0.4), "add": 8, "sub": 3, "mul": 8, "div": 3, "pow": 1,
    "min": 1, "max": 1, "prelu": 1, "square": 2, "cube": 0.5, "sqrt": 2, "exp": 1, "log": 1,
    "erf": 1, "abs": 1,
}  # fmt: skip
"""How often campaigns draw each function."""
_COSTLY = ("sqrt", "div", "reciprocal")
_INTEGER_FUNCTIONS = ("add", "sub", "mul", "div", "mod", *COMPARISONS)
"""Functions that are also drawn on integers."""
_SERIES = ("exp", "log", "erf", "pow", "cos", "sin", "round", "floor", "ceil", "sign")


class Elementwise(OperandLayer):
    """A function of one tensor, or of a tensor and a second one that may be broadcast.

    The first operand and the result have shape (batch x outer, middle, inner). `second` names the
    axes of the second operand (`SECONDS`).
    """

    UNARY = UNARY

    function: str = name("function that is computed", (*BINARY, *UNARY), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "costly", "series", "truth")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 1024, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values())),
        "second": choices(SECONDS[1:], (6, 3, 4, 3, 3, 1, 0.5)),
        "dtype": choices(["float32", "int64"], [5, 1]),
    }
    SCALED = ("outer", "middle", "inner")
    OPERATORS = frozenset(_FUNCTIONS)

    def _check(self) -> None:
        if self.function == "prelu" and self.second == "both":
            raise LayerError("elementwise: the slopes of prelu cannot be larger than its input")
        if self.function in (*LOGIC, "not") and self.dtype != "bool":
            raise LayerError(f"elementwise: {self.function} takes bool, not {self.dtype}")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Merge redundant axes, and drop the second operand of unary functions."""
        draw = dict(fields)
        if draw["function"] in UNARY:
            draw["second"] = "none"
        if draw["function"] in (*LOGIC, "not"):
            draw["dtype"] = "bool"
        elif draw["function"] not in _INTEGER_FUNCTIONS:
            draw["dtype"] = "float32"
        return joined_axes(draw["second"], draw)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results; one per boolean."""
        value_bytes = either(is_in(self.function, BOOLEAN_FUNCTIONS), 1, self.element_bytes)
        return self.value_count * value_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Sorts of functions; ``ends`` are values beyond full vectors of inner loops."""
        quantities = super().own_quantities()
        return quantities | {
            "truth": is_in(self.function, BOOLEAN_FUNCTIONS),
            "whole": is_in(self.dtype, ("int64", "int32")),
            "costly": is_in(self.function, _COSTLY), "series": is_in(self.function, _SERIES),
            "pow": is_in(self.function, ("pow",)), "ends": quantities["loops"] * (self.inner % 8),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a function of one or two tensors; axes beyond three are merged into the rows."""
        dtype, function = dtype_of(operator, DTYPES), _FUNCTIONS[operator.op]
        if function == "pow" and len(operator.inputs) > 1:
            # A power with a constant exponent of 2 or 3 is a product.
            exponent = operator.operand(1).value
            given = None if exponent is None or exponent.size != 1 else exponent.item()
            function = next((power for power, e in _EXPONENTS.items() if e == given), function)
        if {"axis", "broadcast"} & set(operator.attributes):
            raise LayerError(
                f"the broadcasting of {operator.op} before operator set 7 has no layer"
            )
        count = sum(operand is not None for operand in operator.inputs)
        if function in BINARY and count != 2:
            raise LayerError(f"{operator.op} of {count} tensors has no layer")
        fields = cls._fields_of(operator, 1 if function in BINARY else None)
        return cls(**fields, function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator on (batch x outer, middle, inner) and the second operand."""
        exponent = _EXPONENTS.get(self.function)
        return self._node(
            _OPS[self.function],
            {"fmod": 1} if self.function == "mod" and self.dtype in FLOATS else {},
            extra_shapes=() if self.second == "none" else (self.second_shape,),
            constants=() if exponent is None else ((exponent,),),
            # Powers, roots and logarithms of negative numbers take another code path.
            positive=self.function in ("pow", "sqrt", "log"),
            dtype=self.dtype,
            output_dtype="bool" if self.function in BOOLEAN_FUNCTIONS else "",
            # Chained products would end in denormal numbers, which are slow.
            in_place=self.second != "both" and self.function in ("add", "sub", "abs", "neg"),
        )


def broadcast_axes(
    result: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> dict[str, Any]:
    """Return the fields batch, outer, middle, inner and second of a broadcast.

    Parameters
    ----------
    result, first, second : tuple of int
        Shapes of the result, of the larger operand (which has all axes, or all that the other one
        lacks), and of the other operand.
    """
    batch = result[0] if result else 1
    first, second = (_aligned(shape, result) for shape in (first, second))
    axes = [
        (length, a == length, b == length)
        for length, a, b in zip(result, first, second, strict=True)
        if length != 1
    ]
    groups = [
        (whole, math.prod(length for length, *_ in members))
        for whole, members in ((w, list(m)) for w, m in groupby(axes, key=lambda x: x[1:]))
    ]
    return _axes(groups, batch)


def _aligned(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(result) - len(shape)) + shape


def in_order(
    result: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two operands' shapes, the larger first.

    Where both are broadcast, the operand without the last axis comes first.
    """
    first, second = sorted((one, other), key=math.prod, reverse=True)
    if math.prod(first) < math.prod(result) and (
        _last_axis(_aligned(first, result)) > _last_axis(_aligned(second, result))
    ):
        first, second = second, first
    return first, second


def _last_axis(shape: tuple[int, ...]) -> int:
    """Return the innermost axis along which a tensor has more than one value; -1 for a scalar."""
    return max((axis for axis, length in enumerate(shape) if length > 1), default=-1)


def _axes(groups: list[tuple[tuple[bool, bool], int]], batch: int) -> dict[str, Any]:
    """Name which of the merged axes the second operand has.

    `groups` holds ((first has it, second has it), length), outermost axis first.
    """
    total = math.prod(length for _, length in groups)
    has = tuple(second for (_, second), _ in groups)
    if any(not first for (first, _), _ in groups):
        rows = math.prod(length for (first, _), length in groups if first)
        return rows_of(rows, batch, inner=total // max(rows, 1), second="both")
    if not groups or all(has) or not any(has):
        second = "same" if all(has) else "scalar"
        return rows_of(batch, batch, inner=total // max(batch, 1), second=second)
    if len(groups) > 3:
        joined = math.prod(length for _, length in groups[:-2])
        groups = [(groups[-3][0], joined), *groups[-2:]]
        has = tuple(second for (_, second), _ in groups)
    lengths = [length for _, length in groups]
    if has in ((False, True), (True, False)):
        second = "inner" if has[1] else "outer"
        return rows_of(lengths[0], batch, inner=lengths[1], second=second)
    second = "middle" if has[1] else "sides"
    return rows_of(lengths[0], batch, middle=lengths[1], inner=lengths[2], second=second)


def rows_of(rows: int, batch: int, **fields: Any) -> dict[str, Any]:
    """Return fields with the rows split into `batch` and `outer`."""
    batch, outer = split_rows(rows, batch)
    return {"batch": batch, "outer": outer, **fields}


def joined_axes(second: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the axes of a draw that need not be separate for such an operand."""
    draw = dict(fields)
    if second not in _WITH_MIDDLE:
        draw |= {"middle": 1, "inner": draw["inner"] * draw["middle"]}
    if second in CONTIGUOUS:
        draw |= {"outer": 1, "inner": draw["inner"] * draw["outer"]}
    return draw
