"""Which layers a bundle was trained on: the smallest and largest value of each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.features import Columns, plain_and_log2, quantities
from resperf.layers import BLOCKED_LAYOUTS, kind_of
from resperf.layers.columns import is_among
from resperf.predictors import LayerPredictor
from resperf.settings import OPTIMIZER


def ranges_of(
    kind: str, columns: Columns, predictor: LayerPredictor | None = None
) -> dict[str, list[Any]]:
    """Return [smallest, largest] of each number, and all values of each name or flag.

    If fields can describe the same work in several ways (rows as batch or as another dimension),
    the kind's quantities are used instead of these fields. A predictor may say what else decides.
    """
    ranges: dict[str, list[Any]] = {}
    for name, column in _ranged(kind, columns, predictor).items():
        if np.issubdtype(column.dtype, np.floating):
            ranges[name] = [float(column.min()), float(column.max())]
        elif np.issubdtype(column.dtype, np.integer):
            ranges[name] = [int(column.min()), int(column.max())]
        elif column.dtype == np.bool_:
            ranges[name] = [bool(value) for value in np.unique(column)]
        else:
            ranges[name] = sorted({str(value) for value in column})
    return ranges


def _ranged(kind: str, columns: Columns, predictor: LayerPredictor | None) -> Columns:
    """Return the columns that decide whether a layer is inside the trained range."""
    own = None if predictor is None else predictor.ranged(columns)
    if own is not None:
        return own
    cls, q = kind_of(kind), quantities(kind, columns)
    if cls.INDEPENDENT_FIELDS:
        # Fields may each be inside while their product is far outside.
        return {**columns, "flops": q["flops"], "moved_bytes": q["moved_bytes"]}
    whole = {
        name: column
        for name, column in columns.items()
        if name == OPTIMIZER or cls.specs[name].choices or name.startswith("dilation")
    }
    plain, log2 = plain_and_log2(kind, columns)
    # Remainders of vector lengths and the use of threads do not define a range.
    bounded = (name for name in plain if name != "threaded" and not name.endswith("_rest"))
    kernels = {name: q[name].astype(bool) for name in cls.RANGED}
    return {**whole, **kernels, **{name: q[name] for name in (*bounded, *log2)}}


def outside(
    kind: str,
    columns: Columns,
    ranges: Mapping[str, list[Any]],
    predictor: LayerPredictor | None = None,
) -> list[str]:
    """Say for each row what is out of range: ``"height=900 above 512, batch=64 above 32"``.

    Empty if nothing is.
    """
    columns = _ranged(kind, columns, predictor)
    reasons: list[list[str]] = [[] for _ in next(iter(columns.values()))]
    for name, column in columns.items():
        seen = ranges.get(name)
        if seen is None:
            continue
        is_number = np.issubdtype(column.dtype, np.number)
        is_outside: npt.NDArray[np.bool_] = (
            (column < seen[0]) | (column > seen[1]) if is_number else ~is_among(column, seen)
        )
        for row in np.flatnonzero(is_outside):
            value = column[row]
            if is_number:
                where, bound = ("below", seen[0]) if value < seen[0] else ("above", seen[1])
                reasons[row].append(f"{name}={_number(value)} {where} {_number(bound)}")
            else:
                reasons[row].append(f"{name}={value} not seen in training")
    return [", ".join(row_reasons) for row_reasons in reasons]


def in_known_blocks(columns: Columns, ranges: Mapping[str, list[Any]]) -> Columns:
    """Return layers of a machine with blocks of another size as the machine that taught has them.

    A processor with shorter vectors has smaller blocks, and the same kernels otherwise.
    """
    changed = dict(columns)
    for name in ("layout", "layout_out"):
        layouts = [layout for layout in ranges.get(name, ()) if layout in BLOCKED_LAYOUTS]
        if name in columns and len(layouts) == 1:
            blocked = is_among(columns[name], BLOCKED_LAYOUTS)
            changed[name] = np.where(blocked, layouts[0], columns[name])
    return changed


def _number(value: Any) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}"
