"""Timing: clocks, the sampling protocol, robust statistics. Knows no framework."""

from __future__ import annotations

from resperf.timing.load import LoadMeter
from resperf.timing.probe import KNOWN_READINGS, SLOW, Probe
from resperf.timing.protocol import Clock, SamplingProtocol, pooled, sample
from resperf.timing.reference import ReferenceHistory, ReferenceMonitor
from resperf.timing.statistics import capped, drifts, median_interval, rank_correlation

__all__ = [
    "KNOWN_READINGS", "SLOW", "Clock", "LoadMeter", "Probe", "ReferenceHistory", "ReferenceMonitor",
    "SamplingProtocol", "capped", "drifts", "median_interval", "pooled",
    "rank_correlation", "sample",
]  # fmt: skip
