"""The sampling protocol: warm up until stable, then sample until the median is precise.

A sampler takes one sample and returns its value, so that a wall clock, an event timer, a profiler
and an allocator's peak are sampled alike.
"""

from __future__ import annotations

import dataclasses
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, StatisticsError, correlation, median
from typing import Self

from resperf.errors import CampaignError
from resperf.limits import AT_LEAST_1, BETWEEN_0_AND_1, Limited, limited
from resperf.measurement import MAX_SAMPLES, Samples, StopReason, capped
from resperf.units import NS_PER_MS, NS_PER_S

SIGNIFICANT_Z = 2.576
"""Two-sided 1% point of the normal distribution."""


@cache
def interval_rank(count: int, confidence: float) -> int | None:
    """Find which order statistics bound the median, counted from the ends (1 = the extremes).

    The interval from the k-th smallest to the k-th largest of n independent samples holds the
    median with probability ``1 - 2 P(Binomial(n, 1/2) < k)``, whatever the distribution.

    Parameters
    ----------
    count : int
        Number of samples.
    confidence : float
        Wanted probability, such as 0.95.

    Returns
    -------
    int or None
        The largest k with at least this confidence; None where even the extremes have less (fewer
        than six samples at 95%).
    """
    if count > 100:
        # The normal approximation of the binomial is accurate to well within one rank.
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        return max(1, math.floor((count - z * math.sqrt(count)) / 2))
    outside, rank = 0.0, None
    for k in range(1, count // 2 + 1):
        outside += 2 * math.comb(count, k - 1) * 0.5**count
        if 1 - outside < confidence:
            break
        rank = k
    return rank


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median.

    Parameters
    ----------
    samples : sequence of float
        In any order and unit.
    confidence : float
        Such as 0.95.

    Returns
    -------
    (float, float)
        Infinite at both ends where there are too few samples.
    """
    rank = interval_rank(len(samples), confidence)
    if rank is None:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def relative_half_width(samples: Sequence[float], confidence: float) -> float:
    """Half the width of the median's interval over the median; infinite where unknown."""
    low, high = median_interval(samples, confidence)
    middle = median(samples)
    return (high - low) / 2 / middle if middle > 0 else math.inf


def drifts(samples: Sequence[float], tolerance: float = 0.05) -> bool:
    """Say whether times drifted while they were taken.

    Two conditions must hold. Spearman's rank correlation with the order of sampling is significant
    at 1% (below eight samples: the times only rise or only fall), which excludes noise. The medians
    of the first and the last third differ by more than `tolerance` of the whole median, which
    excludes irrelevant drifts.

    Parameters
    ----------
    samples : sequence of float
        In the order they were taken.
    tolerance : float
        Smallest shift that counts, as a share of the median.
    """
    count, middle = len(samples), median(samples)
    if count < 4 or middle <= 0:
        return False
    third = count // 3
    shift = abs(median(samples[-third:]) - median(samples[:third])) / middle
    if shift <= tolerance:
        return False
    correlation = abs(rank_correlation(samples, range(count)))
    if count < 8:
        return correlation > 1 - 1e-12
    return correlation * math.sqrt(count - 1) > SIGNIFICANT_Z


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of two sequences of equal length; ties have their mean rank.

    0 where all values of one are equal.
    """
    try:
        return correlation(_mean_ranks(first), _mean_ranks(second))
    except StatisticsError:
        return 0.0


def _mean_ranks(samples: Sequence[float]) -> list[float]:
    ordered = sorted(samples)
    return [(bisect_left(ordered, x) + bisect_right(ordered, x) - 1) / 2 for x in samples]


Clock = Callable[[], int]
"""Returns nanoseconds that only ever grow, like `time.perf_counter_ns`."""
Sampler = Callable[[], float]
"""Runs something once, to its end, and returns the value that this run had."""
TIME_UNIT = "ms"
"""Unit of times. What has another one, such as bytes, does not vary like a time does."""
VALUES = 3
"""Samples of what is no time; one run before them warms up."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """A sampler of wall times, in milliseconds.

    Parameters
    ----------
    run : callable
        Runs once and returns when it is complete (an accelerator is synchronised).
    clock : callable
        Nanoseconds.
    before : callable, optional
        Run first each time, and not timed.
    """

    run: Callable[[], object]
    clock: Clock = time.perf_counter_ns
    before: Callable[[], object] | None = None

    def __call__(self) -> float:
        """Run once and return how long that took."""
        run, clock = self.run, self.clock
        if self.before is not None:
            self.before()
        before_ns = clock()
        run()
        return (clock() - before_ns) / NS_PER_MS


@dataclass(frozen=True)
class SamplingProtocol(Limited):
    """When to stop warming up and when to stop sampling.

    Attributes
    ----------
    precision : float
        Sampling stops when the median's confidence half-width is below this share of the median.
    confidence : float
        Confidence of that interval.
    min_samples : int
        Samples taken in any case, however slow a run is.
    max_samples : int
        Samples never exceeded, however fast a run is.
    min_time_s : float
        A precise median is believed only after sampling for this long: neighbouring runs of a few
        microseconds agree with each other better than with what comes a moment later.
    budget_s : float
        Time after which sampling stops, precise or not.
    warmup_tolerance : float
        Warm-up ends when three successive runs differ by less than this share.
    warmup_runs : int
        Runs after which warm-up ends in any case.
    warmup_s : float
        Time after which warm-up ends in any case; one run always happens.
    placements : int
        How often a layer that waits for memory is built and sampled, each time in other pages of
        it.
    placements_s : float
        Time after which such a layer is not built again; no sampling is cut short by it.
    """

    precision: float = limited(0.02, BETWEEN_0_AND_1)
    confidence: float = limited(0.95, BETWEEN_0_AND_1)
    min_samples: int = limited(5, AT_LEAST_1)
    max_samples: int = limited(5000, AT_LEAST_1)
    min_time_s: float = 0.02
    budget_s: float = 0.12
    warmup_tolerance: float = limited(0.05, BETWEEN_0_AND_1)
    warmup_runs: int = limited(30, AT_LEAST_1)
    warmup_s: float = 0.04
    placements: int = limited(3, AT_LEAST_1)
    placements_s: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_samples < self.min_samples:
            raise CampaignError(
                f"max_samples={self.max_samples} is below min_samples={self.min_samples}"
            )

    def scaled(self, share: float) -> Self:
        """Return the protocol with all its times multiplied by `share`."""
        return dataclasses.replace(
            self,
            min_time_s=self.min_time_s * share,
            budget_s=self.budget_s * share,
            warmup_s=self.warmup_s * share,
        )


def sample(
    sampler: Sampler,
    protocol: SamplingProtocol,
    *,
    unit: str = TIME_UNIT,
    offset: float = 0.0,
    copies: int | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Samples:
    """Warm up and take samples as the protocol says.

    Parameters
    ----------
    sampler : callable
        Returns the value of one run.
    protocol : SamplingProtocol
    unit : str
        Of the value. `TIME_UNIT` is sampled until the median is precise, all else `VALUES` times.
    offset : float
    copies : int, optional
        How many copies of the subject a run holds. A sample is ``(value - offset) / copies``; it
        may come out below zero where the offset is the larger part, and stays so.
    clock : callable
        Nanoseconds, for the protocol's times; tests give a fake one.

    Returns
    -------
    Samples
        All samples, or 64 quantiles of them.
    """
    divisor = float(copies or 1)
    take = _times if unit == TIME_UNIT else _values
    taken = take(lambda: (sampler() - offset) / divisor, sampler, protocol, clock)
    return dataclasses.replace(taken, copies=copies, divisor=divisor, offset=offset)


def _values(
    scaled: Sampler, warm_up: Sampler, protocol: SamplingProtocol, _clock: Clock
) -> Samples:
    """Take a few samples of what is the same in each run, but for chance events."""
    warm_up()
    values = tuple(scaled() for _ in range(VALUES))
    agree = max(values) - min(values) <= protocol.precision * abs(median(values))
    reason = StopReason.PRECISE if agree else StopReason.BUDGET
    return Samples(values, taken=VALUES, warmups=1, stop_reason=reason)


def _times(scaled: Sampler, warm_up: Sampler, protocol: SamplingProtocol, clock: Clock) -> Samples:
    """Warm up until times are stable, then sample until their median is precise."""
    warmups = _warm_up(warm_up, protocol, clock)
    samples_ms: list[float] = []
    start_ns = clock()
    # Sorting after every microsecond run would heat other parts of the core than the run does.
    next_check = protocol.min_samples
    while True:
        samples_ms.append(scaled())
        count, elapsed_s = len(samples_ms), (clock() - start_ns) / NS_PER_S
        if count < protocol.min_samples:
            continue
        if elapsed_s >= protocol.budget_s or count >= protocol.max_samples:
            reason = _reason(samples_ms, protocol)
            break
        if count >= next_check and elapsed_s >= protocol.min_time_s:
            next_check = count + max(1, count // 4)
            if _reason(samples_ms, protocol) is StopReason.PRECISE:
                reason = StopReason.PRECISE
                break
    return Samples(
        values=capped(samples_ms, MAX_SAMPLES),
        taken=len(samples_ms),
        warmups=warmups,
        stop_reason=reason,
        drift=drifts(samples_ms),
    )


def pooled(builds: Sequence[Samples], protocol: SamplingProtocol) -> Samples:
    """Join the samples of one phase from several builds, each of them counting about alike.

    The joint median is precise if it is so within the builds and these agree with each other.
    Copies, divisor and offset are those of the first build.

    Parameters
    ----------
    builds : sequence of Samples
        At least one.
    protocol : SamplingProtocol
    """
    if len(builds) == 1:
        return builds[0]
    fewest = min(len(build.values) for build in builds)
    count = max(2, min(MAX_SAMPLES // len(builds), fewest))
    samples_ms = [ms for build in builds for ms in capped(build.values, count)]
    medians_ms = [build.value for build in builds]
    apart = (max(medians_ms) - min(medians_ms)) / 2
    agree = apart < protocol.precision * abs(median(samples_ms))
    return dataclasses.replace(
        builds[0],
        values=tuple(samples_ms),
        taken=sum(build.taken for build in builds),
        warmups=sum(build.warmups for build in builds),
        stop_reason=_reason(samples_ms, protocol) if agree else StopReason.BUDGET,
        drift=2 * sum(build.drift for build in builds) > len(builds),
    )


def _reason(samples_ms: list[float], protocol: SamplingProtocol) -> StopReason:
    width = relative_half_width(samples_ms, protocol.confidence)
    return StopReason.PRECISE if width < protocol.precision else StopReason.BUDGET


def _warm_up(sampler: Sampler, protocol: SamplingProtocol, clock: Clock) -> int:
    """Run until three successive times agree, or the bounds are reached; return how many runs."""
    start_ns = clock()
    recent: list[float] = []
    for count in range(1, protocol.warmup_runs + 1):
        recent = [*recent[-2:], sampler()]
        stable = len(recent) == 3 and max(recent) - min(recent) <= protocol.warmup_tolerance * max(
            recent
        )
        if stable or (clock() - start_ns) / NS_PER_S >= protocol.warmup_s:
            return count
    return protocol.warmup_runs
