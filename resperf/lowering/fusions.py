"""Which operators a framework fuses into one kernel: rules as data, and layers to check them with.

ONNX Runtime writes its optimised graph. For other frameworks the rules of `resperf.lowering` apply
(``FUSION_RULES`` of their modules), and `resperf bench --check-fusion` measures whether they hold
on a machine. The test is that of nn-Meter (Zhang et al., MobiSys 2021): two operators are fused if
running both together saves much of the time that they take one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resperf.layers import Activation, Conv, Dense, Layer


@dataclass(frozen=True)
class FusionRule:
    """A layer and the activation that follows it.

    Attributes
    ----------
    kind : str
        ``"conv"`` or ``"dense"``.
    follower : str
        Activation after it.
    fused : bool
        Whether the framework should run both as one kernel.
    """

    kind: str
    follower: str
    fused: bool = True

    @property
    def name(self) -> str:
        """Such as ``"conv + relu"``."""
        return f"{self.kind} + {self.follower}"


@dataclass(frozen=True)
class FusionPair:
    """Layers of one shape: each of the two alone, and both together."""

    alone: Layer
    follower: Layer
    both: Layer


# Little work per output value, so that the activation takes a good part of the time.
_CONVOLUTIONS = ((1, 16, 64, 56, 1), (1, 8, 32, 112, 1), (4, 8, 32, 64, 3), (8, 16, 128, 28, 1))
"""Batch, channels in and out, image, kernel."""
_PRODUCTS = ((64, 16, 2048), (256, 16, 1024), (1024, 8, 256), (2048, 16, 64))
"""Rows, features in and out."""


def fusion_pairs(rule: FusionRule) -> list[FusionPair]:
    """Return the layers to check a rule with, before lowering."""
    layers: list[Conv | Dense] = []
    if rule.kind == "conv":
        for batch, channels_in, channels_out, size, kernel in _CONVOLUTIONS:
            pad = kernel // 2
            layers.append(
                Conv(
                    batch=batch, channels_in=channels_in, channels_out=channels_out, height=size,
                    width=size, kernel_height=kernel, kernel_width=kernel, pad_top=pad,
                    pad_left=pad, pad_bottom=pad, pad_right=pad,
                )
            )  # fmt: skip
    else:
        layers += [
            Dense(batch=rows, features_in=width, features_out=out) for rows, width, out in _PRODUCTS
        ]
    return [
        FusionPair(
            layer,
            Activation(
                batch=layer.batch,
                values=math.prod(layer.output_shape[1:]),
                activation=rule.follower,
            ),
            layer.replace(activation=rule.follower),
        )
        for layer in layers
    ]
