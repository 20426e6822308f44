"""How long the layers of a lowered network take inside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from resperf.bundle import Bundle, group_of
from resperf.devices import estimated_ms
from resperf.devices.facts import ideal_ms
from resperf.errors import Message
from resperf.layers import Layer
from resperf.lowering import LoweredNetwork, LoweredNode, multiplied, slow_kernel, work_of
from resperf.network import Network
from resperf.prediction.calibrated import extra_weights_ms, network_factor
from resperf.prediction.custom import CustomTimes
from resperf.prediction.data_sheet import Limits, limits_of
from resperf.prediction.layers import (
    Time,
    TimesByKey,
    layer_prediction,
    layer_times,
    no_peak,
    priced,
)
from resperf.prediction.result import (
    EXECUTING,
    OUTER_PHASES,
    LayerPrediction,
    Parts,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.rules import RULE_OF_METHOD, composable, composed
from resperf.quantities import PHASES, QUANTITIES, Level
from resperf.settings import HALF_TYPES
from resperf.targets import DEFAULT

LEAST_SHARE = 0.4
"""Smallest share of a layer's isolated time when its weights are in a nearer cache level."""


def time(
    network: Network,
    lowered: LoweredNetwork,
    bundle: Bundle,
    times: TimesByKey,
    quantities: Mapping[str, QuantityPrediction],
    custom: CustomTimes | None,
    *,
    estimate: bool = True,
) -> Parts:
    """Return the times of a lowered network's layers, and quantities that follow from theirs.

    Parameters
    ----------
    network : Network
    lowered : LoweredNetwork
    bundle : Bundle
    times : TimesByKey
        Times of its layers by themselves.
    quantities : mapping of str to QuantityPrediction
        What predictors of whole networks say.
    custom : CustomTimes or None
        Times that the user states.
    estimate : bool
        Whether nodes without a predictor are estimated by the device's limits, so that only those
        of unknown work are skipped.
    """
    limits: Limits = limits_of(bundle) if estimate else lambda: None
    with_layer = [node.layer for node in lowered.nodes if node.layer is not None]
    isolated = [times[layer.key][0] for layer in with_layer]
    shares, extra_ms = [1.0] * len(isolated), [0.0] * len(isolated)
    if bundle.method not in RULE_OF_METHOD:  # The published rules add up isolated layers.
        shares = [times[layer.key][1] for layer in with_layer]
        extra_ms = extra_weights_ms(lowered, bundle, [layer_time.ms for layer_time in isolated])
    predicted = iter(zip(isolated, extra_ms, shares, strict=True))
    layers: list[LayerPrediction] = []
    skipped: list[Skipped] = []
    times_ms: dict[str, list[float]] = {phase: [] for phase in (EXECUTING, *OUTER_PHASES)}
    counted: set[str] = set()
    for node in lowered.nodes:
        if node.role == "view":
            continue
        own = None if node.layer is None else next(predicted)
        part: LayerPrediction | Skipped | None = None
        if custom is not None and (own is None or math.isnan(own[0].ms)):
            part = custom.layer(node)
        if part is None:
            part = (
                _without_layer(network, node, bundle, limits, counted)
                if own is None
                else _in_network(bundle, node, limits, *own)
            )
        phase = EXECUTING if node.role == "unknown" else node.role
        if isinstance(part, Skipped):
            skipped.append(part)
            times_ms[phase].append(math.nan)
        else:
            layers.append(part)
            times_ms[phase].append(part.execution_ms)
    return Parts(
        tuple(layers),
        times_ms,
        tuple(skipped),
        lowered.nodes,
        lowered.method,
        "stored" if bundle.stored_copies else "assumed",
        tuple({**_other_quantities(with_layer, bundle), **quantities}.values()),
        warnings=(
            *lowered.notes,
            *_layer_warnings([layer for layer in layers if layer.kind in bundle.kinds]),
        ),
    )


def _in_network(
    bundle: Bundle, node: LoweredNode, limits: Limits, isolated: Time, more_ms: float, busy: float
) -> LayerPrediction | Skipped:
    """Turn a layer's isolated time into its time inside the network."""
    layer = node.layer
    assert layer is not None
    isolated = priced(isolated, layer, limits, bundle)
    if math.isnan(isolated.ms):
        reason = f"the bundle has no predictor for {layer.kind}"
        reason = isolated.reason if isolated.estimated else reason
        return Skipped(node.name, node.op, reason, layer.macs, layer.moved_bytes)
    factor = busy
    if node.role == EXECUTING:
        factor *= network_factor(bundle, group_of(layer))
    ms, low_ms, high_ms = (
        factor * (max(time_ms + more_ms, LEAST_SHARE * time_ms) if more_ms else time_ms)
        for time_ms in (isolated.ms, isolated.low_ms, isolated.high_ms)
    )
    inside = isolated._replace(ms=ms, low_ms=low_ms, high_ms=high_ms)
    return layer_prediction(
        bundle, layer, inside, name=node.name, phase=node.role, sources=node.sources
    )


def _without_layer(
    network: Network, node: LoweredNode, bundle: Bundle, limits: Limits, counted: set[str]
) -> LayerPrediction | Skipped:
    """Estimate a kernel that no kind of layer describes, if its work and the limits are known.

    An operator with several kernels counts once: its name is added to those `counted`.
    """
    work = work_of(network, [source for source in node.sources if source not in counted])
    counted.update(node.sources)
    facts = None if math.isnan(work.macs + work.moved_bytes) else limits()
    if facts is None:
        reason = node.reason or "no layer kind fits this operator"
        return Skipped(node.name, node.op, reason, *work)
    factor = network_factor(bundle, node.op)
    op = node.op.rpartition(".")[2]
    dtype, taps = multiplied(network, node.sources)
    if op.casefold() == "matmulnbits":
        dtype = HALF_TYPES.get(bundle.setting.precision, dtype)
    op = slow_kernel(network, node.sources) or op
    sheet = estimated_ms(2 * work.macs, work.moved_bytes, facts, dtype, op)
    if math.isnan(sheet.ms):
        return Skipped(node.name, node.op, no_peak(facts, dtype), *work)
    is_card = facts.device_class != DEFAULT.device_class
    bound_ms = facts.least_moving_ms(work.moved_bytes)
    if dtype != "float32":  # Which operators have fast algorithms in it is not known.
        peak = facts.largest_peak_of(dtype)
        bound_ms = max(bound_ms, ideal_ms(2 * work.macs / taps, peak))
    return LayerPrediction(
        name=node.name,
        kind=node.op,
        execution_ms=factor * sheet.ms,
        in_range=False,
        reason=f"no predictor for {node.op}",
        macs=int(work.macs),
        moved_bytes=int(work.moved_bytes),
        sources=node.sources,
        estimated=True,
        from_limits=True,
        lower_bound_ms=bound_ms if is_card else math.nan,
        low_ms=factor * sheet.low_ms,
        high_ms=factor * sheet.high_ms,
    )


def _other_quantities(layers: Sequence[Layer], bundle: Bundle) -> dict[str, QuantityPrediction]:
    """Compose quantities other than the three phases from predictors of layers."""
    names = [name for name in bundle.layer_quantities if name not in PHASES]
    quantities: dict[str, QuantityPrediction] = {}
    if not names:
        return quantities
    times = {name: layer_times(bundle, layers, name) for name in names}
    for name, row in QUANTITIES.items():
        if Level.NETWORK in row.levels and composable(name, names):
            value, low, high = (
                composed(name, {part: [getattr(t, end) for t in times[part]] for part in names})
                for end in ("ms", "low_ms", "high_ms")
            )
            quantities[name] = QuantityPrediction(
                name, value, low, high, "sum_of_layers", bundle.setting.mode
            )
    return quantities


def _layer_warnings(layers: Sequence[LayerPrediction]) -> Iterator[str]:
    """Count the layers outside the trained range and those below their bounds."""
    groups = {
        "outside the trained range": [
            f"{layer.name} ({layer.reason})" for layer in layers if not layer.in_range
        ],
        "predicted faster than the device's peak": [
            f"{layer.name} ({layer.execution_ms:.3g} ms, at least {layer.lower_bound_ms:.3g} ms)"
            for layer in layers
            if layer.below_bound
        ],
    }
    for what, named in groups.items():
        if named:
            counted = f"{len(named)} of {len(layers)} layers are {what}"
            yield Message(f"{counted}, first {named[0]}", counted)
