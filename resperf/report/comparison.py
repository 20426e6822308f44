"""Predicted and measured times in one table, for networks and for layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resperf.report.tables import ms_cell, percent_cell, table
from resperf.timing import rank_correlation

SLOWEST, SEARCHED = 5, 7
"""How many of the slowest measured layers are looked up among how many of the slowest predicted."""


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

    @property
    def slower_ms(self) -> float:
        """The longer of both times; 0 if none is known."""
        return max(ms for ms in (self.predicted_ms, self.measured_ms, 0.0) if ms >= 0)


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


def order_agreement(rows: Sequence[ComparisonRow]) -> str:
    """Say how well predicted and measured times agree in the order of layers.

    Spearman's rank correlation (ties have their mean rank), and how many of the slowest measured
    layers are among the slowest predicted. Empty if fewer than `SLOWEST` layers have both times.
    """
    timed = [row for row in rows if row.predicted_ms >= 0 and row.measured_ms >= 0]
    if len(timed) < SLOWEST:
        return ""
    predicted_ms = [row.predicted_ms for row in timed]
    measured_ms = [row.measured_ms for row in timed]
    slowest, searched = (
        set(sorted(range(len(timed)), key=lambda index: -times_ms[index])[:count])
        for times_ms, count in ((measured_ms, SLOWEST), (predicted_ms, SEARCHED))
    )
    return (
        f"order of {len(timed)} layers: rank correlation "
        f"{rank_correlation(predicted_ms, measured_ms):.3f}; "
        f"{len(slowest & searched)} of the {SLOWEST} slowest are among the first {SEARCHED} "
        "predicted"
    )
