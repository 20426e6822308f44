"""What methods share that learn ln(time / baseline) from features and the baseline's own terms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from resperf.features import Array, Columns, feature_matrix
from resperf.predictors._base import Lesson, Predictor, stored
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.baseline import Baseline
from resperf.predictors.metrics import mape


@dataclass(frozen=True)
class Left:
    """What the baseline leaves to be learnt.

    Attributes
    ----------
    rows, judged : array (rows, inputs)
        Of the training and of the validation rows.
    targets : array (rows,)
        ln(time / baseline) of the training rows.
    error : callable
        What corrections of the validation rows, (rows,), come to as MAPE of times.
    """

    rows: Array
    targets: Array
    judged: Array
    error: Callable[[Array], float]


class Corrected(Predictor):
    """Predicts baseline x exp(correction).

    The baseline carries the physics, and the extrapolation; the correction learns what is left,
    from features, ln of the baseline, and the share of each of its terms.

    Attributes
    ----------
    baseline_ : Baseline
    features_ : tuple of str
        Names of the inputs that vary and are not copies of another.
    """

    @abstractmethod
    def _learn_correction(self, left: Left, lesson: Lesson) -> None:
        """Learn what the baseline leaves of the lesson's times."""

    @abstractmethod
    def _correction(self, rows: Array) -> Array:
        """Return ln(time / baseline) of rows (rows, inputs), shape (rows,)."""

    @abstractmethod
    def _export_correction(self) -> tuple[bytes, dict[str, Any]]:
        """Return the ONNX file, and what else the correction needs as plain JSON values."""

    @abstractmethod
    def _load_correction(self, values: Mapping[str, Any], network: OnnxNetwork) -> None:
        """Take over what `_export_correction` returned."""

    def _learn(self, lesson: Lesson) -> None:
        """Fit the baseline, then the correction on what it leaves."""
        self.baseline_ = Baseline(self.kind)
        self.baseline_._learn(lesson)
        names, matrix, estimate_ms = all_inputs(self.baseline_, lesson.columns)
        kept = informative(matrix)
        self.features_ = tuple(names[place] for place in kept)
        judged, judged_ms = self._inputs(lesson.validation[0])

        def error(corrections: Array) -> float:
            return mape(lesson.validation[1], judged_ms * np.exp(corrections))

        targets = np.log(lesson.times_ms / estimate_ms)
        self._learn_correction(Left(matrix[:, kept], targets, judged, error), lesson)

    def _inputs(self, columns: Columns) -> tuple[Array, Array]:
        """Return the correction's inputs, (rows, inputs), and the baseline in ms, (rows,)."""
        names, matrix, estimate_ms = all_inputs(self.baseline_, columns)
        return matrix[:, [names.index(name) for name in self.features_]], estimate_ms

    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms."""
        rows, estimate_ms = self._inputs(columns)
        times_ms: Array = estimate_ms * np.exp(self._correction(rows))
        return times_ms

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the correction; return the baseline and the names of their inputs."""
        name = f"{stem}.onnx"
        content, values = self._export_correction()
        (folder / name).write_bytes(content)
        return {
            "kind": self.kind,
            "network": name,
            "baseline": self.baseline_.export(folder, stem),
            "features": list(self.features_),
            **values,
        }

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote."""
        self = cls(stored(values, "kind"))
        self.baseline_ = Baseline.load(stored(values, "baseline"), folder)
        self.features_ = tuple(stored(values, "features"))
        self._load_correction(values, OnnxNetwork(folder / stored(values, "network")))
        return self


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
