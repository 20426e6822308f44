"""Base of methods that learn ln(time / baseline) from features and the baseline's terms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resperf.features import Array, Columns, feature_matrix, quantities
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.baseline import Baseline
from resperf.predictors.metrics import mape


@dataclass(frozen=True)
class ResidualTarget:
    """The residual target: what the baseline does not explain.

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
        known = quantities(kind, columns)
        return cls(columns, known, *feature_matrix(kind, columns, known))


class Corrected(LayerPredictor):
    """Predicts baseline x exp(correction).

    The baseline models physical costs, and extrapolates. The correction learns the residual target
    from features, ln of the baseline, and the share of each of its terms.

    Attributes
    ----------
    baseline_ : Baseline
    features_ : tuple of str
        Names of the inputs that vary and do not duplicate another.
    """

    @abstractmethod
    def _learn_correction(self, target: ResidualTarget, task: Task) -> None:
        """Learn what the baseline does not explain."""

    @abstractmethod
    def _correction(self, rows: Array) -> Array:
        """Return ln(time / baseline) of rows (rows, inputs), shape (rows,)."""

    @abstractmethod
    def _export_correction(self) -> tuple[bytes, dict[str, Any]]:
        """Return the ONNX file, and what else the correction needs as plain JSON values."""

    @abstractmethod
    def _load_correction(self, values: Mapping[str, Any], network: OnnxNetwork) -> None:
        """Restore what `_export_correction` returned."""

    def _learn(self, task: Task) -> None:
        """Fit the baseline, then the correction."""
        baseline = Baseline(self.kind)
        self.correct(baseline.fit(task.examples, validation=task.validation, seed=task.seed), task)

    def correct(self, baseline: Baseline, task: Task) -> None:
        """Learn what a baseline, fitted to the same rows, does not explain."""
        examples, validation = task.examples, task.validation
        self.baseline_, self.quantity_ = baseline, examples.quantity
        names, matrix, estimate_ms = all_inputs(
            self.baseline_, Described.of(self.kind, examples.columns)
        )
        chosen = informative(matrix)
        self.features_ = tuple(names[place] for place in chosen)
        validation_rows, baseline_ms = self._inputs(Described.of(self.kind, validation.columns))

        def error(corrections: Array) -> float:
            return mape(validation.values, baseline_ms * np.exp(corrections))

        targets = np.log(examples.values / estimate_ms)
        target = ResidualTarget(matrix[:, chosen], targets, validation_rows, error)
        self._learn_correction(target, task)

    def _inputs(self, layers: Described) -> tuple[Array, Array]:
        """Return the correction's inputs, (rows, inputs), and the baseline in ms, (rows,)."""
        names, matrix, estimate_ms = all_inputs(self.baseline_, layers)
        place = {name: place for place, name in enumerate(names)}
        return matrix[:, [place[name] for name in self.features_]], estimate_ms

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        return self.values_of(Described.of(self.kind, columns))

    def values_of(self, layers: Described) -> Array:
        """Return the learnt quantity of layers that another predictor may be asked about too."""
        rows, estimate_ms = self._inputs(layers)
        times_ms: Array = estimate_ms * np.exp(self._correction(rows))
        return times_ms

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the correction; return the baseline and the names of their inputs."""
        baseline = self.baseline_.export(folder, stem)
        return {"baseline": baseline, **self._store_correction(folder, stem)}

    def _store_correction(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the correction's ONNX file; return its name, its inputs and its values."""
        name = f"{stem}.onnx"
        content, values = self._export_correction()
        (folder / name).write_bytes(content)
        return {"network": name, "features": list(self.features_), **values}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the baseline, the names of the inputs, and the correction."""
        self.baseline_ = Baseline.load(stored(values, "baseline"), folder)
        self.features_ = tuple(stored(values, "features"))
        self._load_correction(values, OnnxNetwork(folder / stored(values, "network")))


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
    for place in range(matrix.shape[1]):
        column = matrix[:, place]
        deviation = column.std()
        if deviation <= 1e-9 * max(1.0, np.abs(column).max()):
            continue
        scores = np.round((column - column.mean()) / deviation, 6) + 0.0
        sign = 1.0 if scores[np.flatnonzero(scores)[0]] > 0 else -1.0
        normalised = (scores * sign + 0.0).tobytes()
        if normalised not in seen:
            seen.add(normalised)
            chosen.append(place)
    return chosen
