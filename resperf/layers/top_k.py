"""Top-k."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AlongAxis, choices, log_uniform, name, number
from resperf.layers._operator import Kernel, Operator, dtype_of

_DTYPES = ("float32", "float64", "int64", "int32")


class TopK(AlongAxis):
    """The `kept` largest or smallest of `values`, sorted, with their indices."""

    kept: int = number("number of returned values (k)")
    dtype: str = name("type of one value", _DTYPES, default="float32")

    PLAIN = ("threaded", "single", "all_kept", "apart")
    LOG2 = ("rows", "values", "kept", "compared", "out_bytes")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 512),
        "values": log_uniform(4, 32768),
        "inner": choices([1, 64], [12, 1]),
        "kept": log_uniform(1, 1024),
        "dtype": choices(["float32", "int64"], [8, 1]),
    }
    SCALED = ("outer",)
    FLOPS_PER_VALUE = 1
    OPERATORS = frozenset({"TopK"})

    def _check(self) -> None:
        if self.kept > self.values:
            raise LayerError(f"top_k: kept={self.kept} is more than values={self.values}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Limit `kept` to the number of values."""
        return {**fields, "kept": min(fields["kept"], fields["values"])}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, kept, inner), of the values and of the indices."""
        return (self.batch * self.outer, self.kept, self.inner)

    @property
    def value_count(self) -> int:
        """Values that are compared."""
        return math.prod(self.input_shape)

    def own_quantities(self) -> dict[str, Any]:
        """Comparisons of a heap."""
        import numpy as np

        return super().own_quantities() | {
            "compared": self.value_count * np.log2(self.kept + 1), "single": self.kept == 1,
            "all_kept": self.kept == self.values,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``TopK``; the count must be constant."""
        (kept,) = operator.numbers("k", 1) or (0,)
        if kept < 1:
            raise LayerError(f"TopK with k={kept} has no layer")
        fields = cls.fields_at(operator.shape(), operator.axis(-1))
        return cls(**fields, kept=kept, dtype=dtype_of(operator, _DTYPES))

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis."""
        return self._node(
            "TopK", {"axis": 1}, constants=((self.kept,),), more_outputs=1, dtype=self.dtype
        )
