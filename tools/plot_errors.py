#!/usr/bin/env python
"""Draw how far methods are off: predicted against measured, by measured time, by rows trained.

    python tools/plot_errors.py mine.h5 plots --methods baseline boosted --rows 500 2000

Methods are trained and judged as by `resperf evaluate --methods`, and the pictures are PNG files.
Other tools draw results that they have with `write_plots`.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from PIL import Image

from resperf.predictors import DEFAULT_METHOD
from resperf.quantities import QUANTITIES
from resperf.report.methods import at_most_rows, by_kind_and_quantity
from resperf.training import Compared, ComparisonSettings, compare, progress_bar

SHOWN_POINTS = 1500
"""Largest number of points per panel: more would overlap and make large files."""

_PANELS_PER_LINE = 4
_COLOURS = 64


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=["baseline", DEFAULT_METHOD])
    parser.add_argument("--rows", nargs="+", type=int, default=[])
    given = parser.parse_args(words)
    given.folder.mkdir(parents=True, exist_ok=True)
    settings = ComparisonSettings(tuple(given.methods), tuple(given.rows))
    with progress_bar() as progress:
        found = compare(given.dataset, settings, progress=progress)
    for path in write_plots(found.rows, given.folder):
        print(path)


def write_plots(rows: Sequence[Compared], folder: Path) -> tuple[Path, ...]:
    """Draw each kind and quantity into PNG files.

    ``predicted-KIND-PHASE.png`` (the paper's Figure 4), ``by-time-KIND-PHASE.png``, and where
    methods were trained on several numbers of rows ``by-rows-KIND-PHASE.png``.

    Parameters
    ----------
    rows : sequence of Compared
        Those of one kind and quantity are adjacent.
    folder : Path
        Must exist; files of the same names are replaced.
    """
    written = []
    for (kind, quantity), group in by_kind_and_quantity(rows):
        figures = {
            "predicted": predicted_against_measured(group),
            "by-time": error_by_time(group),
        }
        if len({row.rows_trained for row in group}) > 1:
            figures["by-rows"] = error_by_rows(group)
        for name, figure in figures.items():
            path = folder / f"{name}-{kind}-{_stem(quantity)}.png"
            _save(figure, path)
            written.append(path)
    return tuple(written)


def predicted_against_measured(rows: Sequence[Compared]) -> Figure:
    """Draw predicted against measured times, one panel per method (ResPerfNet, Figure 4).

    Both axes are logarithmic, since times span decades. Lines show equality and 10% above and
    below. Of more than `SHOWN_POINTS` rows, that many are shown, evenly from short to long.
    """
    chosen = at_most_rows(rows)
    per_line = min(_PANELS_PER_LINE, len(chosen))
    lines = -(-len(chosen) // per_line)
    figure = _figure(2.6 * per_line, 2.7 * lines + 0.3)
    panels = figure.subplots(lines, per_line, sharex=True, sharey=True, squeeze=False).ravel()
    bounds = np.array([_least_and_most(chosen, min), _least_and_most(chosen, max)])
    for panel, row in zip(panels, chosen, strict=False):
        order = np.argsort(row.measured_ms, kind="stable")
        shown = order[
            np.unique(np.linspace(0, len(order) - 1, min(SHOWN_POINTS, len(order))).astype(int))
        ]
        panel.plot(bounds, bounds, color="black", linewidth=0.8)
        for factor in (0.9, 1.1):
            panel.plot(bounds, bounds * factor, color="black", linewidth=0.5, linestyle=":")
        # A method may predict 0 or less: points outside the axes are drawn on the edge.
        predicted_ms = np.clip(row.predicted_ms[shown], *bounds)
        panel.plot(row.measured_ms[shown], predicted_ms, ".", markersize=1.5, color="tab:blue")
        panel.set(xscale="log", yscale="log", xlim=bounds, ylim=bounds)
        panel.set_title(f"{row.method}\nMAPE {row.errors.mape:.1%}, R$^2$ {row.r2:.3f}", fontsize=8)
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    figure.supxlabel("measured ms", fontsize=8)
    figure.supylabel("predicted ms", fontsize=8)
    return figure


def error_by_time(rows: Sequence[Compared]) -> Figure:
    """Draw MAPE by measured time, one line per method, and the noise floor."""
    chosen = at_most_rows(rows)
    figure, axes = _one_panel()
    for place, row in enumerate(chosen):
        middles = [_middle(each.from_ms, each.to_ms) for each in row.bins]
        shares = [100 * each.mape for each in row.bins]
        axes.plot(middles, shares, _style(place), label=row.method)
    _finish(axes, "measured ms", chosen)
    return figure


def error_by_rows(rows: Sequence[Compared]) -> Figure:
    """Draw the learning curve: MAPE by rows trained on, one line per method."""
    figure, axes = _one_panel()
    for place, method in enumerate(dict.fromkeys(row.method for row in rows)):
        points = sorted(
            (row.rows_trained, 100 * row.errors.mape) for row in rows if row.method == method
        )
        axes.plot(*zip(*points, strict=True), _style(place), label=method)
    _finish(axes, "rows trained", rows)
    counts = sorted({row.rows_trained for row in rows})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    return figure


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches; without pyplot, which would hold a reference to it."""
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def _one_panel() -> tuple[Figure, Any]:
    figure = _figure(6.4, 4.0)
    return figure, figure.subplots()


def _style(place: int) -> str:
    """Return a line style that differs from those before it: there are only ten colours."""
    return ("C{}o-", "C{}s--", "C{}^:")[place // 10 % 3].format(place % 10)


def _stem(name: str) -> str:
    return QUANTITIES[name].stem if name in QUANTITIES else name


def _finish(axes: Any, label: str, rows: Sequence[Compared]) -> None:
    floor = rows[0].noise_floor
    if math.isfinite(floor):
        axes.axhline(100 * floor, color="black", linestyle="--", label="noise floor")
    first = rows[0]
    axes.set(
        xscale="log", yscale="log", xlabel=label, ylabel="MAPE %",
        title=f"{first.kind}, {_stem(first.phase)}",
    )  # fmt: skip
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=8)


def _least_and_most(rows: Sequence[Compared], of: Any) -> float:
    """Return the shortest or longest measured time, with a margin."""
    return float(of(rows[0].measured_ms)) * (0.8 if of is min else 1.25)


def _middle(from_ms: float, to_ms: float) -> float:
    """Return the middle of a bin on a logarithmic axis; the outermost bins have one bound only."""
    if not from_ms:
        return to_ms / 2
    return from_ms * 2 if math.isinf(to_ms) else math.sqrt(from_ms * to_ms)


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG with few colours, a third of the size of one with all colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(path, "png", optimize=True)


if __name__ == "__main__":
    main()
