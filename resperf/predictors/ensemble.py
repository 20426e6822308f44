"""`ensemble`: the residual network and the boosted trees, averaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from resperf.features import Array, Columns
from resperf.predictors._base import Lesson, Predictor, stored
from resperf.predictors.boosted import TREES, Boosted
from resperf.predictors.residual import Residual


class Ensemble(Predictor):
    """Predicts the geometric mean of `residual` and `boosted`, which take `epochs` and `trees`.

    Both learn the same logarithm, one smoothly and one in steps, and err in different rows: their
    mean is better than either. The weights are equal and not chosen on validation rows, which
    chose the best epoch and the number of trees already.

    Attributes
    ----------
    members_ : tuple of Predictor
        A `Residual` and a `Boosted`, each with its own baseline.
    """

    method = "ensemble"

    def __init__(self, kind: str, *, epochs: int | None = None, trees: int = TREES) -> None:
        super().__init__(kind, epochs=epochs)
        self.trees = trees

    def _members(self) -> tuple[Predictor, ...]:
        return Residual(self.kind, epochs=self.epochs), Boosted(self.kind, trees=self.trees)

    def _learn(self, lesson: Lesson) -> None:
        """Fit one member after the other on the same rows."""
        self.members_ = self._members()
        for member in self.members_:
            member._learn(lesson)

    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms."""
        logs = [np.log(member.predict(columns)) for member in self.members_]
        times_ms: Array = np.exp(np.mean(logs, axis=0))
        return times_ms

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write ``STEM-METHOD.onnx`` for each member; return what they return, by method."""
        return {
            "kind": self.kind,
            "averaged": {
                member.method: member.export(folder, f"{stem}-{member.method}")
                for member in self.members_
            },
        }

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote."""
        self = cls(stored(values, "kind"))
        members = stored(values, "averaged")
        self.members_ = tuple(
            member.load(stored(members, member.method), folder) for member in self._members()
        )
        return self
