"""The feature matrix of each layer kind: names and numbers, fixed by `FEATURE_SET_VERSION`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from resperf.features.columns import Array, Columns
from resperf.layers import kind_of
from resperf.settings import OPTIMIZER, OPTIMIZERS

FEATURE_SET_VERSION = 1
"""Increased whenever a name, order or number of `feature_matrix` or `quantities` changes for a kind
of a released bundle. Golden layers of a bundle reveal any other change. A new choice of a field
needs no increase: it adds a column of zeros, and inputs are matched by name."""


def quantities(kind: str, columns: Columns) -> dict[str, Array]:
    """Return the physical quantities of layers: sizes, bytes, FLOPs; arrays of shape (rows,).

    Those of training steps include 1 or 0 for each optimizer, and ``kept_numbers``, its values of
    state per weight.

    Raises
    ------
    LayerError
        If there is no such kind.
    """
    numbers = kind_of(kind).quantities(columns)
    if OPTIMIZER in columns:
        values = np.asarray(columns[OPTIMIZER])
        states = [OPTIMIZERS.get(str(optimizer), 0) for optimizer in values]
        numbers["kept_numbers"] = np.array(states, dtype=float)
        numbers |= {
            f"{OPTIMIZER}={optimizer}": (values == optimizer).astype(float)
            for optimizer in OPTIMIZERS
        }
    return numbers


def plain_and_log2(kind: str, columns: Columns) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the quantities that are features unchanged, and those of which log2 is one."""
    cls = kind_of(kind)
    if OPTIMIZER not in columns:
        return cls.PLAIN, cls.LOG2
    return (*cls.PLAIN, "kept_numbers"), (*cls.LOG2, *cls.BACKWARD)


def feature_matrix(
    kind: str, columns: Columns, precomputed: Mapping[str, Array] | None = None
) -> tuple[tuple[str, ...], Array]:
    """Return feature names and a float64 matrix of shape (rows, features).

    Parameters
    ----------
    kind : str
        Layer kind.
    columns : mapping of str to array
        As `columns_of` returns them.
    precomputed : mapping of str to array, optional
        The result of `quantities`, if already computed.

    Raises
    ------
    LayerError
        If there is no such kind.
    """
    cls = kind_of(kind)
    q = quantities(kind, columns) if precomputed is None else precomputed
    plain, log2 = plain_and_log2(kind, columns)
    named = {name: q[name] for name in plain}
    # Below 1 (an absent im2col buffer, a small ratio) the floor keeps the logarithm finite.
    named |= {f"log2 {name}": np.log2(np.maximum(q[name], 2.0**-10)) for name in log2}
    for field_name, spec in cls.specs.items():
        if field_name in (*cls.ENCODED, "dtype"):
            named |= {(feature := f"{field_name}={choice}"): q[feature] for choice in spec.choices}
    if OPTIMIZER in columns:
        named |= {(feature := f"{OPTIMIZER}={optimizer}"): q[feature] for optimizer in OPTIMIZERS}
    return tuple(named), np.stack(list(named.values()), axis=1)
