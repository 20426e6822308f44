"""Conversion between element types, such as in half-precision networks."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import FlatLayer, choices, log_uniform, name
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of, rows_and_rest
from resperf.layers.columns import bytes_each, is_in
from resperf.layers.move import Move

ELEMENT_TYPES: Mapping[str, int] = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "bfloat16": 16,
}  # fmt: skip
"""Numbers of ONNX's ``TensorProto.DataType``."""
DTYPE_OF: Mapping[int, str] = {number: dtype for dtype, number in ELEMENT_TYPES.items()}
_DRAWN = ("float32", "float16", "int64", "bool", "uint8")


class Cast(FlatLayer):
    """A conversion of every value to another type. The shape does not change its time."""

    dtype: str = name("type of one input value", DTYPES, default="float32")
    dtype_out: str = name("type of one output value", DTYPES, default="float16")

    PLAIN = ("threaded", "vector_rest", *(f"dtype_out={dtype}" for dtype in _DRAWN))
    LOG2 = ("values", "in_bytes", "out_bytes")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "values": log_uniform(16, 3_000_000),
        "dtype": choices(_DRAWN, [8, 6, 3, 1, 2]),
        "dtype_out": choices(_DRAWN, [8, 6, 3, 1, 1]),
    }
    OPERATORS = frozenset({"Cast"})

    def _check(self) -> None:
        if self.dtype == self.dtype_out:
            raise LayerError(f"cast: dtype and dtype_out are both {self.dtype}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Replace draws with two equal types by the most common conversions."""
        if fields["dtype"] != fields["dtype_out"]:
            return dict(fields)
        return {**fields, "dtype_out": "float16" if fields["dtype"] == "float32" else "float32"}

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.batch * self.values * bytes_each(self.dtype_out)

    def own_quantities(self) -> dict[str, Any]:
        """Values and types."""
        types = {f"dtype_out={dtype}": is_in(self.dtype_out, (dtype,)) for dtype in _DRAWN}
        return {"values": self.value_count, **types}

    @classmethod
    def read(cls, operator: Operator) -> Self | Move:
        """Read a ``Cast``; a cast to the input's own type is a copy."""
        wanted = int(operator.attributes["to"])
        if wanted not in DTYPE_OF:
            raise LayerError(f"a cast to ONNX's type {wanted} has no layer")
        if operator.operand(0).dtype == DTYPE_OF[wanted]:
            return Move.copied(operator)
        batch, values = rows_and_rest(operator.shape())
        return cls(
            batch=batch, values=values, dtype=dtype_of(operator, DTYPES), dtype_out=DTYPE_OF[wanted]
        )

    def as_onnx_node(self) -> Kernel:
        """Return a ``Cast``."""
        return self._node(
            "Cast", {"to": ELEMENT_TYPES[self.dtype_out]}, dtype=self.dtype,
            output_dtype=self.dtype_out,
        )  # fmt: skip
