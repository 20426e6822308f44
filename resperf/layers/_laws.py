"""Distributions of fields, in the form that campaign files write (`resperf.campaign.laws`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BATCHES = {"law": "choices", "values": [1, 2, 4, 8, 16, 32], "weights": [4, 3, 3, 3, 3, 1]}
"""Default distribution of the batch size."""


def log_uniform(low: int, high: int, *round_to: int) -> dict[str, Any]:
    """Return a log-uniform distribution."""
    law: dict[str, Any] = {"law": "log_uniform", "low": low, "high": high}
    return law | ({"round_to": list(round_to)} if round_to else {})


def choices(values: Sequence[Any], weights: Sequence[float]) -> dict[str, Any]:
    """Return a weighted choice."""
    return {"law": "choices", "values": list(values), "weights": list(weights)}


MOVED_DTYPES = choices(["float32", "int64", "bool", "uint8"], [16, 2, 1, 1])
"""Default distribution of the element types of kinds that only copy values."""
