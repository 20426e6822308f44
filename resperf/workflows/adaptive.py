"""Acquisition scores for adaptive campaigns, from predictors trained on the rows so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resperf.dataset import read_info, read_table
from resperf.errors import TrainingError
from resperf.features import columns_of
from resperf.layers import KINDS, Layer
from resperf.training.disagreement import acquisition_score
from resperf.training.fit import FEWEST_ROWS_FOR_NETWORK
from resperf.training.rows import layer_rows

UNLEARNT_SCORE = 2.0
"""Acquisition score of a kind without any row. While a kind has too few rows to learn from, its
score falls with their square root, to about the disagreement of predictors that have enough."""


def unlearnt_score(rows: int) -> float:
    """Return the acquisition score of a kind with too few rows to learn from."""
    return UNLEARNT_SCORE / math.sqrt(1 + rows)


def acquisition_scores(dataset: Path, layers: Sequence[Layer]) -> Sequence[float]:
    """Return how uncertain the time of each layer still is, as a share of it.

    Parameters
    ----------
    dataset : Path
        What a campaign has measured so far.
    layers : sequence of Layer
        Of any kinds.

    Returns
    -------
    sequence of float
        `acquisition_score` by the rows of its kind; `unlearnt_score` for kinds with few rows; 0 for
        kinds that no predictor supports, or whose rows are nearly all unusable.
    """
    tables, info = read_table(dataset), read_info(dataset)
    scores = np.zeros(len(layers))
    for kind in sorted({layer.kind for layer in layers} & set(KINDS)):
        indices = [index for index, layer in enumerate(layers) if layer.kind == kind]
        measured = len(tables[kind]) if kind in tables else 0
        if measured < FEWEST_ROWS_FOR_NETWORK:
            scores[indices] = unlearnt_score(measured)
            continue
        rows = layer_rows(tables[kind], info=info)
        if len(rows) < FEWEST_ROWS_FOR_NETWORK:
            # Its rows are unusable, and more rows would be as well.
            continue
        try:
            scores[indices] = acquisition_score(
                rows, columns_of([layers[index] for index in indices])
            )
        except TrainingError:
            continue
    values: list[float] = scores.tolist()
    return values
