"""Concatenation along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import MOVED_DTYPES, Layer, choices, log_uniform, name, number
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of, joined


class Concat(Layer):
    """Tensors concatenated along an axis; each output row holds one piece of each tensor.

    Layers are measured with pieces as equal in length as possible.
    """

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    parts: int = number("tensors that are concatenated; a single one is copied")
    inner: int = number("values of an output row, all parts together")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "parts")
    LOG2 = ("rows", "inner", "pieces", "piece_bytes", "moved_bytes")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 4096),
        "parts": choices([1, 2, 3, 4, 5, 8], [0.5, 8, 3, 4, 1, 1]),
        "inner": log_uniform(8, 400_000, 1, 16),
        "dtype": MOVED_DTYPES,
    }
    SCALED = ("outer", "inner")
    OPERATORS = frozenset({"Concat"})

    def _check(self) -> None:
        if self.inner < self.parts:
            raise LayerError(f"{self.kind}: inner={self.inner} is less than one value per part")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, inner): all parts together."""
        return (self.batch * self.outer, self.inner)

    def own_quantities(self) -> dict[str, Any]:
        """Rows, and number and size of the pieces that are copied."""
        rows = self.batch * self.outer
        return {
            "rows": rows, "pieces": rows * self.parts,
            "piece_bytes": self.inner / self.parts * self.element_bytes,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``Concat``; empty parts do not count."""
        dtype, axis, result = dtype_of(operator, DTYPES), operator.axis(0), operator.result()
        return cls(**joined(operator.inputs, axis, result), dtype=dtype)

    @property
    def part_shapes(self) -> list[tuple[int, int]]:
        """Shapes of the parts, as equal as possible."""
        rows, (length, more) = self.batch * self.outer, divmod(self.inner, self.parts)
        return [(rows, length + (part < more)) for part in range(self.parts)]

    def as_onnx_node(self) -> Kernel:
        """Return a ``Concat`` of equal parts."""
        shapes = self.part_shapes
        return self._node(
            "Concat", {"axis": 1}, input_shape=shapes[0], extra_shapes=tuple(shapes[1:]),
            dtype=self.dtype,
        )  # fmt: skip
