"""What trees learn from: features, a baseline and its terms, and ln(time / baseline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from resperf.features import Array, Columns, feature_matrix, quantities
from resperf.predictors.baseline import Baseline


@dataclass(frozen=True)
class CorrectionTarget:
    """What the baseline does not explain.

    Attributes
    ----------
    rows, validation : array (rows, inputs)
        Inputs of the training and of the validation rows.
    targets : array (rows,)
        ln(time / baseline) of the training rows.
    error : callable
        Corrections of the validation rows, (rows,) -> MAPE of the corrected times.
    """

    rows: Array
    targets: Array
    validation: Array
    error: Callable[[Array], float]


@dataclass(frozen=True)
class Described:
    """Layers of one kind as predictors with a correction see them, whatever their baselines.

    Attributes
    ----------
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    quantities : mapping of str to array
        As `resperf.features.quantities` returns them.
    names : tuple of str
    features : array (rows, features)
    """

    columns: Columns
    quantities: Mapping[str, Array]
    names: tuple[str, ...]
    features: Array

    @classmethod
    def of(cls, kind: str, columns: Columns) -> Described:
        """Compute quantities and features once."""
        layer_quantities = quantities(kind, columns)
        return cls(columns, layer_quantities, *feature_matrix(kind, columns, layer_quantities))


def all_inputs(baseline: Baseline, layers: Described) -> tuple[tuple[str, ...], Array, Array]:
    """Return names and values of all inputs, (rows, inputs), and the baseline in ms, (rows,).

    Parameters
    ----------
    baseline : Baseline
        Fitted; its kind determines the features.
    layers : Described
    """
    estimate_ms, shares = baseline.shares(layers.columns, layers.quantities)
    names = (*layers.names, "ln baseline", *(f"share {term}" for term in baseline.terms_))
    return names, np.column_stack([layers.features, np.log(estimate_ms), shares]), estimate_ms


def informative(matrix: Array) -> list[int]:
    """Return the columns that vary and do not duplicate (or negate) an earlier one."""
    chosen: list[int] = []
    seen: set[bytes] = set()
    for index in range(matrix.shape[1]):
        column = matrix[:, index]
        deviation = column.std()
        if deviation <= 1e-9 * max(1.0, np.abs(column).max()):
            continue
        scores = np.round((column - column.mean()) / deviation, 6) + 0.0
        sign = 1.0 if scores[np.flatnonzero(scores)[0]] > 0 else -1.0
        normalised = (scores * sign + 0.0).tobytes()
        if normalised not in seen:
            seen.add(normalised)
            chosen.append(index)
    return chosen
