"""Timing: clocks, the sampling protocol, robust statistics. Knows no framework."""

from resperf.timing.machine_check import KNOWN_READINGS, SLOW, MachineCheck, ReferenceHistory
from resperf.timing.protocol import (
    TIME_UNIT,
    Clock,
    Sampler,
    SamplingProtocol,
    WallClock,
    pooled,
    rank_correlation,
    sample,
)

__all__ = [
    "KNOWN_READINGS", "SLOW", "TIME_UNIT", "Clock", "MachineCheck", "ReferenceHistory",
    "Sampler", "SamplingProtocol", "WallClock",
    "pooled", "rank_correlation", "sample",
]  # fmt: skip
