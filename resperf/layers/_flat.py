"""Layers whose time does not depend on the shape of their tensor."""

from __future__ import annotations

from resperf.layers._base import Layer, number


class FlatLayer(Layer):
    """Fields and shape that such kinds share: every value is computed by itself."""

    batch: int = number("images or rows in one run")
    values: int = number("values of one image or row")

    SCALED = ("values",)
    FLOPS_PER_VALUE = 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, values)."""
        return (self.batch, self.values)
