"""`resperfnet`: the paper's residual network; `perfnet`: the perceptron it is compared with."""

from __future__ import annotations

from resperf.predictors._fitting import Architecture, Stage
from resperf.predictors._paper import PaperPredictor


class ResPerfNet(PaperPredictor):
    """ResPerfNet, Figure 1: three head convolutions with two residual blocks each, then 3 x 128.

    Head convolutions of 128, 64 and 32 filters over 3, 3 and 2 features; blocks of two convolutions
    of kernel size 1; dropout 0.2; one output with ReLU, no bias. 186,336 parameters with the nine
    features of a convolution.
    """

    method = "resperfnet"

    def architecture(self, features: int) -> Architecture:
        """Return the network of Figure 1."""
        return Architecture(
            features,
            stages=(Stage(128, 3, 2), Stage(64, 3, 2), Stage(32, 2, 2)),
            dense=(128, 128, 128),
        )


class PerfNet(PaperPredictor):
    """PerfNet: fully connected 32, 64, 128 and 256, dropout 0.2, the same output and training."""

    method = "perfnet"

    def architecture(self, features: int) -> Architecture:
        """Return PerfNet's perceptron."""
        return Architecture(features, stages=(), dense=(32, 64, 128, 256))
