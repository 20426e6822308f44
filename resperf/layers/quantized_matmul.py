"""Batched int8 products of computed matrices, such as attention scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name
from resperf.layers._operator import INT8_TYPES, Kernel, Operator, dtype_of, split_rows
from resperf.layers.columns import either
from resperf.layers.matmul import ProductLayer
from resperf.layers.quantized_dense import QuantizedDense
from resperf.units import DTYPE_BYTES

FUNCTIONS = ("linear", "integer")
_FUNCTION_OF: Mapping[str, str] = {"QLinearMatMul": "linear", "MatMulInteger": "integer"}
_SECOND_POSITION: Mapping[str, int] = {"linear": 3, "integer": 1}
"""Function -> position of the second operand: ``linear`` has the first one's scale before it."""
_WIDE = DTYPE_BYTES["int32"]


class QuantizedMatMul(ProductLayer):
    """Products of two computed int8 tensors.

    ``linear`` writes quantised values, ``integer`` int32 sums.
    """

    function: str = name(
        "linear requantises the sums, integer returns them", FUNCTIONS, default="linear"
    )
    dtype: str = name("type of one quantised value", INT8_TYPES, default="uint8")

    PLAIN = ("threaded", "depth_rest", "column_rest")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(2, 64),
        "rows": log_uniform(1, 512),
        "depth": log_uniform(8, 512, 1, 8, 16),
        "columns": log_uniform(8, 512, 1, 8, 16),
        "function": choices(FUNCTIONS, [2, 1]),
        "dtype": choices(INT8_TYPES, [2, 1]),
    }
    OPERATORS = frozenset(_FUNCTION_OF)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results."""
        return self.value_count * either(self.function == "linear", 1, _WIDE)

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read a batched product; with a single second matrix it is a `QuantizedDense`."""
        function = _FUNCTION_OF[operator.op]
        first, second = operator.shape(), operator.shape(_SECOND_POSITION[function])
        if math.prod(second[:-2]) == 1:
            return QuantizedDense.read(operator)
        if len(first) < 2 or first[:-2] != second[:-2] or first[-1] != second[-2]:
            raise LayerError(f"a quantised product of {first} and {second} has no layer")
        batch, outer = split_rows(math.prod(first[:-2]), first[0])
        return cls(
            batch=batch, outer=outer, rows=first[-2], depth=first[-1], columns=second[-1],
            function=function, dtype=dtype_of(operator, INT8_TYPES),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator with one scale and zero point per tensor."""
        second = (self.second_shape,)
        if self.function == "integer":
            return self._node(
                "MatMulInteger", extra_shapes=second, dtype=self.dtype, output_dtype="int32"
            )
        scale = ("float32", self.dtype)
        return self._node(
            "QLinearMatMul", weight_shapes=((),) * 6, extra_shapes=second,
            order=(0, 1, 2, 7, 3, 4, 5, 6), dtype=self.dtype,
            dtypes=(self.dtype, *scale * 3, self.dtype),
        )  # fmt: skip
