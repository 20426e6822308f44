"""Softmax and log-softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AlongAxis, choices, log_uniform, name
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import is_in

ACROSS = "softmax_across"
_OPS: Mapping[str, str] = {"softmax": "Softmax", "log_softmax": "LogSoftmax", ACROSS: "Softmax"}
_FUNCTION_OF: Mapping[str, str] = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


class Softmax(AlongAxis):
    """A softmax along an axis; strided rows are transposed before and after.

    ``softmax_across`` has several axes behind its own, for which ONNX Runtime has no fast kernel.
    """

    function: str = name("function that is computed", tuple(_OPS), default="softmax")
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = ("threaded", "vector_rest", "apart", "log", "across")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 4096),
        "values": log_uniform(2, 4096),
        "inner": choices([1, 16, 49, 152, 196, 1024, 8400, 65536], [12, 1, 1, 1, 1, 1, 1, 0.5]),
        "function": choices(["softmax", "log_softmax", ACROSS], [6, 1, 1]),
    }
    FLOPS_PER_VALUE = 3
    OPERATORS = frozenset(_FUNCTION_OF)

    def _check(self) -> None:
        if self.function == ACROSS and self.inner == 1:
            raise LayerError("softmax: softmax_across needs inner above 1")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Give a ``softmax_across`` an `inner` above 1."""
        across = fields["function"] == ACROSS and fields["inner"] == 1
        between = source.choice((16, 64, 152, 1024, 16384))
        return {**fields, **({"inner": between} if across else {})}

    def own_quantities(self) -> dict[str, Any]:
        """Rows and function."""
        return super().own_quantities() | {
            "log": is_in(self.function, ("log_softmax",)), "across": is_in(self.function, (ACROSS,))
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a softmax; before operator set 13 it spans its axis and all later ones."""
        fields, across = softmax_fields(operator, operator.opset)
        function = _FUNCTION_OF[operator.op]
        if function == "softmax" and across:
            function = ACROSS
        return cls(**fields, function=function, dtype=dtype_of(operator))

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis."""
        shape = softmax_shape(self.input_shape, across=self.function == ACROSS)
        return Kernel(_OPS[self.function], "", {"axis": 1}, shape, shape, in_place=True)


def softmax_fields(operator: Operator, opset: int) -> tuple[dict[str, int], bool]:
    """Return the fields of an `AlongAxis`, and whether several axes follow its axis.

    Before operator set 13 a softmax spans its axis and all later ones.
    """
    shape, joins = operator.shape(), opset < 13
    axis = operator.axis(1 if joins else -1)
    if joins:
        shape = (*shape[:axis], math.prod(shape[axis:]))
    fields = AlongAxis.fields_at(shape, axis)
    return fields, fields["inner"] > 1 and len(shape) - axis > 2


def softmax_shape(shape: tuple[int, ...], *, across: bool) -> tuple[int, ...]:
    """Return (rows, values) or (rows, values, inner) for a kernel along axis 1.

    With `across`, a second axis of length one follows.
    """
    rows, values, inner = shape
    if inner == 1:
        return (rows, values)
    return (rows, values, 1, inner) if across else (rows, values, inner)
