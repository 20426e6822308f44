"""`residual`: a network that learns the logarithm of measured time over a physical baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from resperf.features import Array
from resperf.features.transforms import Clip, ZScore, transform_from_json
from resperf.predictors import _fitting
from resperf.predictors._architecture import Architecture, Weights, onnx_bytes
from resperf.predictors._base import Task, stored
from resperf.predictors._corrected import Corrected, ResidualTarget
from resperf.predictors._onnx import OnnxNetwork

_SMALL = 5000
"""Rows below which batches are smaller: few rows would give few steps."""
_MARGIN = 0.1
"""Margin of the range that outputs are clipped to, in logarithms."""
_USUAL = (0.005, 0.995)
"""Quantiles of ln(time / baseline) that bound this range."""


class Residual(Corrected):
    """Predicts baseline x exp(network).

    Members trained in parallel from different initial weights are averaged in the logarithm.

    Attributes
    ----------
    z_score_, clip_ : ZScore, Clip
    residual_range_ : (float, float)
        Usual range of ln(time / baseline), with a margin; outputs are clipped to it.
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
    ) -> None:
        super().__init__(kind, epochs=epochs)
        self.members = members
        self.width = width

    def _learn_correction(self, target: ResidualTarget, task: Task) -> None:
        """Train the network on scaled rows."""
        self.z_score_ = ZScore.fit(target.rows, self.features_)
        self.clip_ = Clip(6.0)
        low, high = np.quantile(target.targets, _USUAL)
        self.residual_range_ = (float(low) - _MARGIN, float(high) + _MARGIN)
        self.architecture_ = self._architecture()
        fitted = _fitting.fit_network(
            self.architecture_,
            self._schedule(len(target.targets)),
            self._scaled(target.rows),
            target.targets,
            validation_rows=self._scaled(target.validation),
            validation_error=lambda answers: target.error(self._averaged(answers)),
            seed=task.seed,
            progress=task.progress,
        )
        self.best_epoch_ = fitted.best_epoch
        self._weights: Weights = fitted.weights
        self._run: Callable[[Array], Array] = fitted.run

    def _architecture(self) -> Architecture:
        return Architecture(
            len(self.features_), stages=(), dense=(self.width,) * 3, members=self.members
        )

    def _schedule(self, rows: int) -> _fitting.Schedule:
        """Few rows take more passes: about 3,000 steps for every number of rows."""
        batch = 64 if rows < _SMALL else 256
        return _fitting.Schedule(
            epochs=self.epochs or int(np.clip(3000 * batch // max(rows, 1), 60, 200)),
            batch=batch,
            rate=2e-3,
            shape="cosine",
            loss="absolute",
            weight_decay=0.1,
            average_share=0.05,
        )

    def _scaled(self, rows: Array) -> Array:
        return self.clip_.apply(self.z_score_.apply(rows))

    def _averaged(self, answers: Array) -> Array:
        """Average the members' answers, (rows, members), within the usual range."""
        averaged: Array = np.clip(answers.mean(axis=1), *self.residual_range_)
        return averaged

    def _correction(self, rows: Array) -> Array:
        return self._averaged(self._run(self._scaled(rows)))

    def _export_correction(self) -> tuple[bytes, dict[str, Any]]:
        return onnx_bytes(self.architecture_, self._weights), {
            "transforms": [self.z_score_.to_json(), self.clip_.to_json()],
            "residual_range": list(self.residual_range_),
            "members": self.members,
            "best_epoch": self.best_epoch_,
        }

    def _load_correction(self, values: Mapping[str, Any], network: OnnxNetwork) -> None:
        self.z_score_, self.clip_ = map(transform_from_json, stored(values, "transforms"))
        low, high = stored(values, "residual_range")
        self.residual_range_ = (float(low), float(high))
        self.best_epoch_ = stored(values, "best_epoch")
        self._run = network
