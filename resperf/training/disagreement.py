"""Of which layers rows say little: predictors disagree about them, and none like them is known."""

from __future__ import annotations

import numpy as np

from resperf.errors import require
from resperf.features import Array, Columns, feature_matrix
from resperf.predictors.boosted import Boosted
from resperf.training.rows import LayerRows
from resperf.training.trials import fit_rows, own_split

MEMBERS = 4
TREES = 250
"""Trees of each member: enough to tell known from unknown, a fifth of the time of all."""
_NO_DIFFERENCE = 1e-9


def doubt_of(rows: LayerRows, columns: Columns) -> Array:
    """Return how uncertain the time of each layer is, as a share of it.

    The disagreement of predictors, more of it for layers that lie far from all rows and less for
    those near one: trees that learnt from the same rows agree where none of them knows anything.
    The mean over the layers stays that of the disagreement.

    Takes, returns and raises what `disagreement` does.
    """
    spread = disagreement(rows, columns)
    doubts = spread * novelty(rows, columns)
    return doubts * (spread.mean() / doubts.mean()) if doubts.any() else spread


def novelty(rows: LayerRows, columns: Columns) -> Array:
    """Return how far each layer lies from the nearest training row, in features.

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
    _, known = feature_matrix(rows.kind, own_split(rows).train.columns)
    _, asked = feature_matrix(rows.kind, columns)
    scales = np.concatenate([known, asked]).std(axis=0)
    varies = scales > _NO_DIFFERENCE
    distances: Array
    known, asked = (each[:, varies] / scales[varies] for each in (known, asked))
    distances, _ = tree_of(known).query(asked)
    return distances


def disagreement(
    rows: LayerRows, columns: Columns, *, seed: int = 0, members: int = MEMBERS
) -> Array:
    """Return the standard deviation of ln(predicted time) between members of an ensemble.

    Each member learns from a bootstrap sample of the training rows (Breiman 1996). Where they
    disagree, the rows say little of such a layer.

    Parameters
    ----------
    rows : LayerRows
        Of one kind; their test split is not looked at.
    columns : mapping of str to array (layers,)
        The layers in question, as `resperf.features.columns_of` returns them.
    seed : int
    members : int

    Returns
    -------
    array (layers,)

    Raises
    ------
    TrainingError
        If there are too few rows to learn from.
    """
    parts, phase = own_split(rows), rows.layer_quantity
    answers = []
    for member in range(members):
        random, count = np.random.default_rng([seed, member]), len(parts.train)
        predictor = Boosted(rows.kind, trees=TREES)
        fit_rows(
            predictor, parts.train.select(random.integers(0, count, count)), parts.validation,
            phase, seed=seed * members + member,
        )  # fmt: skip
        answers.append(np.log(predictor.values(columns)))
    spread: Array = np.std(answers, axis=0)
    return spread
