"""Memory layouts of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resperf.layers.columns import Array, is_among

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

LAYOUTS = ("nchw", "nhwc", "nchwc4", "nchwc8", "nchwc16", "nchwc32")
"""``nchwc8`` stores channels in blocks of eight."""
BLOCKED_LAYOUTS = tuple(layout for layout in LAYOUTS if layout.startswith("nchwc"))


def block_of(layouts: npt.NDArray[Any]) -> Array:
    """Return the channels per block of each layout: 8 for ``nchwc8``, 16 for unblocked layouts."""
    import numpy as np

    blocks = np.full(len(layouts), 16.0)
    for layout in BLOCKED_LAYOUTS:
        blocks[layouts == layout] = float(layout.removeprefix("nchwc"))
    return blocks


def is_blocked(layouts: npt.NDArray[Any]) -> Array:
    """Return 1 for blocked layouts, 0 for others."""
    return is_among(layouts, BLOCKED_LAYOUTS).astype(float)


def evenness(counts: Array) -> Array:
    """Return how often 2 divides each count, at most five times.

    Fast kernels read several channels at once, which the number of channels must allow.
    """
    import numpy as np

    return np.asarray(np.log2(np.gcd(counts.astype(np.int64), 32)))
