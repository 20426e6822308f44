"""What layers and networks have in common when a predictor is stored and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array
from resperf.predictors import Predictor
from resperf.predictors.intervals import intervals_of_kinds
from resperf.predictors.metrics import errors
from resperf.quantities import QUANTITIES

_EXPORT_TOLERANCE = 1e-4
_Fitted = TypeVar("_Fitted", bound=Predictor)

Judged = tuple[str, str, Array, Array]
"""Kind (or ``"network"``), quantity, and its measured and predicted values, each (rows,)."""


def stored_and_loaded(
    predictor: _Fitted, folder: Path, name: str, values_of: Callable[[_Fitted], Array]
) -> tuple[dict[str, Any], _Fitted]:
    """Export a predictor, and load it as a bundle will.

    Parameters
    ----------
    predictor : Predictor
    folder : Path
    name : str
        Of its subjects, for files: ``conv``.
    values_of : callable
        Predicts training rows.

    Raises
    ------
    TrainingError
        If what is loaded predicts something else.
    """
    stem = f"{name}-{QUANTITIES[predictor.quantity_].stem}"
    values = predictor.export(folder, stem)
    loaded = type(predictor).load(values, folder)
    trained, now = values_of(predictor), values_of(loaded)
    off = np.max(np.abs(now - trained) / np.maximum(np.abs(trained), 1e-3))
    if not off <= _EXPORT_TOLERANCE:
        raise TrainingError(
            f"{name} {predictor.quantity_}: the stored predictor differs from the "
            f"trained one by {off:.1e}; this is a defect of the method {predictor.method}"
        )
    return {"method": predictor.method, **values}, loaded


def errors_of(judged: Iterable[Judged]) -> dict[str, dict[str, Any]]:
    """Return errors as JSON values: kind -> quantity -> errors."""
    result: dict[str, dict[str, Any]] = {}
    for kind, quantity, measured, predicted in judged:
        result.setdefault(kind, {})[quantity] = errors(measured, predicted).to_json()
    return result


def intervals_of(judged: Iterable[Judged]) -> dict[str, dict[str, Any]]:
    """Calibrate intervals as JSON values: kind -> quantity -> intervals."""
    quantities: dict[str, dict[str, tuple[Array, Array]]] = {}
    for kind, quantity, measured, predicted in judged:
        quantities.setdefault(quantity, {})[kind] = measured, predicted
    result: dict[str, dict[str, Any]] = {}
    for quantity, kinds in quantities.items():
        for kind, found in intervals_of_kinds(kinds).items():
            result.setdefault(kind, {})[quantity] = found.to_json()
    return result
