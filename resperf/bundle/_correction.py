"""How layers' times differ inside networks from those in isolation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from resperf.layers import Layer
from resperf.records import Record
from resperf.settings import Setting, same_settings


def group_of(layer: Layer) -> str:
    """Name the layers that share a factor: ``"conv"``, or ``"norm local_response"``."""
    field = layer.PLACED_BY
    return f"{layer.kind} {layer.fields()[field]}" if field else layer.kind


@dataclass(frozen=True)
class Correction(Record):
    """In-network correction, fitted to whole networks measured on the bundle's machine.

    Attributes
    ----------
    factors : mapping of str to float
        Group of layers (`group_of`) -> time inside a network over time in isolation. A group that
        is absent has its kind's factor, else `others`.
    overhead_ms_per_layer, overhead_ms_per_mb : float
        Overhead between layers per layer and per MB, instead of that measured on short chains.
    log_width : float
        Nine of ten runs of networks that were left out of the fit, all batch sizes of a network
        weighing as one, take their predicted time within a factor of exp(log_width); infinite if
        too few were measured.
    evidence : mapping
        The networks that it was fitted to, and its errors on networks left out.
    others : float
        Factor of all other groups.
    """

    factors: Mapping[str, float]
    overhead_ms_per_layer: float
    overhead_ms_per_mb: float
    log_width: float
    evidence: Mapping[str, Any]
    others: float = 1.0

    def __post_init__(self) -> None:
        factors = (*self.factors.values(), self.others)
        numbers = (*factors, self.overhead_ms_per_layer, self.overhead_ms_per_mb, self.log_width)
        if min(numbers) < 0 or any(map(math.isnan, numbers)) or 0 in factors:
            raise ValueError("the in-network correction is damaged")

    def factor(self, group: str) -> float:
        """Return the time of such layers inside a network over their time in isolation."""
        return self.factors.get(group, self.factors.get(group.partition(" ")[0], self.others))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; an unknown width is infinite."""
        width = values["log_width"]
        return super().from_json({**values, "log_width": math.inf if width is None else width})


@dataclass(frozen=True)
class Calibration(Record):
    """What a user's runs of networks taught of one device under one setting.

    Attributes
    ----------
    device : str
    setting : Setting
        Of the runs; without batch and shapes.
    quantity : str
        What the runs' times are.
    of_layers : bool
        Whether the correction is of layers' times, each by its group, in addition to the in-network
        correction; else of the quantity that a predictor of networks answers, by its groups.
    networks : int
    runs : mapping
        ``name`` and ``checksum`` of the dataset.
    correction : Correction
    """

    device: str
    setting: Setting
    quantity: str
    of_layers: bool
    networks: int
    runs: Mapping[str, Any]
    correction: Correction

    def is_of(self, device: str, setting: Setting) -> bool:
        """Say whether the runs are of such a device and setting."""
        return self.device == device and same_settings(self.setting) == same_settings(setting)
