"""What a network costs beside its layers: copies, the call, reshapes, overhead between layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from resperf.bundle import Bundle
from resperf.devices import UNIFIED, device_class, target_of
from resperf.errors import ResperfError
from resperf.layers import bytes_between_layers
from resperf.lowering import LoweredNetwork, tensor_bytes
from resperf.prediction.data_sheet import estimated_copies, sheet_facts
from resperf.prediction.result import (
    DISPATCH_GIVEN,
    DISPATCH_OF_LAYERS,
    OUTER_PHASES,
    THREE_PHASE,
    TRANSFER,
    WHOLE_NETWORK,
    Overheads,
    Skipped,
    known_sum,
)
from resperf.prediction.rules import layers_behind_each_other
from resperf.predictors.transfers import Transfers
from resperf.quantities import QUANTITIES
from resperf.targets import DEFAULT
from resperf.units import US_PER_MS

_Outer = tuple[dict[str, Sequence[float]], list[Skipped]]
"""Stem of an outer phase -> its times, NaN where not known; and what is not known."""


def overheads(
    bundle: Bundle,
    lowered: LoweredNetwork | None,
    rule: str,
    host_dispatch_us: float = math.nan,
    *,
    estimate: bool = True,
) -> Overheads:
    """Return what a network costs beside its layers.

    Parameters
    ----------
    bundle : Bundle
    lowered : LoweredNetwork or None
        None if its execution is not predicted.
    rule : str
        As in `resperf.prediction.result.Total`. The execution of a network as a whole contains all
        but the copies; the published rule has neither a call nor reshapes.
    host_dispatch_us : float
        Time that the host needs to start one kernel; NaN if the user does not say it.
    estimate : bool
        Whether copies that the bundle lacks are estimated from the data sheet.
    """
    source = DISPATCH_GIVEN
    if math.isnan(host_dispatch_us):
        source, host_dispatch_us = DISPATCH_OF_LAYERS, bundle.dispatch_ms * US_PER_MS
    host: dict[str, Any] = {}
    if not math.isnan(host_dispatch_us):
        kernels = lowered.starts if lowered else 0
        host = {"host_dispatch_us": host_dispatch_us, "host_dispatch_source": source,
                "kernels": kernels}  # fmt: skip
    if lowered is None:
        return Overheads(outer_ms=dict.fromkeys(OUTER_PHASES, (math.nan,)), **host)
    added = estimated_copies(sheet_facts(bundle)) if estimate else {}
    added = {name: copies for name, copies in added.items() if name not in bundle.transfers}
    transfers = {**bundle.transfers, **added}
    estimates = {*bundle.estimates, *(QUANTITIES[name].stem for name in added)}
    inside: dict[str, Any] = {}
    if rule == WHOLE_NETWORK:
        is_host = device_class(bundle.device, bundle.framework) == DEFAULT.device_class
        # A processor computes where the inputs are.
        outer_ms, skipped, _ = ({}, [], ()) if is_host else _copies(bundle, lowered, transfers)
        # Parts of the execution that are not told apart.
        inside = dict.fromkeys(("call_ms", "reshapes_ms", "overhead_ms"), math.nan)
    elif rule == THREE_PHASE:
        inside, more = _inside(bundle, lowered)
        outer_ms, skipped, inside["out_of_range"] = _copies(bundle, lowered, transfers)
        skipped += more
    else:
        outer_ms, skipped = _outer_layers(bundle, lowered, added)
    return Overheads(
        outer_ms=outer_ms,
        skipped=tuple(skipped),
        estimated_phases=tuple(phase for phase in OUTER_PHASES if phase in estimates),
        reshapes_estimated="reshape_ms" in estimates and rule != WHOLE_NETWORK,
        **inside,
        **host,
    )


def _inside(bundle: Bundle, lowered: LoweredNetwork) -> tuple[dict[str, Any], list[Skipped]]:
    """Return the costs inside the execution; list operators whose cost was not measured."""
    try:
        free = target_of(bundle.device, bundle.framework).no_such_costs
    except ResperfError:
        free = ()
    costs = {**dict.fromkeys(free, 0.0), **bundle.costs}
    why = f"not measured with {bundle.framework} on {bundle.device}; measure it: resperf bench"
    layers = layers_behind_each_other(lowered.nodes)
    between = {
        "overhead_ms_per_layer": len(layers),
        "overhead_ms_per_mb": bytes_between_layers(layers) / 1e6,
    }
    per_unit = {label: costs.get(label, math.nan) for label in between}
    if learnt := bundle.network_calibrations:
        per_unit = {label: learnt[-1].costs[label] for label in between}
    between_ms = {label: per_unit[label] * count for label, count in between.items() if count}
    views = [(node.name, node.op) for node in lowered.nodes if node.role == "view"]
    charged_ms = {}
    skipped: list[Skipped] = []
    for label, nodes in (("reshape_ms", views), ("call_ms", [("the whole network", "call")])):
        cost_ms = costs.get(label, math.nan)
        charged_ms[label] = cost_ms * len(nodes) if nodes else 0.0
        if math.isnan(cost_ms):
            skipped += [_no_operator(name, op, why) for name, op in nodes]
    return {
        "call_ms": charged_ms["call_ms"],
        "reshapes_ms": charged_ms["reshape_ms"],
        "overhead_ms": known_sum(list(between_ms.values())),
        "missing_costs": tuple(
            _no_operator(label, "cost between layers", why)
            for label, time_ms in between_ms.items()
            if math.isnan(time_ms)
        ),
    }, skipped


def _copies(
    bundle: Bundle, lowered: LoweredNetwork, transfers: Mapping[str, Transfers]
) -> tuple[*_Outer, tuple[tuple[str, str], ...]]:
    """Return the times of copies between host and device, and why some are out of range.

    They depend on the tensor, not on the layer that uses it: ResPerfNet's equations 2 to 6 for
    networks with several inputs and outputs.
    """
    outer_ms: dict[str, Sequence[float]] = {}
    skipped: list[Skipped] = []
    out_of_range: list[tuple[str, str]] = []
    facts = sheet_facts(bundle)
    no_bus = facts is not None and math.isnan(facts.bus_bytes_per_s)
    why = f"; give bus_gb_s of {bundle.device}, or bus = 'unified' without copies" if no_bus else ""
    for phase, tensors, unsized in (
        ("preprocess", lowered.inputs, ()),
        ("postprocess", lowered.outputs, lowered.unsized_outputs),
    ):
        sizes = [tensor_bytes(tensor) for tensor in tensors]
        copies = transfers.get(f"{phase}_ms")
        if copies is None and facts is not None and facts.bus == UNIFIED:
            continue
        times_ms = [math.nan] * len(sizes)
        if copies is not None:
            times_ms = copies.predict(sizes).tolist()
            outside = zip(tensors, copies.outside(sizes), strict=True)
            out_of_range += [(tensor.name, reason) for tensor, reason in outside if reason]
        reasons = {
            tensor.name: "the size of its values is not known"
            if math.isnan(size)
            else f"the bundle has no predictor for {phase} transfers{why}"
            for tensor, size, time_ms in zip(tensors, sizes, times_ms, strict=True)
            if math.isnan(time_ms)
        } | dict.fromkeys(unsized, "its shape is not known")
        skipped += [_no_operator(name, TRANSFER, reason) for name, reason in reasons.items()]
        outer_ms[phase] = [*times_ms, *(math.nan for _ in unsized)]
    return outer_ms, skipped, tuple(out_of_range)


def _outer_layers(
    bundle: Bundle, lowered: LoweredNetwork, estimated: Mapping[str, Transfers]
) -> _Outer:
    """Return the first layer's preprocess and the last layer's postprocess, the published rule's.

    The T of equations 4 and 6.
    """
    outer_ms: dict[str, Sequence[float]] = dict.fromkeys(OUTER_PHASES, ())
    skipped: list[Skipped] = []
    nodes = [node for node in lowered.nodes if node.role == "execution" and node.layer is not None]
    for phase, node in zip(OUTER_PHASES, (nodes[:1] + nodes[-1:]), strict=False):
        assert node.layer is not None
        time_ms = float(bundle.predict([node.layer], f"{phase}_ms").ms[0])
        if math.isnan(time_ms) and (copies := estimated.get(f"{phase}_ms")) is not None:
            is_first = phase == "preprocess"
            moved_bytes = node.layer.input_bytes if is_first else node.layer.output_bytes
            time_ms = float(copies.predict([moved_bytes])[0])
        outer_ms[phase] = [time_ms]
        if math.isnan(time_ms):
            reason = f"the bundle has no {phase} predictor for this kind of layer"
            skipped.append(_no_operator(node.name, f"{phase} of {node.op}", reason))
    return outer_ms, skipped


def _no_operator(name: str, op: str, reason: str) -> Skipped:
    """Return an entry for a copy or a cost, which has no work of its own."""
    return Skipped(name, op, reason, macs=0.0, moved_bytes=0.0)
