"""Settings and results of a comparison of methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from resperf.errors import TrainingError
from resperf.features import Array
from resperf.predictors import layer_predictor_class
from resperf.predictors.metrics import Errors, TimeBin
from resperf.records import Record

TIMED_LAYERS = 1000
"""Predictions are timed over at least this many layers in one call."""


@dataclass(frozen=True)
class Compared(Record):
    """One method on one kind and quantity.

    Attributes
    ----------
    kind, phase, method : str
    rows_trained : int
        Rows that the method saw, validation rows included; the mean over the folds.
    rows_validation : int
        How many of these were used for validation only: best epoch, early stopping.
    errors : Errors
        Over the test rows; with folds, over those of all folds together.
    bins : tuple of TimeBin
        The same, by measured time.
    r2 : float
        See `resperf.predictors.metrics.r_squared`.
    fold_mapes : tuple of float
        MAPE of each fold; empty without folds.
    fit_s : float
        Wall time of a fit, the mean over the folds. The first network of a process also loads
        TensorFlow, which takes some seconds.
    predict_us : float
        Time to predict one layer, with at least `TIMED_LAYERS` in one call, by the predictor as a
        bundle stores it: without the libraries that trained it.
    noise_floor : float
        MAPE of a perfect predictor against these times, which are medians where layers were
        measured more than once; NaN if nothing was measured twice.
    measured_ms, predicted_ms : array (test rows,)
    """

    kind: str
    phase: str
    method: str
    rows_trained: int
    rows_validation: int
    errors: Errors
    bins: tuple[TimeBin, ...]
    r2: float
    fold_mapes: tuple[float, ...]
    fit_s: float
    predict_us: float
    noise_floor: float
    measured_ms: Array = field(repr=False, compare=False)
    predicted_ms: Array = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values without the times; unknown values are None."""
        values = super().to_json()
        del values["measured_ms"], values["predicted_ms"]
        errors: dict[str, Any] = values.pop("errors")
        return {**values, **errors}


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison, and notes on what was skipped."""

    rows: tuple[Compared, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonSettings:
    """How methods are compared.

    Attributes
    ----------
    methods : tuple of str
        Names of `resperf.predictors.METHODS`.
    rows : tuple of int
        Points of a learning curve: how many rows of a kind a method may see. Empty: all.
    folds : int or None
        Cross-validate over the rows outside the test split instead of evaluating on it.
    kinds : tuple of str
        Empty: all kinds of the dataset.
    phases : tuple of str
        Empty: the one with a layer's own time, which is execution if it was measured.
    seed : int
        Of the fits, of the folds, and of the rows of a learning curve. The test split is always
        the same.

    Raises
    ------
    TrainingError
        If a method is unknown or named twice, or a number is too small.
    """

    methods: tuple[str, ...]
    rows: tuple[int, ...] = ()
    folds: int | None = None
    kinds: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.methods:
            raise TrainingError("no method to compare; name some, such as: baseline,boosted")
        for method in self.methods:
            layer_predictor_class(method)
            if self.methods.count(method) > 1:
                raise TrainingError(f"method {method!r} is named twice")
        if self.folds is not None and self.folds < 2:
            raise TrainingError(f"{self.folds} folds; cross-validation needs at least 2")
        if any(count < 1 for count in self.rows):
            raise TrainingError(f"rows={min(self.rows)} must be at least 1")
