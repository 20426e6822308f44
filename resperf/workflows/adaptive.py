"""What a campaign is told of layers it could measure, by predictors that learn meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resperf.dataset import read_table
from resperf.errors import TrainingError
from resperf.features import columns_of
from resperf.layers import KINDS, Layer
from resperf.training.disagreement import doubt_of
from resperf.training.fit import FEWEST_ROWS_FOR_NETWORK
from resperf.training.rows import layer_rows

UNKNOWN = 2.0
"""Doubt about layers of a kind without any row; as long as there are too few to learn from, it
falls with the root of the rows, to about what predictors disagree by once there are enough."""


def unknown(rows: int) -> float:
    """Return the doubt about layers of a kind with so many rows, too few to learn from."""
    return UNKNOWN / math.sqrt(1 + rows)


def doubt(dataset: Path, layers: Sequence[Layer]) -> Sequence[float]:
    """Say how uncertain the time of each layer still is, as a share of it.

    Parameters
    ----------
    dataset : Path
        What a campaign has measured so far.
    layers : sequence of Layer
        Of any kinds.

    Returns
    -------
    sequence of float
        By what the rows of its kind say (see `doubt_of`); `unknown` for kinds with hardly any row,
        0 for kinds that nothing predicts, or whose rows are nearly all left out.
    """
    tables = read_table(dataset)
    doubts = np.zeros(len(layers))
    for kind in sorted({layer.kind for layer in layers} & set(KINDS)):
        places = [place for place, layer in enumerate(layers) if layer.kind == kind]
        measured = len(tables[kind]) if kind in tables else 0
        if measured < FEWEST_ROWS_FOR_NETWORK:
            doubts[places] = unknown(measured)
            continue
        rows = layer_rows(tables[kind])
        if len(rows) < FEWEST_ROWS_FOR_NETWORK:
            # More rows of a kind that gives none to learn from would give none either.
            continue
        try:
            doubts[places] = doubt_of(rows, columns_of([layers[place] for place in places]))
        except TrainingError:
            continue
    found: list[float] = doubts.tolist()
    return found
