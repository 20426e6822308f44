"""Element-wise int8 operators."""

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
from resperf.layers._operator import CONTRIB, Kernel, Operator, dtype_of
from resperf.layers.columns import Array, Columns, is_one_of, numbers
from resperf.layers.quantize import INT8_TYPES

_BINARY: Mapping[str, str] = {"add": "QLinearAdd", "mul": "QLinearMul"}
_UNARY: Mapping[str, str] = {"sigmoid": "QLinearSigmoid", "leaky_relu": "QLinearLeakyRelu"}
_OPS: Mapping[str, str] = {**_BINARY, **_UNARY}
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}
_SECOND_PLACE = 3


class QuantizedElementwise(BroadcastLayer):
    """A function of one quantised tensor, or of two with broadcasting.

    The first operand and the result have shape (batch x outer, middle, inner), as in `Elementwise`.
    """

    kind: ClassVar[str] = "quantized_elementwise"

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("length of the last axis")
    function: str = name("function that is computed", tuple(_OPS), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", INT8_TYPES, default="uint8")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest")
    LOG2: ClassVar[tuple[str, ...]] = ("values", "rows", "inner", "moved_bytes", "second_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ("function", "second")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 256, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(tuple(_OPS), [8, 3, 2, 1]),
        "second": choices(SECONDS[1:], [10, 2, 3, 3, 2, 1, 1]),
        "dtype": choices(INT8_TYPES, [3, 1]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "inner")
    OPERATORS: ClassVar[frozenset[str]] = frozenset(_FUNCTION_OF)

    def _check(self) -> None:
        if (self.function in _UNARY) != (self.second == "none"):
            raise LayerError(
                f"quantized_elementwise: {self.function} does not take second={self.second}; "
                "add and mul have a second operand, other functions have none"
            )
        if has_redundant_axes(self.second, self.fields()):
            raise LayerError(
                f"quantized_elementwise: second={self.second} has redundant axes: merge them"
            )

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Merge redundant axes, and drop the second operand of unary functions."""
        del source
        second = "none" if fields["function"] in _UNARY else fields["second"]
        return joined_axes(second, {**fields, "second": second})

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Values, rows and bytes; unary functions look values up in a table."""
        import numpy as np

        batch, outer, middle, inner = numbers(columns, "batch", "outer", "middle", "inner")
        rows = batch * outer
        values = rows * middle * inner
        many, contiguous = cls.over(columns), is_one_of(columns, "second", *CONTIGUOUS)
        return {
            **many.traffic(values, values),
            "values": values, "rows": rows * middle, "inner": inner,
            "second_bytes": np.asarray(many._second_values),
            "table": is_one_of(columns, "function", *_UNARY),
            "loops": (1 - contiguous) * rows * middle,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantised element-wise operator."""
        function, result = _FUNCTION_OF[operator.op], operator.result()
        dtype = dtype_of(operator, INT8_TYPES)
        if function in _UNARY:
            batch = result[0] if result else 1
            fields = rows_of(batch, batch, inner=math.prod(result) // max(batch, 1), second="none")
            return cls(**fields, function=function, dtype=dtype)
        shapes = in_order(result, operator.shape(0), operator.shape(_SECOND_PLACE))
        return cls(**broadcast_axes(result, *shapes), function=function, dtype=dtype)

    def kernel(self) -> Kernel:
        """Return the operator with one scale and zero point per tensor."""
        scale = ("float32", self.dtype)
        if self.function in _UNARY:
            return Kernel(
                _OPS[self.function], CONTRIB, {}, self.input_shape, self.output_shape,
                weight_shapes=((), (), (), ()), dtype=self.dtype,
                dtypes=(self.dtype, *scale, *scale),
            )  # fmt: skip
        return Kernel(
            _OPS[self.function], CONTRIB, {}, self.input_shape, self.output_shape,
            weight_shapes=((), (), self.second_shape, (), (), (), ()), dtype=self.dtype,
            dtypes=(self.dtype, *scale, self.dtype, *scale, *scale),
        )  # fmt: skip
