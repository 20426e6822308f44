"""`resperf fit-run`."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, WHAT, Command, option
from resperf.errors import TrainingError


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf fit-run log.csv --batch 64 128 --iterations 10000\n"
    "  resperf fit-run log.csv --fit-batch 16 --fit-iterations 150  (judged on the larger runs)",
)
@click.argument("log", type=options.PATH, metavar="LOG.csv")
@option(
    "--fit-batch",
    section=WHAT,
    type=options.COUNT,
    metavar="N",
    help="Fit to runs of at most this batch size; the others judge the fit.",
)
@option(
    "--fit-iterations",
    section=WHAT,
    type=options.COUNT,
    metavar="N",
    help="Fit to runs of at most so many iterations; the others judge the fit.",
)
@options.numbers("--batch", "batches", section=COMMON, help="Batch sizes to predict.")
@options.numbers("--iterations", section=COMMON, help="Numbers of iterations to predict.")
@options.JSON
def command(
    log: Path,
    fit_batch: int | None,
    fit_iterations: int | None,
    batches: tuple[int, ...],
    iterations: tuple[int, ...],
    as_json: bool,
) -> None:
    """Predict how long a training or inference run takes, from your own log of smaller runs.

    LOG.csv has the columns batch, iterations, seconds: one row per run of one network on one
    machine. The time is fitted as b1 x batch x iterations + b2 x iterations + b3 x batch + b0
    (Gianniti et al. 2019, Theorem 3.1).
    """
    from resperf.report.fit_run import asked_text, formula_text, runs_text
    from resperf.workflows.fit_run import fit_run, judge_runs, read_runs

    if bool(batches) != bool(iterations):
        raise click.UsageError("a prediction needs both --batch and --iterations")
    runs = read_runs(log)
    chosen = [
        run
        for run in runs
        if run.batch <= (fit_batch or run.batch)
        and run.iterations <= (fit_iterations or run.iterations)
    ]
    if not chosen:
        raise TrainingError(
            f"{log} has no run of at most this batch size and number of iterations; the smallest "
            f"are {min(run.batch for run in runs):g} and {min(run.iterations for run in runs):g}"
        )
    fit = fit_run(chosen)
    judged, fitted = judge_runs(fit, runs), {*chosen}
    asked = list(itertools.product(batches, iterations))
    notes = [*filter(None, [fit.odd_run()])]
    predictions = [
        {"batch": batch, "iterations": count, "seconds": fit.seconds(batch, count),
         "times_the_largest_fitted_run": fit.beyond(batch, count)}
        for batch, count in asked
    ]  # fmt: skip
    rows = [
        {**run._asdict(), "predicted_s": predicted, "error": float(error), "fitted": run in fitted}
        for run, predicted, error in zip(runs, judged.predicted_s, judged.errors(), strict=True)
    ]
    document = {
        "coefficients_s": dict(fit.coefficients), "runs": rows, "predictions": predictions,
        "notes": notes,
    }  # fmt: skip
    texts = [formula_text(fit), runs_text(judged, fitted)]
    texts += [asked_text(fit, asked)] if asked else []
    options.show(as_json, document, "\n\n".join(texts), notes)
