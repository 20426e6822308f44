"""Layers that work along one axis, with `outer` rows before it and a stride of `inner` values."""

from __future__ import annotations

from typing import Any

from resperf.layers._base import Layer, number


class AlongAxis(Layer):
    """Fields, shape and rows that such kinds share."""

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    values: int = number("values along the axis")
    inner: int = number("product of the axes after this one", default=1)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, values, inner)."""
        return (self.batch * self.outer, self.values, self.inner)

    def own_quantities(self) -> dict[str, Any]:
        """Rows; ``apart`` is 1 where the values of a row are strided."""
        return {"rows": self.batch * self.outer * self.inner, "apart": self.inner > 1}
