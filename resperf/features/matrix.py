"""The feature matrix of each layer kind: names and numbers, fixed by `FEATURE_SET_VERSION`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from resperf.errors import LayerError
from resperf.features import activation, conv, dense, pool, reorder, step
from resperf.features.columns import Array, Columns
from resperf.layers import OPERATOR_KINDS, kind_of

FEATURE_SET_VERSION = 2
"""Raised whenever a name, an order or a number of `feature_matrix` or `quantities` changes for a
kind that a released bundle knows. The canned layers of a bundle show the change of any other. One
more choice of a field changes nothing: it adds a column of zeros, and inputs go by their names."""


@dataclass(frozen=True)
class _Recipe:
    quantities: Callable[[Columns], dict[str, Array]]
    plain: tuple[str, ...]
    log2: tuple[str, ...]
    encoded: tuple[str, ...] | None = None
    """Fields of names that are features; all of more than two names unless given."""


_RECIPES: Mapping[str, _Recipe] = {
    "conv": _Recipe(conv.quantities, conv.PLAIN, conv.LOG2),
    "pool": _Recipe(pool.quantities, pool.PLAIN, pool.LOG2),
    "dense": _Recipe(dense.quantities, dense.PLAIN, dense.LOG2),
    "activation": _Recipe(activation.quantities, activation.PLAIN, activation.LOG2),
    "reorder": _Recipe(reorder.quantities, reorder.PLAIN, reorder.LOG2),
    "conv_step": _Recipe(step.conv_quantities, conv.PLAIN + step.PLAIN, conv.LOG2 + step.LOG2),
    "dense_step": _Recipe(step.dense_quantities, dense.PLAIN + step.PLAIN, dense.LOG2 + step.LOG2),
    **{
        kind: _Recipe(cls.quantities, cls.PLAIN, cls.LOG2, (*cls.ENCODED, "dtype"))
        for kind, cls in OPERATOR_KINDS.items()
    },
}

FEATURED_KINDS = tuple(_RECIPES)
"""Kinds of layers that features are defined for."""


def _recipe(kind: str) -> _Recipe:
    if kind not in _RECIPES:
        raise LayerError(f"no features for kind {kind!r}; known kinds: {', '.join(_RECIPES)}")
    return _RECIPES[kind]


def quantities(kind: str, columns: Columns) -> dict[str, Array]:
    """Return the physical quantities of layers: sizes, bytes, FLOPs; arrays of shape (rows,).

    Raises
    ------
    LayerError
        If no features are defined for `kind`.
    """
    return _recipe(kind).quantities(columns)


def feature_matrix(
    kind: str, columns: Columns, known: Mapping[str, Array] | None = None
) -> tuple[tuple[str, ...], Array]:
    """Return feature names and a float64 matrix of shape (rows, features).

    Parameters
    ----------
    kind : str
        Layer kind.
    columns : mapping of str to array
        As `columns_of` returns them.
    known : mapping of str to array, optional
        The answer of `quantities`, where it was already computed.

    Raises
    ------
    LayerError
        If no features are defined for `kind`.
    """
    recipe = _recipe(kind)
    q = recipe.quantities(columns) if known is None else known
    named = {name: q[name] for name in recipe.plain}
    # Below 1 (an absent im2col buffer, a small ratio) the floor keeps the logarithm finite.
    named |= {f"log2 {name}": np.log2(np.maximum(q[name], 2.0**-10)) for name in recipe.log2}
    for field_name, spec in kind_of(kind).specs().items():
        wanted = len(spec.choices) > 2 if recipe.encoded is None else field_name in recipe.encoded
        if wanted:
            values = np.asarray(columns[field_name])
            named |= {
                f"{field_name}={choice}": (values == choice).astype(float)
                for choice in spec.choices
            }
    return tuple(named), np.stack(list(named.values()), axis=1)
