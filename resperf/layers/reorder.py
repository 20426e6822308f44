"""Change of data layout inside a network: the same values, placed differently in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from resperf.errors import LayerError
from resperf.layers._base import LAYOUTS, PlainLayer, name, number


class Reorder(PlainLayer):
    """A re-layout of an image, such as the ReorderInput and ReorderOutput of ONNX Runtime.

    It is the data reshaping T(., d) of ResPerfNet equations 4 to 6.
    """

    kind: ClassVar[str] = "reorder"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"size": ("height", "width")}

    batch: int = number("images in one run")
    channels_in: int = number("channels of the image")
    height: int = number("rows of the image", unit="pixel")
    width: int = number("columns of the image", unit="pixel")
    layout: str = name("layout that is read", LAYOUTS, default="nchw")
    layout_out: str = name("layout that is written", LAYOUTS, default="nchwc16")
    dtype: str = name("type of one value", ("float32", "float16", "bfloat16"), default="float32")

    def _check(self) -> None:
        if self.layout == self.layout_out:
            raise LayerError(f"reorder: layout and layout_out are both {self.layout}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, height, width)."""
        return (self.batch, self.channels_in, self.height, self.width)
