"""Measuring one subject: build it, sample its phases, and say how that ended.

A whole network runs in rounds, which are repeated while the machine is off its usual speed.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from resperf.backends import Backend, Built, Phase, Shapes
from resperf.backends.monitors import Monitor
from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.measurement import (
    MAX_SAMPLES,
    TOLERANCE,
    Measurement,
    NetworkRef,
    Samples,
    Status,
    StopReason,
    capped,
)
from resperf.quantities import EXECUTION, PHASES, STEP, layer_quantity
from resperf.timing import TIME_UNIT, Clock, SamplingProtocol, WallClock, pooled, sample
from resperf.units import MS_PER_S, NS_PER_S

# The single run gets little of the protocol's times: no predictor learns it.
ISOLATED_SHARE = 0.25
PHASE_SHARES: Mapping[str, float] = {
    "preprocess_ms": 0.15, "execution_ms": 1.0, "postprocess_ms": 0.15,
    "profiled_ms": 0.15, "relayout_ms": 0.05,
}  # fmt: skip
"""Shares of the protocol's times: pre- and postprocess are copies, and settle quickly; what a
profiler reports is beside the point."""
RUNS_IN_BUDGET = 12
"""Runs of the execution phase that should fit into the budget: enough for a median's interval."""


def measure_layer(
    backend: Backend,
    layer: Layer,
    protocol: SamplingProtocol,
    *,
    monitor: Monitor,
    repeat: int = 0,
) -> Measurement:
    """Measure every quantity that one lowered layer offers: its three phases, and others.

    Parameters
    ----------
    backend : Backend
    layer : Layer
        As `Backend.lower` returned it.
    protocol : SamplingProtocol
        Execution gets its full times, the outer phases the shares of `PHASE_SHARES`.
    monitor : Monitor
        Of the device: its clock and calendar count, and a layer whose time `depends_on_place` is
        built and sampled in several places.
    repeat : int
        Stored in the row.

    Returns
    -------
    Measurement
        Of status ``ok``, ``unsupported`` or ``out_of_memory``, flagged ``drift`` where the layer's
        own time moved. What the monitor says of it, and `reference_ratio`, are left open.
    """
    clock = monitor.clock
    started_at, start_ns = monitor.now(), clock()
    spent_ns = 0
    flags: tuple[str, ...] = ()
    phases: dict[str, Samples] = {}
    status, detail, isolated_ms, call_ms = Status.OK, "", math.nan, math.nan
    try:
        if why := backend.without_layers():
            raise UnsupportedError(why)
        monitor.check_memory(layer.moved_bytes)
        budget_ms = protocol.budget_s * MS_PER_S / RUNS_IN_BUDGET
        with backend.layer(layer, budget_ms=budget_ms) as built:
            sampling_ns = clock()
            phases, isolated_ms = _sample_phases(built, protocol, clock)
            spent_ns = clock() - sampling_ns
        own = layer_quantity(phases)
        if own in phases:
            if monitor.depends_on_place(layer, phases[own].value):
                sampling_ns = clock()
                phases[own] = _elsewhere(backend, layer, own, phases[own], protocol, clock)
                spent_ns += clock() - sampling_ns
            flags = ("drift",) if phases[own].drift else ()
        call_ms = backend.costs()["call_ms"]
    except (UnsupportedError, MemoryError) as error:
        (status, detail), phases, flags = failure(error), {}, ()
        isolated_ms = math.nan
    duration_ns = clock() - start_ns
    return Measurement(
        subject=layer,
        status=status,
        samples=phases,
        setting=backend.setting(),
        platform=backend.platform(),
        isolated_ms=isolated_ms,
        call_ms=call_ms,
        started_at=started_at,
        duration_s=duration_ns / NS_PER_S,
        overhead_s=(duration_ns - spent_ns) / NS_PER_S,
        flags=flags,
        repeat=repeat,
        detail=detail,
    )


def failure(error: Exception) -> tuple[Status, str]:
    """Return status and detail of a subject that cannot be measured."""
    no_memory = isinstance(error, MemoryError)
    status = Status.OUT_OF_MEMORY if no_memory else Status.UNSUPPORTED
    return status, str(error) or type(error).__name__


def _sample_phases(
    built: Built, protocol: SamplingProtocol, clock: Clock
) -> tuple[dict[str, Samples], float]:
    """Sample every quantity, and the median of the layer run alone."""
    phases = {
        name: sampled(phase, protocol.scaled(PHASE_SHARES.get(name, 1.0)), clock)
        for name, phase in built.phases.items()
    }
    alone = sample(built.isolated, protocol.scaled(ISOLATED_SHARE), clock=clock)
    return phases, median(alone.values)


def _elsewhere(
    backend: Backend,
    layer: Layer,
    name: str,
    first: Samples,
    protocol: SamplingProtocol,
    clock: Clock,
) -> Samples:
    """Build the layer again and again, and join what one phase takes in each place.

    A build that fails after the first one ends this; what was measured before it counts.
    """
    share = protocol.scaled(1 / protocol.placements)
    samples = [first]
    budget_ms = share.budget_s * MS_PER_S / RUNS_IN_BUDGET
    start_ns = clock()
    with contextlib.suppress(UnsupportedError, MemoryError):
        while (
            len(samples) < protocol.placements
            and (clock() - start_ns) / NS_PER_S < protocol.placements_s
        ):
            with backend.layer(layer, budget_ms=budget_ms) as built:
                samples.append(sampled(built.phases[name], share, clock))
    return pooled(samples, protocol)


def sampled(phase: Phase, protocol: SamplingProtocol, clock: Clock) -> Samples:
    """Sample one quantity of something that was built."""
    return sample(
        phase.sampler,
        protocol,
        unit=phase.unit,
        offset=phase.offset,
        copies=phase.copies,
        clock=clock,
    )


ROUNDS = 3
"""Steady rounds that a measurement wants: what one round cannot show, several may."""
EXTRA_ROUNDS = 5
"""Rounds that may replace those during which the machine was off its usual speed."""
SLOW_FACTOR, SLOW_S = 10.0, 3.0
"""Times the wanted seconds, and least seconds, after which one steady round is enough: a slow
network's round has many runs of each part of a training step."""
PATIENCE_S = 8.0
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
        Samples of each phase, in milliseconds, or of each part of a training step. Execution is
        timed within the whole runs, the outer phases in loops of their own, as those of layers
        are: a few microseconds of code that has gone cold meanwhile belong to neither.
    totals_ms : tuple of float
        Whole runs, from the host's arrays to the host's arrays, or whole training steps, in
        milliseconds.
    reference_ratio : float
        Time of the reference layer meanwhile over its median: 1.6 is a machine 1.6 times slower.
    rounds, steady_rounds : int
        How many rounds were timed, and in how many the machine had its usual speed and the network
        took as long as in the fastest of them. Only these are used, unless there are none.
    reference_rounds : int
        In how many the reference layer had its usual time.
    others : mapping of str to Samples
        Quantities beside the phases that the backend offers, such as ``peak_memory_bytes``.
    """

    phases_ms: Mapping[str, tuple[float, ...]]
    totals_ms: tuple[float, ...]
    reference_ratio: float
    rounds: int
    steady_rounds: int
    reference_rounds: int
    others: Mapping[str, Samples] = field(default_factory=dict)

    @property
    def samples(self) -> Mapping[str, Samples]:
        """All quantities as a row of a dataset holds them."""
        phases = {
            name: Samples(capped(times_ms, MAX_SAMPLES), len(times_ms), 0, StopReason.BUDGET)
            for name, times_ms in self.phases_ms.items()
        }
        return {**phases, **self.others}


@dataclass(frozen=True)
class _Round:
    """Times of a round, and how the machine was meanwhile."""

    phases_ms: Mapping[str, Sequence[float]]
    totals_ms: Sequence[float]
    total_ms: float
    """Their median."""
    reference_ms: float
    felt: frozenset[str]
    """States before or after it that such a network feels."""


def guarded_runs(built: Built, monitor: Monitor, *, seconds: float) -> GuardedRuns:
    """Time a network in rounds, and repeat those during which the machine was off its speed.

    Parameters
    ----------
    built : Built
        A network. A per-run overhead belongs to its execution: no offset is taken out.
    monitor : Monitor
        Read before and after each round; the states that such a network could feel count.
    seconds : float
        Time for `ROUNDS` rounds together; slow networks take longer, as a round holds at least
        three runs, but one round is enough after `SLOW_FACTOR` times as long.
    """
    protocol = SamplingProtocol(
        min_samples=3,
        min_time_s=seconds / ROUNDS,
        budget_s=seconds / ROUNDS,
        warmup_s=seconds / ROUNDS / 4,
    )
    rounds: list[_Round] = []
    steady: list[_Round] = []
    undisturbed: list[_Round] = []
    monitor.reading(force=True)
    states = monitor.active_flags()
    pauses, start_ns = round(PATIENCE_S / PAUSE_S), monitor.clock()
    for _ in range(ROUNDS + EXTRA_ROUNDS):
        while states & monitor.waits_for and pauses:
            time.sleep(PAUSE_S)
            pauses -= 1
            states = monitor.active_flags(record=False)
        before_ms, states_before = monitor.history.latest_ms, states
        phases_ms, totals_ms = _timed_round(built, protocol, monitor.clock)
        total_ms = median(totals_ms)
        monitor.reading(force=True)
        states = monitor.active_flags()
        felt = monitor.felt_by_network(total_ms) & (states | states_before)
        reference_ms = fmean((before_ms, monitor.history.latest_ms))
        rounds.append(_Round(phases_ms, totals_ms, total_ms, reference_ms, felt))
        # The usual speed is only known better and better, so all rounds are judged anew. Where no
        # reference is timed, the ratio is NaN and no reason against a round. Nor is a faster one:
        # what the network leaves the machine in may speed it up.
        usual_ms = monitor.history.median_ms
        steady = [timed for timed in rounds if not timed.reference_ms / usual_ms > 1 + TOLERANCE]
        undisturbed = _fast([timed for timed in steady if not timed.felt])
        is_slow = (monitor.clock() - start_ns) / NS_PER_S > max(SLOW_FACTOR * seconds, SLOW_S)
        if len(undisturbed) >= (1 if is_slow else ROUNDS):
            break
    near = [timed for timed in steady if not timed.felt & monitor.waits_for]
    used = undisturbed or _fast(near or steady or rounds)
    return GuardedRuns(
        phases_ms={
            name: tuple(time_ms for timed in used for time_ms in timed.phases_ms[name])
            for name in used[0].phases_ms
        },
        totals_ms=tuple(time_ms for timed in used for time_ms in timed.totals_ms),
        reference_ratio=fmean(timed.reference_ms for timed in used) / monitor.history.median_ms,
        rounds=len(rounds),
        steady_rounds=len(undisturbed),
        reference_rounds=len(steady),
        others={
            name: sampled(phase, protocol, monitor.clock)
            for name, phase in built.phases.items()
            if name not in used[0].phases_ms
        },
    )


def _fast(rounds: Sequence[_Round]) -> list[_Round]:
    """Return the rounds that took as long as the fastest: a disturbance only ever costs time."""
    fastest_ms = min((timed.total_ms for timed in rounds), default=0.0)
    return [timed for timed in rounds if timed.total_ms <= (1 + TOLERANCE) * fastest_ms]


def _timed_round(
    built: Built, protocol: SamplingProtocol, clock: Clock
) -> tuple[Mapping[str, Sequence[float]], Sequence[float]]:
    """Time whole runs as the protocol says, then the outer phases more briefly."""
    if EXECUTION not in built.phases:
        return _timed_steps(built, protocol, clock)
    runs: list[tuple[float, float]] = []
    preprocess, execution, postprocess = (built.phases[name].sampler for name in PHASES)

    def whole_run_ms() -> float:
        before_ms, execution_ms, after_ms = preprocess(), execution(), postprocess()
        total_ms = before_ms + execution_ms + after_ms
        runs.append((execution_ms, total_ms))
        return total_ms

    warmups = sample(whole_run_ms, protocol.scaled(1 - 2 * COPY_SHARE), clock=clock).warmups
    brief = protocol.scaled(COPY_SHARE)
    outer = {
        "preprocess_ms": sample(preprocess, brief, clock=clock).values,
        "postprocess_ms": sample(postprocess, brief, clock=clock).values,
    }
    executions_ms, totals_ms = zip(*runs[warmups:], strict=True)
    return {**outer, "execution_ms": executions_ms}, totals_ms


def _timed_steps(
    built: Built, protocol: SamplingProtocol, clock: Clock
) -> tuple[Mapping[str, Sequence[float]], Sequence[float]]:
    """Time training steps; where the host waits for each part anyway, a step is their sum."""
    times = {name: phase for name, phase in built.phases.items() if phase.unit == TIME_UNIT}
    timers = {n: t.sampler for n, t in times.items() if isinstance(t.sampler, WallClock)}
    if len(timers) < len(times):
        share = protocol.scaled(1 / len(times))
        parts_ms = {name: sampled(phase, share, clock).values for name, phase in times.items()}
        return parts_ms, parts_ms[STEP]
    del timers[STEP]
    first = next(iter(timers))
    # Each further part goes on from what the one before it has left.
    parts = {n: timers[n] if n == first else replace(timers[n], before=None) for n in timers}
    steps: list[dict[str, float]] = []

    def step_ms() -> float:
        parts_ms = {name: timer() for name, timer in parts.items()}
        steps.append({**parts_ms, STEP: sum(parts_ms.values())})
        return steps[-1][STEP]

    warmups = sample(step_ms, protocol, clock=clock).warmups
    times_ms = {name: [step[name] for step in steps[warmups:]] for name in steps[0]}
    return times_ms, times_ms[STEP]


def time_network(
    backend: Backend,
    path: Path,
    network: NetworkRef,
    *,
    batch: int | None,
    shapes: Shapes | None = None,
    seconds: float,
    monitor: Monitor,
) -> tuple[GuardedRuns, Measurement]:
    """Measure every quantity that a whole network offers: its three phases, and others.

    Parameters
    ----------
    backend : Backend
    path : Path
        ONNX file; weights that are absent are made up.
    network : NetworkRef
        What the file holds.
    batch, shapes
        As of `Backend.network`.
    seconds : float
        See `guarded_runs`.
    monitor : Monitor

    Returns
    -------
    GuardedRuns
    Measurement
        The same as a row, flagged ``busy`` where the machine never had its usual speed.

    Raises
    ------
    NetworkError, UnsupportedError, MemoryError
        If the file cannot be read or run.
    """
    started_at, start_ns = monitor.now(), monitor.clock()
    with backend.network(path, batch=batch, shapes=shapes) as built:
        built_ns = monitor.clock()
        timed = guarded_runs(built, monitor, seconds=seconds)
    row = Measurement(
        network,
        Status.OK,
        timed.samples,
        setting=backend.setting(),
        platform=backend.platform(),
        started_at=started_at,
        duration_s=(monitor.clock() - start_ns) / NS_PER_S,
        overhead_s=(built_ns - start_ns) / NS_PER_S,
        reference_ratio=timed.reference_ratio,
        flags=() if timed.steady_rounds else ("busy",),
    )
    return timed, row
