"""Matrix products: with a constant matrix, and of two computed ones, single or batched."""

from __future__ import annotations

from typing import Any, ClassVar

from resperf.layers._base import Layer, number


class WeightedProduct(Layer):
    """Fields, shapes and work of products with a constant matrix."""

    batch: int = number("rows of the input")
    features_in: int = number("columns of the input (the paper's dimension input)")
    features_out: int = number("columns of the output (the paper's dimension output)")

    SCALED = ("features_in", "features_out")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, features_in)."""
        return (self.batch, self.features_in)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, features_out)."""
        return (self.batch, self.features_out)

    @property
    def macs(self) -> int:
        """Multiply-accumulates: batch x features_in x features_out."""
        return self.batch * self.features_in * self.features_out


class ProductLayer(Layer):
    """Fields, work and quantities of products of two computed matrices."""

    batch: int = number("first dimension")
    outer: int = number("products per batch entry, such as heads", default=1)
    rows: int = number("rows of the first matrix")
    depth: int = number("length of the summed axis: columns of the first matrix")
    columns: int = number("columns of the second matrix")

    LOG2: ClassVar[tuple[str, ...]] = (
        "products", "rows", "depth", "columns", "flops", "in_bytes", "out_bytes",
    )  # fmt: skip
    SCALED = ("outer", "rows", "depth", "columns")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, rows, depth)."""
        return (self.batch * self.outer, self.rows, self.depth)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, rows, columns)."""
        return (self.batch * self.outer, self.rows, self.columns)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """(batch x outer, depth, columns)."""
        return (self.batch * self.outer, self.depth, self.columns)

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        products = self.batch * self.outer
        return products * self.depth * (self.rows + self.columns) * self.element_bytes

    @property
    def value_count(self) -> int:
        """Values of all results."""
        return self.batch * self.outer * self.rows * self.columns

    @property
    def output_bytes(self) -> int:
        """Bytes of all results."""
        return self.value_count * self.element_bytes

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self.value_count * self.depth

    def own_quantities(self) -> dict[str, Any]:
        """Products, bytes of each operand, and what does not fill vectors."""
        products = self.batch * self.outer
        depth_bytes = products * self.depth * self.element_bytes
        return {
            "products": products, "first_bytes": self.rows * depth_bytes,
            "second_bytes": self.columns * depth_bytes, "row_count": products * self.rows,
            "depth_rest": self.depth % 4, "column_rest": self.columns % 16,
        }  # fmt: skip
