"""The time of a whole run from its batch size and iterations, fitted to a user's own log.

Gianniti, Zhang and Ardagna, "Performance Prediction of GPU-based Deep Learning Applications"
(2019), section 3: for one network on one machine the time is affine in the batch size and in the
number of iterations, so that by Theorem 3.1 it is b1 n i + b2 i + b3 n + b0.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from resperf.errors import DatasetError, TrainingError, UnsupportedError, did_you_mean, printable
from resperf.features import Array
from resperf.predictors.linear import fit_coefficients, independent

COLUMNS = ("batch", "iterations", "seconds")
IMAGES, ITERATIONS, BATCH, CONSTANT = "batch x iterations", "iterations", "batch", "constant"
_NOTABLE = 0.01
"""Share of the longest run that a falling time must take away to be more than noise."""
_LARGEST = 1e12
_FAR_OFF, _FITS_BETTER, _SUSPECTS, _JUDGED = 1.5, 3.0, 50, 50_000
"""A run is odd if it is that many times too long or short, and the others fit that many times
better without it; so many runs are tried, fewer in long logs: so many runs are judged at most."""


class Run(NamedTuple):
    """One run: so many iterations at one batch size."""

    batch: float
    iterations: float
    seconds: float


@dataclass(frozen=True)
class RunFit:
    """Coefficients, in seconds for one more of each.

    Attributes
    ----------
    coefficients : mapping of str to float
        All four, or two of them where all runs have one batch size or number of iterations.
    runs : tuple of Run
        Those that it was fitted to.
    """

    coefficients: Mapping[str, float]
    runs: tuple[Run, ...]

    def seconds(self, batch: float, iterations: float) -> float:
        """Predict a run.

        Raises
        ------
        UnsupportedError
            If it has another batch size, or number of iterations, than all runs of the log, where
            these have only one; or if it is so small that the fit gives no time above zero.
        """
        seconds = self.sum(batch, iterations)
        if not 0 < seconds < math.inf:
            raise UnsupportedError(
                f"the fit gives {seconds:.3g} s for batch {batch:g} and {iterations:g} iterations; "
                "add runs of about that size to the log"
            )
        return seconds

    def sum(self, batch: float, iterations: float) -> float:
        """Return the sum of the terms, which may be below zero."""
        if IMAGES not in self.coefficients:
            # All runs have one batch size, or one number of iterations.
            name = "batch" if ITERATIONS in self.coefficients else "iterations"
            fitted, asked = getattr(self.runs[0], name), batch if name == "batch" else iterations
            if asked != fitted:
                raise UnsupportedError(
                    f"all runs that were fitted have {name} {fitted:g}, which says nothing about "
                    f"{asked:g}; add runs with another value to the log"
                )
        terms = _terms(batch, iterations)
        return sum(cost * terms[name] for name, cost in self.coefficients.items())

    def beyond(self, batch: float, iterations: float) -> float:
        """Return how many times as much work a run is as the largest that was fitted."""
        return batch * iterations / max(run.batch * run.iterations for run in self.runs)

    @property
    def falling(self) -> tuple[str, ...]:
        """What would make a run shorter by more than noise, somewhere among the fitted runs."""
        batches, iterations, seconds = zip(*self.runs, strict=True)
        (b0, b1), (i0, i1) = ((min(column), max(column)) for column in (batches, iterations))
        changes_s = {
            ITERATIONS: [self.sum(batch, i1) - self.sum(batch, i0) for batch in (b0, b1)],
            BATCH: [self.sum(b1, count) - self.sum(b0, count) for count in (i0, i1)],
        }
        least_s = -_NOTABLE * max(seconds)
        return tuple(name for name, changed in changes_s.items() if min(changed) < least_s)

    def odd_run(self) -> str:
        """Name the run without which the others fit far better, and say what to do; else empty."""
        own_errors = np.abs(judge_runs(self, self.runs).errors())
        best_error, odd = own_errors.mean() / _FITS_BETTER, ""
        for index in np.argsort(-own_errors)[: min(_SUSPECTS, _JUDGED // len(self.runs))]:
            batch, iterations, seconds = self.runs[index]
            # The others may not determine a fit, or only one at other sizes.
            with suppress(TrainingError, UnsupportedError):
                others = _fitted([*self.runs[:index], *self.runs[index + 1 :]])
                others_s = others.sum(batch, iterations)
                error = np.abs(judge_runs(others, others.runs).errors()).mean()
                off = max(others_s, seconds) > _FAR_OFF * min(others_s, seconds) > 0
                if off and not others.falling and error < best_error:
                    best_error = error
                    odd = (
                        f"the run of batch {batch:g} and {iterations:g} iterations took "
                        f"{seconds:.4g} s, by the others it is {others_s:.4g} s: leave it out, or "
                        "measure it again"
                    )
        return odd


@dataclass(frozen=True)
class JudgedRuns:
    """Runs beside what a fit says of them.

    Attributes
    ----------
    runs : tuple of Run
    predicted_s : tuple of float
    in_proportion_s : tuple of float
        What the same runs teach if time is in proportion to batch x iterations.
    """

    runs: tuple[Run, ...]
    predicted_s: tuple[float, ...]
    in_proportion_s: tuple[float, ...]

    def errors(self) -> Array:
        """Return the signed relative errors (equation 1): below zero where the run took longer."""
        return self._off(self.predicted_s)

    def errors_in_proportion(self) -> Array:
        """Return those of time in proportion to batch x iterations."""
        return self._off(self.in_proportion_s)

    def _off(self, predicted_s: Sequence[float]) -> Array:
        measured_s = np.array([run.seconds for run in self.runs])
        return np.asarray(np.array(predicted_s) / measured_s - 1)


def read_runs(path: Path) -> list[Run]:
    """Read a log: a CSV file with the columns batch, iterations, seconds.

    Raises
    ------
    DatasetError
        If it is no such file, or a number is missing or not above zero.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = [(name or "").strip() for name in reader.fieldnames or ()]
            for wanted in COLUMNS:
                if wanted not in names:
                    raise DatasetError(
                        f"{path} has no column {wanted}{did_you_mean(wanted, names)}; its first "
                        f"line must name {', '.join(COLUMNS)}"
                    )
            reader.fieldnames = names
            runs = [_run(path, reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not runs:
        raise DatasetError(f"{path} holds no runs; write one row for each")
    return runs


def _run(path: Path, line: int, row: Mapping[str, Any]) -> Run:
    values = []
    for name in COLUMNS:
        text = (row[name] or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= _LARGEST:
            raise DatasetError(
                f"{path}, line {line}: {name} is {printable(text)!r}, not a number above 0 "
                f"and up to {_LARGEST:g}"
            )
        values.append(value)
    return Run(*values)


def fit_run(runs: Sequence[Run]) -> RunFit:
    """Fit the form by least squares of the errors in seconds, as in the paper.

    Raises
    ------
    TrainingError
        If there are fewer runs than coefficients, or they do not tell these apart; if by them more
        work takes less time.
    """
    fit = _fitted(runs)
    if fit.falling:
        errors = judge_runs(fit, runs).errors()
        worst = int(np.argmax(np.abs(errors)))
        batch, iterations, _ = fit.runs[worst]
        raise TrainingError(
            f"by these runs, more {' or '.join(fit.falling)} takes less time (errors up to "
            f"{errors[worst]:+.0%}, at batch {batch:g} and {iterations:g} iterations); "
            + (fit.odd_run() or "leave out runs that were disturbed, or add runs")
        )
    return fit


def _fitted(runs: Sequence[Run]) -> RunFit:
    batches, iterations = {run.batch for run in runs}, {run.iterations for run in runs}
    if len(batches) == len(iterations) == 1 < len(runs):
        raise TrainingError("all runs have the same batch and iterations; add runs of other sizes")
    names = [IMAGES, ITERATIONS, BATCH, CONSTANT]
    if len(batches) == 1:
        names = [ITERATIONS, CONSTANT]
    elif len(iterations) == 1:
        names = [BATCH, CONSTANT]
    if len(runs) < len(names):
        raise TrainingError(
            f"{len(runs)} runs do not determine {len(names)} coefficients ({', '.join(names)}); "
            "add runs to the log, or fit to larger ones as well"
        )
    terms = [_terms(run.batch, run.iterations) for run in runs]
    matrix = np.array([[run_terms[name] for name in names] for run_terms in terms], dtype=float)
    if len(independent(matrix)) < len(names):
        raise TrainingError(
            f"the runs do not tell {', '.join(names)} apart: batch size and iterations change "
            "together, or hardly; add runs in which only one of them changes"
        )
    seconds = np.array([run.seconds for run in runs])
    coefficients = fit_coefficients(matrix, seconds, relative=False, non_negative=False)
    return RunFit({n: float(c) for n, c in zip(names, coefficients, strict=True)}, tuple(runs))


def judge_runs(fit: RunFit, runs: Sequence[Run]) -> JudgedRuns:
    """Predict runs, by a fit and in proportion to batch x iterations."""
    work = np.array([[run.batch * run.iterations] for run in fit.runs])
    seconds = np.array([run.seconds for run in fit.runs])
    (cost,) = fit_coefficients(work, seconds, relative=False, non_negative=False)
    return JudgedRuns(
        tuple(runs),
        tuple(max(fit.sum(run.batch, run.iterations), 0.0) for run in runs),
        tuple(float(cost) * run.batch * run.iterations for run in runs),
    )


def _terms(batch: float, iterations: float) -> dict[str, float]:
    return {IMAGES: batch * iterations, ITERATIONS: iterations, BATCH: batch, CONSTANT: 1.0}
