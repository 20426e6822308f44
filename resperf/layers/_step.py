"""Training steps of single layers: forward pass, backward pass and update of what is learnt.

A step is a kind of its own, so that its times are never mixed with those of a forward pass. It has
the fields of that pass, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.layers._base import Layer, name
from resperf.layers._laws import choices
from resperf.layers.columns import Array, Columns, is_one_of

STATE_NUMBERS: Mapping[str, int] = {
    "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 2, "adam": 2, "adadelta": 2,
}  # fmt: skip
"""Optimizer (rule of update) -> numbers that it stores per weight and reads and writes in every
step."""
OPTIMIZERS = tuple(STATE_NUMBERS)


class StepLayer(Layer):
    """What a training step adds to its layer."""

    optimizer: str = name("rule by which the weights are updated", OPTIMIZERS)

    PASSES: ClassVar[int] = 3
    """Products of a step: the forward pass, and the gradients of the input and of the weights; loss
    and update are not counted."""
    # Stored bundles know the optimizer's numbers per weight by this name.
    STEP_PLAIN: ClassVar[tuple[str, ...]] = ("kept_numbers",)
    STEP_LOG2: ClassVar[tuple[str, ...]] = ("flops_data", "flops_weights")

    @classmethod
    def with_optimizers(cls, ranges: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the ranges of the forward pass with all optimizers."""
        return {**ranges, "optimizer": choices(OPTIMIZERS, [1] * len(OPTIMIZERS))}

    @classmethod
    def _state_numbers(cls, columns: Columns) -> Array:
        return sum(
            (
                count * is_one_of(columns, "optimizer", each)
                for each, count in STATE_NUMBERS.items()
            ),
            start=0 * is_one_of(columns, "optimizer", "sgd"),
        )


def whole(length: Array, tile: int) -> Array:
    """Round up to whole tiles."""
    import numpy as np

    return np.asarray(np.ceil(length / tile) * tile)
