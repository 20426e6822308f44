"""Base class of the regressions in the paper's Table 1: target and file."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from resperf.features import Array
from resperf.predictors._base import Task
from resperf.predictors._onnx import OnnxGraph
from resperf.predictors._paper import Inputs, Learnt, PaperMethod


class PaperRegression(PaperMethod):
    """A regression in ms.

    Section 6.1 only mentions "appropriate parameter adjustments"; the settings here are the
    libraries' defaults, which come close to the paper's errors. There is no epoch to choose, so
    validation rows are not used. Negative results become 0 ms.
    """

    log_time: ClassVar[bool] = False
    """Learn ln ms instead of ms."""

    @abstractmethod
    def regress(self, rows: Inputs, targets: Array, seed: int) -> Learnt:
        """Fit the regression to rows (rows, features) and targets (rows,)."""

    def _fit_rows(self, rows: Inputs, task: Task) -> Learnt:
        times_ms = task.examples.values
        return self.regress(rows, np.log(times_ms) if self.log_time else times_ms, task.seed)

    def _times(self, answers: Array) -> Array:
        times_ms: Array = np.exp(answers) if self.log_time else np.maximum(answers, 0.0)
        return times_ms[:, 0]


class FormulaGraph(OnnxGraph):
    """An ONNX graph in float64 from ``x64`` to ``y``; ``x64`` is the input in float64.

    Sums of large terms that nearly cancel need float64.
    """

    def __init__(self) -> None:
        from onnx import TensorProto

        super().__init__()
        self.node("Cast", ["x"], "x64", to=TensorProto.DOUBLE)
