"""Resizing of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number, pixels
from resperf.layers._operator import Kernel, Operator, dtype_of
from resperf.layers.columns import LAYOUTS, is_in
from resperf.layers.move import Move
from resperf.layers.resize_nd import RESIZE_DTYPES, ResizedLayer, ResizeNd

NEAREST, ROUNDED = "nearest", "nearest_rounded"
MODES = (NEAREST, "linear", "cubic", ROUNDED)
_BLOCKED = (NEAREST, "linear")
"""Modes that exist for blocked layouts."""


class Resize(ResizedLayer):
    """An image resized to another height and width.

    ``nearest`` rounds coordinates down, as most frameworks export it; ONNX Runtime has a fast
    kernel for it. ``nearest_rounded`` stands for every other rounding.
    """

    AXES = ("height", "width")
    MORE_TAPS: ClassVar[Mapping[str, int]] = {"linear": 3, "cubic": 15}

    batch: int = number("images in one run")
    channels: int = number("channels of the image")
    height: int = pixels("rows of the input")
    width: int = pixels("columns of the input")
    height_out: int = pixels("rows of the output")
    width_out: int = pixels("columns of the output")
    mode: str = name("interpolation mode", MODES, default="nearest")
    layout: str = name("memory layout of the image", LAYOUTS, default="nchw")
    dtype: str = name("type of one value", RESIZE_DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "whole", "doubled", "blocked")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels": log_uniform(1, 512, 1, 8, 16),
        "size": {**log_uniform(2, 256), "same_share": 0.9},
        "size_out": {**log_uniform(8, 256, 8), "same_share": 0.9},
        "mode": choices(MODES, [6, 5, 1, 1]),
        "layout": choices(["nchw", "nchwc16"], [4, 1]),
        "dtype": choices(["float32", "uint8"], [12, 1]),
    }
    OPERATORS = frozenset({"Resize", "Upsample"})

    def _check(self) -> None:
        if (self.height, self.width) == (self.height_out, self.width_out):
            raise LayerError(f"resize: input and output have the same size: {self.key}")
        broken = self.height_out % self.height or self.width_out % self.width
        if self.layout != "nchw" and (broken or self.mode not in _BLOCKED):
            raise LayerError(
                f"resize: {self.layout} needs integer factors and mode {' or '.join(_BLOCKED)}: "
                f"{self.key}"
            )

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Make half of the draws double the size of their input, as in most networks."""
        draw = dict(fields)
        if draw.get("layout", "nchw") != "nchw" or draw["mode"] == "cubic":
            draw["dtype"] = "float32"
        unchanged = all(draw[side] == draw[f"{side}_out"] for side in ("height", "width"))
        if unchanged or source.random() < 0.5:
            draw |= {"height_out": 2 * draw["height"], "width_out": 2 * draw["width"]}
        if draw.get("layout", "nchw") != "nchw":
            block = int(str(draw["layout"]).removeprefix("nchwc"))
            draw["channels"] = -(-draw["channels"] // block) * block
            draw["mode"] = draw["mode"] if draw["mode"] in _BLOCKED else NEAREST
            draw |= {f"{side}_out": 2 * draw[side] for side in ("height", "width")}
        return draw

    def own_quantities(self) -> dict[str, Any]:
        """``whole``: both sides grow by integer factors, ``doubled``: by two."""
        sides = tuple(zip(self._lengths(), self._lengths("_out"), strict=True))
        whole = math.prod(after % before == 0 for before, after in sides)
        return super().own_quantities() | {
            "whole": whole, "broken": 1 - whole,
            "doubled": math.prod(after == 2 * before for before, after in sides),
            "blocked": 1 - is_in(self.layout, ("nchw",)),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read a ``Resize`` or ``Upsample`` of the last axes; without a change it is a copy."""
        dtype_of(operator, RESIZE_DTYPES)
        shape, result = operator.shape(), operator.result()
        if shape == result:
            return Move.copied(operator)
        if operator.attributes.get("antialias"):
            raise LayerError("a resize with antialiasing has no layer")
        mode = str(operator.attributes.get("mode", NEAREST))
        if not 3 <= len(shape) == len(result) <= 5 or shape[:2] != result[:2]:
            raise LayerError(f"a resize from {shape} to {result} has no layer")
        if len(shape) == 3 and mode == "linear":
            shape, result = ((1, 1, *lengths) for lengths in (shape, result))
        if len(shape) == 5:
            return ResizeNd.between(operator, shape, result, mode=mode)
        if len(shape) == 3:
            shape, result = ((*lengths[:2], 1, lengths[2]) for lengths in (shape, result))
        if mode == NEAREST and operator.op == "Resize" and not _rounds_down(operator):
            mode = ROUNDED
        return cls.between(operator, shape, result, mode=mode, layout=operator.layout)

    def as_onnx_node(self) -> Kernel:
        """Return a ``Resize`` with sizes, or an ``Upsample`` of a blocked image."""
        if self.layout != "nchw":
            factors = (self.height_out // self.height, self.width_out // self.width)
            coordinates = "asymmetric" if self.mode == "nearest" else "half_pixel"
            attributes: dict[str, Any] = {
                "mode": self.mode,
                "scales": [1, 1, *factors],
                "coordinate_transformation_mode": coordinates,
            }
            shapes = (self.input_shape, self.output_shape)
            return Kernel("Upsample", "com.microsoft.nchwc", attributes, *shapes)
        attributes = {"mode": self.mode.removesuffix("_rounded")}
        if self.mode == NEAREST:
            attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self._node(
            "Resize", attributes, constants=(None, None, self.output_shape), dtype=self.dtype
        )


def _rounds_down(operator: Operator) -> bool:
    attributes = operator.attributes
    coordinates = str(attributes.get("coordinate_transformation_mode", "half_pixel"))
    nearest = str(attributes.get("nearest_mode", "round_prefer_floor"))
    return operator.opset < 11 or (coordinates, nearest) == ("asymmetric", "floor")
