"""Int8 products with a constant matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import BATCHES, choices, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator
from resperf.layers.columns import either, is_in
from resperf.layers.dense import WeightedProduct
from resperf.layers.quantize import Constant, constants, scale
from resperf.units import DTYPE_BYTES

_OPS: Mapping[str, str] = {
    "linear": "QLinearMatMul", "integer": "MatMulInteger", "dynamic": "DynamicQuantizeMatMul",
    "gemm": "QGemm", "to_float": "MatMulIntegerToFloat",
}  # fmt: skip
FUNCTIONS = tuple(_OPS)
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}
_MATRIX_PLACE: Mapping[str, int] = {"linear": 3, "gemm": 3}
"""Input position of the matrix; 1 for other functions."""
_GEMM_ZERO_POINT = 8
"""Input position of the zero point of the output; without it, the output is float32."""
_NARROW_OUT = ("linear", "gemm")
_WIDE = DTYPE_BYTES["int32"]


class QuantizedDense(WeightedProduct):
    """A matrix product with constant int8 weights.

    ``linear`` reads and writes quantised values, ``gemm`` too, with a bias. ``integer`` writes
    int32 sums, ``to_float`` floats, as does a ``QGemm`` whose output has no scale. ``dynamic``
    reads floats, which it quantises, and writes floats.
    """

    function: str = name("types of input and output, see the class", FUNCTIONS, default="integer")
    dtype: str = name("type of one quantised value", INT8_TYPES, default="uint8")

    PLAIN = ("threaded", "vector_rest", "depth_rest")
    LOG2 = ("batch", "features_in", "features_out", "flops", "weight_bytes", "moved_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": {**BATCHES, "values": [1, 8, 32, 128, 256, 1024], "weights": [3, 2, 2, 3, 2, 1]},
        "features_in": log_uniform(16, 4096, 1, 8, 64),
        "features_out": log_uniform(8, 4096, 8, 64),
        "function": choices(FUNCTIONS, [2, 3, 3, 2, 2]),
        "dtype": choices(INT8_TYPES, [2, 1]),
    }
    # QuantizedMatMul reads these two, which may be batched.
    OPERATORS = frozenset(_FUNCTION_OF) - {"QLinearMatMul", "MatMulInteger"}

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Make dynamic quantisation uint8, the only type that it supports."""
        return {**fields, **({"dtype": "uint8"} if fields["function"] == "dynamic" else {})}

    @property
    def input_bytes(self) -> int:
        """Bytes of the input rows."""
        return math.prod(self.input_shape) * either(self.function == "dynamic", _WIDE, 1)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output rows."""
        return math.prod(self.output_shape) * either(is_in(self.function, _NARROW_OUT), 1, _WIDE)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrix."""
        return self.features_in * self.features_out

    def own_quantities(self) -> dict[str, Any]:
        """Values that do not fill vectors."""
        return {"depth_rest": self.features_in % 4, "vector": self.batch == 1}

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a product with one matrix; leading axes of the input become rows."""
        function, shape = _FUNCTION_OF[operator.op], operator.shape()
        weight = operator.operand(_MATRIX_PLACE.get(function, 1)).shape
        if operator.attributes.get("transA"):
            raise LayerError("a quantised product of a transposed matrix has no layer")
        if operator.attributes.get("transB"):
            weight = weight[::-1]
        if len(weight) < 2 or math.prod(weight[:-2]) > 1 or not shape or shape[-1] != weight[-2]:
            raise LayerError(f"a quantised product of {shape} and {weight} has no layer")
        if function == "gemm" and not operator.has_input(_GEMM_ZERO_POINT):
            function = "to_float"
        dtype = "uint8" if function == "dynamic" else operator.operand(0).dtype
        return cls(
            batch=math.prod(shape[:-1]), features_in=weight[-2], features_out=weight[-1],
            function=function, dtype=dtype,
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator with one scale and zero point per tensor."""
        own, matrix = scale(self.dtype), ((self.features_in, self.features_out), "int8")
        zero_points = (own[1], ((), "int8"))
        given: Mapping[str, tuple[Constant, ...]] = {
            "linear": (*own, matrix, *scale("int8"), *own),
            "integer": (matrix, *zero_points),
            "dynamic": (matrix, *scale("int8")),
            "gemm": (*own, matrix, *scale("int8"), ((self.features_out,), "int32"), *own),
            "to_float": (matrix, own[0], own[0], *zero_points),
        }
        dtype = "float32" if self.function == "dynamic" else self.dtype
        return self._node(
            _OPS[self.function], domain="" if self.function in ("linear", "integer") else CONTRIB,
            **constants(dtype, *given[self.function]),
            output_dtype={"integer": "int32", "to_float": "float32"}.get(self.function, ""),
        )  # fmt: skip
