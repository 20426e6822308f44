"""How layers' times differ inside networks, and on another machine, from the measured ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from resperf.layers import Layer
from resperf.platform import Platform
from resperf.records import Record


def group_of(layer: Layer) -> str:
    """Name the layers that share a factor: ``"conv"``, or ``"norm local_response"``."""
    field = layer.PLACED_BY
    return f"{layer.kind} {layer.fields()[field]}" if field else layer.kind


@dataclass(frozen=True)
class TransferredCalibration(Record):
    """How a bundle was transferred from the machine where its layers were measured.

    Attributes
    ----------
    origin : Platform
        Where the layers were measured.
    factor : float
        Layer time on the bundle's machine over layer time on `origin`, fitted to whole networks.
    """

    origin: Platform
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError("the factor of another machine is damaged")


@dataclass(frozen=True)
class Correction(Record):
    """In-network correction, fitted to whole networks measured on the bundle's machine.

    Attributes
    ----------
    factors : mapping of str to float
        Group of layers (`group_of`) -> time inside a network over time in isolation. A group that
        is absent has its kind's factor, else 1.
    node_ms, handover_ms_per_mb : float
        Inter-layer overhead per layer and per MB, instead of that measured on short chains.
    log_width : float
        Nine of ten networks that were left out of the fit take their predicted time within a factor
        of exp(log_width); infinite if too few were measured.
    evidence : mapping
        The networks that it was fitted to, and its errors on networks left out.
    """

    factors: Mapping[str, float]
    node_ms: float
    handover_ms_per_mb: float
    log_width: float
    evidence: Mapping[str, Any]

    def __post_init__(self) -> None:
        numbers = (*self.factors.values(), self.node_ms, self.handover_ms_per_mb, self.log_width)
        if min(numbers) < 0 or any(map(math.isnan, numbers)) or 0 in self.factors.values():
            raise ValueError("the in-network correction is damaged")

    def factor(self, group: str) -> float:
        """Return the time of such layers inside a network over their time in isolation."""
        return self.factors.get(group, self.factors.get(group.partition(" ")[0], 1.0))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; an unknown width is infinite."""
        width = values["log_width"]
        return super().from_json({**values, "log_width": math.inf if width is None else width})
