"""Images sampled at computed positions, as in optical flow and deformable attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of

MODES = ("linear", "nearest", "cubic")
_WORDS: Mapping[str, str] = {"linear": "bilinear", "cubic": "bicubic"}


class GridSample(Layer):
    """Every channel of an image, sampled at the same computed positions."""

    batch: int = number("images in one run")
    channels: int = number("channels")
    height: int = pixels("rows of the image")
    width: int = pixels("columns of the image")
    height_out: int = pixels("rows of the sampling grid")
    width_out: int = pixels("columns of the sampling grid")
    mode: str = name("interpolation mode", MODES, default="linear")
    dtype: str = name("type of one value", FLOATS, default="float32")

    INPUT = ("batch", "channels", "height", "width")
    OUTPUT = ("batch", "channels", "height_out", "width_out")
    PLAIN = ("threaded",)
    LOG2 = ("planes", "places", "pixels", "out_bytes")
    ENCODED = ("mode",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels": log_uniform(1, 256, 1, 8),
        "size": {**log_uniform(4, 128), "same_share": 0.8},
        "size_out": {**log_uniform(4, 128), "same_share": 0.8},
        "mode": choices(MODES, [8, 2, 1]),
    }
    SCALED = ("channels",)
    FLOPS_PER_VALUE = 8
    OPERATORS = frozenset({"GridSample"})

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """(batch, height_out, width_out, 2)."""
        return (self.batch, self.height_out, self.width_out, 2)

    @property
    def input_bytes(self) -> int:
        """Bytes of the image and the sampling grid."""
        values = math.prod(self.input_shape) + math.prod(self.grid_shape)
        return values * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Planes and positions."""
        return {
            "planes": self.batch * self.channels, "places": self.height_out * self.width_out,
            "pixels": self.height * self.width,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a 2-D ``GridSample``."""
        image, result = operator.shape(), operator.result()
        if len(image) != 4:
            raise LayerError(f"GridSample of shape {image} has no layer")
        mode = str(operator.attributes.get("mode", "bilinear"))
        mode = {word: name for name, word in _WORDS.items()}.get(mode, mode)
        if mode not in MODES:
            raise LayerError(f"GridSample by {mode!r} has no layer")
        batch, channels, height, width = image
        return cls(
            batch=batch, channels=channels, height=height, width=width, height_out=result[2],
            width_out=result[3], mode=mode, dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator as of operator set 16."""
        return self._node(
            "GridSample", {"mode": _WORDS.get(self.mode, self.mode)},
            extra_shapes=(self.grid_shape,),
        )  # fmt: skip
