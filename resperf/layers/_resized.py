"""Resizing of images and volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from resperf.layers._base import Layer
from resperf.layers._operator import FLOATS, Operator, dtype_of
from resperf.layers.columns import is_in, smaller

RESIZE_DTYPES = (*FLOATS, "uint8", "int8")
"""Element types that can be resized."""


class ResizedLayer(Layer):
    """Planes of other lengths along `AXES`; each kind declares its own fields."""

    AXES: ClassVar[tuple[str, ...]]
    MORE_TAPS: ClassVar[Mapping[str, int]]
    """Mode -> input pixels per output pixel, less one."""
    LOG2 = ("planes", "pixels_in", "pixels_out", "width_out", "in_bytes", "out_bytes")
    ENCODED = ("mode",)
    SCALED = ("channels",)

    batch: int
    channels: int
    mode: str

    def _lengths(self, end: str = "") -> tuple[int, ...]:
        return tuple(getattr(self, f"{axis}{end}") for axis in self.AXES)

    @classmethod
    def _between(
        cls, operator: Operator, shape: Sequence[int], result: Sequence[int], **others: str
    ) -> Self:
        """Return the layer that resizes between these shapes: (batch, channels, the axes)."""
        sizes = dict(zip(("batch", "channels", *cls.AXES), shape, strict=True))
        sizes |= {f"{axis}_out": size for axis, size in zip(cls.AXES, result[2:], strict=True)}
        dtype = dtype_of(operator, RESIZE_DTYPES)
        return cls.from_fields({**sizes, "dtype": dtype, **others})

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

    @property
    def flops(self) -> int:
        """Operations of the interpolation: one per input pixel that an output pixel reads."""
        more = (n * is_in(self.mode, (mode,)) for mode, n in self.MORE_TAPS.items())
        return self.value_count * (1 + sum(more))

    def own_quantities(self) -> dict[str, Any]:
        """Planes and pixels."""
        return {
            "planes": self.batch * self.channels, "pixels_in": math.prod(self._lengths()),
            "pixels_out": math.prod(self._lengths("_out")),
        }  # fmt: skip
