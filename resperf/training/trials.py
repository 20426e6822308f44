"""Splits into training, validation and test rows: one split, folds, or a learning curve."""

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
    validation: LayerRows,
    phase: str,
    *,
    seed: int,
    progress: Progress | None = None,
) -> LayerPredictor:
    """Fit one quantity of layers; without validation rows, the training rows are used."""
    validation = validation if len(validation) else train
    return predictor.fit(
        train.examples(phase), validation=validation.examples(phase), seed=seed, progress=progress
    )


@dataclass(frozen=True)
class Trial:
    """Rows of one kind in three disjoint parts: no key is in two of them.

    Attributes
    ----------
    train, validation : LayerRows
        Rows that a method may see: for training, and to choose the best epoch, the number of trees
        and so on.
    test : LayerRows
        Rows that it is evaluated on.
    """

    train: LayerRows
    validation: LayerRows
    test: LayerRows

    @property
    def rows_seen(self) -> int:
        """Number of rows that a method may see."""
        return len(self.train) + len(self.validation)


def own_split(rows: LayerRows) -> Trial:
    """Evaluate on the file's own test split."""
    split = split_of_keys(rows.keys)
    return Trial(rows.select(split.train), rows.select(split.validation), rows.select(split.test))


def other_file(rows: LayerRows, test: LayerRows, *, shared: bool) -> Trial:
    """Evaluate on all rows of another file; the file's own test split is training data too.

    Parameters
    ----------
    rows, test : LayerRows
    shared : bool
        Whether layers in both files may be training data, as for files of two devices.
    """
    in_test = np.zeros(len(rows), dtype=bool) if shared else np.isin(rows.keys, test.keys)
    validation = split_of_keys(rows.keys).validation
    return Trial(rows.select(~in_test & ~validation), rows.select(~in_test & validation), test)


def folded(rows: LayerRows, folds: int, seed: int) -> tuple[Trial, ...]:
    """Cross-validate: each row outside the test split is in the test part of one fold.

    The test split is not used, so that methods and settings may be chosen by the result.
    """
    split = split_of_keys(rows.keys)
    fold = fold_of_keys(rows.keys, folds, seed)
    return tuple(
        Trial(
            rows.select(split.train & (fold != number)),
            rows.select(split.validation & (fold != number)),
            rows.select(~split.test & (fold == number)),
        )
        for number in range(folds)
    )


def shortened(trial: Trial, count: int, seed: int) -> Trial:
    """Reduce the rows that a method may see to `count`, validation rows included.

    The test rows are unchanged. A larger trial of the same seed contains all rows of a smaller one.
    Validation rows count, since they had to be measured too.
    """
    chosen = first_of_keys((*trial.train.keys, *trial.validation.keys), count, seed)
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
        One per fold.
    counts : sequence of int
        Rows that a method may see; empty for all rows. All counts above the number of rows are one
        point, with all rows.
    seed : int
    """
    most = max(trial.rows_seen for trial in trials)
    points = sorted({min(count, most) for count in counts}) or [most]
    return tuple(tuple(shortened(trial, count, seed) for trial in trials) for count in points)
