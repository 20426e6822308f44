"""One training step of a convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.layers._step import StepLayer, padded_to_tiles
from resperf.layers.columns import Array, Columns
from resperf.layers.conv import Conv, ConvLayer


class ConvStep(StepLayer, ConvLayer):
    """One training step of a 2-D convolution: forward, backward, update."""

    kind: ClassVar[str] = "conv_step"
    FORWARD: ClassVar[str] = Conv.kind

    PLAIN: ClassVar[tuple[str, ...]] = (*ConvLayer.PLAIN, *StepLayer.STEP_PLAIN)
    LOG2: ClassVar[tuple[str, ...]] = (*ConvLayer.LOG2, *StepLayer.STEP_LOG2)
    ENCODED: ClassVar[tuple[str, ...]] = (*ConvLayer.ENCODED, "optimizer")
    RANGES: ClassVar[Mapping[str, Any]] = StepLayer.with_optimizers(ConvLayer.RANGES)

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Return the quantities of the forward pass, and those of the step.

        ``flops_data`` and ``flops_weights`` are the work of the gradients of input and weights in
        full tiles of matrix kernels. ``kept_numbers`` are the values of optimizer state per weight.
        The gradient of the weights is a product of k rows and n columns over all m output pixels.
        """
        q = super().quantities(columns)
        inputs = q["channels_in"] / q["groups"]
        return {
            **q,
            "flops_data": q["flops"] * padded_to_tiles(inputs, 32) / inputs,
            "flops_weights": 2
            * padded_to_tiles(q["k"], 128)
            * padded_to_tiles(q["n"], 32)
            * q["m"]
            * q["groups"],
            "kept_numbers": cls._state_numbers(columns),
        }
