"""What the regressions that the paper's Table 1 compares with share: features, target, file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from resperf.features import Array, Columns
from resperf.features.transforms import ZScore, transform_from_json
from resperf.predictors._base import Lesson, Predictor, stored
from resperf.predictors._onnx import OnnxNetwork, onnx_file
from resperf.predictors._paper import paper_features, unseen_notes

Inputs = npt.NDArray[np.float32]
"""Scaled features (rows, features), rounded to what ONNX Runtime is given."""

Learnt = tuple[Callable[[Inputs], Array], bytes]
"""What answers rows, as (rows, 1), and the ONNX file that does the same."""


class PaperRegression(Predictor):
    """A regression on the z-scored features of the paper's Table 3, in ms.

    Section 6.1 says only that "appropriate parameter adjustments" were made; the settings here are
    the libraries' own, which come close to the paper's errors. There is no epoch to choose, so the
    validation rows are not used. A sum that comes out negative is no time and becomes 0 ms.

    Attributes
    ----------
    features_ : tuple of str
    z_score_ : ZScore
    """

    log_time: ClassVar[bool] = False
    """Learn ln ms instead of ms."""

    rows_at_once: ClassVar[int] = 8192
    """Rows in one run of the ONNX file."""

    @abstractmethod
    def regress(self, rows: Inputs, targets: Array, weights: Array | None, seed: int) -> Learnt:
        """Fit the regression to rows (rows, features) and targets (rows,)."""

    def _learn(self, lesson: Lesson) -> None:
        """Scale the features, then fit the regression."""
        self.notes_ = unseen_notes(self.kind, lesson.columns)
        self.features_, matrix = paper_features(self.kind, lesson.columns)
        self.z_score_ = ZScore.fit(matrix, self.features_)
        targets = np.log(lesson.times_ms) if self.log_time else lesson.times_ms
        rows = self._rows(lesson.columns)
        self._run, self._content = self.regress(rows, targets, lesson.weights, lesson.seed)

    def _rows(self, columns: Columns) -> Inputs:
        return self.z_score_.apply(paper_features(self.kind, columns)[1]).astype(np.float32)

    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms."""
        answers = self._run(self._rows(columns))[:, 0]
        times_ms: Array = np.exp(answers) if self.log_time else np.maximum(answers, 0.0)
        return times_ms

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the regression; return the names of the features and their scaling."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(self._content)
        return {
            "kind": self.kind,
            "network": name,
            "features": list(self.features_),
            "transforms": [self.z_score_.to_json()],
        }

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote."""
        self = cls(stored(values, "kind"))
        self.features_ = tuple(stored(values, "features"))
        (self.z_score_,) = map(transform_from_json, stored(values, "transforms"))
        self._run = OnnxNetwork(folder / stored(values, "network"), cls.rows_at_once)
        return self


def formula_bytes(
    features: int, nodes: list[Any], constants: Mapping[str, npt.NDArray[Any]]
) -> bytes:
    """Return an ONNX file with input ``x`` (rows, features) in float32 and output ``y`` in float64.

    Sums of large terms that nearly cancel need float64; ``x64`` is the input in it.

    Parameters
    ----------
    features : int
    nodes : list of NodeProto
        From ``x64`` to ``y``.
    constants : mapping of str to array
    """
    from onnx import TensorProto, helper

    widen = helper.make_node("Cast", ["x"], ["x64"], name="x64", to=TensorProto.DOUBLE)
    return onnx_file([widen, *nodes], constants, features=features, double=True)
