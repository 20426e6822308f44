"""Quantisation and dequantisation between float32 and integers of 8 or 16 bits, and biases."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import FlatLayer, choices, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator, dtype_of, rows_and_rest
from resperf.layers.cast import DTYPE_OF
from resperf.layers.columns import either
from resperf.units import DTYPE_BYTES

_QUANTIZED = (*INT8_TYPES, "uint16", "int16")
_DEQUANTIZED = (*_QUANTIZED, "int32")
Constant = tuple[tuple[int, ...], str]
"""Shape and type."""
_OPS: Mapping[str, str] = {
    "quantize": "QuantizeLinear", "dequantize": "DequantizeLinear",
    "dynamic": "DynamicQuantizeLinear",
}  # fmt: skip
_FUNCTION_OF: Mapping[str, str] = {op: function for function, op in _OPS.items()}


class Quantize(FlatLayer):
    """Quantisation, dequantisation, or ``dynamic`` quantisation, which computes the scale."""

    function: str = name("operation", tuple(_OPS), default="quantize")
    dtype: str = name("type of one quantised value; int32 of biases", _DEQUANTIZED, default="uint8")

    PLAIN = ("threaded", "vector_rest")
    LOG2 = ("values", "moved_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "values": log_uniform(16, 3_000_000),
        "function": choices(tuple(_OPS), [3, 3, 2]),
        "dtype": choices(_DEQUANTIZED, [6, 3, 0.5, 0.5, 1]),
    }
    OPERATORS = frozenset(_FUNCTION_OF)

    def _check(self) -> None:
        if self.dtype == "int32" and self.function != "dequantize":
            raise LayerError("quantize: dtype=int32 needs function=dequantize")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Make dynamic quantisation uint8, the only type that it supports; dequantise int32."""
        if fields["dtype"] == "int32":
            return {**fields, "function": "dequantize"}
        return {**fields, **({"dtype": "uint8"} if fields["function"] == "dynamic" else {})}

    @property
    def _bytes(self) -> tuple[int, int]:
        """Bytes of one input value, and of one output value."""
        wide, narrow = DTYPE_BYTES["float32"], self.element_bytes
        back = self.function == "dequantize"
        return either(back, narrow, wide), either(back, wide, narrow)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input."""
        return self.batch * self.values * self._bytes[0]

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.batch * self.values * self._bytes[1]

    def own_quantities(self) -> dict[str, Any]:
        """Values, and the function."""
        return {
            "values": self.value_count, "dynamic": self.function == "dynamic",
            "dequantize": self.function == "dequantize",
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantisation or dequantisation."""
        function = _FUNCTION_OF[operator.op]
        batch, values = rows_and_rest(operator.shape())
        given = len(operator.inputs) > 2 and operator.inputs[2] is not None
        if function == "dequantize":
            dtype = dtype_of(operator, _DEQUANTIZED)
        elif function == "quantize" and given:
            dtype = dtype_of(operator, _QUANTIZED, 2)
        else:
            # 0 means unspecified.
            named = int(operator.attributes.get("output_dtype", 0))
            dtype = DTYPE_OF.get(named, "") if named else "uint8"
            if dtype not in _QUANTIZED:
                raise LayerError(f"quantised values of ONNX's type {named} have no layer")
        if function != "dequantize":
            dtype_of(operator, ("float32",))
        return cls(batch=batch, values=values, function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator with one scale for the whole tensor."""
        op = _OPS[self.function]
        if self.function == "dynamic":
            return self._node(op, output_dtype="uint8", more_outputs=2)
        back = self.function == "dequantize"
        first, result = (self.dtype, "float32") if back else ("float32", self.dtype)
        # The zero point of int32 is always 0, and absent.
        given = scale(self.dtype)[: 1 if self.dtype == "int32" else 2]
        typed = constants(first, *given)
        # ONNX has no 16 bits before operator set 21.
        domain = CONTRIB if self.dtype in ("uint16", "int16") else ""
        return self._node(op, domain=domain, output_dtype=result, **typed)


def scale(dtype: str) -> tuple[Constant, Constant]:
    """Return scale and zero point of a tensor of this type, one of each for all its values."""
    return ((), "float32"), ((), dtype)


def constants(dtype: str, *given: Constant) -> dict[str, Any]:
    """Return the types of a `Kernel`, and its constants, which follow a first input of `dtype`."""
    shapes, types = zip(*given, strict=True)
    return {"weight_shapes": shapes, "dtype": dtype, "dtypes": (dtype, *types)}
