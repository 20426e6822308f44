"""Fields of many layers as columns, one array per field, and what can be read off them.

`is_in`, `either`, `smaller` and `bytes_each` take the fields of one layer as well.
"""

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

THREADED_VALUES = 16384
"""Above about so many values frameworks share the work among their threads."""


def numbers(columns: Columns, *names: str) -> list[Array]:
    """Return columns as float64."""
    import numpy as np

    return [np.asarray(columns[name], dtype=np.float64) for name in names]


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

    if not choices:
        return np.zeros(np.shape(values), dtype=bool)
    first, *others = choices
    found: npt.NDArray[np.bool_] = np.asarray(values) == first
    for choice in others:
        found = found | (np.asarray(values) == choice)
    return found


def is_in(value: str, choices: Sequence[str]) -> bool:
    """Say whether a field of a layer is one of these names; of many layers, for each."""
    if isinstance(value, str):
        return value in choices
    each: Any = is_among(value, choices).astype(float)
    return each


def either(condition: bool, yes: int, no: int) -> int:
    """Return one of two numbers; of many layers, for each."""
    if isinstance(condition, (bool, int)):
        return yes if condition else no
    import numpy as np

    each: Any = np.where(condition, yes, no)
    return each


def smaller(one: int, other: int) -> int:
    """Return the smaller of two numbers; of many layers, for each."""
    return either(one < other, one, other)


def bytes_each(dtype: str) -> int:
    """Return the bytes of one value of a type; of many layers, for each."""
    if isinstance(dtype, str):
        return DTYPE_BYTES[dtype]
    import numpy as np

    sizes: Any = np.full(np.shape(dtype), 4.0)
    for each, size_bytes in DTYPE_BYTES.items():
        if size_bytes != 4:
            sizes[dtype == each] = size_bytes
    return sizes
