"""Element-wise int8 operators."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.layers._base import choices, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator, dtype_of
from resperf.layers.columns import is_in
from resperf.layers.elementwise import SECONDS, OperandLayer, joined_axes
from resperf.layers.quantize import constants, scale

_BINARY: Mapping[str, str] = {"add": "QLinearAdd", "mul": "QLinearMul"}
_UNARY: Mapping[str, str] = {"sigmoid": "QLinearSigmoid", "leaky_relu": "QLinearLeakyRelu"}
_OPS: Mapping[str, str] = {**_BINARY, **_UNARY}
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}
_SECOND_POSITION = 3
"""Position of the second operand: behind the first, its scale and its zero point."""


class QuantizedElementwise(OperandLayer):
    """A function of one quantised tensor, or of two with broadcasting.

    The first operand and the result have shape (batch x outer, middle, inner), as in `Elementwise`.
    """

    UNARY = tuple(_UNARY)

    function: str = name("function that is computed", tuple(_OPS), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", INT8_TYPES, default="uint8")

    PLAIN = ("threaded", "vector_rest")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 256, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(tuple(_OPS), [8, 3, 2, 1]),
        "second": choices(SECONDS[1:], [10, 2, 3, 3, 2, 1, 1]),
        "dtype": choices(INT8_TYPES, [3, 1]),
    }
    SCALED = ("outer", "inner")
    OPERATORS = frozenset(_FUNCTION_OF)

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Merge redundant axes, and drop the second operand of unary functions."""
        second = "none" if fields["function"] in _UNARY else fields["second"]
        return joined_axes(second, {**fields, "second": second})

    def own_quantities(self) -> dict[str, Any]:
        """Whether values are looked up in a table: unary functions do."""
        return super().own_quantities() | {"table": is_in(self.function, tuple(_UNARY))}

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantised element-wise operator."""
        function, dtype = _FUNCTION_OF[operator.op], dtype_of(operator, INT8_TYPES)
        fields = cls._fields_of(operator, _SECOND_POSITION if function in _BINARY else None)
        return cls(**fields, function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator with one scale and zero point per tensor."""
        own = scale(self.dtype)
        second = () if self.function in _UNARY else ((self.second_shape, self.dtype), *own)
        return self._node(
            _OPS[self.function], domain=CONTRIB, **constants(self.dtype, *own, *second, *own)
        )
