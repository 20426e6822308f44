"""The sampling protocol: warm up until stable, then sample until the median is precise.

A sampler takes one sample and returns its value, so that a wall clock, an event timer, a profiler
and an allocator's peak are sampled alike.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from resperf.errors import CampaignError
from resperf.limits import AT_LEAST_1, BETWEEN_0_AND_1, Limited, limited
from resperf.measurement import MAX_SAMPLES, Samples, StopReason, capped
from resperf.timing.statistics import drifts, relative_half_width
from resperf.units import NS_PER_MS, NS_PER_S

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
    divisor: float = 1.0,
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
    offset, divisor : float
        A sample is ``(value - offset) / divisor``; it may come out below zero where the offset is
        the larger part, and stays so.
    copies : int, optional
        How many copies of the subject a run holds: written down with the samples.
    clock : callable
        Nanoseconds, for the protocol's times; tests give a fake one.

    Returns
    -------
    Samples
        All samples, or 64 quantiles of them.
    """
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
