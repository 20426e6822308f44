"""Text on a fit to a user's own runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from resperf.report.tables import percent_cell, table
from resperf.units import MS_PER_S
from resperf.workflows.fit_run import CONSTANT, JudgedRuns, Run, RunFit


def formula_text(fit: RunFit) -> str:
    """Write the fitted form."""
    terms = [
        f"{cost:+.4g} s" if name == CONSTANT else f"{MS_PER_S * cost:+.4g} ms x {name}"
        for name, cost in fit.coefficients.items()
    ]
    return f"time = {' '.join(terms)}, fitted to {len(fit.runs)} runs"


def runs_text(judged: JudgedRuns, fitted: Collection[Run]) -> str:
    """Show runs beside what the fit says, and the errors of those it was fitted to and others."""
    of_fit = np.array([run in fitted for run in judged.runs])
    errors, proportional = judged.errors(), judged.errors_in_proportion()
    rows = [
        [f"{run.batch:g}", f"{run.iterations:g}", f"{run.seconds:.4g}", f"{predicted:.4g}",
         percent_cell(error, signed=True), "fitted" if own else ""]
        for run, predicted, error, own in zip(
            judged.runs, judged.predicted_s, errors, of_fit, strict=True
        )
    ]  # fmt: skip
    headings = ("batch", "iterations", "measured s", "predicted s", "error", "")
    lines = [table(headings, rows, text=("",)), ""]
    for name, chosen in (("runs that were fitted", of_fit), ("other runs", ~of_fit)):
        if chosen.any():
            sizes = np.abs(errors[chosen])
            lines.append(
                f"{len(sizes)} {name}: mean absolute error {percent_cell(sizes.mean())}, worst "
                f"{percent_cell(errors[chosen][np.argmax(sizes)], signed=True)}; time in "
                "proportion to batch x iterations: "
                f"{percent_cell(np.abs(proportional[chosen]).mean())}"
            )
    return "\n".join(lines)


def asked_text(fit: RunFit, asked: Sequence[tuple[int, int]]) -> str:
    """Show predictions, and how far beyond the fitted runs they are."""
    rows = [
        [str(batch), str(iterations), f"{fit.seconds(batch, iterations):.4g}",
         f"{fit.beyond(batch, iterations):.3g}"]
        for batch, iterations in asked
    ]  # fmt: skip
    return table(("batch", "iterations", "predicted s", "times the largest fitted run"), rows)
