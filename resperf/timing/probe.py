"""Probes: fixed work timed around every row, for disturbances that last only seconds."""

from __future__ import annotations

import math
import time
from statistics import quantiles

from resperf.timing.protocol import Clock, Sampler
from resperf.units import MS_PER_S, NS_PER_MS

SLOW = 1.4
"""A probe that takes this many times its usual time shows a disturbed machine to most work."""
KNOWN_READINGS = 400
"""Checks that a usual time from elsewhere stands for, where nobody says how many it is of."""
_MOST_READINGS = 5000
_FEWEST_RUNS = 6
_MOST_RUNS = 36
"""Runs after which work that was slow each time is slow, and not just disturbed."""
_FEWEST_READINGS = 4


class Probe:
    """Tells whether a fixed piece of work is slower at the moment than it usually is.

    What takes microseconds on several cores takes twice as long while the host has put these cores
    far apart, and what lives in the last cache while a neighbour fills it; a large convolution,
    as the reference is, notices neither.

    Parameters
    ----------
    sampler : callable
        Does the work, well below a millisecond, and returns how long that took in milliseconds.
    seconds : float
        How long a check repeats it.
    clock : callable
        Nanoseconds; tells when a check has lasted long enough.
    slow : float
        Times its usual time at which the work is slow.
    usual_ms : float, optional
        What the work usually took where that is known from earlier.
    readings : int
        How many earlier checks that is of.

    Usual is the lower quartile of all checks, the earlier ones among them: of two states of a
    machine the fast one, unless it is rarer than that. A machine that is fast for a second in
    two minutes would else never be at its usual speed.
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
        self._known_ms = [] if usual_ms is None else [usual_ms] * min(readings, _MOST_READINGS)
        self._sampler = sampler
        self._seconds = seconds
        self._clock = clock
        self._readings_ms: list[float] = []

    def is_slow(self, *, record: bool = True) -> bool:
        """Time the work, and compare the least of several runs with its usual time.

        Parameters
        ----------
        record : bool
            Whether the check tells something of the usual time: those made while waiting for the
            end of a slow state do not.
        """
        self._sampler()
        least_ms, runs, limit_ms = math.inf, 0, self._slow * self.usual_ms
        start_ns = self._clock()
        while (
            runs < _FEWEST_RUNS
            or (self._clock() - start_ns) / NS_PER_MS / MS_PER_S < self._seconds
            or (least_ms > limit_ms and runs < _MOST_RUNS)
        ):
            least_ms = min(least_ms, self._sampler())
            runs += 1
        if record:
            self._readings_ms.append(least_ms)
        return least_ms > limit_ms

    @property
    def usual_ms(self) -> float:
        """Usual time of a run; infinite where too few checks were made to tell."""
        if self.readings < _FEWEST_READINGS:
            return math.inf
        return quantiles([*self._known_ms, *self._readings_ms], n=4)[0]

    @property
    def readings(self) -> int:
        """Checks that the usual time is of."""
        return len(self._known_ms) + len(self._readings_ms)
