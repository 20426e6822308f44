"""How layers and phases add up to a network's time, by the rules that were published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resperf.layers import Layer
from resperf.lowering import LoweredNode
from resperf.prediction.result import (
    EXECUTING,
    OUTER_PHASES,
    THREE_PHASE,
    WHOLE_NETWORK,
    Overheads,
    Parts,
    PhaseTimes,
    Total,
    known_sum,
)

RULE_OF_METHOD: Mapping[str, str] = {"resperfnet": "resperfnet", "perfnet": "resperfnet"}
"""Method of a bundle -> the rule published with it, ResPerfNet's equation 2: without per-run
overhead and reshapes, with one input and one output; `THREE_PHASE` for every other."""


def add_up(parts: Parts, costs: Overheads, rule: str = THREE_PHASE) -> Total:
    """Add up the phases of a network; the host may need longer to start its kernels than they run.

    The re-layout of the network's input and output belongs to the outer phases; if a framework runs
    it as separate nodes, these are added there.

    Parameters
    ----------
    parts : Parts
    costs : Overheads
    rule : str
        As in `Total`.
    """
    outer_ms = [
        known_sum([*costs.outer_ms.get(phase, ()), *parts.times_ms.get(phase, ())])
        for phase in OUTER_PHASES
    ]
    execution_ms = known_sum(parts.times_ms[EXECUTING])
    if rule == THREE_PHASE:
        inside_ms = [execution_ms, costs.reshapes_ms, costs.call_ms, costs.overhead_ms]
        execution_ms = known_sum(inside_ms)
    # Nothing is known of a host whose dispatch is NaN.
    waiting_ms = max(0.0, costs.host_ms - execution_ms)
    phases = PhaseTimes(outer_ms[0], execution_ms + waiting_ms, outer_ms[1])
    total_ms = phases.total_ms
    if rule == WHOLE_NETWORK and math.isnan(execution_ms):
        latency = parts.quantity("latency_ms")
        total_ms = math.nan if latency is None else latency.value
    return Total(phases, total_ms, rule, waiting_ms)


def layers_behind_each_other(nodes: Sequence[LoweredNode]) -> list[Layer]:
    """Return the layers of the execution phase, in their order."""
    return [node.layer for node in nodes if node.role == "execution" and node.layer is not None]
