"""Pooling over an image: the largest or the mean value of each window."""

from __future__ import annotations

from typing import ClassVar

from resperf.layers._base import flag, name
from resperf.layers._window import WindowLayer


class Pool(WindowLayer):
    """A 2-D pooling (ResPerfNet Table 3, scenario P; average and global pooling added)."""

    kind: ClassVar[str] = "pool"

    mode: str = name("what is kept of a window", ("max", "average"), default="max")
    whole_image: bool = flag("the operator is a global pooling", default=False)
    count_include_pad: bool = flag("the mean counts padded pixels", default=False)
    ceil_mode: bool = flag("a last, partly empty window counts", default=False)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, rows, columns)."""
        return (self.batch, self.channels_in, *self._positions(self.ceil_mode))

    @property
    def macs(self) -> int:
        """Comparisons or additions: one per output value and pixel of its window."""
        batch, channels, rows, columns = self.output_shape
        return batch * channels * rows * columns * self.kernel_height * self.kernel_width

    @property
    def weight_bytes(self) -> int:
        """Pooling has no weights."""
        return 0
