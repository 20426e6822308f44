"""How layers and phases add up to a network's quantities, and the 90% interval of its time."""

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
    Interval,
    LayerPrediction,
    Overheads,
    Parts,
    PhaseTimes,
    Total,
    known_sum,
)
from resperf.quantities import EXECUTION, Composition, quantity

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


def bound(
    parts: Parts,
    costs: Overheads,
    total: Total,
    log_width: float = math.inf,
    common_width: float = math.inf,
    calibrated_with: int = 0,
) -> Interval:
    """Return the interval of a total; NaN if a layer that counts has none.

    If whole networks were measured, their errors give the width; layers outside the trained
    range add their own intervals, and it is at least that of layers that err independently, unless
    a user's runs correct the total. Otherwise different layers err independently around an error
    that all share (`common_width`), or, where that is not known, all together; other costs are
    taken to be equally uncertain. Times that the user stated are taken as they are, and so is the
    host's dispatch, within `Overheads.host_range_ms`.

    Parameters
    ----------
    parts : Parts
    costs : Overheads
    total : Total
    log_width, common_width : float
        As in `Interval`.
    calibrated_with : int
        As in `Remarks`.
    """
    given_ms = math.fsum(layer.execution_ms for layer in parts.layers if layer.given)
    device_ms = total.total_ms - total.waiting_ms - given_ms
    ends_ms = []
    for sign in (-1, 1):
        if total.rule == WHOLE_NETWORK:
            execution = parts.quantity(EXECUTION)
            end_ms = math.nan
            if execution is not None and not math.isnan(device_ms):
                end_ms = (
                    device_ms / execution.value * (execution.low if sign < 0 else execution.high)
                )
        else:
            widths = log_width, common_width, calibrated_with > 0
            end_ms = _of_layers(sign, device_ms, parts.layers, *widths)
        end_ms += given_ms
        host_ms = costs.host_range_ms[sign > 0]
        if not math.isnan(host_ms) and not math.isnan(end_ms):
            end_ms = max(end_ms, total.total_ms - total.phases.execution_ms + host_ms)
        ends_ms.append(end_ms)
    return Interval(ends_ms[0], ends_ms[1], log_width, common_width)


def _of_layers(
    sign: int,
    total_ms: float,
    layers: Sequence[LayerPrediction],
    log_width: float,
    common_width: float,
    calibrated: bool,
) -> float:
    """Return the lower (-1) or upper (1) end of a total in which the device never waits."""
    layers = [layer for layer in layers if not layer.given]
    layers_ms = sum(layer.execution_ms for layer in layers)
    if not layers_ms:
        return math.nan
    bounds_ms = [layer.low_ms if sign < 0 else layer.high_ms for layer in layers]
    if math.isinf(log_width) and math.isinf(common_width):
        return total_ms * sum(bounds_ms) / layers_ms
    off_ms: dict[str, float] = {}
    for layer, bound_ms in zip(layers, bounds_ms, strict=True):
        # Estimates of one kind rest on one guess, and one trend goes on out of range.
        key = layer.key if layer.in_range and not layer.estimated else layer.kind
        off_ms[key] = off_ms.get(key, 0.0) + bound_ms - layer.execution_ms
    own = max(1 + sign * math.hypot(*off_ms.values()) / layers_ms, 0.0)
    if math.isinf(log_width):
        if not own:
            return 0.0
        return total_ms * math.exp(sign * math.hypot(math.log(own), common_width))
    ratio = math.exp(sign * log_width)
    wider_ms = [
        sign * (bound_ms - layer.execution_ms * ratio)
        for layer, bound_ms in zip(layers, bounds_ms, strict=True)
        # Runs of networks with estimated layers have told how far off such layers are.
        if not layer.in_range and not (calibrated and layer.estimated)
    ]
    # `not extra_ms <= 0` includes NaN.
    extra_ms = sum(extra_ms for extra_ms in wider_ms if not extra_ms <= 0)
    end_ms = total_ms * ratio + sign * extra_ms
    # Errors of networks say less of one whose layers are less certain than theirs.
    own_ms = end_ms if calibrated else total_ms * own
    return sign * max(sign * end_ms, sign * own_ms)


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
    if row.over_layers is Composition.DERIVED:
        return sum(composed(part, of_layers) for part in row.parts)
    if row.over_layers is Composition.ENDS:
        return 0.0  # Costs of a network's inputs and outputs are part of the three phases.
    if row.over_layers is Composition.NONE:
        raise UnsupportedError(
            f"{name} ({row.contains}) of a network does not follow from that of its layers; use a "
            "predictor trained on networks"
        )
    values = of_layers[name]
    return max(values, default=0.0) if row.over_layers is Composition.MAXIMUM else sum(values, 0.0)
