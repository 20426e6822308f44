"""Products of two computed matrices, single or batched."""

from __future__ import annotations

from abc import abstractmethod

from resperf.layers._base import Layer


class ProductLayer(Layer):
    """Base class of such kinds, which declare the fields themselves."""

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
