"""Layers as columns: one array per field, so that later steps are vectorised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import LayerError
from resperf.layers import Layer
from resperf.layers.columns import Array, Columns
from resperf.measurement import layer_and_optimizer
from resperf.settings import OPTIMIZER

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
