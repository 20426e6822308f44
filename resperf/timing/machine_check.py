"""Machine checks, fixed work timed around every row, and the history of the reference layer."""

from __future__ import annotations

import bisect
import math
import time
from statistics import median, quantiles

from resperf.timing.protocol import Clock, Sampler
from resperf.units import NS_PER_S

SLOW = 1.4
"""A machine check that takes this many times its usual time shows that the machine is disturbed."""
KNOWN_READINGS = 400
"""Assumed number of checks of a usual time from elsewhere, if unknown."""
_MAX_READINGS = 5000
# Of which the fastest counts: an interrupted run is not slow work.
_MIN_RUNS = 6
_MAX_RUNS = 36
"""Work that is slow in this many runs is slow, not just interrupted."""
# Fewer have no lower quartile of their own.
_MIN_READINGS = 4


class MachineCheck:
    """Detects whether fixed work is slower now than usual.

    Work of microseconds on several cores takes twice as long while the host has placed the cores
    under different caches. So does work in the last-level cache while a neighbour fills it. Neither
    affects the reference, a large convolution.

    Parameters
    ----------
    sampler : callable
        Does the work (well below a millisecond) and returns its time in milliseconds.
    seconds : float
        How long a check repeats the work.
    clock : callable
        Nanoseconds; times the check.
    slow : float
        Ratio to the usual time from which the work counts as slow.
    usual_ms : float, optional
        Usual time of the work, if known from earlier checks.
    readings : int
        Number of those checks.

    The usual time is the lower quartile of all checks, including earlier ones. Of two states of a
    machine, that is the fast one unless it is rare: a machine that is fast for a second in two
    minutes would otherwise never have its usual speed.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        seconds: float = 0.002,
        clock: Clock = time.perf_counter_ns,
        slow: float = SLOW,
        usual_ms: float | None = None,
        readings: int = KNOWN_READINGS,
    ) -> None:
        self._slow = slow
        self._known_ms = [] if usual_ms is None else [usual_ms] * min(readings, _MAX_READINGS)
        self._sampler = sampler
        self._seconds = seconds
        self._clock = clock
        self._readings_ms: list[float] = []

    def is_slow(self, *, record: bool = True) -> bool:
        """Compare the fastest of several runs with the usual time.

        Parameters
        ----------
        record : bool
            Whether the check counts towards the usual time; checks while waiting for the end of a
            slow state do not.
        """
        self._sampler()
        least_ms, runs, limit_ms = math.inf, 0, self._slow * self.usual_ms
        start_ns = self._clock()
        while (
            runs < _MIN_RUNS
            or (self._clock() - start_ns) / NS_PER_S < self._seconds
            or (least_ms > limit_ms and runs < _MAX_RUNS)
        ):
            least_ms = min(least_ms, self._sampler())
            runs += 1
        if record:
            self._readings_ms.append(least_ms)
        return least_ms > limit_ms

    @property
    def usual_ms(self) -> float:
        """Usual time of a run; infinite after too few checks."""
        if self.readings < _MIN_READINGS:
            return math.inf
        return quantiles([*self._known_ms, *self._readings_ms], n=4)[0]

    @property
    def readings(self) -> int:
        """Number of checks behind the usual time."""
        return len(self._known_ms) + len(self._readings_ms)


class ReferenceHistory:
    """Times of the reference in ms, and the machine's speed at any moment derived from them.

    Moments are in seconds since 1970.
    """

    def __init__(self) -> None:
        self._at: list[float] = []
        self._ms: list[float] = []
        self._median_ms: float | None = math.nan

    def __len__(self) -> int:
        return len(self._at)

    def add(self, at: float, time_ms: float) -> None:
        """Record a reading."""
        index = bisect.bisect(self._at, at)
        self._at.insert(index, at)
        self._ms.insert(index, time_ms)
        self._median_ms = None

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
