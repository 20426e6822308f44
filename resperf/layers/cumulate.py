"""Cumulative sums, such as those that number the tokens of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AlongAxis, choices, log_uniform, name
from resperf.layers._operator import Kernel, Operator, dtype_of

_DTYPES = ("float32", "float64", "int64", "int32")


class Cumulate(AlongAxis):
    """A cumulative sum along an axis."""

    dtype: str = name("type of one value", _DTYPES, default="float32")

    PLAIN = ("vector_rest", "apart")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 512),
        "values": log_uniform(2, 4096),
        "inner": choices([1, 16, 64], [8, 1, 1]),
        "dtype": choices(["float32", "int64", "int32"], [2, 3, 1]),
    }
    FLOPS_PER_VALUE = 1
    OPERATORS = frozenset({"CumSum"})

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``CumSum`` along a constant axis."""
        shape = operator.shape()
        (axis,) = operator.numbers("axis", 1) or (None,)
        if axis is None or not -len(shape) <= axis < len(shape):
            raise LayerError(f"axis={axis} does not exist in shape {shape}")
        return cls(**cls.fields_at(shape, axis % len(shape)), dtype=dtype_of(operator, _DTYPES))

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis."""
        return self._node("CumSum", constants=((1,),), dtype=self.dtype)
