"""Comparison of methods as Markdown, for reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resperf.report.methods import at_most_rows, by_kind_and_quantity
from resperf.report.tables import UNKNOWN

if TYPE_CHECKING:
    from resperf.training import Compared


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out cells as a Markdown table; all columns but the first are aligned to the right."""
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows))


def percent(share: float) -> str:
    """Write a share with two decimals, for close methods: ``percent(0.0213) == "2.13%"``."""
    return f"{share:z.2%}" if math.isfinite(share) else UNKNOWN


def methods_markdown(rows: Sequence[Compared]) -> str:
    """Show the methods of each kind and quantity, best first, and learning curves if any.

    Parameters
    ----------
    rows : sequence of Compared
        At least one; those of one kind and quantity are adjacent.
    """
    headings = (
        "kind", "quantity", "method", "rows trained", "rows tested", "MAPE", "noise floor",
        "within 10%", "RMSE ms", "MAE ms", "R²", "fit s", "predict us/layer",
    )  # fmt: skip
    groups = list(by_kind_and_quantity(rows))
    cells = [
        [
            kind, quantity, row.method, str(row.rows_trained), str(row.errors.rows),
            percent(row.errors.mape), percent(row.noise_floor), f"{row.errors.within_10:.1%}",
            f"{row.errors.rmse_ms:.4g}", f"{row.errors.mae_ms:.4g}", f"{row.r2:.4f}",
            f"{row.fit_s:.1f}", f"{row.predict_us:.1f}",
        ]
        for (kind, quantity), group in groups
        for row in sorted(at_most_rows(group), key=lambda row: row.errors.mape)
    ]  # fmt: skip
    parts = [markdown_table(headings, cells)]
    for (kind, _), group in groups:
        if curve := _curve(group):
            parts += [f"{kind}, MAPE by rows trained:", curve]
    return "\n\n".join(parts)


def _curve(rows: Sequence[Compared]) -> str:
    """Show the MAPE of methods that were trained on several numbers of rows side by side."""
    mapes = {(row.method, row.rows_trained): row.errors.mape for row in rows}
    names = [method for method, _ in mapes]
    methods = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not methods:
        return ""
    counts = sorted({count for name, count in mapes if name in methods})
    cells = [
        [name, *(percent(mapes.get((name, count), math.nan)) for count in counts)]
        for name in methods
    ]  # fmt: skip
    return markdown_table(("method", *map(str, counts)), cells)
