"""Layers that work along one axis, with `outer` rows before it and a stride of `inner` values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from resperf.layers._base import Layer, number
from resperf.layers._operator import split_at_axis


class AlongAxis(Layer):
    """Fields, shape and rows that such kinds share."""

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    values: int = number("values along the axis")
    inner: int = number("product of the axes after this one", default=1)

    LOG2: ClassVar[tuple[str, ...]] = ("rows", "values", "inner", "moved_bytes")
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "values")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, values, inner)."""
        return (self.batch * self.outer, self.values, self.inner)

    @staticmethod
    def fields_at(shape: Sequence[int], axis: int) -> dict[str, int]:
        """Return these fields of a tensor, split at an axis."""
        return dict(
            zip(("batch", "outer", "values", "inner"), split_at_axis(shape, axis), strict=True)
        )

    def own_quantities(self) -> dict[str, Any]:
        """Rows; ``apart`` is 1 where the values of a row are strided."""
        return {"rows": self.batch * self.outer * self.inner, "apart": self.inner > 1}
