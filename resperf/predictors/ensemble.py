"""`ensemble`: weighted geometric mean of the residual network and the boosted trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from resperf.features import Array, Columns
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._corrected import Corrected, Described
from resperf.predictors.baseline import Baseline
from resperf.predictors.boosted import TREES, Boosted
from resperf.predictors.residual import Residual

SHARES = tuple(step / 10 for step in range(11))
"""Shares of the residual network that are tried."""


class Ensemble(LayerPredictor):
    """Predicts a geometric mean of `residual` and `boosted`, which take `epochs` and `trees`.

    Both learn the same logarithm, one smoothly and one in steps, and have different errors: mostly
    their mean is better than either. Their shares are equal unless others are better on the
    validation rows by more than two standard errors of the difference, since these rows already
    chose the best epoch and the number of trees.

    Attributes
    ----------
    members_ : tuple of Corrected
        A `Residual` and a `Boosted` of one baseline.
    share_ : float
        Share of the first member; the second has the rest.
    """

    method = "ensemble"

    def __init__(self, kind: str, *, epochs: int | None = None, trees: int = TREES) -> None:
        super().__init__(kind, epochs=epochs)
        self.trees = trees

    def _members(self) -> tuple[Corrected, ...]:
        return Residual(self.kind, epochs=self.epochs), Boosted(self.kind, trees=self.trees)

    def _learn(self, task: Task) -> None:
        """Fit one baseline, then one member after the other on the same rows."""
        baseline = Baseline(self.kind)
        baseline.fit(task.examples, validation=task.validation, seed=task.seed)
        self.members_ = self._members()
        for member in self.members_:
            member.correct(baseline, task)
        first_ms, second_ms = self._of_members(task.validation.columns)
        self.share_ = best_share(first_ms, second_ms, task.validation.values)

    def _of_members(self, columns: Columns) -> list[Array]:
        layers = Described.of(self.kind, columns)
        return [member.values_of(layers) for member in self.members_]

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        first_ms, second_ms = self._of_members(columns)
        return _averaged(first_ms, second_ms, self.share_)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write ``STEM-METHOD.onnx`` for each member; return what they return, by method."""
        return {
            "share": self.share_,
            "averaged": {
                member.method: member.export(folder, f"{stem}-{member.method}")
                for member in self.members_
            },
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the members and their shares."""
        self.share_ = float(stored(values, "share"))
        members = stored(values, "averaged")
        self.members_ = tuple(
            member.load(stored(members, member.method), folder) for member in self._members()
        )


def best_share(first_ms: Array, second_ms: Array, times_ms: Array) -> float:
    """Choose the share of the first of two predictions in their geometric mean.

    Parameters
    ----------
    first_ms, second_ms, times_ms : array (rows,)
        Predicted and measured times of validation rows, above zero.

    Returns
    -------
    float
        The one of `SHARES` with the smallest MAPE; one half if none is better than one half by more
        than two standard errors of the difference.
    """
    equal = np.abs(_averaged(first_ms, second_ms, 0.5) / times_ms - 1)
    best, largest = 0.5, 0.0
    for share in SHARES:
        gains = equal - np.abs(_averaged(first_ms, second_ms, share) / times_ms - 1)
        gain, error = gains.mean(), gains.std() / np.sqrt(len(gains))
        if gain > max(largest, 2 * error):
            best, largest = share, gain
    return best


def _averaged(first_ms: Array, second_ms: Array, share: float) -> Array:
    times_ms: Array = np.exp(share * np.log(first_ms) + (1 - share) * np.log(second_ms))
    return times_ms
