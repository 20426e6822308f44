"""Reductions: sums, means, extremes along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AlongAxis, choices, log_uniform, name
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of
from resperf.layers.columns import either, is_in

_OPS: Mapping[str, str] = {
    "mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin",
    "prod": "ReduceProd", "l1": "ReduceL1", "l2": "ReduceL2", "sum_square": "ReduceSumSquare",
    "log_sum_exp": "ReduceLogSumExp", "log_sum": "ReduceLogSum", "arg_max": "ArgMax",
    "arg_min": "ArgMin",
}  # fmt: skip
_INTEGER_FUNCTIONS = ("sum", "max", "min", "prod", "arg_max", "arg_min")
"""Functions that are also drawn on integers."""
_ARG_FUNCTIONS = ("arg_max", "arg_min")
INDEX_BYTES = 8
"""Of an int64, which ArgMax and ArgMin return."""
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}


class Reduce(AlongAxis):
    """A reduction of neighbouring axes: (rows, values, inner) becomes (rows, 1, inner)."""

    function: str = name("function that is computed", tuple(_OPS), default="mean")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "apart")
    LOG2 = ("rows", "values", "inner", "in_bytes", "out_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 2048),
        "values": log_uniform(2, 16384),
        "inner": choices([1, 8, 64, 197, 768, 50000], [8, 1, 1, 1, 1, 0.5]),
        "function": choices(tuple(_OPS), (10, 4, 3, 1, 0.5, 0.5, 2, 0.5, 0.5, 0.5, 1, 0.5)),
        "dtype": choices(["float32", "int64"], [10, 1]),
    }
    SCALED = ("outer", "values", "inner")
    FLOPS_PER_MAC = 1
    OPERATORS = frozenset(_OPS.values())

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Restrict integers to the functions that networks apply to them."""
        on_integers = fields["function"] in _INTEGER_FUNCTIONS
        return {**fields, "dtype": fields["dtype"] if on_integers else "float32"}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, 1, inner)."""
        return (self.batch * self.outer, 1, self.inner)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results; indices are int64."""
        value_bytes = either(is_in(self.function, _ARG_FUNCTIONS), INDEX_BYTES, self.element_bytes)
        return math.prod(self.output_shape) * value_bytes

    @property
    def macs(self) -> int:
        """One operation for each value."""
        return self.value_count

    @property
    def value_count(self) -> int:
        """Values that are reduced."""
        return math.prod(self.input_shape)

    def own_quantities(self) -> dict[str, Any]:
        """Rows and functions of their own cost."""
        return super().own_quantities() | {
            "rows": self.batch * self.outer, "series": self.function == "log_sum_exp",
            "places": is_in(self.function, _ARG_FUNCTIONS),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a reduction; without axes, all are reduced."""
        dtype, shape = dtype_of(operator, DTYPES), operator.shape()
        function = _FUNCTION_OF[operator.op]
        given = operator.numbers("axes", 1)
        if function in _ARG_FUNCTIONS:
            given = (operator.axis(0),)
        if not shape or (not given and operator.attributes.get("noop_with_empty_axes")):
            raise LayerError(f"{operator.op} that reduces nothing has no layer")
        axes = sorted(axis % len(shape) for axis in given) if given else list(range(len(shape)))
        # Reducing an axis of length one is free.
        axes = [axis for axis in axes if shape[axis] > 1] or axes[-1:]
        # If the axes are not adjacent, those between them count as inner.
        inside = [shape[axis] for axis in range(axes[0], len(shape)) if axis not in axes]
        joined = (*shape[: axes[0]], math.prod(shape[axis] for axis in axes), *inside)
        return cls(**cls.fields_at(joined, axes[0]), function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis."""
        if self.inner > 1:
            shape, result = self.input_shape, self.output_shape
        else:
            shape, result = self.input_shape[:2], self.output_shape[:2]
        is_arg = self.function in _ARG_FUNCTIONS
        given: tuple[tuple[int, ...], ...] = ((1,),) if self.function == "sum" else ()
        axis = {} if given else {"axis": 1} if is_arg else {"axes": [1]}
        return Kernel(
            _OPS[self.function], "", {"keepdims": 1, **axis}, shape, result, constants=given,
            dtype=self.dtype, output_dtype="int64" if is_arg else "",
        )  # fmt: skip
