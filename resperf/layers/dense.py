"""Fully connected layer: a matrix product with constant weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import ACTIVATIONS, Layer, choices, flag, log_uniform, name, number
from resperf.layers._operator import FLOATS, Kernel, Operator, product_shapes
from resperf.layers.activation import fused_activation
from resperf.layers.columns import padded

_FUSED = (
    "tanh", "sigmoid", "leaky_relu", "elu", "hard_sigmoid", "selu", "softplus", "softsign",
    "thresholded_relu",
)  # fmt: skip


class WeightedProduct(Layer):
    """Fields, shapes and work of products with a constant matrix."""

    batch: int = number("rows of the input")
    features_in: int = number("columns of the input (the paper's dimension input)")
    features_out: int = number("columns of the output (the paper's dimension output)")

    INPUT = ("batch", "features_in")
    OUTPUT = ("batch", "features_out")
    SCALED = ("features_in", "features_out")

    @property
    def macs(self) -> int:
        """Multiply-accumulates: batch x features_in x features_out."""
        return self.batch * self.features_in * self.features_out


class Dense(WeightedProduct):
    """A fully connected layer (ResPerfNet Table 3, scenario D)."""

    bias: bool = flag("whether a bias is added per output column", default=True)
    activation: str = name("fused activation", ACTIVATIONS, default="none")
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = (
        "bias", "vector", "narrow", "row_waste", "row_rest", "column_waste", "column_rest",
        "k_rest",
    )  # fmt: skip
    LOG2 = (
        "batch", "features_in", "features_out", "in_bytes", "out_bytes", "weight_bytes",
        "moved_bytes", "flops", "flops_tile", "intensity", "out_over_in", "units",
    )  # fmt: skip
    ENCODED = ("activation",)
    BACKWARD = ("flops_data", "flops_weights")
    FUNCTION = ""
    INDEPENDENT_FIELDS = True
    RANGES: ClassVar[Mapping[str, Any]] = {
        "features_in": log_uniform(8, 8192, 1, 8, 16),
        "features_out": log_uniform(1, 8192, 1, 8, 16),
        "bias": choices([True, False], [4, 1]),
        "activation": choices(["none", "relu", *_FUSED], [4, 3, *(0.5,) * len(_FUSED)]),
    }
    REDRAWN = ("bias", "activation")
    OPERATORS = frozenset({"Gemm", "MatMul", "FusedGemm", "FusedMatMul"})

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrix and the bias."""
        return self.features_out * (self.features_in + self.bias) * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Return intensity and what does not fill tiles.

        ``vector`` is 1 for a single row: the product is then bound by reading the weights, and
        frameworks use other kernels. ``flops_data`` and ``flops_weights`` are as of `Conv`.
        """
        batch, k, n = self.batch, self.features_in, self.features_out
        rows, columns = padded(batch, 12), padded(n, 16)
        return {
            "intensity": self.flops / self.moved_bytes,
            "out_over_in": self.output_bytes / self.input_bytes, "vector": batch == 1,
            "few_rows": batch < 6, "narrow": n < 16,
            # Matrix kernels use threads from some tens of thousands of multiplications on.
            "threaded": self.flops >= 2 * 65536,
            "flops_tile": 2 * rows * k * columns,
            "flops_tile_gpu": 2 * padded(batch, 32) * k * padded(n, 128),
            "flops_data": 2 * padded(batch, 32) * n * padded(k, 128),
            "flops_weights": 2 * padded(k, 128) * padded(n, 32) * batch,
            "row_waste": rows / batch, "row_rest": batch % 12, "column_waste": columns / n,
            "column_rest": n % 16, "k_rest": k % 16, "units": rows / 12 * (columns / 16),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read a product with a constant matrix; one of two computed matrices is read as `MatMul`.

        Leading dimensions of the input become rows.
        """
        weight, rows = operator.operand(1), operator.operand(0).shape
        if not weight.is_fixed or len(weight.shape) != 2:
            from resperf.layers.matmul import MatMul

            return MatMul.read(operator)
        if not rows:
            raise LayerError(f"a product of shapes {rows} and {weight.shape} has no layer")
        first, (features_in, features_out) = product_shapes(rows, weight.shape, operator.attributes)
        if first[-1] != features_in:
            raise LayerError(f"shapes {rows} and {weight.shape} cannot be multiplied")
        return cls(
            batch=math.prod(rows) // max(features_in, 1), features_in=features_in,
            features_out=features_out, bias=operator.has_input(2),
            activation=fused_activation(operator), dtype=operator.operand(0).dtype,
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return a ``Gemm`` with its activation."""
        matrix, bias = (self.features_out, self.features_in), (self.features_out,)
        return self._node(
            "Gemm", {"transB": 1}, weight_shapes=(matrix, *((bias,) * self.bias)),
            activation=self.activation,
        )  # fmt: skip
