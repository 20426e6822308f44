"""Comparison of methods as text: errors, and errors by measured time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from resperf.grouping import grouped
from resperf.quantities import QUANTITIES
from resperf.report.tables import ms_cell, percent_cell, table

if TYPE_CHECKING:
    from resperf.predictors.metrics import TimeBin
    from resperf.training import Compared, LeftOut
    from resperf.training.left_out import LeftOutGroup

_WORST = 12
"""Networks or families that are shown of one method."""
PLACE = ("kind", "quantity", "method")
"""Headings of the columns that say what a row of figures is about."""


def methods_text(rows: Sequence[Compared]) -> str:
    """Show one table of errors, then for each kind and quantity one of errors by measured time.

    Parameters
    ----------
    rows : sequence of Compared
        At least one; those of one kind and quantity are adjacent.
    """
    parts = [errors_table(rows)]
    parts += [
        f"{kind} {quantity}: MAPE by measured time\n{_by_time(group)}"
        for (kind, quantity), group in by_kind_and_quantity(rows)
    ]
    return "\n\n".join(parts)


def left_out_text(rows: Sequence[LeftOut]) -> str:
    """Show the errors of methods on networks or families left out, and on which they are largest.

    Errors in a quantity's own unit are in its JSON as well.
    """
    labels = ("quantity", "device", "setting", "method")
    headings = (
        *labels, "rows", "fits", "learnt", "MAPE", "median", "R2", "NRMSE", "in 90% interval",
        "width", "fit s",
    )  # fmt: skip
    cells = [
        [
            row.quantity, row.device, row.setting, row.method, str(row.errors.rows), str(row.fits),
            str(row.learnt), percent_cell(row.errors.mape), percent_cell(row.errors.median_ape),
            f"{row.r2:.3f}", f"{row.nrmse:.3f}", percent_cell(row.in_interval),
            percent_cell(row.width), f"{row.fit_s:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    worst = [
        _worst(row, by, groups)
        for row in rows
        for by, groups in ((row.by, row.groups), ("family", row.families))
        if groups
    ]
    return "\n\n".join([table(headings, cells, text=labels), *worst])


def _worst(row: LeftOut, by: str, errors: Sequence[LeftOutGroup]) -> str:
    groups = sorted(errors, key=lambda group: -group.mape)
    cells = [
        [group.name, str(group.rows), percent_cell(group.mape), f"{group.rmse:.4g}",
         "" if math.isnan(group.nrmse) else f"{group.nrmse:.3f}"]
        for group in groups[:_WORST]
    ]  # fmt: skip
    rest = f", the worst {_WORST} of {len(groups)}" if len(groups) > _WORST else ""
    title = f"{row.quantity}, {row.method}, {row.device} ({row.setting}): each {by}{rest}"
    headings = (by, "rows", "MAPE", f"RMSE {QUANTITIES[row.quantity].unit}", "NRMSE")
    return f"{title}\n{table(headings, cells, text=(by,))}"


def by_kind_and_quantity(
    rows: Sequence[Compared],
) -> Iterator[tuple[tuple[str, str], list[Compared]]]:
    """Group adjacent rows by kind and quantity."""
    for key, group in itertools.groupby(rows, key=lambda row: (row.kind, row.phase)):
        yield key, list(group)


def at_most_rows(rows: Sequence[Compared]) -> list[Compared]:
    """Return each method's result with the most training rows, in order of the methods."""
    by_method = grouped((row.method, row) for row in rows).values()
    return [max(own, key=lambda row: row.rows_trained) for own in by_method]


def bin_title(time_bin: TimeBin) -> str:
    """Write the range of a bin: ``< 0.001 ms``, ``0.1-0.3 ms``, ``>= 1000 ms``."""
    if not time_bin.from_ms:
        return f"< {time_bin.to_ms:g} ms"
    if math.isinf(time_bin.to_ms):
        return f">= {time_bin.from_ms:g} ms"
    return f"{time_bin.from_ms:g}-{time_bin.to_ms:g} ms"


def errors_table(rows: Sequence[Compared]) -> str:
    """Show one line of errors for each kind, quantity and method."""
    headings = (
        *PLACE, "rows trained", "rows tested", "MAPE", "noise floor", "of folds", "within 10%",
        "RMSE ms", "MAE ms", "fit s", "predict us/layer",
    )  # fmt: skip
    cells = [
        [
            row.kind, row.phase, row.method, str(row.rows_trained), str(row.errors.rows),
            percent_cell(row.errors.mape), percent_cell(row.noise_floor), _folds(row),
            percent_cell(row.errors.within_10), ms_cell(row.errors.rmse_ms),
            ms_cell(row.errors.mae_ms), f"{row.fit_s:.1f}", f"{row.predict_us:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    return table(headings, cells, text=PLACE)


def _folds(row: Compared) -> str:
    if not row.fold_mapes:
        return ""
    return f"{percent_cell(min(row.fold_mapes))} to {percent_cell(max(row.fold_mapes))}"


def _by_time(rows: Sequence[Compared]) -> str:
    """Show bins side by side, for each method the result with the most training rows."""
    chosen = at_most_rows(rows)
    # All methods are evaluated on the same rows, so that they have the same bins.
    bins = chosen[0].bins
    headings = ["method", *map(bin_title, bins)]
    counts = ["rows tested", *(str(time_bin.rows) for time_bin in bins)]
    cells = [
        [row.method, *(percent_cell(time_bin.mape) for time_bin in row.bins)] for row in chosen
    ]
    return table(headings, [counts, *cells], text=PLACE)
