"""Gather and scatter at computed indices (GatherElements, GatherND, ScatterElements, ScatterND)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of, split_rows
from resperf.layers.columns import either, is_in

_OPS: Mapping[str, str] = {
    "gather_elements": "GatherElements", "gather_nd": "GatherND",
    "scatter_elements": "ScatterElements", "scatter_nd": "ScatterND",
}  # fmt: skip
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}
_SCATTERS = ("scatter_elements", "scatter_nd")
_BY_ELEMENTS = ("gather_elements", "scatter_elements")
_INDEX_BYTES = 8
"""Of an int64, the type of indices in ONNX."""
MIN_TABLE_ROWS = 9
"""A table needs so many rows to be measured: random indices are 1 to 8."""


class Indexed(Layer):
    """Rows of a table that are read, or written into a copy of it, at computed indices.

    ``elements`` takes an index per value, ``nd`` one per row of `inner` values.
    """

    batch: int = number("first dimension")
    places: int = number("rows that are read or written, per batch entry")
    length: int = number("rows of the table, per batch entry")
    inner: int = number("values of a row", default=1)
    function: str = name("operation", tuple(_OPS), default="gather_nd")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "scatters")
    LOG2 = ("rows", "inner", "table_bytes", "out_bytes", "in_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "places": log_uniform(1, 65536),
        "length": log_uniform(MIN_TABLE_ROWS, 8192),
        "inner": log_uniform(1, 1024),
        "function": choices(list(_OPS), [2, 2, 1, 2]),
        "dtype": choices(["float32", "int64"], [6, 1]),
    }
    SCALED = ("places", "length", "inner")
    OPERATORS = frozenset(_OPS.values())

    @property
    def _scatters(self) -> bool:
        return is_in(self.function, _SCATTERS)

    @property
    def _by_elements(self) -> bool:
        return is_in(self.function, _BY_ELEMENTS)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x length, inner): the table."""
        return (self.batch * self.length, self.inner)

    @property
    def indices_shape(self) -> tuple[int, ...]:
        """(batch x places, inner) or (batch x places, 1): the indices."""
        return (self.batch * self.places, either(self._by_elements, self.inner, 1))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the gathered rows, or of the table."""
        return (self.batch * either(self._scatters, self.length, self.places), self.inner)

    @property
    def input_bytes(self) -> int:
        """Bytes of the indices and the values at them, and of the table if it is copied."""
        values = self.batch * self.places * self.inner
        values += self._scatters * math.prod(self.input_shape)
        return values * self.element_bytes + math.prod(self.indices_shape) * _INDEX_BYTES

    @property
    def value_count(self) -> int:
        """Values that are read or written."""
        return self.batch * self.places * self.inner

    def own_quantities(self) -> dict[str, Any]:
        """Rows, and bytes of the table."""
        return {
            "rows": self.batch * self.places, "scatters": self._scatters,
            "table_bytes": math.prod(self.input_shape) * self.element_bytes,
            "elements": self._by_elements,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a gather or scatter; axes before the indexed one count as rows."""
        function, table = _FUNCTION_OF[operator.op], operator.shape()
        indices = operator.operand(1).shape
        if not table or not indices:
            raise LayerError(f"{operator.op} of a single value has no layer")
        if function.endswith("elements"):
            separate = operator.axis(0)
            inner = math.prod(indices[separate + 1 :])
            rows = math.prod(indices) // max(inner, 1)
            length = math.prod(table) // max(math.prod(table[separate + 1 :]), 1)
        else:
            separate = int(operator.attributes.get("batch_dims", 0))
            indexed = separate + indices[-1]
            inner, rows = math.prod(table[indexed:]), math.prod(indices[:-1])
            length = math.prod(table[:indexed])
        # Only if each batch entry has its own part of the table and of the indices.
        batch, places = split_rows(rows, table[0] if separate and table[0] == indices[0] else 1)
        return cls(
            batch=batch, places=places, length=length // batch, inner=inner, function=function,
            dtype=dtype_of(operator, DTYPES),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator on a 2-D table."""
        if self.batch * self.length < MIN_TABLE_ROWS:
            raise LayerError(
                f"indexed: a table of fewer than {MIN_TABLE_ROWS} rows is not measured"
            )
        attributes = {"axis": 0} if self._by_elements else {}
        updates = ((self.batch * self.places, self.inner),) if self._scatters else ()
        return self._node(
            _OPS[self.function], attributes, extra_shapes=(self.indices_shape, *updates),
            index_bound=self.batch * self.length, dtype=self.dtype,
            dtypes=(self.dtype, "int64", *(self.dtype for _ in updates)),
        )  # fmt: skip
