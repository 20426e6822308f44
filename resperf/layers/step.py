"""Training steps of single layers: forward pass, backward pass and update of what is learnt.

A step is a kind of its own, so that its times are never mixed with those of a forward pass.
"""

from __future__ import annotations

from typing import ClassVar

from resperf.layers._base import Layer, name
from resperf.layers.conv import ConvLayer
from resperf.layers.dense import DenseLayer

OPTIMIZERS = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adadelta")
"""Rules of update, by how many numbers they keep per weight: none, one, one, two, two, two."""

PASSES = 3
"""Products of a step: the forward pass, and the gradients of the input and of the weights."""


class StepLayer(Layer):
    """What a training step adds to the fields of its layer."""

    optimizer: str = name("rule by which the weights are updated", OPTIMIZERS)


class ConvStep(StepLayer, ConvLayer):
    """One training step of a 2-D convolution: forward, backward, update."""

    kind: ClassVar[str] = "conv_step"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the three products; loss and update are not counted."""
        return PASSES * super().macs


class DenseStep(StepLayer, DenseLayer):
    """One training step of a fully connected layer: forward, backward, update."""

    kind: ClassVar[str] = "dense_step"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the three products; loss and update are not counted."""
        return PASSES * super().macs
