"""Selection by a condition (``Where``), such as masked attention scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import choices, log_uniform, name, number
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of
from resperf.layers.elementwise import SECONDS, BroadcastLayer, broadcast_axes, joined_axes

CONDITIONS = tuple(second for second in SECONDS if second not in ("none", "both"))


class Select(BroadcastLayer):
    """A ``Where`` with a result of shape (batch x outer, middle, inner).

    `second` names the axes of the condition. `tensors` of the two values are as large as the
    result; the others are scalars. A value that is broadcast counts as a scalar.
    """

    second: str = name("which axes the condition has", CONDITIONS, default="same")
    tensors: int = number(
        "how many of the two values are as large as the result", minimum=0, default=1
    )
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "tensors", "repeated")
    LOG2 = ("values", "rows", "inner", "moved_bytes")
    ENCODED = ("second",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 64),
        "middle": log_uniform(1, 64),
        "inner": log_uniform(1, 40_000),
        "second": choices(CONDITIONS, [4, 0.5, 4, 1, 1, 1]),
        "tensors": choices([0, 1, 2], [1, 6, 3]),
        "dtype": choices(["float32", "int64"], [8, 1]),
    }
    SCALED = ("outer", "middle", "inner")
    FLOPS_PER_VALUE = 1
    OPERATORS = frozenset({"Where"})

    def _check(self) -> None:
        if self.tensors > 2:
            raise LayerError(f"select: tensors={self.tensors} must be at most 2")
        if self.second != "same" and not self.tensors:
            raise LayerError("select: tensors=0 needs second=same")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Merge redundant axes."""
        draw = joined_axes(str(fields["second"]), fields)
        return draw | {"tensors": draw["tensors"] or int(draw["second"] != "same")}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the condition."""
        return self.second_shape

    @property
    def input_bytes(self) -> int:
        """Bytes of the condition (one per boolean) and of both values."""
        values = self.tensors * self.value_count + 2 - self.tensors
        return self._second_values + values * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """``loops`` counts inner loops along the last axis."""
        rows = self.batch * self.outer * self.middle
        repeated = 1 * (self._second_values < self.value_count)
        return {
            "values": self.value_count, "rows": rows, "condition_bytes": self._second_values,
            "repeated": repeated, "loops": repeated * rows,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``Where``."""
        dtype, result = dtype_of(operator, DTYPES, 1), operator.result()
        size = math.prod(result)
        values = [math.prod(operator.shape(position)) for position in (1, 2)]
        fields = broadcast_axes(result, result, operator.shape(0))
        tensors = sum(count == size for count in values) if size > 1 else 0
        if not tensors and fields["second"] != "same":
            # The larger value and the condition are broadcast against each other.
            tensors = 1
        return cls(**fields, tensors=tensors, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return a ``Where`` with a mixed condition."""
        values = tuple(self.output_shape if index < self.tensors else () for index in range(2))
        return self._node(
            "Where", extra_shapes=values, dtype="bool",
            dtypes=("bool", self.dtype, self.dtype), output_dtype=self.dtype,
        )  # fmt: skip
