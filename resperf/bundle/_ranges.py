"""Which layers a bundle was trained on: the smallest and largest value of each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.features import Columns


def ranges_of(columns: Columns) -> dict[str, list[Any]]:
    """Return [smallest, largest] of each number, and all values of each name or flag."""
    ranges: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if np.issubdtype(column.dtype, np.integer):
            ranges[name] = [int(column.min()), int(column.max())]
        elif column.dtype == np.bool_:
            ranges[name] = [bool(value) for value in np.unique(column)]
        else:
            ranges[name] = sorted({str(value) for value in column})
    return ranges


def outside(columns: Columns, ranges: Mapping[str, list[Any]]) -> list[str]:
    """Say for each row why it lies outside: ``"height=900 above 512"``, or ``""``."""
    rows = len(next(iter(columns.values())))
    reasons = [""] * rows
    for name, column in columns.items():
        seen = ranges.get(name)
        if seen is None:
            continue
        is_number = np.issubdtype(column.dtype, np.integer)
        strange: npt.NDArray[np.bool_] = (
            (column < seen[0]) | (column > seen[1]) if is_number else ~np.isin(column, seen)
        )
        for row in np.flatnonzero(strange):
            if reasons[row]:
                continue
            value = column[row]
            if not is_number:
                reasons[row] = f"{name}={value} not seen in training"
            elif value < seen[0]:
                reasons[row] = f"{name}={value} below {seen[0]}"
            else:
                reasons[row] = f"{name}={value} above {seen[1]}"
    return reasons
