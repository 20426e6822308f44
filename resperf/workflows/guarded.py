"""Timing whole runs of a network while a reference layer watches the machine's own speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from resperf.backends import Backend, Built
from resperf.layers import Conv
from resperf.measurement import PHASES
from resperf.timing import Clock, ReferenceHistory, ReferenceMonitor, SamplingProtocol, sample
from resperf.units import NS_PER_MS

REFERENCE = Conv(
    batch=1, channels_in=64, height=56, width=56, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, channels_out=64,
)  # fmt: skip
"""The layer that is timed again and again: about a millisecond on two cores."""

ROUNDS = 3
"""Steady rounds that a measurement wants: what one round cannot show, several may."""
EXTRA_ROUNDS = 3
"""Rounds that may replace those during which the machine was off its usual speed."""
TOLERANCE = 0.1
"""A reference off by more than this share of its median marks its round as not steady."""

Run = tuple[float, float, float]
"""Wall times of preprocess, execution and postprocess of one run, in milliseconds."""


@dataclass(frozen=True)
class GuardedRuns:
    """Runs of a network in the order they were taken.

    Attributes
    ----------
    runs : tuple of (float, float, float)
        Preprocess, execution and postprocess of each run, in milliseconds.
    reference_ratio : float
        Time of the reference layer meanwhile over its median: 1.6 is a machine 1.6 times slower.
    rounds, steady_rounds : int
        How many rounds were timed, and in how many the machine had its usual speed. Only these
        are kept, unless there are none.
    """

    runs: tuple[Run, ...]
    reference_ratio: float
    rounds: int
    steady_rounds: int


@contextmanager
def reference_monitor(
    backend: Backend,
    *,
    clock: Clock = time.perf_counter_ns,
    now: Callable[[], float] = time.time,
    history: ReferenceHistory | None = None,
) -> Iterator[ReferenceMonitor]:
    """Build the reference layer, and watch the machine with it inside the ``with`` block.

    Parameters
    ----------
    backend : Backend
    clock, now : callable
        Nanoseconds that only grow; seconds since 1970.
    history : ReferenceHistory, optional
        Readings of earlier blocks to judge against.
    """
    [layer] = backend.lower([REFERENCE])
    with backend.layer(layer, budget_ms=10.0) as built:
        yield ReferenceMonitor(built.isolated, clock=clock, now=now, history=history)


def guarded_runs(
    built: Built,
    monitor: ReferenceMonitor,
    *,
    seconds: float,
    clock: Clock = time.perf_counter_ns,
) -> GuardedRuns:
    """Time whole runs in rounds, and repeat the rounds during which the machine was off its speed.

    The three phases are timed within the same runs, one after the other as in real use, so that
    their sum is a run's time.

    Parameters
    ----------
    built : Built
        A network.
    monitor : ReferenceMonitor
        Read before and after each round.
    seconds : float
        Time for `ROUNDS` rounds together; slow networks take longer, as a round holds at least
        three runs.
    clock : callable
        Nanoseconds that only grow.
    """
    protocol = SamplingProtocol(
        min_samples=3,
        min_time_s=seconds / ROUNDS,
        budget_s=seconds / ROUNDS,
        warmup_s=seconds / ROUNDS / 4,
    )
    rounds: list[tuple[list[Run], float]] = []
    steady: list[tuple[list[Run], float]] = []
    monitor.check(force=True)
    for _ in range(ROUNDS + EXTRA_ROUNDS):
        before_ms = monitor.history.latest_ms
        runs = _round(built, protocol, clock)
        monitor.check(force=True)
        rounds.append((runs, fmean((before_ms, monitor.history.latest_ms))))
        # The usual speed is only known better and better, so all rounds are judged anew.
        usual_ms = monitor.history.median_ms
        steady = [each for each in rounds if abs(each[1] / usual_ms - 1) <= TOLERANCE]
        if len(steady) >= ROUNDS:
            break
    kept = steady or rounds
    return GuardedRuns(
        runs=tuple(run for runs, _ in kept for run in runs),
        reference_ratio=fmean(each[1] for each in kept) / monitor.history.median_ms,
        rounds=len(rounds),
        steady_rounds=len(steady),
    )


def _round(built: Built, protocol: SamplingProtocol, clock: Clock) -> list[Run]:
    """Run as the protocol says, and return the runs after the warm-up."""
    recorded: list[Run] = []
    steps = [built.phases[name].run for name in PHASES]

    def run() -> None:
        marks = [clock()]
        for step in steps:
            step()
            marks.append(clock())
        recorded.append(_phase_ms(marks))

    warmups = sample(run, protocol, clock=clock).warmups
    return recorded[warmups:]


def _phase_ms(marks: Sequence[int]) -> Run:
    first, second, third, last = marks
    return (
        (second - first) / NS_PER_MS,
        (third - second) / NS_PER_MS,
        (last - third) / NS_PER_MS,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, linearly interpolated between the sorted values; NaN without any.

    Parameters
    ----------
    values : sequence of float
    share : float
        0.95 for the 95th percentile.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
