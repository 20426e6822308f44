"""Int8 softmax."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AlongAxis, choices, flag, log_uniform, name
from resperf.layers._operator import CONTRIB, INT8_TYPES, Kernel, Operator, dtype_of
from resperf.layers.quantize import constants, scale
from resperf.layers.softmax import softmax_fields, softmax_shape


class QuantizedSoftmax(AlongAxis):
    """A softmax that looks exponentials up in a table of 256.

    If the axis is not the last, ONNX Runtime transposes before and after: quickly, unless several
    axes follow it (`across`).
    """

    across: bool = flag("whether several axes follow this one", default=False)
    dtype: str = name("type of one value", INT8_TYPES, default="uint8")

    PLAIN = ("threaded", "vector_rest", "apart", "across")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 4096),
        "values": log_uniform(2, 4096),
        "inner": choices([1, 16, 49, 196, 1024], [12, 1, 1, 1, 1]),
        "across": choices([False, True], [3, 1]),
        "dtype": choices(INT8_TYPES, [3, 1]),
    }
    FLOPS_PER_VALUE = 3
    OPERATORS = frozenset({"QLinearSoftmax"})

    def _check(self) -> None:
        if self.across and self.inner == 1:
            raise LayerError("quantized_softmax: across needs inner above 1")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Clear `across` where `inner` is 1."""
        return {**fields, "across": fields["across"] and fields["inner"] > 1}

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a quantised softmax; its attribute ``opset`` decides the meaning of its axis."""
        fields, across = softmax_fields(operator, int(operator.attributes.get("opset", 13)))
        return cls(**fields, across=across, dtype=dtype_of(operator, INT8_TYPES))

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis, with its scales and zero points."""
        shape = softmax_shape(self.input_shape, across=self.across)
        typed = constants(self.dtype, *scale(self.dtype), *scale(self.dtype))
        return Kernel("QLinearSoftmax", CONTRIB, {"axis": 1, "opset": 13}, shape, shape, **typed)
