"""Batched products of two computed matrices, such as those of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, flag, log_uniform, name, number
from resperf.layers._operator import (
    CONTRIB,
    FLOATS,
    Kernel,
    Operator,
    dtype_of,
    product_shapes,
    split_rows,
)
from resperf.layers.columns import padded


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


class MatMul(ProductLayer):
    """Matrix products (rows, depth) x (depth, columns), batch x outer of them."""

    transposed_first: bool = flag("whether the first matrix is stored transposed", default=False)
    transposed: bool = flag("whether the second matrix is stored transposed", default=False)
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = (
        "threaded", "transposed_first", "transposed", "depth_rest", "column_rest", "row_rest",
        "vector",
    )  # fmt: skip
    LOG2 = ("products", "rows", "depth", "columns", "flops", "flops_tile", "in_bytes", "out_bytes")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 64),
        "rows": log_uniform(1, 8192),
        "depth": log_uniform(8, 1024, 1, 8, 16),
        "columns": log_uniform(8, 4096, 1, 8, 16),
        "transposed_first": choices([False, True], [8, 1]),
        "transposed": choices([False, True], [3, 1]),
    }

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, rows, depth), or its transpose."""
        matrix = (self.depth, self.rows) if self.transposed_first else (self.rows, self.depth)
        return (self.batch * self.outer, *matrix)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """(batch x outer, depth, columns), or its transpose."""
        matrix = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        return (self.batch * self.outer, *matrix)

    def own_quantities(self) -> dict[str, Any]:
        """``flops_tile`` counts full tiles of 6 x 16, as CPU kernels compute."""
        quantities = super().own_quantities()
        tiles = padded(self.rows, 6) * self.depth * padded(self.columns, 16)
        return quantities | {
            "plain": 1 - self.transposed, "flops_tile": 2 * quantities["products"] * tiles,
            "row_rest": self.rows % 6, "vector": self.rows == 1,
            # Small products run on one core.
            "threaded": self.flops >= 1e5,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a product of two computed tensors; with one second matrix, products become rows."""
        import numpy as np

        dtype, first, second = dtype_of(operator), operator.shape(0), operator.shape(1)
        attributes = operator.attributes
        if not first or not second:
            raise LayerError(f"a product of shapes {first} and {second} has no layer")
        first, second = product_shapes(first, second, attributes)
        outer_shape = np.broadcast_shapes(first[:-2], second[:-2])
        (rows, depth), width = first[-2:], second[-1]
        products = math.prod(outer_shape)
        if math.prod(second[:-2]) == 1 and not attributes.get("transA"):
            rows, products = rows * products, 1
        batch, outer = split_rows(products, (*operator.result(), 1)[0])
        return cls(
            batch=batch, outer=outer, rows=rows, depth=depth, columns=width,
            transposed_first=bool(attributes.get("transA")),
            transposed=bool(attributes.get("transB")), dtype=dtype,
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return a ``MatMul``, or a ``FusedMatMul`` for transposed matrices."""
        second = (self.second_shape,)
        if not (self.transposed_first or self.transposed):
            return self._node("MatMul", extra_shapes=second)
        transposes = {"transA": int(self.transposed_first), "transB": int(self.transposed)}
        return self._node("FusedMatMul", transposes, domain=CONTRIB, extra_shapes=second)
