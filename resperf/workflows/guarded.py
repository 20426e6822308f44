"""Timing whole runs of a network while a reference layer watches the machine's own speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from resperf.backends import Backend, Built
from resperf.bundle import Bundle
from resperf.campaign.watch import built_probes, built_reference
from resperf.errors import MeasurementError, UnsupportedError
from resperf.measurement import TOLERANCE
from resperf.quantities import PHASES
from resperf.timing import (
    KNOWN_READINGS,
    Clock,
    ReferenceHistory,
    ReferenceMonitor,
    SamplingProtocol,
    sample,
)
from resperf.units import NS_PER_MS

ROUNDS = 3
"""Steady rounds that a measurement wants: what one round cannot show, several may."""
EXTRA_ROUNDS = 5
"""Rounds that may replace those during which the machine was off its usual speed."""
SHORT_MS = 5.0
"""A network that takes longer feels how fast memory is, a shorter one lives in the caches."""
_FELT_BY_ALL = frozenset({"caches"})
_FELT_BY_LONG = frozenset({"caches", "memory"})
PATIENCE_S = 20.0
"""How long a measurement waits, in all, for cores that the host has put far apart."""
PAUSE_S = 0.2
SLOW_FOR_NETWORKS = {"memory": 2.0}
"""A network spends little of its time waiting for memory beyond the caches: 1.5 times as long for
a pooling of 20 MB are a few hundredths for ResNet-18."""
SETTLE_S = 0.06
"""After which the threads of a session that has run no longer spin for its next run."""
COPY_SHARE = 0.1
"""Share of a round that preprocess takes, and postprocess too, beside the whole runs."""


@dataclass(frozen=True)
class GuardedRuns:
    """Times of a network, from the rounds during which the machine had its usual speed.

    Attributes
    ----------
    phases_ms : mapping of str to tuple of float
        Samples of each phase, in milliseconds. Execution is timed within the whole runs, the
        outer phases in loops of their own, as those of layers are: a few microseconds of code
        that has gone cold meanwhile belong to neither.
    totals_ms : tuple of float
        Whole runs, from the host's arrays to the host's arrays, in milliseconds.
    reference_ratio : float
        Time of the reference layer meanwhile over its median: 1.6 is a machine 1.6 times slower.
    rounds, steady_rounds : int
        How many rounds were timed, and in how many the machine had its usual speed. Only these
        are kept, unless there are none.
    """

    phases_ms: Mapping[str, tuple[float, ...]]
    totals_ms: tuple[float, ...]
    reference_ratio: float
    rounds: int
    steady_rounds: int


@dataclass(frozen=True)
class _Round:
    phases_ms: Mapping[str, Sequence[float]]
    totals_ms: Sequence[float]


@dataclass(frozen=True)
class _Watched:
    timed: _Round
    reference_ms: float
    felt: frozenset[str]
    """Slow probes before or after it that such a network feels."""


@contextmanager
def reference_monitor(
    backend: Backend,
    *,
    clock: Clock = time.perf_counter_ns,
    now: Callable[[], float] = time.time,
    history: ReferenceHistory | None = None,
    bundle: Bundle | None = None,
) -> Iterator[ReferenceMonitor]:
    """Build the reference layer, and watch the machine with it inside the ``with`` block.

    Parameters
    ----------
    backend : Backend
    clock, now : callable
        Nanoseconds that only grow; seconds since 1970.
    history : ReferenceHistory, optional
        Readings of earlier blocks to judge against.
    bundle : Bundle, optional
        What is judged, if anything is. Where it was measured on this machine with these settings,
        the probes' usual times are those of its campaign, and a state that lasts as long as the
        ``with`` block shows.

    Raises
    ------
    MeasurementError
        If the framework cannot run the reference layer.
    """
    try:
        reference = built_reference(backend)
    except UnsupportedError as error:
        raise MeasurementError(
            f"{backend.name} cannot run the reference layer on this machine: {error}"
        ) from error
    usual: dict[str, tuple[float, int]] = {}
    if bundle is not None and not (
        backend.platform().hardware_differences(bundle.platform)
        + backend.setting().differences(bundle.setting)
    ):
        usual = {name: (cost_ms, KNOWN_READINGS) for name, cost_ms in bundle.costs.items()}
    with reference as built, built_probes(backend, clock, usual, SLOW_FOR_NETWORKS) as probes:
        yield ReferenceMonitor(
            built.isolated, clock=clock, now=now, history=history, probes=probes,
            settle=partial(time.sleep, SETTLE_S) if probes else None,
        )  # fmt: skip


def guarded_runs(
    built: Built,
    monitor: ReferenceMonitor,
    *,
    seconds: float,
    clock: Clock = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> GuardedRuns:
    """Time a network in rounds, and repeat those during which the machine was off its speed.

    Parameters
    ----------
    built : Built
        A network. A session call belongs to its execution: no offset is taken out.
    monitor : ReferenceMonitor
        Read before and after each round, and the probes that such a network could feel.
    seconds : float
        Time for `ROUNDS` rounds together; slow networks take longer, as a round holds at least
        three runs.
    clock : callable
        Nanoseconds that only grow.
    sleep : callable
        Waits for some seconds, `PATIENCE_S` at most together.
    """
    protocol = SamplingProtocol(
        min_samples=3,
        min_time_s=seconds / ROUNDS,
        budget_s=seconds / ROUNDS,
        warmup_s=seconds / ROUNDS / 4,
    )
    rounds: list[_Watched] = []
    steady: list[_Watched] = []
    monitor.check(force=True)
    slow = monitor.slow_probes()
    pauses = round(PATIENCE_S / PAUSE_S)
    for _ in range(ROUNDS + EXTRA_ROUNDS):
        while "caches" in slow and pauses:
            sleep(PAUSE_S)
            pauses -= 1
            slow = monitor.slow_probes(record=False)
        before_ms, slow_before = monitor.history.latest_ms, slow
        timed = _timed_round(built, protocol, clock)
        monitor.check(force=True)
        slow = monitor.slow_probes()
        felt = _FELT_BY_ALL if median(timed.totals_ms) < SHORT_MS else _FELT_BY_LONG
        reference_ms = fmean((before_ms, monitor.history.latest_ms))
        rounds.append(_Watched(timed, reference_ms, felt & (slow | slow_before)))
        # The usual speed is only known better and better, so all rounds are judged anew.
        usual_ms = monitor.history.median_ms
        steady = [each for each in rounds if abs(each.reference_ms / usual_ms - 1) <= TOLERANCE]
        if sum(not each.felt for each in steady) >= ROUNDS:
            break
    undisturbed = [each for each in steady if not each.felt]
    near = [each for each in steady if not each.felt & _FELT_BY_ALL]
    kept = undisturbed or near or steady or rounds
    return GuardedRuns(
        phases_ms={
            name: tuple(time_ms for each in kept for time_ms in each.timed.phases_ms[name])
            for name in PHASES
        },
        totals_ms=tuple(time_ms for each in kept for time_ms in each.timed.totals_ms),
        reference_ratio=fmean(each.reference_ms for each in kept) / monitor.history.median_ms,
        rounds=len(rounds),
        steady_rounds=len(undisturbed),
    )


def _timed_round(built: Built, protocol: SamplingProtocol, clock: Clock) -> _Round:
    """Time whole runs as the protocol says, then the outer phases more briefly."""
    marks_ns: list[tuple[int, int, int, int]] = []
    preprocess, execution, postprocess = (built.phases[name].run for name in PHASES)

    def whole_run() -> None:
        start = clock()
        preprocess()
        ready = clock()
        execution()
        done = clock()
        postprocess()
        marks_ns.append((start, ready, done, clock()))

    warmups = sample(whole_run, protocol.scaled(1 - 2 * COPY_SHARE), clock=clock).warmups
    brief = protocol.scaled(COPY_SHARE)
    counted = marks_ns[warmups:]
    return _Round(
        phases_ms={
            "preprocess_ms": sample(preprocess, brief, clock=clock).values,
            "execution_ms": [(done - ready) / NS_PER_MS for _, ready, done, _ in counted],
            "postprocess_ms": sample(postprocess, brief, clock=clock).values,
        },
        totals_ms=[(end - start) / NS_PER_MS for start, _, _, end in counted],
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
