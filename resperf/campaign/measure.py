"""Measuring one layer: build it, sample its phases, and say how that ended."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from statistics import median

from resperf.backends import Backend, Built, Phase
from resperf.backends.monitors import Monitor
from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.measurement import Measurement, Samples, Status
from resperf.quantities import layer_quantity
from resperf.timing import Clock, SamplingProtocol, pooled, sample
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
        divisor=phase.divisor,
        copies=phase.copies,
        clock=clock,
    )
