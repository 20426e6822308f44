"""Predicted and measured times in one table, for networks and for layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resperf.report.tables import ms_cell, percent_cell, table


@dataclass(frozen=True)
class ComparisonRow:
    """A network, phase or layer with predicted and measured time.

    Attributes
    ----------
    name : str
    batch : int or None
    predicted_ms, measured_ms : float
        NaN if the time is missing.
    remark : str
        Shown at the end of the row.
    """

    name: str
    batch: int | None
    predicted_ms: float
    measured_ms: float
    remark: str = ""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, a fraction; NaN if one is missing."""
        if not self.measured_ms > 0:
            return math.nan
        return (self.predicted_ms - self.measured_ms) / self.measured_ms


def comparison_table(rows: Sequence[ComparisonRow], *, title: str = "network") -> str:
    """Show predicted and measured times side by side.

    Parameters
    ----------
    rows : sequence of ComparisonRow
    title : str
        Heading of the first column.
    """
    cells = [
        [
            row.name,
            "" if row.batch is None else str(row.batch),
            ms_cell(row.predicted_ms),
            ms_cell(row.measured_ms),
            percent_cell(row.error, signed=True),
            row.remark,
        ]
        for row in rows
    ]
    headings = (title, "batch", "predicted ms", "measured ms", "error", "remark")
    return table(headings, cells, text=(title, "remark"))
