"""Base class of the regressions in the paper's Table 1: features, target, file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from resperf.features import Array, Columns
from resperf.features.transforms import ZScore, transform_from_json
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._onnx import OnnxGraph, OnnxNetwork
from resperf.predictors._paper import PAPER_KINDS, paper_features, unseen_notes

Inputs = npt.NDArray[np.float32]
"""Scaled features (rows, features) in float32, as ONNX Runtime reads them."""

Learnt = tuple[Callable[[Inputs], Array], bytes]
"""A function from rows to outputs (rows, 1), and the ONNX file of it."""


class PaperRegression(LayerPredictor):
    """A regression on the z-scored features of the paper's Table 3, in ms.

    Section 6.1 only mentions "appropriate parameter adjustments"; the settings here are the
    libraries' defaults, which come close to the paper's errors. There is no epoch to choose, so
    validation rows are not used. Negative results become 0 ms.

    Attributes
    ----------
    features_ : tuple of str
    z_score_ : ZScore
    """

    kinds = PAPER_KINDS
    log_time: ClassVar[bool] = False
    """Learn ln ms instead of ms."""

    rows_at_once: ClassVar[int] = 8192
    """Rows in one run of the ONNX file."""

    @abstractmethod
    def regress(self, rows: Inputs, targets: Array, weights: Array | None, seed: int) -> Learnt:
        """Fit the regression to rows (rows, features) and targets (rows,)."""

    def _learn(self, task: Task) -> None:
        """Scale the features, then fit the regression."""
        examples = task.examples
        self.notes_ = unseen_notes(self.kind, examples.columns)
        self.features_, matrix = paper_features(self.kind, examples.columns)
        self.z_score_ = ZScore.fit(matrix, self.features_)
        targets = np.log(examples.values) if self.log_time else examples.values
        rows = self._rows(examples.columns)
        self._run, self._content = self.regress(rows, targets, examples.weights, task.seed)

    def _rows(self, columns: Columns) -> Inputs:
        return self.z_score_.apply(paper_features(self.kind, columns)[1]).astype(np.float32)

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        answers = self._run(self._rows(columns))[:, 0]
        times_ms: Array = np.exp(answers) if self.log_time else np.maximum(answers, 0.0)
        return times_ms

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the regression; return the names of the features and their scaling."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(self._content)
        return {
            "network": name,
            "features": list(self.features_),
            "transforms": [self.z_score_.to_json()],
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the names of the features, their scaling, and the regression."""
        self.features_ = tuple(stored(values, "features"))
        (self.z_score_,) = map(transform_from_json, stored(values, "transforms"))
        self._run = OnnxNetwork(folder / stored(values, "network"), self.rows_at_once)


class FormulaGraph(OnnxGraph):
    """An ONNX graph in float64 from ``x64`` to ``y``; ``x64`` is the input in float64.

    Sums of large terms that nearly cancel need float64.
    """

    def __init__(self) -> None:
        from onnx import TensorProto

        super().__init__()
        self.node("Cast", ["x"], "x64", to=TensorProto.DOUBLE)
