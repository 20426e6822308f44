"""Fully connected layer: a matrix product with fixed weights."""

from __future__ import annotations

from typing import ClassVar

from resperf.layers._base import ACTIVATIONS, Layer, flag, name, number


class DenseLayer(Layer):
    """Fields and shapes that a fully connected layer and its training step share."""

    batch: int = number("rows of the input")
    features_in: int = number("columns of the input (the paper's dimension input)")
    features_out: int = number("columns of the output (the paper's dimension output)")
    bias: bool = flag("a value is added per output column", default=True)
    activation: str = name("applied to the output", ACTIVATIONS, default="none")
    dtype: str = name("type of one value", ("float32", "float16", "bfloat16"), default="float32")

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

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrix and the bias."""
        return self.features_out * (self.features_in + self.bias) * self.element_bytes


class Dense(DenseLayer):
    """A fully connected layer (ResPerfNet Table 3, scenario D)."""

    kind: ClassVar[str] = "dense"
