"""Fields of many layers as columns, one array per field, and what can be read off them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from resperf.units import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    import numpy.typing as npt

# Campaigns know layers without ever computing with them, and load no numpy.
Array: TypeAlias = "npt.NDArray[np.float64]"
Columns: TypeAlias = "Mapping[str, npt.NDArray[Any]]"


def numbers(columns: Columns, *names: str) -> list[Array]:
    """Return columns as float64."""
    import numpy as np

    return [np.asarray(columns[name], dtype=np.float64) for name in names]


def element_bytes(columns: Columns, name: str = "dtype") -> Array:
    """Return the bytes of one value for every row, of the type that a field names."""
    import numpy as np

    dtypes = np.asarray(columns[name])
    sizes = np.full(dtypes.shape, 4.0)
    for dtype, size_bytes in DTYPE_BYTES.items():
        if size_bytes != 4:
            sizes[dtypes == dtype] = size_bytes
    return sizes


def is_one_of(columns: Columns, name: str, *choices: str) -> Array:
    """Return 1 where a field holds one of these names."""
    return is_among(columns[name], choices).astype(float)


def is_among(values: npt.NDArray[Any], choices: Sequence[object]) -> npt.NDArray[np.bool_]:
    """Say for each value whether it is one of a few; `numpy.isin` is made for many and starts late.

    Parameters
    ----------
    values : array (rows,)
    choices : sequence of objects
    """
    import numpy as np

    found = np.zeros(np.shape(values), dtype=bool)
    for choice in choices:
        found |= np.asarray(values) == choice
    return found
