"""Acquisition scores for adaptive campaigns: disagreement of predictors, distance to all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resperf.dataset import read_info, read_table
from resperf.errors import TrainingError, require
from resperf.features import Array, Columns, columns_of, feature_matrix
from resperf.layers import KINDS, Layer
from resperf.predictors.boosted import Boosted
from resperf.training.fit import FEWEST_ROWS_FOR_NETWORK
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import fit_rows, own_split

MEMBERS = 4
TREES = 250
"""Trees of each member: enough to rank layers, in a fifth of a full fit's time."""
_NO_DIFFERENCE = 1e-9


def acquisition_score(rows: LayerRows, columns: Columns) -> Array:
    """Return how uncertain the time of each layer is, as a share of it.

    Disagreement times novelty, scaled to the mean of the disagreement. Disagreement alone is not
    enough: trees trained on the same rows agree far from all of them.

    Parameters, result and errors are those of `disagreement`.
    """
    spread = disagreement(rows, columns)
    scores = spread * novelty(rows, columns)
    return scores * (spread.mean() / scores.mean()) if scores.any() else spread


def novelty(rows: LayerRows, columns: Columns) -> Array:
    """Return the distance of each layer from the nearest training row, in features.

    Parameters
    ----------
    rows : LayerRows
        Of one kind.
    columns : mapping of str to array (layers,)

    Returns
    -------
    array (layers,)
        Euclidean distance, in standard deviations of each feature over rows and layers.
    """
    tree_of = require("scipy.spatial", "train").KDTree
    _, trained = feature_matrix(rows.kind, own_split(rows).train.columns)
    _, new = feature_matrix(rows.kind, columns)
    scales = np.concatenate([trained, new]).std(axis=0)
    varies = scales > _NO_DIFFERENCE
    distances: Array
    trained, new = (matrix[:, varies] / scales[varies] for matrix in (trained, new))
    distances, _ = tree_of(trained).query(new)
    return distances


def disagreement(rows: LayerRows, columns: Columns) -> Array:
    """Return the standard deviation of ln(predicted time) between members of an ensemble.

    Each member learns from a bootstrap sample of the training rows (Breiman 1996). Where members
    disagree, the training data determine such a layer poorly.

    Parameters
    ----------
    rows : LayerRows
        Of one kind; their test split is not read.
    columns : mapping of str to array (layers,)
        Layers as `resperf.features.columns_of` returns them.

    Returns
    -------
    array (layers,)

    Raises
    ------
    TrainingError
        If there are too few rows to learn from.
    """
    parts, phase = own_split(rows), rows.layer_quantity
    predicted = []
    for member in range(MEMBERS):
        random, count = np.random.default_rng([0, member]), len(parts.train)
        predictor = Boosted(rows.kind, trees=TREES)
        fit_rows(
            predictor, parts.train.select(random.integers(0, count, count)), parts.validation,
            phase, seed=member,
        )  # fmt: skip
        predicted.append(np.log(predictor.values(columns)))
    spread: Array = np.std(predicted, axis=0)
    return spread


UNLEARNT_SCORE = 2.0
"""Acquisition score of a kind without any row. While a kind has too few rows to learn from, its
score falls with their square root, to about the disagreement of predictors that have enough."""


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
        `acquisition_score` by the rows of its kind; `UNLEARNT_SCORE` and less for kinds with few
        rows; 0 for kinds that no predictor supports, or whose rows are nearly all unusable.
    """
    tables, info = read_table(dataset), read_info(dataset)
    scores = np.zeros(len(layers))
    for kind in sorted({layer.kind for layer in layers} & set(KINDS)):
        indices = [index for index, layer in enumerate(layers) if layer.kind == kind]
        measured = len(tables[kind]) if kind in tables else 0
        if measured < FEWEST_ROWS_FOR_NETWORK:
            scores[indices] = UNLEARNT_SCORE / math.sqrt(1 + measured)
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
