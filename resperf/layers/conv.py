"""Convolution over an image, with what a framework absorbs into it: bias, residual, activation."""

from __future__ import annotations

from typing import ClassVar

from resperf.errors import LayerError
from resperf.layers._base import ACTIVATIONS, flag, name, number
from resperf.layers._window import WindowLayer


class ConvLayer(WindowLayer):
    """Fields and shapes that a convolution and its training step share."""

    channels_out: int = number("channels of the output")
    groups: int = number("groups that do not see each other's channels", default=1)
    bias: bool = flag("a value is added per output channel", default=True)
    residual: bool = flag("a second tensor of the output's shape is added", default=False)
    activation: str = name("applied to the output", ACTIVATIONS, default="none")

    def _check(self) -> None:
        for side in ("channels_in", "channels_out"):
            if getattr(self, side) % self.groups:
                raise LayerError(
                    f"conv: {side}={getattr(self, side)} is not a multiple of groups={self.groups}"
                )
        super()._check()

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_out, rows, columns)."""
        return (self.batch, self.channels_out, *self._positions())

    @property
    def macs(self) -> int:
        """Multiply-accumulates: one per output value and weight of its filter."""
        taps = self.kernel_height * self.kernel_width * (self.channels_in // self.groups)
        batch, channels, rows, columns = self.output_shape
        return batch * channels * rows * columns * taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of the filters and the bias."""
        taps = self.kernel_height * self.kernel_width * (self.channels_in // self.groups)
        return self.channels_out * (taps + self.bias) * self.element_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of the image, and of the residual where there is one."""
        return super().input_bytes + self.residual * self.output_bytes


class Conv(ConvLayer):
    """A 2-D convolution (ResPerfNet Table 3, scenario C; groups, dilation and pads added)."""

    kind: ClassVar[str] = "conv"
