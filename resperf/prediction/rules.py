"""How layers and phases add up to a network's quantities, by the rules that were published."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from resperf.errors import UnsupportedError
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
from resperf.quantities import Composition, quantity

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


def composable(name: str, layer_quantities: Collection[str]) -> bool:
    """Return whether a network's quantity follows from the known quantities of its layers."""
    row = quantity(name)
    if row.over_layers is Composition.DERIVED:
        return all(composable(part, layer_quantities) for part in row.parts)
    return row.over_layers is not Composition.NONE and name in layer_quantities


def composed(name: str, of_layers: Mapping[str, Sequence[float]]) -> float:
    """Compose a network's quantity.

    Parameters
    ----------
    name : str
        A name in the table of quantities.
    of_layers : mapping of str to sequence of float
        Quantity -> its value for each layer.

    Raises
    ------
    UnsupportedError
        If the quantity does not follow from those of layers.
    """
    row = quantity(name)
    if row.over_layers is Composition.SUM:
        return float(sum(of_layers[name]))
    if row.over_layers is Composition.MAXIMUM:
        return max(of_layers[name], default=0.0)
    if row.over_layers is Composition.ENDS:
        return 0.0  # Costs of a network's inputs and outputs are part of the three phases.
    if row.over_layers is Composition.DERIVED:
        return sum(composed(part, of_layers) for part in row.parts)
    raise UnsupportedError(
        f"{name} ({row.contains}) of a network does not follow from that of its layers; use a "
        "predictor trained on networks"
    )
