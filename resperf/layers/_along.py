"""Layers that work along one axis, with `outer` rows before it and a stride of `inner` values."""

from __future__ import annotations

from resperf.layers._base import Layer


class AlongAxis(Layer):
    """Base class of such kinds, which declare the fields themselves."""

    batch: int
    outer: int
    values: int
    inner: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, values, inner)."""
        return (self.batch * self.outer, self.values, self.inner)
