#!/usr/bin/env python
"""Draw how far methods are off: predicted against measured, by measured time, by rows trained.

    python tools/plot_errors.py mine.h5 plots --methods baseline boosted --rows 500 2000

Methods are trained and judged as by `resperf evaluate --methods`, and the pictures are PNG files.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from resperf.predictors import DEFAULT_METHOD
from resperf.report.methods import at_most_rows, by_kind_and_quantity
from resperf.training import Compared, ComparisonSettings, compare, progress_bar

Points = list[tuple[float, float]]


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
        comparison = compare(given.dataset, settings, progress=progress)
    for (kind, quantity), rows in by_kind_and_quantity(comparison.rows):
        for name, figure in figures(rows).items():
            path = given.folder / f"{name}-{kind}-{quantity.removesuffix('_ms')}.png"
            figure.savefig(path)
            print(path)


def figures(rows: Sequence[Compared]) -> dict[str, Figure]:
    """Draw one kind and quantity: the paper's Figure 4, errors by time and by rows trained."""
    drawn = {"predicted": predicted_against_measured(rows), "by-time": error_by_time(rows)}
    if len({row.rows_trained for row in rows}) > 1:
        drawn["by-rows"] = error_by_rows(rows)
    return drawn


def predicted_against_measured(rows: Sequence[Compared]) -> Figure:
    """Draw predicted against measured times, one panel per method (ResPerfNet, Figure 4).

    Both axes are logarithmic, since times span decades. Lines show equality and 10% above and
    below.
    """
    chosen = at_most_rows(rows)
    figure = Figure(figsize=(2.6 * len(chosen), 3.0), layout="constrained")
    panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    measured_ms = chosen[0].measured_ms
    bounds = np.array([0.8 * min(measured_ms), 1.25 * max(measured_ms)])
    for panel, row in zip(panels, chosen, strict=True):
        for factor, style in ((1.0, "-"), (0.9, ":"), (1.1, ":")):
            panel.plot(bounds, bounds * factor, "k" + style, linewidth=0.6)
        # A method may predict 0 or less: points outside the axes are drawn on the edge.
        panel.plot(row.measured_ms, np.clip(row.predicted_ms, *bounds), ".", markersize=1.5)
        panel.set(xscale="log", yscale="log", xlim=bounds, ylim=bounds)
        panel.set_title(f"{row.method}\nMAPE {row.errors.mape:.1%}, R$^2$ {row.r2:.3f}", fontsize=8)
    figure.supxlabel("measured ms", fontsize=8)
    figure.supylabel("predicted ms", fontsize=8)
    return figure


def error_by_time(rows: Sequence[Compared]) -> Figure:
    """Draw MAPE by measured time, one line per method, and the noise floor."""
    lines = {
        row.method: [(_middle(part.from_ms, part.to_ms), part.mape) for part in row.bins]
        for row in at_most_rows(rows)
    }
    return _lines(lines, "measured ms", rows[0])


def error_by_rows(rows: Sequence[Compared]) -> Figure:
    """Draw the learning curve: MAPE by rows trained on, one line per method."""
    lines: dict[str, Points] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.rows_trained):
        lines[row.method].append((row.rows_trained, row.errors.mape))
    return _lines(lines, "rows trained", rows[0])


def _lines(lines: Mapping[str, Points], label: str, first: Compared) -> Figure:
    # Without pyplot, which would hold a reference to the figure.
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes: Any = figure.subplots()
    for method, points in lines.items():
        places, shares = zip(*points, strict=True)
        axes.plot(places, 100 * np.array(shares), "o-", label=method)
    if math.isfinite(first.noise_floor):
        axes.axhline(100 * first.noise_floor, color="black", linestyle="--", label="noise floor")
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="MAPE %",
             title=f"{first.kind}, {first.phase.removesuffix('_ms')}")  # fmt: skip
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=8)
    return figure


def _middle(from_ms: float, to_ms: float) -> float:
    """Return the middle of a bin on a logarithmic axis; the outermost bins have one bound only."""
    if not from_ms:
        return to_ms / 2
    return from_ms * 2 if math.isinf(to_ms) else math.sqrt(from_ms * to_ms)


if __name__ == "__main__":
    main()
