"""One of two values by a condition, such as masked attention scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, name, number
from resperf.layers._broadcast import (
    SECONDS,
    broadcast_axes,
    joined_axes,
    second_shape,
    second_values,
    superfluous_axes,
)
from resperf.layers._laws import BATCHES, choices, log_uniform
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of
from resperf.layers.columns import Array, Columns, numbers

CONDITIONS = tuple(each for each in SECONDS if each not in ("none", "both"))


class Select(Layer):
    """``Where``: the result is of shape (batch x outer, middle, inner), the condition of `second`.

    `tensors` of the two values are as large as the result, the others are scalars; one that is
    repeated along some axes counts as a scalar.
    """

    kind: ClassVar[str] = "select"

    batch: int = number("first dimension")
    outer: int = number("rows for each of the batch", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("values that lie together")
    second: str = name("which axes the condition has", CONDITIONS, default="same")
    tensors: int = number("values as large as the result, of the two", minimum=0, default=1)
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "tensors", "repeated")
    LOG2: ClassVar[tuple[str, ...]] = ("values", "rows", "inner", "moved_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ("second",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 64),
        "middle": log_uniform(1, 64),
        "inner": log_uniform(1, 40_000),
        "second": choices(CONDITIONS, [4, 0.5, 4, 1, 1, 1]),
        "tensors": choices([0, 1, 2], [1, 6, 3]),
        "dtype": choices(["float32", "int64"], [8, 1]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "middle", "inner")
    OPERATORS: ClassVar[frozenset[str]] = frozenset({"Where"})

    def _check(self) -> None:
        if self.tensors > 2:
            raise LayerError(f"select: there are two values to choose from, not {self.tensors}")
        if self.second != "same" and not self.tensors:
            raise LayerError("select: nothing is as large as the result")
        if superfluous_axes(self.second, self.fields()):
            raise LayerError(f"select: second={self.second} leaves axes that are one")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Join the axes of a draw that are one."""
        del source
        made = joined_axes(str(fields["second"]), fields)
        return made | {"tensors": made["tensors"] or int(made["second"] != "same")}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of the condition."""
        return second_shape(self.second, self.batch * self.outer, self.middle, self.inner)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, self.middle, self.inner)

    @property
    def value_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the two values."""
        return tuple(self.output_shape if each < self.tensors else () for each in range(2))

    @property
    def input_bytes(self) -> int:
        """Bytes of the condition, one each, and of both values."""
        values = self.tensors * math.prod(self.output_shape) + 2 - self.tensors
        return self._condition_values + values * self.element_bytes

    @property
    def _condition_values(self) -> int:
        return second_values(self.second, self.batch * self.outer, self.middle, self.inner)

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes, and how often a kernel starts along the last axis."""
        import numpy as np

        batch, outer, middle, inner, tensors = numbers(
            columns, "batch", "outer", "middle", "inner", "tensors"
        )
        many, rows = cls.over(columns), batch * outer
        values = rows * middle * inner
        condition = np.asarray(many._condition_values)
        repeated = (condition < values).astype(float)
        return {
            **many.traffic(values, values),
            "values": values, "rows": rows * middle, "inner": inner, "tensors": tensors,
            "condition_bytes": condition, "repeated": repeated, "loops": repeated * rows * middle,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``Where``."""
        dtype, result = dtype_of(operator, DTYPES, 1), operator.result()
        size = math.prod(result)
        values = [math.prod(operator.shape(each)) for each in (1, 2)]
        fields = broadcast_axes(result, result, operator.shape(0))
        tensors = sum(each == size for each in values) if size > 1 else 0
        if not tensors and fields["second"] != "same":
            # The larger value and the condition are repeated along each other.
            tensors = 1
        return cls(**fields, tensors=tensors, dtype=dtype)

    def kernel(self) -> Kernel:
        """Return a ``Where`` whose condition holds for some values and not for others."""
        return Kernel(
            "Where", "", {}, self.input_shape, self.output_shape, extra_shapes=self.value_shapes,
            dtype="bool", dtypes=("bool", self.dtype, self.dtype), output_dtype=self.dtype,
        )  # fmt: skip
