"""A fixed reference that is timed every few seconds, to detect changes of the machine's speed."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median

from resperf.measurement import TOLERANCE
from resperf.timing.probe import Probe
from resperf.timing.protocol import Sampler


class ReferenceHistory:
    """Times of the reference, and the machine's speed at any moment derived from them.

    Parameters
    ----------
    readings : iterable of (float, float)
        Moment (seconds since 1970) and time of the reference (ms).
    """

    def __init__(self, readings: Iterable[tuple[float, float]] = ()) -> None:
        self._at: list[float] = []
        self._ms: list[float] = []
        self._median_ms: float | None = math.nan
        for at, time_ms in readings:
            self.add(at, time_ms)

    def __len__(self) -> int:
        return len(self._at)

    def add(self, at: float, time_ms: float) -> None:
        """Record a reading."""
        index = bisect.bisect(self._at, at)
        self._at.insert(index, at)
        self._ms.insert(index, time_ms)
        self._median_ms = None

    @property
    def readings(self) -> list[tuple[float, float]]:
        """Moments and times, oldest first."""
        return list(zip(self._at, self._ms, strict=True))

    @property
    def median_ms(self) -> float:
        """Median of all readings; NaN if there are none."""
        if self._median_ms is None:
            # Cached, since every row of a long campaign is compared with it.
            self._median_ms = median(self._ms)
        return self._median_ms

    @property
    def latest_ms(self) -> float:
        """The last reading; NaN if there is none."""
        return self._ms[-1] if self._ms else math.nan

    def time_ms(self, at: float) -> float:
        """Time of the reference at a moment, interpolated; NaN without readings."""
        if not self._at:
            return math.nan
        after = bisect.bisect(self._at, at)
        if after == 0:
            return self._ms[0]
        if after == len(self._at):
            return self._ms[-1]
        start, stop = self._at[after - 1], self._at[after]
        share = (at - start) / (stop - start)
        return self._ms[after - 1] * (1 - share) + self._ms[after] * share

    def ratio(self, at: float) -> float:
        """Time of the reference at a moment over the median; 1.6 means 1.6 times slower."""
        return self.time_ms(at) / self.median_ms


class ReferenceMonitor:
    """Times fixed work every few seconds, between other measurements.

    Parameters
    ----------
    sampler : callable
        Runs the reference (fixed work of about a millisecond) and returns its time in milliseconds.
    interval_s : float
        `check` times it only if the last reading is at least this old.
    samples : int
        Runs per reading, after one warm-up; the reading is their median.
    now : callable
        Seconds since 1970.
    history : ReferenceHistory, optional
        Earlier readings to continue from.
    probes : mapping of str to Probe
        Flag -> probe, in the order of checking.
    settle : callable, optional
        Called before the reference and each probe, so that threads of other work become idle.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        interval_s: float = 3.0,
        samples: int = 15,
        now: Callable[[], float] = time.time,
        history: ReferenceHistory | None = None,
        probes: Mapping[str, Probe] | None = None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self._settle = settle
        self._probes = probes or {}
        self.history = ReferenceHistory() if history is None else history
        self._sampler = sampler
        self._interval_s = interval_s
        self._samples = samples
        self._now = now
        self._last_at = -math.inf

    def check(self, *, force: bool = False) -> tuple[float, float] | None:
        """Time the reference if it is due.

        Returns
        -------
        (float, float) or None
            Moment (its middle) and time (ms) of the new reading; None if the last one is recent
            enough.
        """
        at = self._now()
        if not force and at - self._last_at < self._interval_s:
            return None
        if self._settle is not None:
            self._settle()
        self._sampler()
        times_ms = [self._sampler() for _ in range(self._samples)]
        self._last_at = self._now()
        reading = ((at + self._last_at) / 2, median(times_ms))
        self.history.add(*reading)
        return reading

    def slow_probes(self, *, record: bool = True) -> set[str]:
        """Check the probes in order until one is slow; return its flag, or an empty set.

        The cause of a slow probe also changes the times of later ones, which are then skipped.

        Parameters
        ----------
        record : bool
            Whether the checks count towards the usual times (`Probe.is_slow`).
        """
        for name, probe in self._probes.items():
            if self._settle is not None:
                self._settle()
            if probe.is_slow(record=record):
                return {name}
        return set()

    @property
    def usual_probes(self) -> dict[str, tuple[float, int]]:
        """Known usual times of the probes in ms, with their number of checks."""
        return {
            name: (probe.usual_ms, probe.readings)
            for name, probe in self._probes.items()
            if math.isfinite(probe.usual_ms)
        }

    @property
    def ratio(self) -> float:
        """The latest reading over the median of all; NaN where there is none."""
        return self.history.latest_ms / self.history.median_ms

    def is_steady(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the latest reading is within `tolerance` of the median."""
        return abs(self.ratio - 1) <= tolerance
