"""An activation that no layer absorbed: one function of every value by itself."""

from __future__ import annotations

from typing import ClassVar

from resperf.layers._base import ACTIVATIONS, PlainLayer, name, number


class Activation(PlainLayer):
    """A function of every value by itself. How the values are shaped does not change its time."""

    kind: ClassVar[str] = "activation"

    batch: int = number("images or rows in one run")
    values: int = number("values of one image or row")
    activation: str = name("function", tuple(each for each in ACTIVATIONS if each != "none"))
    dtype: str = name("type of one value", ("float32", "float16", "bfloat16"), default="float32")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, values)."""
        return (self.batch, self.values)
