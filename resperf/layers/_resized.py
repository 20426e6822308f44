"""Resizing of images and volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from resperf.layers._base import Layer
from resperf.layers._operator import FLOATS
from resperf.layers.columns import Array, Columns, is_one_of, numbers, smaller

RESIZE_DTYPES = (*FLOATS, "uint8", "int8")
"""Element types that can be resized."""


class ResizedLayer(Layer):
    """Planes of other lengths along `AXES`; each kind declares its own fields."""

    AXES: ClassVar[tuple[str, ...]]
    MORE_TAPS: ClassVar[Mapping[str, int]]
    """Mode -> input pixels per output pixel, less one."""
    LOG2: ClassVar[tuple[str, ...]] = (
        "planes", "pixels_in", "pixels_out", "width_out", "in_bytes", "out_bytes",
    )  # fmt: skip
    ENCODED: ClassVar[tuple[str, ...]] = ("mode",)
    SCALED: ClassVar[tuple[str, ...]] = ("channels",)

    batch: int
    channels: int

    def _lengths(self, end: str = "") -> tuple[int, ...]:
        return tuple(getattr(self, f"{axis}{end}") for axis in self.AXES)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels, the axes of the input)."""
        return (self.batch, self.channels, *self._lengths())

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels, the axes of the output)."""
        return (self.batch, self.channels, *self._lengths("_out"))

    @property
    def input_bytes(self) -> int:
        """Bytes that are read: of a shrinking image, no more than are written."""
        values = smaller(math.prod(self.input_shape), math.prod(self.output_shape))
        return values * self.element_bytes

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes, planes and interpolation modes."""
        import numpy as np

        many, modes = cls.over(columns), cls.specs()["mode"].choices
        (width_out,) = numbers(columns, "width_out")
        kinds = {f"mode={each}": is_one_of(columns, "mode", each) for each in modes}
        taps = 1 + sum(more * kinds[f"mode={mode}"] for mode, more in cls.MORE_TAPS.items())
        values = np.asarray(math.prod(many.output_shape))
        return {
            **many.traffic(taps * values, values),
            "planes": np.asarray(many.batch * many.channels),
            "pixels_in": np.asarray(math.prod(many._lengths())),
            "pixels_out": np.asarray(math.prod(many._lengths("_out"))), "width_out": width_out,
            **kinds,
        }  # fmt: skip
