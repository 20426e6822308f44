"""Resizing: what that of images and of volumes shares, and the kind of volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import AXES, Layer, choices, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of
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
    def between(
        cls, operator: Operator, shape: Sequence[int], result: Sequence[int], **others: str
    ) -> Self:
        """Return the layer that resizes between these shapes: (batch, channels, the axes)."""
        if others["mode"] not in cls.specs["mode"].choices:
            raise LayerError(f"a resize ({others['mode']}) from {shape} to {result} has no layer")
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


MODES = ("nearest", "linear")


class ResizeNd(ResizedLayer):
    """A volume resized to another depth, height and width.

    `resperf.layers.resize` reads it, since both share operators. ONNX Runtime resizes 1-D signals
    linearly as one volume, with (batch, channels, values) as its three axes.
    """

    AXES = AXES
    MORE_TAPS: ClassVar[Mapping[str, int]] = {"linear": 7}

    batch: int = number("samples in one run")
    channels: int = number("channels of the volume")
    depth: int = pixels("slices of the input")
    height: int = pixels("rows of the input")
    width: int = pixels("columns of the input")
    depth_out: int = pixels("slices of the output")
    height_out: int = pixels("rows of the output")
    width_out: int = pixels("columns of the output")
    mode: str = name("interpolation mode", MODES, default="linear")
    dtype: str = name("type of one value", RESIZE_DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": choices([1, 2, 4, 8], [5, 3, 1, 1]),
        "channels": log_uniform(1, 320, 1, 8, 16),
        "size": {**log_uniform(2, 96), "same_share": 0.8},
        "size_out": {**log_uniform(4, 128, 4), "same_share": 0.8},
        "mode": choices(MODES, [1, 3]),
        "dtype": choices(["float32", "uint8"], [12, 1]),
    }

    def _check(self) -> None:
        if self.input_shape == self.output_shape:
            raise LayerError(f"resize_nd: input and output have the same size: {self.key}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Make most of the draws double the size of their input, and some of them signals."""
        draw, sort = dict(fields), source.random()
        unchanged = all(draw[axis] == draw[f"{axis}_out"] for axis in AXES)
        if unchanged or sort < 0.7:
            draw |= {f"{axis}_out": 2 * draw[axis] for axis in AXES}
        if sort < 0.2:
            lines = {"depth": draw["batch"], "height": draw["channels"], "width": 8 * draw["width"]}
            draw |= {"batch": 1, "channels": 1, "mode": "linear", **lines}
            draw |= {f"{axis}_out": length for axis, length in lines.items()}
            draw["width_out"] *= 2
        return draw

    def as_onnx_node(self) -> Kernel:
        """Return a ``Resize`` with sizes."""
        return self._node(
            "Resize", {"mode": self.mode}, constants=(None, None, self.output_shape),
            dtype=self.dtype,
        )  # fmt: skip
