"""Change of memory layout inside a network."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number, pixels
from resperf.layers._operator import FLOATS
from resperf.layers.columns import LAYOUTS, block_of, is_blocked, padded


class Reorder(Layer):
    """A re-layout of an image, such as the ReorderInput and ReorderOutput of ONNX Runtime.

    It is the data reshaping T(., d) of ResPerfNet equations 4 to 6. ONNX has no operator for it;
    each framework's lowering adds its own.
    """

    batch: int = number("images in one run")
    channels_in: int = number("channels of the image")
    height: int = pixels("rows of the image")
    width: int = pixels("columns of the image")
    layout: str = name("layout of the input", LAYOUTS, default="nchw")
    layout_out: str = name("layout of the output", LAYOUTS, default="nchwc16")
    dtype: str = name("type of one value", FLOATS, default="float32")

    INPUT = ("batch", "channels_in", "height", "width")
    PLAIN = ("channel_waste", "aligned", "pixel_rest", "to_blocked", "from_blocked")
    LOG2 = (
        "batch", "channels_in", "height", "width", "pixels_in", "in_bytes", "padded_bytes",
        "moved_bytes", "planes",
    )  # fmt: skip
    ENCODED = ("layout", "layout_out")
    FUNCTION = ""
    INDEPENDENT_FIELDS = True
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels_in": log_uniform(4, 1024, 4, 16),
        "size": {**log_uniform(1, 224), "same_share": 0.9},
        "relayout": choices(["nchw>nchwc16", "nchwc16>nchw", "nchwc16>nhwc"], [3, 4, 1]),
    }
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "relayout": tuple(f"{one}>{other}" for one in LAYOUTS for other in LAYOUTS if one != other)
    }
    SCALED = ("channels_in",)
    FLOPS_PER_VALUE = 1

    def _check(self) -> None:
        if self.layout == self.layout_out:
            raise LayerError(f"reorder: layout and layout_out are both {self.layout}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Split ``relayout = "nchw>nchwc16"`` into `layout` and `layout_out`."""
        draw = dict(fields)
        if "relayout" in draw:
            draw["layout"], draw["layout_out"] = str(draw.pop("relayout")).split(">")
        return draw

    def own_quantities(self) -> dict[str, Any]:
        """Bytes with channels padded to blocks; ``moved_bytes`` count them on one side."""
        import numpy as np

        read, written = np.asarray(self.layout), np.asarray(self.layout_out)
        to_blocked, pixels = is_blocked(written), self.height * self.width
        block = np.where(to_blocked == 1, block_of(written), block_of(read))
        waste = padded(self.channels_in, block) / self.channels_in
        return {
            "pixels_in": pixels, "padded_bytes": self.input_bytes * waste, "channel_waste": waste,
            "moved_bytes": self.input_bytes * (1 + waste), "planes": self.batch * self.channels_in,
            "aligned": self.channels_in % 16 == 0, "pixel_rest": pixels % 4,
            "to_blocked": to_blocked, "from_blocked": is_blocked(read),
        }  # fmt: skip
