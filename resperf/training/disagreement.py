"""Acquisition score of layers: disagreement of predictors times distance from the training data."""

from __future__ import annotations

import numpy as np

from resperf.errors import require
from resperf.features import Array, Columns, feature_matrix
from resperf.predictors.boosted import Boosted
from resperf.training.rows import LayerRows
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
