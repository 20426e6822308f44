"""Operators that work value by value, with one operand or two, the second one often smaller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import name, number
from resperf.layers._operator import (
    BATCHES,
    DTYPES,
    Kernel,
    Operator,
    OperatorLayer,
    choices,
    log_uniform,
    only_float,
    split_rows,
    traffic,
)
from resperf.layers.columns import Array, Columns, element_bytes, is_one_of, numbers
from resperf.layers.terms import TRAFFIC_TERMS, Term, mb, millions

BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "prelu")
UNARY = (
    "square", "cube", "sqrt", "exp", "log", "erf", "abs", "neg", "reciprocal", "floor", "ceil",
    "round", "sign", "cos", "sin",
)  # fmt: skip
SECONDS = ("none", "same", "scalar", "inner", "middle", "outer", "sides", "both")

_OPS: Mapping[str, str] = {
    **{each: each.capitalize() for each in (*BINARY, *UNARY)}, "prelu": "PRelu",
    "square": "Pow", "cube": "Pow",
}  # fmt: skip
_EXPONENTS: Mapping[str, int] = {"square": 2, "cube": 3}
"""ONNX Runtime multiplies for these exponents instead of calling a power function."""
_FUNCTIONS: Mapping[str, str] = {
    **{op: function for function, op in _OPS.items() if function not in _EXPONENTS},
    "Sum": "add",
}
_COSTLY = ("sqrt", "div", "reciprocal")
_SERIES = ("exp", "log", "erf", "pow", "cos", "sin", "round", "floor", "ceil", "sign")


@dataclass(frozen=True, kw_only=True)
class Elementwise(OperatorLayer):
    """A function of one tensor, or of a tensor and another one that is repeated along some axes.

    Neighbouring axes that are repeated alike are one: the first operand and the result are of
    shape (batch x outer, middle, inner), and `second` says which of these the second one has:
    ``same`` all, ``scalar`` none, ``inner`` a vector along the last axis, ``middle`` one value for
    each channel, ``outer`` one for each row, ``sides`` all but the middle; with ``both`` the
    first has the rows and the second the last axis; ``none`` is a function of one tensor.
    """

    kind: ClassVar[str] = "elementwise"

    batch: int = number("first dimension")
    outer: int = number("rows for each of the batch", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("values that lie together")
    function: str = name("what is computed", (*BINARY, *UNARY), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "costly", "series")
    LOG2: ClassVar[tuple[str, ...]] = ("values", "rows", "inner", "moved_bytes", "second_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ("function", "second")
    TERMS: ClassVar[Mapping[str, Term]] = {
        **TRAFFIC_TERMS,
        "second": mb("second_bytes"),
        "out costly": mb("out_bytes", "costly"),
        "out series": mb("out_bytes", "series"),
        "out pow": mb("out_bytes", "pow"),
        "out repeated": mb("out_bytes", "repeated"),
        "loops": millions("loops"),
        "values at ends": millions("ends"),
    }
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 1024, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(
            (*BINARY, *UNARY), (8, 3, 8, 3, 1, 1, 1, 1, 2, 0.5, 2, 1, 1, 1, 1, *(0.4,) * 8)
        ),
        "second": choices(SECONDS[1:], (6, 3, 4, 3, 3, 1, 0.5)),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "middle", "inner")
    OPERATORS: ClassVar[frozenset[str]] = frozenset(_FUNCTIONS)

    def _check(self) -> None:
        if (self.second == "none") != (self.function in UNARY):
            raise LayerError(f"elementwise: {self.function} has not second={self.second}")
        if self.function == "prelu" and self.second == "both":
            raise LayerError("elementwise: the slopes of prelu are not larger than what they scale")
        bare = {"none": 0, "same": 0, "scalar": 0, "inner": 1, "outer": 1, "both": 1}
        if self.second in bare and (
            self.middle != 1 or (not bare[self.second] and self.outer != 1)
        ):
            raise LayerError(f"elementwise: second={self.second} leaves axes that are one")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Join the axes of a draw that are one, and let functions of one tensor have no second."""
        del source
        made = dict(fields)
        if made["function"] in UNARY:
            made["second"] = "none"
        second = made["second"]
        if second not in ("middle", "sides"):
            made |= {"middle": 1, "inner": made["inner"] * made["middle"]}
        if second in ("none", "same", "scalar"):
            made |= {"outer": 1, "inner": made["inner"] * made["outer"]}
        return made

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        rows = self.batch * self.outer
        return (rows, 1, 1) if self.second == "both" else self.output_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, self.middle, self.inner)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second operand; empty for a scalar or for none."""
        rows = self.batch * self.outer
        shapes: Mapping[str, tuple[int, ...]] = {
            "same": self.output_shape, "inner": (self.inner,), "both": (self.inner,),
            "middle": (self.middle, 1), "outer": (rows, 1, 1), "sides": (rows, 1, self.inner),
        }  # fmt: skip
        return shapes.get(self.second, ())

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        second = 0 if self.second == "none" else math.prod(self.second_shape)
        return (math.prod(self.input_shape) + second) * self.element_bytes

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Values, rows and bytes; ``loops`` is how often a kernel starts along the last axis."""
        batch, outer, middle, inner = numbers(columns, "batch", "outer", "middle", "inner")
        size, rows = element_bytes(columns), batch * outer
        values = rows * middle * inner
        kinds = {each: is_one_of(columns, "second", each) for each in SECONDS}
        second = (
            kinds["same"] * values + kinds["scalar"] + (kinds["inner"] + kinds["both"]) * inner
            + kinds["middle"] * middle + kinds["outer"] * rows + kinds["sides"] * rows * inner
        )  # fmt: skip
        first = values - kinds["both"] * (values - rows)
        whole = kinds["none"] + kinds["same"] + kinds["scalar"]
        loops = (1 - whole) * rows * middle
        return {
            **traffic((first + second) * size, values * size, values, values),
            "values": values, "rows": rows * middle, "inner": inner, "second_bytes": second * size,
            "costly": is_one_of(columns, "function", *_COSTLY),
            "series": is_one_of(columns, "function", *_SERIES),
            "pow": is_one_of(columns, "function", "pow"), "repeated": 1 - whole, "loops": loops,
            "ends": loops * (inner % 8),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a function of one or two tensors; axes beyond three become rows."""
        dtype, result = only_float(operator), operator.result()
        function = _function_of(operator)
        if {"axis", "broadcast"} & set(operator.attributes):
            raise LayerError(
                f"the broadcasting of {operator.op} before operator set 7 has no layer"
            )
        batch = result[0] if result else 1
        given = [each for each in range(len(operator.inputs)) if operator.inputs[each] is not None]
        if function in UNARY:
            fields = _rows(batch, batch, inner=math.prod(result) // max(batch, 1), second="none")
            return cls(**fields, function=function, dtype=dtype)
        if len(given) != 2:
            raise LayerError(f"{operator.op} of {len(given)} tensors has no layer")
        shapes = [(1,) * (len(result) - len(s)) + s for s in map(operator.shape, given)]
        # The larger operand comes first; where both are repeated, the one without the last axis.
        first, second = sorted(shapes, key=math.prod, reverse=True)
        if math.prod(first) < math.prod(result) and _last_axis(first) > _last_axis(second):
            first, second = second, first
        axes = [
            (length, a == length, b == length)
            for length, a, b in zip(result, first, second, strict=True)
            if length != 1
        ]
        groups = [
            (whole, math.prod(length for length, *_ in members))
            for whole, members in ((w, list(m)) for w, m in groupby(axes, key=lambda x: x[1:]))
        ]
        return cls(**_axes(groups, batch), function=function, dtype=dtype)

    def kernel(self) -> Kernel:
        """Return the operator on (batch x outer, middle, inner) and the second operand."""
        exponent = _EXPONENTS.get(self.function)
        return Kernel(
            op=_OPS[self.function],
            domain="",
            attributes={},
            input_shape=self.input_shape,
            output_shape=self.output_shape,
            extra_shapes=() if self.second == "none" else (self.second_shape,),
            given=() if exponent is None else ((exponent,),),
            # Powers, roots and logarithms of negative numbers take another way.
            positive=self.function in ("pow", "sqrt", "log"),
            # Products of products would end in numbers that are too small to be fast.
            in_place=self.second != "both" and self.function in ("add", "sub", "abs", "neg"),
        )


def _function_of(operator: Operator) -> str:
    """Name the function; a power with a small whole exponent is a product."""
    function = _FUNCTIONS[operator.op]
    if function != "pow" or len(operator.inputs) < 2:
        return function
    exponent = operator.operand(1).value
    if exponent is None or exponent.size != 1:
        return function
    return next((each for each, e in _EXPONENTS.items() if e == exponent.item()), function)


def _last_axis(shape: tuple[int, ...]) -> int:
    """Return the innermost axis along which a tensor has more than one value; -1 for a scalar."""
    return max((axis for axis, length in enumerate(shape) if length > 1), default=-1)


def _axes(groups: list[tuple[tuple[bool, bool], int]], batch: int) -> dict[str, Any]:
    """Name which of the joined axes the second operand has.

    `groups` holds ((first has it, second has it), length) from the outermost axis on.
    """
    total = math.prod(length for _, length in groups)
    has = tuple(second for (_, second), _ in groups)
    if any(not first for (first, _), _ in groups):
        rows = math.prod(length for (first, _), length in groups if first)
        return _rows(rows, batch, inner=total // max(rows, 1), second="both")
    if not groups or all(has) or not any(has):
        second = "same" if all(has) else "scalar"
        return _rows(batch, batch, inner=total // max(batch, 1), second=second)
    if len(groups) > 3:
        joined = math.prod(length for _, length in groups[:-2])
        groups = [(groups[-3][0], joined), *groups[-2:]]
        has = tuple(second for (_, second), _ in groups)
    lengths = [length for _, length in groups]
    if has in ((False, True), (True, False)):
        second = "inner" if has[1] else "outer"
        return _rows(lengths[0], batch, inner=lengths[1], second=second)
    second = "middle" if has[1] else "sides"
    return _rows(lengths[0], batch, middle=lengths[1], inner=lengths[2], second=second)


def _rows(rows: int, batch: int, **fields: Any) -> dict[str, Any]:
    """Split rows into the batch and the rest."""
    batch, outer = split_rows(rows, batch)
    return {"batch": batch, "outer": outer, **fields}
