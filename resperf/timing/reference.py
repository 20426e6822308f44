"""Times of a fixed reference, which show changes of the machine's speed."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from statistics import median


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
