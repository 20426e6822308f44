"""`residual`: a network that learns the logarithm of measured time over a physical baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from resperf.features import Array, Columns
from resperf.features.transforms import Clip, ZScore, transform_from_json
from resperf.predictors import _fitting
from resperf.predictors._architecture import Architecture, OnnxNetwork, Weights, onnx_bytes
from resperf.predictors._base import Predictor, Progress, Rows, check_rows, stored
from resperf.predictors._inputs import all_inputs, chosen_inputs, informative
from resperf.predictors.baseline import Baseline
from resperf.predictors.metrics import mape

_SMALL = 5000
_MARGIN = 0.1
_USUAL = (0.005, 0.995)


class Residual(Predictor):
    """Predicts baseline x exp(network).

    The baseline carries the physics, and the extrapolation; the network learns what is left, from
    features, ln of the baseline, and the share of each of its terms. Members trained side by side
    from different starts are averaged in the logarithm.

    Attributes
    ----------
    baseline_ : Baseline
    features_ : tuple of str
        Names of the columns that vary and are not copies of another.
    z_score_, clip_ : ZScore, Clip
    residual_range_ : (float, float)
        What ln(time / baseline) usually is, with a margin: answers stay inside.
    architecture_ : Architecture
    best_epoch_ : int
    """

    method = "residual"

    def __init__(
        self,
        kind: str,
        *,
        epochs: int | None = None,
        members: int = 4,
        width: int = 128,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(kind, epochs=epochs)
        self.members = members
        self.width = width
        self.weight_decay = weight_decay

    def fit(
        self,
        columns: Columns,
        times_ms: Array,
        *,
        validation: Rows,
        seed: int,
        weights: Array | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Fit the baseline, then the network on what it leaves."""
        check_rows(self.kind, columns, times_ms)
        check_rows(self.kind, validation[0], validation[1], at_least=1)
        self.baseline_ = Baseline(self.kind).fit(
            columns, times_ms, validation=validation, seed=seed, weights=weights
        )
        names, matrix, estimate_ms = all_inputs(self.baseline_, columns)
        kept = informative(matrix)
        self.features_ = tuple(names[place] for place in kept)
        self.z_score_ = ZScore.fit(matrix[:, kept], self.features_)
        self.clip_ = Clip(6.0)
        targets = np.log(times_ms / estimate_ms)
        low, high = np.quantile(targets, _USUAL)
        self.residual_range_ = (float(low) - _MARGIN, float(high) + _MARGIN)
        self.architecture_ = self._architecture()
        judged, judged_baseline_ms = self._rows(validation[0])
        fitted = _fitting.fit_network(
            self.architecture_,
            self._schedule(len(times_ms)),
            self.clip_.apply(self.z_score_.apply(matrix[:, kept])),
            targets,
            validation_rows=judged,
            validation_error=lambda y: mape(validation[1], self._times(judged_baseline_ms, y)),
            seed=seed,
            weights=weights,
            progress=progress,
        )
        self.best_epoch_ = fitted.best_epoch
        self._weights: Weights = fitted.weights
        self._run: Callable[[Array], Array] = fitted.run
        return self

    def _architecture(self) -> Architecture:
        return Architecture(
            len(self.features_), stages=(), dense=(self.width,) * 3, members=self.members
        )

    def _schedule(self, rows: int) -> _fitting.Schedule:
        """Few rows take many passes in small steps: about 3,000 steps, whatever the size."""
        batch = 64 if rows < _SMALL else 256
        return _fitting.Schedule(
            epochs=self.epochs or int(np.clip(3000 * batch // max(rows, 1), 60, 200)),
            batch=batch,
            rate=2e-3,
            shape="cosine",
            loss="absolute",
            weight_decay=self.weight_decay,
            average_share=0.05,
        )

    def _rows(self, columns: Columns) -> tuple[Array, Array]:
        """Return the network's rows, and the baseline in ms."""
        matrix, estimate_ms = chosen_inputs(self.baseline_, columns, self.features_)
        return self.clip_.apply(self.z_score_.apply(matrix)), estimate_ms

    def _times(self, estimate_ms: Array, answers: Array) -> Array:
        times_ms: Array = estimate_ms * np.exp(np.clip(answers.mean(axis=1), *self.residual_range_))
        return times_ms

    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms."""
        rows, estimate_ms = self._rows(columns)
        return self._times(estimate_ms, self._run(rows))

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the network; return the baseline, the steps before and after, and its settings."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(onnx_bytes(self.architecture_, self._weights))
        return {
            "kind": self.kind,
            "network": name,
            "baseline": self.baseline_.export(folder, stem),
            "features": list(self.features_),
            "transforms": [self.z_score_.to_json(), self.clip_.to_json()],
            "residual_range": list(self.residual_range_),
            "members": self.members,
            "best_epoch": self.best_epoch_,
        }

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote."""
        self = cls(stored(values, "kind"))
        self.baseline_ = Baseline.load(stored(values, "baseline"), folder)
        self.features_ = tuple(stored(values, "features"))
        self.z_score_, self.clip_ = map(transform_from_json, stored(values, "transforms"))
        low, high = stored(values, "residual_range")
        self.residual_range_ = (float(low), float(high))
        self.best_epoch_ = stored(values, "best_epoch")
        self._run = OnnxNetwork(folder / stored(values, "network"))
        return self
