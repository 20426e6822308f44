"""What works along one axis, with rows before it and values between two of its own."""

from __future__ import annotations

from resperf.layers._base import Layer


class AlongAxis(Layer):
    """What such kinds share; the fields are their own."""

    batch: int
    outer: int
    values: int
    inner: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, values, inner)."""
        return (self.batch * self.outer, self.values, self.inner)
