"""Fields that convolution and pooling share: an image, and a window that slides over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import LAYOUTS, Layer, name, number, same_pads, window_length


class WindowLayer(Layer):
    """A layer whose window slides over an image of `height` x `width` pixels."""

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "size": ("height", "width"),
        "kernel": ("kernel_height", "kernel_width"),
        "stride": ("stride_height", "stride_width"),
        "dilation": ("dilation_height", "dilation_width"),
        "pad": ("pad_top", "pad_left", "pad_bottom", "pad_right"),
    }

    batch: int = number("images in one run")
    channels_in: int = number("channels of the input")
    height: int = number("rows of the input", unit="pixel")
    width: int = number("columns of the input", unit="pixel")
    kernel_height: int = number("rows of the window", unit="pixel")
    kernel_width: int = number("columns of the window", unit="pixel")
    stride_height: int = number("rows between windows", unit="pixel", default=1)
    stride_width: int = number("columns between windows", unit="pixel", default=1)
    dilation_height: int = number("rows between taps of a window", unit="pixel", default=1)
    dilation_width: int = number("columns between taps of a window", unit="pixel", default=1)
    pad_top: int = number("rows added above", unit="pixel", minimum=0, default=0)
    pad_left: int = number("columns added on the left", unit="pixel", minimum=0, default=0)
    pad_bottom: int = number("rows added below", unit="pixel", minimum=0, default=0)
    pad_right: int = number("columns added on the right", unit="pixel", minimum=0, default=0)
    layout: str = name("how the image lies in memory", LAYOUTS, default="nchw")
    dtype: str = name("type of one value", ("float32", "float16", "bfloat16"), default="float32")

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Turn ``padding=same|valid`` into explicit pads."""
        padding = str(fields.pop("padding", "valid")).lower()
        if padding not in ("same", "valid"):
            raise LayerError(f"{cls.kind}: padding={padding!r} must be same or valid")
        if padding == "same":
            fields |= cls.same_padding(fields)
        return fields

    @classmethod
    def same_padding(cls, fields: Mapping[str, Any]) -> dict[str, int]:
        """Return the four pads that SAME padding means for these fields."""
        pads = {}
        for axis, before, after in (("height", "top", "bottom"), ("width", "left", "right")):
            try:
                size, kernel = int(fields[axis]), int(fields[f"kernel_{axis}"])
            except KeyError as error:
                raise LayerError(f"{cls.kind} needs a value for {error.args[0]}") from error
            pads[f"pad_{before}"], pads[f"pad_{after}"] = same_pads(
                size,
                kernel,
                int(fields.get(f"stride_{axis}", 1)),
                int(fields.get(f"dilation_{axis}", 1)),
            )
        return pads

    @property
    def is_same_padded(self) -> bool:
        """Whether the pads are those of SAME padding."""
        same = self.same_padding(self.fields())
        return all(getattr(self, pad) == value for pad, value in same.items())

    @property
    def is_padded(self) -> bool:
        """Whether any pad is not zero."""
        return any((self.pad_top, self.pad_left, self.pad_bottom, self.pad_right))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, height, width)."""
        return (self.batch, self.channels_in, self.height, self.width)

    def _positions(self, ceil: bool = False) -> tuple[int, int]:
        """Rows and columns of the output."""
        rows = window_length(
            self.height, self.kernel_height, self.stride_height, self.dilation_height,
            self.pad_top + self.pad_bottom, ceil,
        )  # fmt: skip
        columns = window_length(
            self.width, self.kernel_width, self.stride_width, self.dilation_width,
            self.pad_left + self.pad_right, ceil,
        )  # fmt: skip
        if ceil:
            # ONNX drops a last window that would start in the padding behind the input.
            rows -= (rows - 1) * self.stride_height >= self.height + self.pad_top
            columns -= (columns - 1) * self.stride_width >= self.width + self.pad_left
        return rows, columns
