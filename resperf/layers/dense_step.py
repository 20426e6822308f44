"""One training step of a fully connected layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.layers._step import StepLayer, padded_to_tiles
from resperf.layers.columns import Array, Columns
from resperf.layers.dense import Dense, DenseLayer


class DenseStep(StepLayer, DenseLayer):
    """One training step of a fully connected layer: forward, backward, update."""

    kind: ClassVar[str] = "dense_step"
    FORWARD: ClassVar[str] = Dense.kind

    PLAIN: ClassVar[tuple[str, ...]] = (*DenseLayer.PLAIN, *StepLayer.STEP_PLAIN)
    LOG2: ClassVar[tuple[str, ...]] = (*DenseLayer.LOG2, *StepLayer.STEP_LOG2)
    ENCODED: ClassVar[tuple[str, ...]] = (*DenseLayer.ENCODED, "optimizer")
    RANGES: ClassVar[Mapping[str, Any]] = StepLayer.with_optimizers(DenseLayer.RANGES)

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Return the quantities of the forward pass, and those of the step as in `ConvStep`."""
        q = super().quantities(columns)
        batch, k, n = q["batch"], q["features_in"], q["features_out"]
        return {
            **q,
            "flops_data": 2 * padded_to_tiles(batch, 32) * n * padded_to_tiles(k, 128),
            "flops_weights": 2 * padded_to_tiles(k, 128) * padded_to_tiles(n, 32) * batch,
            "kept_numbers": cls._state_numbers(columns),
        }
