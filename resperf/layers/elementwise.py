"""Element-wise operators of one operand, or of two with broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import choices, log_uniform, name
from resperf.layers._broadcast import SECONDS, OperandLayer, joined_axes
from resperf.layers._operator import DTYPES, FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import either, is_in

COMPARISONS = ("equal", "less", "less_or_equal", "greater", "greater_or_equal")
LOGIC = ("and", "or", "xor")
BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "prelu", "mod", *COMPARISONS, *LOGIC)
UNARY = (
    "square", "cube", "sqrt", "exp", "log", "erf", "abs", "neg", "reciprocal", "floor", "ceil",
    "round", "sign", "cos", "sin", "not", "is_nan",
)  # fmt: skip
BOOLEAN_FUNCTIONS = (*COMPARISONS, *LOGIC, "not", "is_nan")
"""Functions whose results are booleans."""

_OPS: Mapping[str, str] = {
    **{function: function.capitalize() for function in (*BINARY, *UNARY)}, "prelu": "PRelu",
    "square": "Pow", "cube": "Pow", "less_or_equal": "LessOrEqual",
    "greater_or_equal": "GreaterOrEqual", "is_nan": "IsNaN",
}  # fmt: skip
_EXPONENTS: Mapping[str, int] = {"square": 2, "cube": 3}
"""ONNX Runtime multiplies for these exponents; others call a power function."""
_FUNCTIONS: Mapping[str, str] = {
    **{op: function for function, op in _OPS.items() if function not in _EXPONENTS},
    "Sum": "add",
}
_WEIGHTS: Mapping[str, float] = {
    **dict.fromkeys((*BINARY, *UNARY), 0.4), "add": 8, "sub": 3, "mul": 8, "div": 3, "pow": 1,
    "min": 1, "max": 1, "prelu": 1, "square": 2, "cube": 0.5, "sqrt": 2, "exp": 1, "log": 1,
    "erf": 1, "abs": 1,
}  # fmt: skip
"""How often campaigns draw each function."""
_COSTLY = ("sqrt", "div", "reciprocal")
_INTEGER_FUNCTIONS = ("add", "sub", "mul", "div", "mod", *COMPARISONS)
"""Functions that are also drawn on integers."""
_SERIES = ("exp", "log", "erf", "pow", "cos", "sin", "round", "floor", "ceil", "sign")


class Elementwise(OperandLayer):
    """A function of one tensor, or of a tensor and a second one that may be broadcast.

    The first operand and the result have shape (batch x outer, middle, inner). `second` names the
    axes of the second operand (`resperf.layers._broadcast`).
    """

    kind: ClassVar[str] = "elementwise"
    UNARY = UNARY

    function: str = name("function that is computed", (*BINARY, *UNARY), default="add")
    second: str = name("which axes the second operand has", SECONDS, default="same")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "costly", "series", "truth")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 1024),
        "middle": log_uniform(1, 1024, 8, 16),
        "inner": log_uniform(1, 4096),
        "function": choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values())),
        "second": choices(SECONDS[1:], (6, 3, 4, 3, 3, 1, 0.5)),
        "dtype": choices(["float32", "int64"], [5, 1]),
    }
    SCALED = ("outer", "middle", "inner")
    OPERATORS = frozenset(_FUNCTIONS)

    def _check(self) -> None:
        if self.function == "prelu" and self.second == "both":
            raise LayerError("elementwise: the slopes of prelu cannot be larger than its input")
        if self.function in (*LOGIC, "not") and self.dtype != "bool":
            raise LayerError(f"elementwise: {self.function} takes bool, not {self.dtype}")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Merge redundant axes, and drop the second operand of unary functions."""
        draw = dict(fields)
        if draw["function"] in UNARY:
            draw["second"] = "none"
        if draw["function"] in (*LOGIC, "not"):
            draw["dtype"] = "bool"
        elif draw["function"] not in _INTEGER_FUNCTIONS:
            draw["dtype"] = "float32"
        return joined_axes(draw["second"], draw)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results; one per boolean."""
        value_bytes = either(is_in(self.function, BOOLEAN_FUNCTIONS), 1, self.element_bytes)
        return self.value_count * value_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Sorts of functions; ``ends`` are values beyond full vectors of inner loops."""
        quantities = super().own_quantities()
        return quantities | {
            "truth": is_in(self.function, BOOLEAN_FUNCTIONS),
            "whole": is_in(self.dtype, ("int64", "int32")),
            "costly": is_in(self.function, _COSTLY), "series": is_in(self.function, _SERIES),
            "pow": is_in(self.function, ("pow",)), "ends": quantities["loops"] * (self.inner % 8),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a function of one or two tensors; axes beyond three are merged into the rows."""
        dtype = dtype_of(operator, DTYPES)
        function = _function_of(operator)
        if {"axis", "broadcast"} & set(operator.attributes):
            raise LayerError(
                f"the broadcasting of {operator.op} before operator set 7 has no layer"
            )
        given = sum(operand is not None for operand in operator.inputs)
        if function in BINARY and given != 2:
            raise LayerError(f"{operator.op} of {given} tensors has no layer")
        fields = cls._fields_of(operator, 1 if function in BINARY else None)
        return cls(**fields, function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator on (batch x outer, middle, inner) and the second operand."""
        exponent = _EXPONENTS.get(self.function)
        return Kernel(
            op=_OPS[self.function],
            domain="",
            attributes={"fmod": 1} if self.function == "mod" and self.dtype in FLOATS else {},
            input_shape=self.input_shape,
            output_shape=self.output_shape,
            extra_shapes=() if self.second == "none" else (self.second_shape,),
            constants=() if exponent is None else ((exponent,),),
            # Powers, roots and logarithms of negative numbers take another code path.
            positive=self.function in ("pow", "sqrt", "log"),
            dtype=self.dtype,
            output_dtype="bool" if self.function in BOOLEAN_FUNCTIONS else "",
            # Chained products would end in denormal numbers, which are slow.
            in_place=self.second != "both" and self.function in ("add", "sub", "abs", "neg"),
        )


def _function_of(operator: Operator) -> str:
    """Name the function; a power with a constant exponent of 2 or 3 is a product."""
    function = _FUNCTIONS[operator.op]
    if function != "pow" or len(operator.inputs) < 2:
        return function
    exponent = operator.operand(1).value
    if exponent is None or exponent.size != 1:
        return function
    return next((power for power, e in _EXPONENTS.items() if e == exponent.item()), function)
