"""Concatenation of int8 tensors whose scales may differ from the result's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.layers._base import choices, flag, name
from resperf.layers._operator import (
    CONTRIB,
    INT8_TYPES,
    Kernel,
    Operand,
    Operator,
    dtype_of,
    joined,
)
from resperf.layers.concat import Concat

_RESULT_SCALE, _RESULT_ZERO, _FIRST_PART = range(3)
_INPUTS_OF_PART = 3
"""Each part has three inputs: tensor, scale, zero point."""


class QuantizedConcat(Concat):
    """Quantised tensors concatenated along an axis.

    Parts with the result's scale and zero point are copied; values of other parts are looked up in
    a table. Measured layers copy all parts or look all of them up; a layer of a network with any
    part to look up counts as the latter.
    """

    rescaled: bool = flag("whether the scales of parts differ from the result's", default=True)
    dtype: str = name("type of one value", INT8_TYPES, default="uint8")

    PLAIN = (*Concat.PLAIN, "rescaled")
    RANGES: ClassVar[Mapping[str, Any]] = {
        **Concat.RANGES,
        "rescaled": choices([True, False], [4, 1]),
        "dtype": choices(INT8_TYPES, [3, 1]),
    }
    OPERATORS = frozenset({"QLinearConcat"})

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``QLinearConcat``; scales that are not constants count as different."""
        dtype = dtype_of(operator, INT8_TYPES, _FIRST_PART)
        parts = operator.inputs[_FIRST_PART::_INPUTS_OF_PART]
        fields = joined(parts, operator.axis(0, _FIRST_PART), operator.result())
        wanted = operator.inputs[:_FIRST_PART]
        rescaled = any(
            not (_equal(operator.inputs[position + 1], wanted[_RESULT_SCALE])
                 and _equal(operator.inputs[position + 2], wanted[_RESULT_ZERO]))
            for position in range(_FIRST_PART, len(operator.inputs), _INPUTS_OF_PART)
        )  # fmt: skip
        return cls(**fields, rescaled=rescaled, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator; for `rescaled`, the result gets another zero point."""
        shapes = self.part_shapes
        count = len(shapes)
        # After the first part: scale and zero point of the result, then those of each part.
        scales = [(), (1,) if self.rescaled else ()] + [()] * (2 * count)
        positions = [(0 if part == 0 else 2 + 2 * count + part, 3 + 2 * part, 4 + 2 * part)
                  for part in range(count)]  # fmt: skip
        pair = ("float32", self.dtype)
        return Kernel(
            "QLinearConcat", CONTRIB, {"axis": 1}, shapes[0], self.output_shape,
            weight_shapes=tuple(scales), extra_shapes=tuple(shapes[1:]), dtype=self.dtype,
            order=(1, 2, *(position for part in positions for position in part)),
            dtypes=(self.dtype, *(pair * (1 + count)), *((self.dtype,) * (count - 1))),
        )  # fmt: skip


def _equal(one: Operand | None, other: Operand | None) -> bool:
    """Whether two constants are known to be equal."""
    if one is None or other is None:
        return one is other
    if one.value is None or other.value is None:
        return False
    return one.value.ravel().tolist() == other.value.ravel().tolist()
