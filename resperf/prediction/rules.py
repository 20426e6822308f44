"""How layers and phases add up to a network's time: one function per published rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resperf.bundle import Bundle
from resperf.layers import Layer, inter_layer_bytes
from resperf.lowering import LoweredNetwork, LoweredNode, tensor_bytes
from resperf.network import Tensor
from resperf.prediction.data_sheet import sheet_facts
from resperf.prediction.result import PhaseTimes, Skipped, known_sum


@dataclass(frozen=True)
class Total:
    """A network's time under one rule.

    Attributes
    ----------
    phases : PhaseTimes
    call_ms, reshapes_ms, overhead_ms : float
        Parts of the execution phase other than layers; NaN if the bundle does not have them.
    missing : tuple of Skipped
        Operators and copies that the rule needs and the bundle does not have.
    missing_costs : tuple of Skipped
        Costs between layers that the rule needs and the bundle does not have.
    """

    phases: PhaseTimes
    call_ms: float = 0.0
    reshapes_ms: float = 0.0
    overhead_ms: float = 0.0
    missing: tuple[Skipped, ...] = ()
    missing_costs: tuple[Skipped, ...] = ()


Rule = Callable[[Bundle, LoweredNetwork, Sequence[float]], Total]
"""(bundle, lowered network, time of each node in ms, NaN if there is none) -> Total."""


def _times_of(lowered: LoweredNetwork, times_ms: Sequence[float], *roles: str) -> list[float]:
    return [
        time_ms for node, time_ms in zip(lowered.nodes, times_ms, strict=True) if node.role in roles
    ]


def _no_operator(name: str, op: str, reason: str) -> Skipped:
    """Return an entry for a copy or a cost, which has no work of its own."""
    return Skipped(name, op, reason, macs=0.0, moved_bytes=0.0)


def _transfers(
    bundle: Bundle, phase: str, tensors: Sequence[Tensor], unsized: Sequence[str] = ()
) -> tuple[list[float], tuple[Skipped, ...]]:
    """Return the time of each copy of a network's inputs or outputs, and list the unknown ones."""
    sizes = [tensor_bytes(tensor) for tensor in tensors]
    times_ms = list(map(float, bundle.transfer_ms(f"{phase}_ms", sizes))) if tensors else []
    reasons = {tensor.name: "the size of its values is not known" if math.isnan(size)
               else f"the bundle has no predictor for {phase} transfers{_no_bus(bundle)}"
               for tensor, size, time_ms in zip(tensors, sizes, times_ms, strict=True)
               if math.isnan(time_ms)}  # fmt: skip
    reasons |= dict.fromkeys(unsized, "its shape is not known")
    missing = tuple(_no_operator(name, "transfer", why) for name, why in reasons.items())
    return times_ms + [math.nan] * len(unsized), missing


def _no_bus(bundle: Bundle) -> str:
    """Say that a card's facts lack what copies are estimated from, if they do."""
    facts = sheet_facts(bundle)
    unknown = facts is not None and math.isnan(facts.bus_bytes_per_s)
    return f", and the facts of {bundle.device} have no bus_gb_s" if unknown else ""


def _unknown(label: str) -> str:
    return f"the bundle's dataset holds no {label}"


def _cost(
    bundle: Bundle, label: str, nodes: Sequence[tuple[str, str]]
) -> tuple[float, tuple[Skipped, ...]]:
    """Charge a measured cost for each (name, operator); list these if the cost is unknown."""
    if not nodes:
        return 0.0, ()
    cost_ms = bundle.costs.get(label, math.nan)
    missing = nodes if math.isnan(cost_ms) else ()
    return cost_ms * len(nodes), tuple(
        _no_operator(name, op, _unknown(label)) for name, op in missing
    )


def layers_behind_each_other(nodes: Sequence[LoweredNode]) -> list[Layer]:
    """Return the layers of the execution phase, in their order."""
    return [node.layer for node in nodes if node.role == "execution" and node.layer is not None]


def _inter_layer(bundle: Bundle, lowered: LoweredNetwork) -> tuple[float, tuple[Skipped, ...]]:
    """Return the overhead between layers; list its costs that were not measured."""
    layers = layers_behind_each_other(lowered.nodes)
    counts = {
        "overhead_ms_per_layer": len(layers),
        "overhead_ms_per_mb": inter_layer_bytes(layers) / 1e6,
    }
    costs = {label: bundle.costs.get(label, math.nan) for label in counts}
    if learnt := bundle.network_calibrations:
        costs = {label: learnt[-1].costs[label] for label in counts}
    charged_ms = {label: costs[label] * count for label, count in counts.items() if count}
    return known_sum(list(charged_ms.values())), tuple(
        _no_operator(label, "cost between layers", _unknown(label))
        for label, time_ms in charged_ms.items()
        if math.isnan(time_ms)
    )


def three_phase(bundle: Bundle, lowered: LoweredNetwork, times_ms: Sequence[float]) -> Total:
    """Add up copies of inputs and outputs, layers, overhead between them and per-run overhead.

    ResPerfNet's equations 2 to 6 for networks with several inputs and outputs: the cost of a copy
    between host and device depends on the tensor, not on the layer that uses it.
    """
    copied_in_ms, missing_in = _transfers(bundle, "preprocess", lowered.inputs)
    copied_out_ms, missing_out = _transfers(
        bundle, "postprocess", lowered.outputs, lowered.unsized_outputs
    )
    views = [(node.name, node.op) for node in lowered.nodes if node.role == "view"]
    reshapes_ms, missing_views = _cost(bundle, "reshape_ms", views)
    call_ms, missing_session = _cost(bundle, "call_ms", [("session", "call")])
    overhead_ms, missing_costs = _inter_layer(bundle, lowered)
    layers_ms = _times_of(lowered, times_ms, "execution", "unknown")
    phases = PhaseTimes(
        preprocess_ms=known_sum(copied_in_ms + _times_of(lowered, times_ms, "preprocess")),
        execution_ms=known_sum([known_sum(layers_ms), reshapes_ms, call_ms, overhead_ms]),
        postprocess_ms=known_sum(copied_out_ms + _times_of(lowered, times_ms, "postprocess")),
    )
    missing = (*missing_in, *missing_out, *missing_views, *missing_session)
    return Total(phases, call_ms, reshapes_ms, overhead_ms, missing, missing_costs)


def resperfnet(bundle: Bundle, lowered: LoweredNetwork, times_ms: Sequence[float]) -> Total:
    """Add up the first layer's preprocess, all layers' execution, the last layer's postprocess.

    ResPerfNet's equation 2 as published: without per-run overhead and reshapes, with one
    input and one output. The re-layout of the network's input and output belongs to the outer
    phases (the T of equations 4 and 6); if a framework runs it as separate nodes, these are added
    there.
    """
    layers = [node for node in lowered.nodes if node.role == "execution" and node.layer]
    edges = [("preprocess", layers[0]), ("postprocess", layers[-1])] if layers else []
    edge_ms = {
        phase: _times_of(lowered, times_ms, phase) for phase in ("preprocess", "postprocess")
    }
    missing: list[Skipped] = []
    for phase, node in edges:
        edge_ms[phase].append(_edge_ms(bundle, phase, node))
        if math.isnan(edge_ms[phase][-1]):
            reason = f"the bundle has no {phase} predictor for this kind of layer"
            missing.append(_no_operator(node.name, f"{phase} of {node.op}", reason))
    phases = PhaseTimes(
        preprocess_ms=known_sum(edge_ms["preprocess"]),
        execution_ms=known_sum(_times_of(lowered, times_ms, "execution", "unknown")),
        postprocess_ms=known_sum(edge_ms["postprocess"]),
    )
    return Total(phases, missing=tuple(missing))


def _edge_ms(bundle: Bundle, phase: str, node: LoweredNode) -> float:
    assert node.layer is not None
    return float(bundle.predict([node.layer], f"{phase}_ms").ms[0])


RULES: Mapping[str, Rule] = {"three_phase": three_phase, "resperfnet": resperfnet}

RULE_OF_METHOD: Mapping[str, str] = {"resperfnet": "resperfnet", "perfnet": "resperfnet"}
"""Method of a bundle -> the rule published with it; ``three_phase`` for every other."""
