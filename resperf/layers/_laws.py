"""How campaigns draw the fields of a kind: laws of `resperf.campaign.laws`, as files write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BATCHES = {"law": "choices", "values": [1, 2, 4, 8, 16, 32], "weights": [4, 3, 3, 3, 3, 1]}
"""How campaigns draw a batch unless they say otherwise."""


def log_uniform(low: int, high: int, *round_to: int) -> dict[str, Any]:
    """Write a law of `resperf.campaign.laws`."""
    law: dict[str, Any] = {"law": "log_uniform", "low": low, "high": high}
    return law | ({"round_to": list(round_to)} if round_to else {})


def choices(values: Sequence[Any], weights: Sequence[float]) -> dict[str, Any]:
    """Write a law of `resperf.campaign.laws`."""
    return {"law": "choices", "values": list(values), "weights": list(weights)}


MOVED_DTYPES = choices(["float32", "int64", "bool", "uint8"], [16, 2, 1, 1])
"""How campaigns draw types of values that are copied and not computed with."""
