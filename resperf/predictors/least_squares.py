"""Linear least squares, and which columns a fit can tell apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from resperf.errors import require
from resperf.features import Array

_COLLINEAR = 1e-6
"""Share of a column that must not follow from the columns before it."""
_DRAWN = 0.01
"""How strongly coefficients of parts are drawn to zero, beside what all rows say of their total:
that of a part with a tenth of the total is half of what the rows ask for."""


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


def solve_squares(
    matrix: Array,
    values: Array,
    *,
    relative: bool,
    non_negative: bool,
    parts: Mapping[int, int] | None = None,
) -> Array:
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
    parts : mapping of int to int, optional
        Place of a column -> that of the column whose part it is. Its coefficient, what the part
        costs beyond the whole, is drawn to zero; such columns need not be independent.
    """
    aim = values
    if relative:
        matrix, aim = matrix / values[:, None], np.ones(len(values))
    lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    parts = parts or {}
    lengths[list(parts)] = lengths[list(parts.values())]
    drawn = _DRAWN**0.5 * np.eye(len(lengths))[list(parts)]
    matrix, aim = np.vstack([matrix / lengths, drawn]), np.append(aim, np.zeros(len(drawn)))
    if non_negative:
        nnls = require("scipy.optimize", "train").nnls
        found = nnls(matrix, aim, maxiter=100 * matrix.shape[1])[0]
    else:
        found = np.linalg.lstsq(matrix, aim, rcond=None)[0]
    return np.asarray(found / lengths)
