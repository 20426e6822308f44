"""`perfnet`: the perceptron that ResPerfNet is compared with."""

from __future__ import annotations

from resperf.predictors._architecture import Architecture
from resperf.predictors._paper import PaperPredictor


class PerfNet(PaperPredictor):
    """PerfNet: fully connected 32, 64, 128 and 256, dropout 0.2, the same output and training."""

    method = "perfnet"

    def architecture(self, features: int) -> Architecture:
        """Return PerfNet's perceptron."""
        return Architecture(features, stages=(), dense=(32, 64, 128, 256))
