"""How far predictors disagree that learnt from different samples of the same rows."""

from __future__ import annotations

import numpy as np

from resperf.features import Array, Columns
from resperf.predictors.boosted import Boosted
from resperf.training.rows import LayerRows
from resperf.training.trials import fit_rows, own_split

MEMBERS = 4
TREES = 250
"""Trees of each member: enough to tell known from unknown, a fifth of the time of all."""


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
    parts, phase = own_split(rows), rows.layer_phase
    answers = []
    for member in range(members):
        random, count = np.random.default_rng([seed, member]), len(parts.train)
        predictor = Boosted(rows.kind, trees=TREES)
        fit_rows(
            predictor, parts.train.select(random.integers(0, count, count)), parts.validation,
            phase, seed=seed * members + member,
        )  # fmt: skip
        answers.append(np.log(predictor.predict(columns)))
    spread: Array = np.std(answers, axis=0)
    return spread
