"""Load by other processes and clock frequency of the machine during a measurement."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from resperf.errors import require

BUSY_CORES = 0.25
"""Cores that other processes may use before a measurement counts as disturbed."""
SLOW_CLOCK = 0.9
"""Share of the highest frequency seen below which the processor counts as throttled."""


@dataclass(frozen=True)
class Load:
    """Load between `LoadMeter.start` and `LoadMeter.stop`.

    Attributes
    ----------
    other_cores : float
        Cores that other processes (and other guests of the host) used on average.
    frequency_share : float
        Clock frequency over the highest seen by this meter; 1 where the system does not report it.
    """

    other_cores: float
    frequency_share: float

    @property
    def is_busy(self) -> bool:
        """Whether a timing in this interval is unreliable."""
        return self.other_cores > BUSY_CORES or self.frequency_share < SLOW_CLOCK


class LoadMeter:
    """Reads the load of the cores that this process may use, through psutil."""

    def __init__(self) -> None:
        self._source: Any = require("psutil", "bench")
        self._process = self._source.Process()
        affinity = getattr(os, "sched_getaffinity", None)
        self._cores = affinity(0) if affinity else set(range(os.cpu_count() or 1))
        self._highest_mhz = 0.0
        self._start = (0.0, 0.0, 0.0)

    def start(self) -> None:
        """Begin an interval."""
        self._start = (time.monotonic(), *self._used_s())

    def stop(self) -> Load:
        """End the interval and return its load."""
        wall_s, all_s, own_s = (
            now - then
            for now, then in zip((time.monotonic(), *self._used_s()), self._start, strict=True)
        )
        # The kernel counts in ticks of 10 ms: an interval of a few ticks is too short.
        other = max(0.0, all_s - own_s) / wall_s if wall_s >= 0.1 else 0.0
        return Load(other_cores=other, frequency_share=self._frequency_share())

    def _used_s(self) -> tuple[float, float]:
        """Core seconds used by all processes, and by this one."""
        used = 0.0
        for core, times in enumerate(self._source.cpu_times(percpu=True)):
            if core in self._cores:
                fields = times._asdict()
                idle = fields.get("idle", 0.0) + fields.get("iowait", 0.0)
                # The kernel counts a guest's time within user time as well.
                guest = fields.get("guest", 0.0) + fields.get("guest_nice", 0.0)
                used += sum(fields.values()) - idle - guest
        own = self._process.cpu_times()
        return used, own.user + own.system

    def _frequency_share(self) -> float:
        frequency = self._source.cpu_freq() if hasattr(self._source, "cpu_freq") else None
        if frequency is None or not frequency.current:
            return 1.0
        self._highest_mhz = max(self._highest_mhz, frequency.current)
        return float(frequency.current / self._highest_mhz)
