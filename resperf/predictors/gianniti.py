"""`gianniti`: a line through times over operations, one for each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array, Columns, quantities
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors.linear import fit_coefficients, independent

_GIGA = 1e9


class Gianniti(LayerPredictor):
    """time = constant + slope x operations, ordinary least squares in ms, one line per layer kind.

    Gianniti et al., "Performance Prediction of GPU-based Deep Learning Applications" (SBAC-PAD
    2018), whose per-layer models are summarised in their later paper of the same title (section
    1): "the only explanatory variable is computational complexity". Operations are 2 per
    multiply-accumulate of a convolution or matrix product, 1 per pixel of a pooling's windows, and
    1 per value of an activation or a re-layout. The papers only give their totals: 3
    multiply-accumulates of a convolution for a forward and a backward pass, and windows of
    poolings, agree with Tables 2 and 3 of the later one; activations count 3 per value there, which
    changes a kind's slope alone. Each quantity has lines of its own: forward and backward passes of
    layers that were measured in training add up to those of a network. Predictions below zero
    become 0 ms.

    Attributes
    ----------
    constant_ms_ : float
    ms_per_giga_ : float
        Per 10^9 operations.
    """

    method = "gianniti"

    def _learn(self, task: Task) -> None:
        """Fit the line; nothing is random, and there are no epochs."""
        examples, times_ms = task.examples, task.examples.values
        x = _giga_operations(self.kind, examples.columns)
        if not x.any():
            raise TrainingError(
                f"{self.kind}: these layers have no operations, the only input of gianniti; use "
                "--method baseline"
            )
        terms = np.stack([np.ones_like(x), x], axis=1)
        # Layers with equal work do not determine a slope.
        used = independent(terms)
        line = np.zeros(2)
        line[used] = fit_coefficients(terms[:, used], times_ms, relative=False, non_negative=False)
        self.constant_ms_, self.ms_per_giga_ = line.tolist()

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        line = self.constant_ms_ + self.ms_per_giga_ * _giga_operations(self.kind, columns)
        return np.maximum(line, 0.0)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Return the line; there is no network to write."""
        return {"constant_ms": self.constant_ms_, "ms_per_giga": self.ms_per_giga_}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the line."""
        self.constant_ms_ = float(stored(values, "constant_ms"))
        self.ms_per_giga_ = float(stored(values, "ms_per_giga"))


def _giga_operations(kind: str, columns: Columns) -> Array:
    return quantities(kind, columns)["flops"] / _GIGA
