"""Training steps of single layers: forward pass, backward pass and update of the weights.

A step is a separate kind, so that its times never mix with those of a forward pass. It has the
fields of the forward pass, and the optimizer.
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
"""Optimizer -> values of state per weight, which every step reads and writes."""
OPTIMIZERS = tuple(STATE_NUMBERS)


class StepLayer(Layer):
    """Fields and quantities that a training step adds to its layer."""

    optimizer: str = name("optimizer that updates the weights", OPTIMIZERS)

    PASSES: ClassVar[int] = 3
    """Products per step: forward pass, gradient of the input, gradient of the weights. Loss and
    update are not counted."""
    # Values of optimizer state per weight; stored bundles use this name.
    STEP_PLAIN: ClassVar[tuple[str, ...]] = ("kept_numbers",)
    STEP_LOG2: ClassVar[tuple[str, ...]] = ("flops_data", "flops_weights")

    @classmethod
    def with_optimizers(cls, ranges: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the forward pass's distributions, with all optimizers equally often."""
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


def padded_to_tiles(length: Array, tile: int) -> Array:
    """Round up to a multiple of the tile."""
    import numpy as np

    return np.asarray(np.ceil(length / tile) * tile)
