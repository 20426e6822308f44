"""How layers and phases add up to a network's time: one function per published rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from resperf.bundle import Bundle
from resperf.layers import Layer, handed_over_bytes
from resperf.lowering import LoweredNetwork, LoweredNode
from resperf.network import Tensor
from resperf.prediction.result import PhaseTimes, Skipped
from resperf.units import DTYPE_BYTES


@dataclass(frozen=True)
class Total:
    """A network's time under one rule.

    Attributes
    ----------
    phases : PhaseTimes
    session_ms, views_ms, handover_ms : float
        Parts of the execution phase that are no layer.
    missing : tuple of Skipped
        What the rule asks for and the bundle does not know.
    """

    phases: PhaseTimes
    session_ms: float = 0.0
    views_ms: float = 0.0
    handover_ms: float = 0.0
    missing: tuple[Skipped, ...] = ()


Rule = Callable[[Bundle, LoweredNetwork, Sequence[float]], Total]
"""(bundle, lowered network, time of each node in ms, NaN where there is none) -> Total."""


def tensor_bytes(tensor: Tensor) -> float:
    """Count the bytes of a tensor's values; NaN where they have no size of their own (texts)."""
    element_bytes = DTYPE_BYTES.get(tensor.dtype)
    if element_bytes is None:
        try:
            element_bytes = np.dtype(tensor.dtype).itemsize
        except TypeError:
            return math.nan
    return math.prod(tensor.shape) * element_bytes


def _known_sum(times_ms: Sequence[float]) -> float:
    """Add up what is known; what is not is listed elsewhere."""
    return float(sum(time_ms for time_ms in times_ms if not math.isnan(time_ms)))


def _role_sum(lowered: LoweredNetwork, times_ms: Sequence[float], role: str) -> float:
    return _known_sum(
        [
            time_ms
            for node, time_ms in zip(lowered.nodes, times_ms, strict=True)
            if node.role == role
        ]
    )


def _transfers(
    bundle: Bundle, phase: str, tensors: Sequence[Tensor]
) -> tuple[float, tuple[Skipped, ...]]:
    """Add up the copies of a network's inputs or outputs between host and device."""
    if not tensors:
        return 0.0, ()
    times_ms = bundle.transfer_ms(phase, [tensor_bytes(tensor) for tensor in tensors])
    missing = tuple(
        Skipped(tensor.name, "transfer", f"the bundle has no predictor for {phase} transfers")
        for tensor, time_ms in zip(tensors, times_ms, strict=True)
        if math.isnan(time_ms)
    )
    return _known_sum(list(map(float, times_ms))), missing


def _cost(
    bundle: Bundle, label: str, nodes: Sequence[tuple[str, str]]
) -> tuple[float, tuple[Skipped, ...]]:
    """Charge a calibrated cost once for each (name, operator); list them where it is unknown."""
    cost_ms = bundle.costs.get(label, math.nan)
    if math.isnan(cost_ms):
        reason = f"the bundle's dataset holds no {label}"
        return 0.0, tuple(Skipped(name, op, reason) for name, op in nodes)
    return cost_ms * len(nodes), ()


def layers_behind_each_other(nodes: Sequence[LoweredNode]) -> list[Layer]:
    """Return the layers of the execution phase, in their order."""
    return [node.layer for node in nodes if node.role == "execution" and node.layer is not None]


def _handover_ms(bundle: Bundle, lowered: LoweredNetwork) -> float:
    """Charge what layers cost behind each other; nothing where that was not measured."""
    layers = layers_behind_each_other(lowered.nodes)
    per_node_ms = bundle.costs.get("node_ms", 0.0)
    per_mb_ms = bundle.costs.get("handover_ms_per_mb", 0.0)
    if bundle.correction is not None:
        per_node_ms, per_mb_ms = bundle.correction.node_ms, bundle.correction.handover_ms_per_mb
    return per_node_ms * len(layers) + per_mb_ms * handed_over_bytes(layers) / 1e6


def three_phase(bundle: Bundle, lowered: LoweredNetwork, times_ms: Sequence[float]) -> Total:
    """Add up copies of all inputs, all layers and their handovers, one session call, all outputs.

    ResPerfNet's equations 2 to 6 for networks with several inputs and outputs: what crosses
    between host and device depends on the tensor, not on the layer behind it.
    """
    copied_in_ms, missing_in = _transfers(bundle, "preprocess", lowered.inputs)
    copied_out_ms, missing_out = _transfers(bundle, "postprocess", lowered.outputs)
    views = [(node.name, node.op) for node in lowered.nodes if node.role == "view"]
    views_ms, missing_views = _cost(bundle, "view_ms", views)
    session_ms, missing_session = _cost(bundle, "session_ms", [("session", "call")])
    handover_ms = _handover_ms(bundle, lowered)
    layers_ms = _role_sum(lowered, times_ms, "execution")
    phases = PhaseTimes(
        preprocess_ms=copied_in_ms + _role_sum(lowered, times_ms, "preprocess"),
        execution_ms=layers_ms + views_ms + session_ms + handover_ms,
        postprocess_ms=copied_out_ms + _role_sum(lowered, times_ms, "postprocess"),
    )
    missing = (*missing_in, *missing_out, *missing_views, *missing_session)
    return Total(phases, session_ms, views_ms, handover_ms, missing)


def resperfnet(bundle: Bundle, lowered: LoweredNetwork, times_ms: Sequence[float]) -> Total:
    """Add up the first layer's preprocess, all layers' execution, the last layer's postprocess.

    ResPerfNet's equation 2 as it stands: it knows neither a session call nor shape-only
    operators, and one input and one output. The re-layout of the network's input and output
    belongs to the outer phases (the T of equations 4 and 6); where a framework runs it as nodes
    of its own, these nodes are added there.
    """
    layers = [node for node in lowered.nodes if node.role == "execution" and node.layer]
    edges = [("preprocess", layers[0]), ("postprocess", layers[-1])] if layers else []
    edge_ms = {
        phase: _role_sum(lowered, times_ms, phase) for phase in ("preprocess", "postprocess")
    }
    missing: list[Skipped] = []
    for phase, node in edges:
        time_ms = _edge_ms(bundle, phase, node)
        if math.isnan(time_ms):
            reason = f"the bundle has no {phase} predictor for this kind of layer"
            missing.append(Skipped(node.name, f"{phase} of {node.op}", reason))
        else:
            edge_ms[phase] += time_ms
    phases = PhaseTimes(
        preprocess_ms=edge_ms["preprocess"],
        execution_ms=_role_sum(lowered, times_ms, "execution"),
        postprocess_ms=edge_ms["postprocess"],
    )
    return Total(phases, missing=tuple(missing))


def _edge_ms(bundle: Bundle, phase: str, node: LoweredNode) -> float:
    assert node.layer is not None
    return float(bundle.predict([node.layer], f"{phase}_ms").ms[0])


RULES: Mapping[str, Rule] = {"three_phase": three_phase, "resperfnet": resperfnet}

RULE_OF_METHOD: Mapping[str, str] = {"resperfnet": "resperfnet", "perfnet": "resperfnet"}
"""Method of a bundle -> the rule published with it; ``three_phase`` for every other."""
