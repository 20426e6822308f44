"""Fields of many layers as columns, one array per field, and helpers for them.

`is_in`, `either`, `smaller` and `bytes_each` also take the fields of a single layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from resperf.units import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    import numpy.typing as npt


# Only for type checkers: campaigns use layers without loading numpy.
Array: TypeAlias = "npt.NDArray[np.float64]"
Columns: TypeAlias = "Mapping[str, npt.NDArray[Any]]"

Number = TypeVar("Number", int, float)

THREADED_VALUES = 16384
"""Frameworks use several threads from about this many values on."""
LAYOUTS = ("nchw", "nhwc", "nchwc4", "nchwc8", "nchwc16", "nchwc32")
"""``nchwc8`` stores channels in blocks of eight."""
BLOCKED_LAYOUTS = tuple(layout for layout in LAYOUTS if layout.startswith("nchwc"))


def is_among(values: npt.NDArray[Any], choices: Sequence[object]) -> npt.NDArray[np.bool_]:
    """Return which values are among a few choices; for so few, `numpy.isin` is slow.

    Parameters
    ----------
    values : array (rows,)
    choices : sequence of objects
    """
    import numpy as np

    if not choices:
        return np.zeros(np.shape(values), dtype=bool)
    first, *others = choices
    mask: npt.NDArray[np.bool_] = np.asarray(values) == first
    for choice in others:
        mask = mask | (np.asarray(values) == choice)
    return mask


def is_in(value: str, choices: Sequence[str]) -> bool:
    """Whether a field is one of these names; an array for many layers."""
    if isinstance(value, str):
        return value in choices
    mask: Any = is_among(value, choices).astype(float)
    return mask


def either(condition: bool, yes: Number, no: Number) -> Number:
    """Return `yes` where the condition holds, else `no`; an array for many layers."""
    if isinstance(condition, (bool, int)):
        return yes if condition else no
    import numpy as np

    chosen: Any = np.where(condition, yes, no)
    return chosen


def smaller(one: Number, other: Number) -> Number:
    """Return the smaller of two numbers; an array for many layers."""
    return either(one < other, one, other)


def padded(length: float, tile: Any) -> Any:
    """Round up to a multiple of the tile; an array for many layers."""
    import numpy as np

    return np.ceil(length / tile) * tile


def bytes_each(dtype: str) -> int:
    """Return the bytes of one value of a type; an array for many layers."""
    if isinstance(dtype, str):
        return DTYPE_BYTES[dtype]
    import numpy as np

    sizes: Any = np.full(np.shape(dtype), 4.0)
    for name, size_bytes in DTYPE_BYTES.items():
        if size_bytes != 4:
            sizes[dtype == name] = size_bytes
    return sizes


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
