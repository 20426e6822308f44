"""Measuring one layer: build it, sample its phases, and say how that ended."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from statistics import median

from resperf.backends import Backend, Built, Phase
from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.measurement import Measurement, Samples, Status
from resperf.quantities import PHASES
from resperf.timing import Clock, LoadMeter, SamplingProtocol, pooled, sample
from resperf.units import MS_PER_S, NS_PER_MS

ISOLATED_SHARE = 0.25
PHASE_SHARES = {"preprocess_ms": 0.15, "execution_ms": 1.0, "postprocess_ms": 0.15}
"""Shares of the protocol's times: pre- and postprocess are copies, and settle quickly."""
MEMORY_BYTES, MEMORY_BYTES_PER_MS = 1e6, 5e6
"""What moves more, and faster, waits for memory beyond the nearest cache."""
RUNS_IN_BUDGET = 12
"""Runs of the execution phase that should fit into the budget: enough for a median's interval."""


def waits_for_memory(layer: Layer, execution_ms: float) -> bool:
    """Say whether a layer waits for memory rather than for arithmetic."""
    moved_bytes = layer.moved_bytes
    return moved_bytes > MEMORY_BYTES and moved_bytes > MEMORY_BYTES_PER_MS * execution_ms


def hangs_on_its_place(layer: Layer, execution_ms: float) -> bool:
    """Say whether a layer's time hangs on where its input and output lie in memory.

    One with weights is run in copies whose weights lie in several places already.
    """
    return not layer.weight_bytes and waits_for_memory(layer, execution_ms)


def measure_layer(
    backend: Backend,
    layer: Layer,
    protocol: SamplingProtocol,
    *,
    repeat: int = 0,
    load: LoadMeter | None = None,
    clock: Clock = time.perf_counter_ns,
    now: Callable[[], float] = time.time,
) -> Measurement:
    """Measure the three phases of one lowered layer.

    Parameters
    ----------
    backend : Backend
    layer : Layer
        As `Backend.lower` returned it.
    protocol : SamplingProtocol
        Execution gets its full times, the other phases the shares of `PHASE_SHARES`. A layer that
        `hangs_on_its_place` is built and sampled in several places.
    repeat : int
        Stored in the row.
    load : LoadMeter, optional
        Marks the row ``busy`` where the machine did other things meanwhile.
    clock, now : callable
        Nanoseconds that only grow; seconds since 1970.

    Returns
    -------
    Measurement
        Of status ``ok``, ``unsupported`` or ``out_of_memory``. `reference_ratio` is left open.
    """
    started_at, start_ns = now(), clock()
    if load is not None:
        load.start()
    spent_ns = 0
    flags: list[str] = []
    phases: dict[str, Samples] = {}
    status, detail, isolated_ms, session_ms = Status.OK, "", math.nan, math.nan
    try:
        budget_ms = protocol.budget_s * MS_PER_S / RUNS_IN_BUDGET
        with backend.layer(layer, budget_ms=budget_ms) as built:
            sampling_ns = clock()
            phases, isolated_ms = _sample_phases(built, protocol, clock)
            spent_ns = clock() - sampling_ns
        if hangs_on_its_place(layer, phases["execution_ms"].value):
            sampling_ns = clock()
            phases["execution_ms"] = _elsewhere(
                backend, layer, phases["execution_ms"], protocol, clock
            )
            spent_ns += clock() - sampling_ns
        session_ms = backend.session_ms()
    except (UnsupportedError, MemoryError) as error:
        unsupported = isinstance(error, UnsupportedError)
        status = Status.UNSUPPORTED if unsupported else Status.OUT_OF_MEMORY
        detail, phases = str(error) or type(error).__name__, {}
        isolated_ms = math.nan
    if phases and phases["execution_ms"].drift:
        flags.append("drift")
    if load is not None and load.stop().is_busy and phases:
        flags.append("busy")
    duration_ns = clock() - start_ns
    return Measurement(
        subject=layer,
        status=status,
        samples=phases,
        setting=backend.setting(),
        platform=backend.platform(),
        isolated_ms=isolated_ms,
        session_ms=session_ms,
        started_at=started_at,
        duration_s=duration_ns / NS_PER_MS / MS_PER_S,
        overhead_s=(duration_ns - spent_ns) / NS_PER_MS / MS_PER_S,
        flags=tuple(flags),
        repeat=repeat,
        detail=detail,
    )


def _sample_phases(
    built: Built, protocol: SamplingProtocol, clock: Clock
) -> tuple[dict[str, Samples], float]:
    """Sample every phase, and the median of the layer run alone."""
    phases = {
        name: _sampled(built.phases[name], protocol.scaled(PHASE_SHARES[name]), clock)
        for name in PHASES
    }
    alone = sample(built.isolated, protocol.scaled(ISOLATED_SHARE), clock=clock)
    return phases, median(alone.values)


def _elsewhere(
    backend: Backend,
    layer: Layer,
    first: Samples,
    protocol: SamplingProtocol,
    clock: Clock,
) -> Samples:
    """Build the layer again and again, and join what its execution takes in each place.

    A build that fails after the first one ends this; what was measured before it counts.
    """
    share = protocol.scaled(1 / protocol.placements)
    found = [first]
    budget_ms = share.budget_s * MS_PER_S / RUNS_IN_BUDGET
    start_ns = clock()
    with contextlib.suppress(UnsupportedError, MemoryError):
        while (
            len(found) < protocol.placements
            and (clock() - start_ns) / NS_PER_MS / MS_PER_S < protocol.placements_s
        ):
            with backend.layer(layer, budget_ms=budget_ms) as built:
                found.append(_sampled(built.phases["execution_ms"], share, clock))
    return pooled(found, protocol)


def _sampled(phase: Phase, protocol: SamplingProtocol, clock: Clock) -> Samples:
    return sample(
        phase.run, protocol, offset_ms=phase.offset_ms, divisor=phase.divisor, clock=clock
    )
