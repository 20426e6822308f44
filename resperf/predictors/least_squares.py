"""Linear least squares, and which columns a fit can tell apart."""

from __future__ import annotations

import numpy as np

from resperf.errors import require
from resperf.features import Array

_COLLINEAR = 1e-6
"""Share of a column that must not follow from the columns before it."""


def independent(matrix: Array) -> list[int]:
    """Return the places of columns that do not follow from those before them."""
    scaled = matrix / np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    basis = np.zeros((len(matrix), 0))
    places = []
    for place, column in enumerate(scaled.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        if (length := np.linalg.norm(rest)) > _COLLINEAR:
            basis = np.column_stack([basis, rest / length])
            places.append(place)
    return places


def solve_squares(matrix: Array, values: Array, *, relative: bool, non_negative: bool) -> Array:
    """Return the coefficients of least squares, shape (columns,).

    Parameters
    ----------
    matrix : array (rows, columns)
        Of independent columns.
    values : array (rows,)
        Above zero.
    relative : bool
        Whether errors relative to `values` are squared.
    non_negative : bool
        Whether coefficients are at least zero.
    """
    aim = values
    if relative:
        matrix, aim = matrix / values[:, None], np.ones(len(values))
    lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    if non_negative:
        nnls = require("scipy.optimize", "train").nnls
        found = nnls(matrix / lengths, aim, maxiter=100 * matrix.shape[1])[0]
    else:
        found = np.linalg.lstsq(matrix / lengths, aim, rcond=None)[0]
    return np.asarray(found / lengths)
