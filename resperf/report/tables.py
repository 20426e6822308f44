"""Plain text tables, identical on terminals, in pipes and in files."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections.abc import Sequence

from resperf.errors import printable
from resperf.settings import Setting
from resperf.units import format_ms, format_rate

WIDTH_IN_FILES = 160
"""Line width where the output is not a terminal: wide enough not to break lines."""

LEAST_WIDTH = 120
"""Narrower terminals wrap lines themselves, rather than have words squeezed to single letters."""

UNKNOWN = "-"
"""Shown instead of a missing value."""
_FIELDS = ("framework_version", "mode", "precision", "layout", "compiled", "threads")
"""Fields of settings that may have a column."""


def ms_cell(time_ms: float) -> str:
    """Write a time in milliseconds, or `UNKNOWN`."""
    return format_ms(time_ms) if math.isfinite(time_ms) else UNKNOWN


def rate_cell(per_s: float) -> str:
    """Write a rate, or `UNKNOWN`."""
    return format_rate(per_s) if math.isfinite(per_s) else UNKNOWN


def percent_cell(share: float, *, signed: bool = False) -> str:
    """Write a share as a percentage: ``percent_cell(0.051) == "5.1%"``."""
    if not math.isfinite(share):
        return UNKNOWN
    return f"{share:+z.1%}" if signed else f"{share:z.1%}"


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Sequence[str] = (),
    width: int = 0,
) -> str:
    """Lay out rows under headings.

    Parameters
    ----------
    headings : sequence of str
    rows : sequence of sequence of str
        As many cells as columns. Cells are shown without markup, with control characters escaped.
        Columns whose cells are all empty are omitted.
    text : sequence of str
        Headings of columns that hold text, which is aligned to the left and may wrap. The others
        hold numbers, which are aligned to the right.
    width : int
        Columns of text; by default the terminal's, at least `LEAST_WIDTH`, or `WIDTH_IN_FILES` in
        files and pipes.

    Returns
    -------
    str
        Lines without trailing blanks; no newline at the end.
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    ruled = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
    laid_out = Table(box=ruled, show_edge=False, pad_edge=False, header_style="")
    filled = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    for heading in (headings[column] for column in filled):
        number = heading not in text
        laid_out.add_column(
            heading, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in rows:
        cells = (row[column].split("\n") for column in filled)
        laid_out.add_row(*("\n".join(map(printable, lines)) for lines in cells))
    if not width:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_IN_FILES
        width = max(width, LEAST_WIDTH)
    drawn = io.StringIO()
    console = Console(
        file=drawn, width=width, color_system=None, force_terminal=False,
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    console.print(laid_out)
    return "\n".join(line.rstrip() for line in drawn.getvalue().rstrip("\n").split("\n"))


def counted(count: int, noun: str) -> str:
    """Write a number of things: ``"1 network"``, ``"3 networks"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def setting_columns(settings: Sequence[Setting]) -> dict[str, list[str]]:
    """Return heading -> cells of what differs between settings, other options included."""
    columns = {name: [getattr(setting, name) for setting in settings] for name in _FIELDS}
    for name in sorted({name for setting in settings for name in setting.options}):
        columns[name] = [setting.options.get(name) for setting in settings]
    return {
        name: [str(value or UNKNOWN) for value in values]
        for name, values in columns.items()
        if len(set(values)) > 1
    }
