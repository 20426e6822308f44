"""Element-wise operators of one operand, or of two with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import name, number
from resperf.layers._broadcast import (
    CONTIGUOUS,
    SECONDS,
    BroadcastLayer,
    broadcast_axes,
    has_redundant_axes,
    in_order,
    joined_axes,
    rows_of,
)
from resperf.layers._laws import BATCHES, choices, log_uniform
from resperf.layers._operator import DTYPES, FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import Array, Columns, either, is_in, is_one_of, numbers

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
    **{each: each.capitalize() for each in (*BINARY, *UNARY)}, "prelu": "PRelu",
    "square": "Pow", "cube": "Pow", "less_or_equal": "LessOrEqual",
    "greater_or_equal": "GreaterOrEqual", "is_nan": "IsNaN",
}  # fmt: skip
_EXPONENTS: Mapping[str, int] = {"square": 2, "cube": 3}
"""ONNX Runtime multiplies for these exponents; others call a power function."""
_FUNCTIONS: Mapping[str, str] = {
    **{op: function for function, op in _OPS.items() if function not in _EXPONENTS},
    "Sum": "add",
}
_COSTLY = ("sqrt", "div", "reciprocal")
_INTEGER_FUNCTIONS = ("add", "sub", "mul", "div", "mod", *COMPARISONS)
"""Functions that are also drawn on integers."""
_SERIES = ("exp", "log", "erf", "pow", "cos", "sin", "round", "floor", "ceil", "sign")


class Elementwise(BroadcastLayer):
    """A function of one tensor, or of a tensor and a second one that may be broadcast.

    The first operand and the result have shape (batch x outer, middle, inner). `second` names the
    axes of the second operand (`resperf.layers._broadcast`).
    """

    kind: ClassVar[str] = "elementwise"

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("length of the last axis")
    function: str = name("function that is computed", (*BINARY, *UNARY), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "costly", "series", "truth")
    LOG2: ClassVar[tuple[str, ...]] = ("values", "rows", "inner", "moved_bytes", "second_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ("function", "second")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 1024, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(
            (*BINARY, *UNARY),
            (
                8,
                3,
                8,
                3,
                1,
                1,
                1,
                1,
                0.4,
                *(0.4,) * 5,
                *(0.4,) * 3,
                2,
                0.5,
                2,
                1,
                1,
                1,
                1,
                *(0.4,) * 10,
            ),
        ),
        "second": choices(SECONDS[1:], (6, 3, 4, 3, 3, 1, 0.5)),
        "dtype": choices(["float32", "int64"], [5, 1]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "middle", "inner")
    OPERATORS: ClassVar[frozenset[str]] = frozenset(_FUNCTIONS)

    def _check(self) -> None:
        if (self.second == "none") != (self.function in UNARY):
            raise LayerError(f"elementwise: {self.function} does not take second={self.second}")
        if self.function == "prelu" and self.second == "both":
            raise LayerError("elementwise: the slopes of prelu cannot be larger than its input")
        if self.function in (*LOGIC, "not") and self.dtype != "bool":
            raise LayerError(f"elementwise: {self.function} takes bool, not {self.dtype}")
        if has_redundant_axes(self.second, self.fields()):
            raise LayerError(f"elementwise: second={self.second} has redundant axes: merge them")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Merge redundant axes, and drop the second operand of unary functions."""
        del source
        made = dict(fields)
        if made["function"] in UNARY:
            made["second"] = "none"
        if made["function"] in (*LOGIC, "not"):
            made["dtype"] = "bool"
        elif made["function"] not in _INTEGER_FUNCTIONS:
            made["dtype"] = "float32"
        return joined_axes(made["second"], made)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results; one per boolean."""
        each = either(is_in(self.function, BOOLEAN_FUNCTIONS), 1, self.element_bytes)
        return math.prod(self.output_shape) * each

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Values, rows and bytes; ``loops`` counts inner loops along the last axis."""
        import numpy as np

        batch, outer, middle, inner = numbers(columns, "batch", "outer", "middle", "inner")
        many, rows = cls.over(columns), batch * outer
        values = rows * middle * inner
        contiguous = is_one_of(columns, "second", *CONTIGUOUS)
        loops = (1 - contiguous) * rows * middle
        return {
            **many.traffic(values, values),
            "truth": is_one_of(columns, "function", *BOOLEAN_FUNCTIONS),
            "whole": is_one_of(columns, "dtype", "int64", "int32"),
            "values": values, "rows": rows * middle, "inner": inner,
            "second_bytes": np.asarray(many._second_values * many.element_bytes),
            "costly": is_one_of(columns, "function", *_COSTLY),
            "series": is_one_of(columns, "function", *_SERIES),
            "pow": is_one_of(columns, "function", "pow"), "repeated": 1 - contiguous,
            "loops": loops, "ends": loops * (inner % 8),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a function of one or two tensors; axes beyond three are merged into the rows."""
        dtype, result = dtype_of(operator, DTYPES), operator.result()
        function = _function_of(operator)
        if {"axis", "broadcast"} & set(operator.attributes):
            raise LayerError(
                f"the broadcasting of {operator.op} before operator set 7 has no layer"
            )
        batch = result[0] if result else 1
        given = [each for each in range(len(operator.inputs)) if operator.inputs[each] is not None]
        if function in UNARY:
            fields = rows_of(batch, batch, inner=math.prod(result) // max(batch, 1), second="none")
            return cls(**fields, function=function, dtype=dtype)
        if len(given) != 2:
            raise LayerError(f"{operator.op} of {len(given)} tensors has no layer")
        shapes = in_order(result, *map(operator.shape, given))
        return cls(**broadcast_axes(result, *shapes), function=function, dtype=dtype)

    def kernel(self) -> Kernel:
        """Return the operator on (batch x outer, middle, inner) and the second operand."""
        exponent = _EXPONENTS.get(self.function)
        return Kernel(
            op=_OPS[self.function],
            domain="",
            attributes={"fmod": 1} if self.function == "mod" and self.dtype in FLOATS else {},
            input_shape=self.input_shape,
            output_shape=self.output_shape,
            extra_shapes=() if self.second == "none" else (self.second_shape,),
            constants=() if exponent is None else ((exponent,),),
            # Powers, roots and logarithms of negative numbers take another code path.
            positive=self.function in ("pow", "sqrt", "log"),
            dtype=self.dtype,
            output_dtype="bool" if self.function in BOOLEAN_FUNCTIONS else "",
            # Chained products would end in denormal numbers, which are slow.
            in_place=self.second != "both" and self.function in ("add", "sub", "abs", "neg"),
        )


def _function_of(operator: Operator) -> str:
    """Name the function; a power with a constant exponent of 2 or 3 is a product."""
    function = _FUNCTIONS[operator.op]
    if function != "pow" or len(operator.inputs) < 2:
        return function
    exponent = operator.operand(1).value
    if exponent is None or exponent.size != 1:
        return function
    return next((each for each, e in _EXPONENTS.items() if e == exponent.item()), function)
