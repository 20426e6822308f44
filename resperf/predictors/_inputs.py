"""What methods that learn ln(time / baseline) are given: features, ln baseline, shares of terms."""

from __future__ import annotations

import numpy as np

from resperf.features import Array, Columns, feature_matrix
from resperf.predictors.baseline import Baseline


def all_inputs(baseline: Baseline, columns: Columns) -> tuple[tuple[str, ...], Array, Array]:
    """Return names and values of all inputs, (rows, inputs), and the baseline in ms, (rows,).

    Parameters
    ----------
    baseline : Baseline
        Fitted; its kind says which features there are.
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    """
    names, matrix = feature_matrix(baseline.kind, columns)
    estimate_ms, shares = baseline.shares(columns)
    names += ("ln baseline", *(f"share {term}" for term in baseline.terms_))
    return names, np.column_stack([matrix, np.log(estimate_ms), shares]), estimate_ms


def chosen_inputs(
    baseline: Baseline, columns: Columns, chosen: tuple[str, ...]
) -> tuple[Array, Array]:
    """Return the named inputs, (rows, inputs), and the baseline in ms, (rows,)."""
    names, matrix, estimate_ms = all_inputs(baseline, columns)
    return matrix[:, [names.index(name) for name in chosen]], estimate_ms


def informative(matrix: Array) -> list[int]:
    """Return the columns that vary and are not copies (or mirrors) of an earlier one."""
    kept: list[int] = []
    seen: set[bytes] = set()
    for place in range(matrix.shape[1]):
        column = matrix[:, place]
        deviation = column.std()
        if deviation <= 1e-9 * max(1.0, np.abs(column).max()):
            continue
        scores = np.round((column - column.mean()) / deviation, 6) + 0.0
        sign = 1.0 if scores[np.flatnonzero(scores)[0]] > 0 else -1.0
        print_of_column = (scores * sign + 0.0).tobytes()
        if print_of_column not in seen:
            seen.add(print_of_column)
            kept.append(place)
    return kept
