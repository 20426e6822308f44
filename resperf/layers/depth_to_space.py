"""Depth to space and space to depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import either

FUNCTIONS = ("depth_to_space", "depth_to_space_crd", "space_to_depth")


class DepthToSpace(Layer):
    """Rearranges channels into blocks of pixels, or blocks of pixels into channels.

    Converts between (batch, channels x side x side, height, width) and (batch, channels, height x
    side, width x side). With ``crd``, channels come before the block in the deep image's channels.
    """

    batch: int = number("images in one run")
    channels: int = number("channels of the larger image")
    height: int = pixels("rows of the smaller image")
    width: int = pixels("columns of the smaller image")
    side: int = pixels("rows and columns of a block", default=2)
    function: str = name("operation", FUNCTIONS, default="depth_to_space")
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = ("threaded", "side", "to_depth")
    LOG2 = ("planes", "width", "pixels", "out_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels": log_uniform(1, 256, 1, 8),
        "size": {**log_uniform(4, 128), "same_share": 0.9},
        "side": choices([2, 3, 4], [6, 1, 2]),
        "function": choices(FUNCTIONS, [2, 3, 2]),
    }
    SCALED = ("channels",)
    OPERATORS = frozenset({"DepthToSpace", "SpaceToDepth"})

    def _image(self, *, deep: bool) -> tuple[int, ...]:
        """Shape of the deep image (many channels) or of the large one (many pixels)."""
        channels, side = either(deep, self.side**2, 1), either(deep, 1, self.side)
        return (self.batch, self.channels * channels, self.height * side, self.width * side)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels, height, width) of the input."""
        return self._image(deep=self.function != "space_to_depth")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels, height, width) of the output."""
        return self._image(deep=self.function == "space_to_depth")

    def own_quantities(self) -> dict[str, Any]:
        """Planes of the larger image."""
        return {
            "planes": self.batch * self.channels, "pixels": self.height * self.width,
            "to_depth": self.function == "space_to_depth",
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``DepthToSpace`` or ``SpaceToDepth``."""
        side = int(operator.attributes["blocksize"])
        to_depth = operator.op == "SpaceToDepth"
        small, large = operator.shape(), operator.result()
        if to_depth:
            small, large = large, small
        if len(small) != 4 or len(large) != 4:
            raise LayerError(f"{operator.op} of shape {operator.shape()} has no layer")
        by_channel = str(operator.attributes.get("mode", "DCR")) == "CRD"
        deep = "depth_to_space_crd" if by_channel else "depth_to_space"
        return cls(
            batch=small[0], channels=large[1], height=small[2], width=small[3], side=side,
            function="space_to_depth" if to_depth else deep, dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator."""
        attributes: dict[str, Any] = {"blocksize": self.side}
        op = "SpaceToDepth" if self.function == "space_to_depth" else "DepthToSpace"
        if op == "DepthToSpace":
            attributes["mode"] = "CRD" if self.function == "depth_to_space_crd" else "DCR"
        return self._node(op, attributes)
