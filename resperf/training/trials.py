"""Who learns from which rows and is judged on which: one trial, several folds, or a curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resperf.predictors import LayerPredictor, Progress
from resperf.splits import first_of_keys, fold_of_keys, split_of_keys
from resperf.training.rows import LayerRows


def fit_rows(
    predictor: LayerPredictor,
    train: LayerRows,
    choosing: LayerRows,
    phase: str,
    *,
    seed: int,
    progress: Progress | None = None,
) -> LayerPredictor:
    """Fit one phase of layers; where no row is left to choose by, those that train do."""
    choosing = choosing if len(choosing) else train
    return predictor.fit(
        train.examples(phase),
        validation=choosing.examples(phase),
        seed=seed,
        progress=progress,
    )


@dataclass(frozen=True)
class Trial:
    """Rows of one kind: no key stands in two of the three parts.

    Attributes
    ----------
    train, validation : LayerRows
        What a method may look at: rows to learn from, and rows that choose the best epoch, the
        number of trees and the like.
    test : LayerRows
        What it is judged on.
    """

    train: LayerRows
    validation: LayerRows
    test: LayerRows

    @property
    def rows_seen(self) -> int:
        """Count the rows that a method may look at."""
        return len(self.train) + len(self.validation)


def own_split(rows: LayerRows) -> Trial:
    """Judge on the file's own test split, which no training reads."""
    split = split_of_keys(rows.keys)
    return Trial(
        rows.select(split.train), rows.select(split.validation), rows.select(split.test)
    )  # fmt: skip


def other_file(rows: LayerRows, test: LayerRows, *, shared: bool) -> Trial:
    """Judge on all rows of another file; what would have been the own test split trains too.

    Parameters
    ----------
    rows, test : LayerRows
    shared : bool
        Whether layers of both files may train: their times are other times where the files are
        of two devices.
    """
    known = np.zeros(len(rows), dtype=bool) if shared else np.isin(rows.keys, test.keys)
    validation = split_of_keys(rows.keys).validation
    return Trial(rows.select(~known & ~validation), rows.select(~known & validation), test)


def folded(rows: LayerRows, folds: int, seed: int) -> tuple[Trial, ...]:
    """Cross-validate: each row that is not in the test split is judged once.

    The test split stays untouched, so that methods and settings may be chosen by what this says.
    """
    split = split_of_keys(rows.keys)
    fold = fold_of_keys(rows.keys, folds, seed)
    return tuple(
        Trial(
            rows.select(split.train & (fold != each)),
            rows.select(split.validation & (fold != each)),
            rows.select(~split.test & (fold == each)),
        )
        for each in range(folds)
    )


def shortened(trial: Trial, count: int, seed: int) -> Trial:
    """Leave a method `count` rows to look at, validation rows included; the test rows stay.

    A larger trial of the same seed holds all rows of a smaller one. Counting the validation rows
    keeps a learning curve honest: rows that stop a training early are rows that were measured.
    """
    keys = (*trial.train.keys, *trial.validation.keys)
    chosen = first_of_keys(keys, count, seed)
    border = len(trial.train)
    return Trial(
        trial.train.select(chosen[:border]), trial.validation.select(chosen[border:]), trial.test
    )


def curve(
    trials: Sequence[Trial], counts: Sequence[int], seed: int
) -> tuple[tuple[Trial, ...], ...]:
    """Return the trials once for each number of rows, from few to many.

    Parameters
    ----------
    trials : sequence of Trial
        Several where there are folds.
    counts : sequence of int
        Rows that a method may look at; empty for all rows at once. Larger counts than there are
        rows are one point, with all rows.
    seed : int
    """
    most = max(trial.rows_seen for trial in trials)
    points = sorted({min(count, most) for count in counts}) or [most]
    return tuple(tuple(shortened(trial, count, seed) for trial in trials) for count in points)
