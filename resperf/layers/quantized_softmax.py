"""Softmax of whole numbers of eight bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from resperf.layers._along import AlongAxis
from resperf.layers._base import name, number
from resperf.layers._operator import (
    BATCHES,
    CONTRIB,
    Kernel,
    Operator,
    around,
    choices,
    dtype_of,
    log_uniform,
    traffic,
)
from resperf.layers.columns import Array, Columns, numbers
from resperf.layers.quantize import EIGHT_BITS
from resperf.layers.terms import TRAFFIC_TERMS, Term, flag, mb, millions


@dataclass(frozen=True, kw_only=True)
class QuantizedSoftmax(AlongAxis):
    """A softmax whose exponentials come from a table of 256.

    Where the axis is not the last, ONNX Runtime transposes before and after.
    """

    kind: ClassVar[str] = "quantized_softmax"

    batch: int = number("first dimension")
    outer: int = number("rows for each of the batch", default=1)
    values: int = number("values that add up to one")
    inner: int = number("values that lie between two of the axis", default=1)
    dtype: str = name("type of one value", EIGHT_BITS, default="uint8")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "apart")
    LOG2: ClassVar[tuple[str, ...]] = ("rows", "values", "inner", "moved_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ()
    TERMS: ClassVar[Mapping[str, Term]] = {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "in apart": mb("in_bytes", "apart"),
        "constant apart": flag("apart"),
    }
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 4096),
        "values": log_uniform(2, 4096),
        "inner": choices([1, 16, 49, 196, 1024], [12, 1, 1, 1, 1]),
        "dtype": choices(EIGHT_BITS, [3, 1]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "values")
    OPERATORS: ClassVar[frozenset[str]] = frozenset({"QLinearSoftmax"})

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes and rows; ``apart`` is 1 where values of a row do not lie together."""
        batch, outer, values, inner = numbers(columns, "batch", "outer", "values", "inner")
        rows = batch * outer * inner
        total = rows * values
        return {
            **traffic(total, total, 3 * total, total),
            "rows": rows, "values": values, "inner": inner, "apart": (inner > 1).astype(float),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantised softmax; its attribute ``opset`` says what its axis means."""
        dtype, shape = dtype_of(operator, EIGHT_BITS), operator.shape()
        joins = int(operator.attributes.get("opset", 13)) < 13
        axis = operator.axis(1 if joins else -1)
        if joins:
            shape = (*shape[:axis], math.prod(shape[axis:]))
        batch, outer, values, inner = around(shape, axis)
        return cls(batch=batch, outer=outer, values=values, inner=inner, dtype=dtype)

    def kernel(self) -> Kernel:
        """Return the operator along the middle axis, with its scales and zero points."""
        shape = self.input_shape if self.inner > 1 else self.input_shape[:2]
        pair = ("float32", self.dtype)
        return Kernel(
            "QLinearSoftmax", CONTRIB, {"axis": 1, "opset": 13}, shape, shape,
            weight_shapes=((), (), (), ()), dtype=self.dtype, dtypes=(self.dtype, *pair, *pair),
        )  # fmt: skip
