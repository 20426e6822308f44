"""Top-k."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._along import AlongAxis
from resperf.layers._base import name, number
from resperf.layers._laws import BATCHES, choices, log_uniform
from resperf.layers._operator import Kernel, Operator, dtype_of, split_at_axis
from resperf.layers.columns import Array, Columns, numbers

_DTYPES = ("float32", "float64", "int64", "int32")


class TopK(AlongAxis):
    """The `kept` largest or smallest of `values`, sorted, with their indices."""

    kind: ClassVar[str] = "top_k"

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    values: int = number("values that are compared")
    inner: int = number("product of the axes after this one", default=1)
    kept: int = number("number of returned values (k)")
    dtype: str = name("type of one value", _DTYPES, default="float32")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "single", "all_kept", "apart")
    LOG2: ClassVar[tuple[str, ...]] = ("rows", "values", "kept", "compared", "out_bytes")
    ENCODED: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": BATCHES,
        "outer": log_uniform(1, 512),
        "values": log_uniform(4, 32768),
        "inner": choices([1, 64], [12, 1]),
        "kept": log_uniform(1, 1024),
        "dtype": choices(["float32", "int64"], [8, 1]),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("outer",)
    OPERATORS: ClassVar[frozenset[str]] = frozenset({"TopK"})

    def _check(self) -> None:
        if self.kept > self.values:
            raise LayerError(f"top_k: kept={self.kept} is more than values={self.values}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Limit `kept` to the number of values."""
        del source
        return {**fields, "kept": min(fields["kept"], fields["values"])}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, kept, inner), of the values and of the indices."""
        return (self.batch * self.outer, self.kept, self.inner)

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes without the indices, and comparisons of a heap."""
        import numpy as np

        batch, outer, values, inner, kept = numbers(
            columns, "batch", "outer", "values", "inner", "kept"
        )
        rows = batch * outer * inner
        total = rows * values
        return {
            **cls.over(columns).traffic(total, total),
            "rows": rows, "values": values, "kept": kept, "value_count": total,
            "compared": total * np.log2(kept + 1), "single": (kept == 1).astype(float),
            "all_kept": (kept == values).astype(float), "apart": (inner > 1).astype(float),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``TopK``; the count must be constant."""
        batch, outer, values, inner = split_at_axis(operator.shape(), operator.axis(-1))
        (kept,) = operator.numbers("k", 1) or (0,)
        if kept < 1:
            raise LayerError(f"TopK with k={kept} has no layer")
        return cls(
            batch=batch, outer=outer, values=values, inner=inner, kept=kept,
            dtype=dtype_of(operator, _DTYPES),
        )  # fmt: skip

    def kernel(self) -> Kernel:
        """Return the operator along the middle axis."""
        return Kernel(
            "TopK", "", {"axis": 1}, self.input_shape, self.output_shape, constants=((self.kept,),),
            more_outputs=1, dtype=self.dtype,
        )  # fmt: skip
