"""Timing whole runs of a network while a monitor watches the device's own speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median

from resperf.backends import Backend, Built
from resperf.backends.monitors import Monitor, load_monitor
from resperf.bundle import Bundle
from resperf.devices import target_of
from resperf.errors import MeasurementError
from resperf.measurement import TOLERANCE
from resperf.quantities import PHASES
from resperf.timing import KNOWN_READINGS, Clock, SamplingProtocol, sample

ROUNDS = 3
"""Steady rounds that a measurement wants: what one round cannot show, several may."""
EXTRA_ROUNDS = 5
"""Rounds that may replace those during which the machine was off its usual speed."""
PATIENCE_S = 20.0
"""How long a measurement waits, in all, for a state of the device to pass (`Monitor.waits_for`)."""
PAUSE_S = 0.2
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
    """States before or after it that such a network feels."""


@contextmanager
def reference_monitor(
    backend: Backend, *, bundle: Bundle | None = None, monitor: Monitor | None = None
) -> Iterator[Monitor]:
    """Watch the device with its reference layer inside the ``with`` block.

    Parameters
    ----------
    backend : Backend
    bundle : Bundle, optional
        What is judged, if anything is. Where it was measured on this machine with these settings,
        usual times of the monitor are those of its campaign, and a state that lasts as long as the
        ``with`` block shows.
    monitor : Monitor, optional
        One that has not started yet; by default that of the backend's class of devices.

    Raises
    ------
    MeasurementError
        If the framework cannot run the reference layer.
    """
    monitor = monitor or load_monitor(target_of(backend.platform().device, backend.name))
    usual: dict[str, tuple[float, int]] = {}
    if bundle is not None and not (
        backend.platform().hardware_differences(bundle.platform)
        + backend.setting().differences(bundle.setting)
    ):
        usual = {name: (cost_ms, KNOWN_READINGS) for name, cost_ms in bundle.costs.items()}
    with monitor.start(backend, usual=usual, networks=True):
        if monitor.unwatched:
            raise MeasurementError(
                f"{backend.name} cannot run the reference layer on this machine: "
                f"{monitor.unwatched}"
            )
        yield monitor


def guarded_runs(
    built: Built,
    monitor: Monitor,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> GuardedRuns:
    """Time a network in rounds, and repeat those during which the machine was off its speed.

    Parameters
    ----------
    built : Built
        A network. A session call belongs to its execution: no offset is taken out.
    monitor : Monitor
        Read before and after each round; the states that such a network could feel count.
    seconds : float
        Time for `ROUNDS` rounds together; slow networks take longer, as a round holds at least
        three runs.
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
    monitor.reading(force=True)
    states = monitor.active_flags()
    pauses = round(PATIENCE_S / PAUSE_S)
    for _ in range(ROUNDS + EXTRA_ROUNDS):
        while states & monitor.waits_for and pauses:
            sleep(PAUSE_S)
            pauses -= 1
            states = monitor.active_flags(record=False)
        before_ms, states_before = monitor.history.latest_ms, states
        timed = _timed_round(built, protocol, monitor.clock)
        monitor.reading(force=True)
        states = monitor.active_flags()
        felt = monitor.felt_by_network(median(timed.totals_ms))
        reference_ms = fmean((before_ms, monitor.history.latest_ms))
        rounds.append(_Watched(timed, reference_ms, felt & (states | states_before)))
        # The usual speed is only known better and better, so all rounds are judged anew. Where no
        # reference is timed, the ratio is NaN and no reason against a round.
        usual_ms = monitor.history.median_ms
        steady = [each for each in rounds if not abs(each.reference_ms / usual_ms - 1) > TOLERANCE]
        if sum(not each.felt for each in steady) >= ROUNDS:
            break
    undisturbed = [each for each in steady if not each.felt]
    near = [each for each in steady if not each.felt & monitor.waits_for]
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
    runs: list[tuple[float, float]] = []
    preprocess, execution, postprocess = (built.phases[name].sampler for name in PHASES)

    def whole_run_ms() -> float:
        before_ms, execution_ms, after_ms = preprocess(), execution(), postprocess()
        total_ms = before_ms + execution_ms + after_ms
        runs.append((execution_ms, total_ms))
        return total_ms

    warmups = sample(whole_run_ms, protocol.scaled(1 - 2 * COPY_SHARE), clock=clock).warmups
    brief = protocol.scaled(COPY_SHARE)
    counted = runs[warmups:]
    return _Round(
        phases_ms={
            "preprocess_ms": sample(preprocess, brief, clock=clock).values,
            "execution_ms": [execution_ms for execution_ms, _ in counted],
            "postprocess_ms": sample(postprocess, brief, clock=clock).values,
        },
        totals_ms=[total_ms for _, total_ms in counted],
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
