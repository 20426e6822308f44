"""Products of two computed matrices, each for itself or many at once."""

from __future__ import annotations

from abc import abstractmethod

from resperf.layers._base import Layer


class ProductLayer(Layer):
    """What such kinds share; the fields are their own."""

    batch: int
    outer: int
    rows: int
    depth: int
    columns: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, rows, columns)."""
        return (self.batch * self.outer, self.rows, self.columns)

    @property
    @abstractmethod
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second operand."""

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        products = self.batch * self.outer
        return products * self.depth * (self.rows + self.columns) * self.element_bytes

    @property
    def _values(self) -> int:
        """Values of all results."""
        return self.batch * self.outer * self.rows * self.columns

    @property
    def output_bytes(self) -> int:
        """Bytes of all results."""
        return self._values * self.element_bytes

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self._values * self.depth
