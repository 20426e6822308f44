"""Features: from layers to named numbers, the same numpy code for training and for prediction.

Names and numbers of each layer kind are fixed by `FEATURE_SET_VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import LayerError
from resperf.layers import Layer, kind_of
from resperf.layers.columns import Array, Columns
from resperf.measurement import layer_and_optimizer
from resperf.settings import OPTIMIZER, OPTIMIZERS

__all__ = ["Array", "Columns", "columns_of", "columns_of_keys", "take"]


def columns_of(
    layers: Sequence[Layer], optimizer: str | Sequence[str] = ""
) -> dict[str, npt.NDArray[Any]]:
    """Return one array of shape (layers,) per field; of training steps, their optimizer as well.

    Parameters
    ----------
    layers : sequence of Layer
        At least one; all of one kind.
    optimizer : str or sequence of str
        Of the layers' training steps, one for all or one each; empty for inference.

    Raises
    ------
    LayerError
        If there is no layer, or if kinds are mixed.
    """
    kinds = {layer.kind for layer in layers}
    if len(kinds) != 1:
        raise LayerError(
            f"columns need layers of one kind, got {', '.join(sorted(kinds)) or 'no layer'}"
        )
    names = tuple(layers[0].specs)
    rows = map(attrgetter(*names), layers)
    columns = {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    optimizers = np.broadcast_to(np.array(optimizer), len(layers))
    return {**columns, **({OPTIMIZER: optimizers} if np.any(optimizers != "") else {})}


def columns_of_keys(keys: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of layers of one kind, given by `resperf.measurement.layer_key`."""
    layers, optimizers = zip(*map(layer_and_optimizer, keys), strict=True)
    return columns_of(layers, optimizers)


def take(columns: Columns, rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the chosen rows of every column; `rows` is a mask or an array of positions."""
    return {name: column[rows] for name, column in columns.items()}


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
