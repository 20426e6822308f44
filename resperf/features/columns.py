"""Layers as columns: one array per field, so that later steps are vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import LayerError
from resperf.layers import Layer
from resperf.layers.columns import Array, Columns

__all__ = ["Array", "Columns", "columns_of", "take"]


def columns_of(layers: Sequence[Layer]) -> dict[str, npt.NDArray[Any]]:
    """Return one array of shape (layers,) per field.

    Parameters
    ----------
    layers : sequence of Layer
        At least one; all of one kind.

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
    names = tuple(layers[0].specs())
    rows = map(attrgetter(*names), layers)
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def take(columns: Columns, rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the chosen rows of every column; `rows` is a mask or an array of positions."""
    return {name: column[rows] for name, column in columns.items()}
