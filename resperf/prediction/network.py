"""Predicting a network with a bundle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from resperf.bundle import Bundle, group_of
from resperf.copies import PACKED_KINDS, weights_moved_ms
from resperf.devices import estimated_ms
from resperf.errors import Message, UnsupportedError
from resperf.lowering import LoweredNetwork, LoweredNode, Work, lower, tensor_bytes, work_of
from resperf.network import Network
from resperf.prediction.composition import composable, composed
from resperf.prediction.custom import CustomTimes
from resperf.prediction.data_sheet import METHOD, Limits, completed, limits_of, sheet_facts
from resperf.prediction.host import bundle_warnings
from resperf.prediction.layers import (
    Known,
    Time,
    known_layers,
    layer_prediction,
    layer_times,
    priced,
)
from resperf.prediction.result import (
    DISPATCH_GIVEN,
    DISPATCH_OF_LAYERS,
    LayerPrediction,
    PhaseTimes,
    Prediction,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.rules import RULE_OF_METHOD, RULES
from resperf.prediction.whole_network import answered, of_whole_network
from resperf.quantities import PHASES, QUANTITIES, Level
from resperf.settings import Setting
from resperf.targets import DEFAULT
from resperf.units import US_PER_MS

SHOWN_IN_ERROR = 3
"""Operators that an error names; the rest is counted."""
Strict = bool | Literal["range"]
"""True refuses incomplete totals; "range" also layers outside the trained range."""
STATE_WIDTH = 0.07
"""Nine of ten totals are off by less than this, as a logarithm, because the state of a CPU's host
changes within minutes or from day to day."""
LEAST_SHARE = 0.4
"""Smallest share of a layer's isolated time when its weights are in a nearer cache level."""


def predict_network(
    network: Network,
    bundle: Bundle,
    *,
    strict: Strict = False,
    threads: int | None = None,
    whole: bool = True,
    in_session: bool = False,
    host_dispatch_us: float = math.nan,
    custom_ms: Mapping[str, float] | None = None,
) -> Prediction:
    """Predict how long one run of a network takes.

    What the bundle has no predictor for is estimated from the device's limits
    (`resperf.devices.estimated_ms`), unless `strict`.

    Parameters
    ----------
    network : Network
    bundle : Bundle
        Predictors of one device and framework.
    strict : bool or "range"
        Refuse networks with operators or copies that have no predictor; ``"range"`` also those
        with layers or copies outside the trained range. An unknown overhead between layers is
        listed (`Prediction.missing_costs`), not refused.
    threads : int, optional
        Number of threads to predict for; only compared with the bundle's.
    whole : bool
        Also use predictors trained on whole networks.
    in_session : bool
        Predict for the published session that the bundle's setting names, in which a row was
        measured; otherwise for a user, whose session none is.
    host_dispatch_us : float
        Time that the host needs to start one kernel. Layers take at least that much together.
        NaN: as the bundle's layers show it (`Bundle.dispatch_ms`); if they do not, the host is
        taken to be fast enough.
    custom_ms : mapping of str to float
        Times of one run of operators that have no layer, in ms, by domain and operator:
        ``{"my.domain.MyOp": 0.5}``; ONNX's own operators have no domain.

    Raises
    ------
    UnsupportedError
        If `strict` and the total would leave something out (or extrapolate), if the framework has
        no lowering, if the bundle predicts whole calls, which do not add up, or if a time of
        `custom_ms` is of nothing that needs one.
    """
    return _of_lowered(
        network, None, bundle, None, strict=strict, threads=threads,
        whole=whole, in_session=in_session, host_dispatch_us=host_dispatch_us,
        custom_ms=custom_ms,
    )  # fmt: skip


def predict_networks(
    networks: Sequence[Network],
    bundle: Bundle,
    *,
    strict: Strict = False,
    threads: int | None = None,
    host_dispatch_us: float = math.nan,
    custom_ms: Mapping[str, float] | None = None,
) -> list[Prediction]:
    """Predict many networks as `predict_network` does, but the layers of all of them at once.

    Parameters
    ----------
    networks : sequence of Network
    bundle, strict, threads, host_dispatch_us, custom_ms
        As in `predict_network`.

    Returns
    -------
    list of Prediction
        In the order of the networks.

    Raises
    ------
    UnsupportedError
        As `predict_network`.
    """
    lowered: list[LoweredNetwork | None] = [None] * len(networks)
    known = None
    if bundle.kinds:
        # The bundle's own setting may name a session, as in `predict_network`.
        bundle_of_user = bundle.without_session()
        setting, platform = bundle_of_user.setting, bundle_of_user.platform
        lowered = [lower(each, setting, platform) for each in networks]
        nodes = (node for each in lowered if each is not None for node in each.nodes)
        layers = [node.layer for node in nodes if node.layer is not None]
        known = known_layers(bundle_of_user, layers)
    return [
        _of_lowered(
            network, each, bundle, known,
            strict=strict, threads=threads, host_dispatch_us=host_dispatch_us,
            custom_ms=custom_ms,
        )
        for network, each in zip(networks, lowered, strict=True)
    ]  # fmt: skip


def _of_lowered(
    network: Network,
    lowered: LoweredNetwork | None,
    bundle: Bundle,
    known: Known | None,
    *,
    strict: Strict,
    threads: int | None,
    whole: bool = True,
    in_session: bool = False,
    host_dispatch_us: float,
    custom_ms: Mapping[str, float] | None = None,
) -> Prediction:
    """Predict a network; `lowered` and `known` are made if they are None."""
    found = of_whole_network(network, bundle) if whole else {}
    if not in_session:
        bundle = bundle.without_session()
    custom = CustomTimes(network, custom_ms)
    if found and not bundle.kinds:
        custom.refuse_whole(bundle)
        answer = answered(
            _empty(network, bundle, threads), network, bundle, found,
            estimated=not strict, host_dispatch_us=host_dispatch_us,
        )  # fmt: skip
        outside = [f"{network.name}: {answer.extrapolated}"] if answer.extrapolated else []
        _refuse_incomplete(strict, network.name, bundle, answer.skipped, outside)
        answer = replace(answer, calibrated_with=calibrated_with(bundle, found.values()))
        return _with_host(answer, bundle, host_dispatch_us)
    if bundle.method == METHOD and sheet_facts(bundle) is None:
        raise UnsupportedError(
            f"{bundle.path} estimates from the data sheet of {bundle.device}, which is not known "
            "here; add the file of its facts: --device FILE.toml"
        )
    if not composable(bundle.layer_quantity, [bundle.layer_quantity]):
        raise UnsupportedError(
            f"{bundle.path} predicts whole calls: each contains a call and the copies "
            "between host and device, which a network pays once and not per layer; predict single "
            "layers with resperf predict-layer, or use a bundle that was trained on execution"
        )
    if lowered is None:
        lowered = lower(network, bundle.setting, bundle.platform)
    prediction = _prediction(
        network, lowered, bundle, known, strict=strict, threads=threads, custom=custom
    )
    custom.refuse_unused()
    prediction = _with_host(prediction, bundle, host_dispatch_us)
    quantities = {**_of_layers(lowered, bundle), **found}
    return replace(prediction, quantities=tuple(quantities.values())) if quantities else prediction


def calibrated_with(bundle: Bundle, quantities: Iterable[QuantityPrediction] = ()) -> int:
    """Return how many networks' runs correct quantities of whole networks; without any, layers."""
    ways: list[tuple[str | None, Setting]] = [
        (each.name, replace(bundle.setting, mode=each.mode)) for each in quantities
    ]
    counts = (
        each.count
        for part in bundle.parts
        for name, setting in ways or [(None, bundle.setting)]
        for each in part.runs_calibrations(name, setting, bundle.platform)
    )
    return max(counts, default=0)


def _of_layers(lowered: LoweredNetwork, bundle: Bundle) -> dict[str, QuantityPrediction]:
    """Compose quantities other than the three phases from predictors of layers."""
    known = [name for name in bundle.layer_quantities if name not in PHASES]
    names = [
        name
        for name, row in QUANTITIES.items()
        if Level.NETWORK in row.levels and known and composable(name, known)
    ]
    layers = [node.layer for node in lowered.nodes if node.layer is not None]
    times = {name: layer_times(bundle, layers, name) for name in known if names}

    def whole(name: str, field: str) -> float:
        # Costs of a network's inputs and outputs are part of the three phases.
        return composed(name, lambda part: [getattr(t, field) for t in times[part]], lambda _: 0.0)

    return {
        name: QuantityPrediction(
            name,
            whole(name, "ms"),
            whole(name, "low_ms"),
            whole(name, "high_ms"),
            "sum_of_layers",
            bundle.setting.mode,
        )
        for name in names
    }


def _with_host(prediction: Prediction, bundle: Bundle, host_dispatch_us: float) -> Prediction:
    """Let the execution phase take at least as long as the host needs to start its kernels."""
    source = DISPATCH_GIVEN
    if math.isnan(host_dispatch_us):
        source, host_dispatch_us = DISPATCH_OF_LAYERS, bundle.dispatch_ms * US_PER_MS
    if math.isnan(host_dispatch_us):
        return prediction
    kernels = sum(node.role != "view" for node in prediction.nodes)
    phases = prediction.phases
    asked = replace(
        prediction,
        host_dispatch_us=host_dispatch_us,
        host_dispatch_source=source,
        kernels=kernels,
    )
    waiting_ms = max(0.0, asked.host_ms - phases.execution_ms)
    longer = replace(phases, execution_ms=phases.execution_ms + waiting_ms)
    return replace(asked, phases=longer, waiting_ms=waiting_ms)


def _empty(
    network: Network, bundle: Bundle, threads: int | None, *, versions: bool = True
) -> Prediction:
    """Return a prediction without values, of a network with a bundle.

    It warns of another version of the framework if `versions`.
    """
    return Prediction(
        network=network.name,
        device=bundle.device,
        machine=bundle.machine,
        bundle=str(bundle.path),
        method=bundle.method,
        framework=bundle.framework,
        framework_version=bundle.setting.framework_version,
        batch=network.batch,
        precision=bundle.setting.precision,
        compiled=bundle.setting.compiled,
        phases=PhaseTimes(math.nan, math.nan, math.nan),
        layers=(),
        calibrated_by=bundle.calibrated_by,
        warnings=(*bundle_warnings(bundle, threads=threads, versions=versions), *network.notes),
        assumed=network.assumed,
    )


def _prediction(
    network: Network,
    lowered: LoweredNetwork,
    bundle: Bundle,
    known: Known | None = None,
    *,
    strict: Strict = False,
    threads: int | None = None,
    alone: bool = False,
    custom: CustomTimes | None = None,
) -> Prediction:
    """Add up the known times of a lowered network; `alone` uses times of isolated layers.

    Layers are predicted unless they are `known`.
    """
    rule = RULE_OF_METHOD.get(bundle.method, "three_phase")
    # The published rules use times of isolated layers.
    alone = alone or bundle.method in RULE_OF_METHOD
    bundle = completed(bundle, None if strict else sheet_facts(bundle))
    if known is None:
        chosen = [node.layer for node in lowered.nodes if node.layer is not None]
        known = known_layers(bundle, chosen)
    custom = custom or CustomTimes(network, None)
    layers, times_ms, skipped = _predict_nodes(
        network,
        lowered,
        bundle,
        known,
        (lambda: None) if strict else limits_of(bundle),
        alone=alone,
        custom=custom,
    )
    total = RULES[rule](bundle, lowered, times_ms)
    skipped += total.missing
    copies = tuple(_copies_out_of_range(bundle, lowered)) if rule == "three_phase" else ()
    outside = [f"{layer.name}: {layer.reason}" for layer in layers if not layer.in_range]
    outside += [f"copy of {tensor}: {reason}" for tensor, reason in copies]
    _refuse_incomplete(strict, network.name, bundle, skipped, outside)
    log_width, common_width = _widths(bundle, lowered, layers)
    # A framework that was asked lowers as its version here does, and notes what differs.
    empty = _empty(network, bundle, threads, versions=lowered.method == "rules")
    return replace(
        empty,
        warnings=(
            *empty.warnings,
            *lowered.notes,
            *_layer_warnings([each for each in layers if each.kind in bundle.kinds]),
            *(f"the copy of {name!r} is outside the measured range: {why}" for name, why in copies),
        ),
        phases=total.phases,
        layers=layers,
        skipped=skipped,
        call_ms=total.call_ms,
        reshapes_ms=total.reshapes_ms,
        overhead_ms=total.overhead_ms,
        lowering=lowered.method,
        rule=rule,
        estimated_phases=tuple(
            phase for phase in ("preprocess", "postprocess") if phase in bundle.estimates
        ),
        reshapes_estimated="reshape_ms" in bundle.estimates,
        copies="stored" if bundle.stored_copies else "assumed",
        nodes=lowered.nodes,
        log_width=log_width,
        common_width=common_width,
        calibrated_with=calibrated_with(bundle),
        missing_costs=total.missing_costs,
        assumed=(*empty.assumed, *custom.statements()),
    )


def _widths(
    bundle: Bundle, lowered: LoweredNetwork, layers: Sequence[LayerPrediction]
) -> tuple[float, float]:
    """Return `Prediction.log_width` and `Prediction.common_width`.

    Calibration layers add what they leave in doubt to the width that networks gave before. Without
    one, that doubt is what all layers share, also where too few networks gave a width after the
    layers; `STATE_WIDTH` is joined.
    """
    known = bundle.network_calibrations
    own = known[-1].log_width if known else math.inf
    last = bundle.calibrated_by
    if last is None and bundle.layer_calibrations and math.isinf(own):
        last = bundle.layer_calibrations[-1]
    if last is None:
        apart = math.isinf(own) and bundle.platform.is_processor
        return own, STATE_WIDTH if apart else math.inf
    names = {each.name: each.execution_ms for each in layers}
    placed = [
        (node.layer, names[node.name])
        for node in lowered.nodes
        if node.layer is not None and node.name in names
    ]
    found, times_ms = zip(*placed, strict=True) if placed else ((), ())
    doubt = last.doubt(found, times_ms)
    if math.isinf(own):
        return own, math.hypot(STATE_WIDTH, doubt)
    return math.hypot(own, doubt), math.inf


def layers_alone(network: Network, bundle: Bundle, *, threads: int | None = None) -> Prediction:
    """Predict a network with times of isolated layers, to compare with isolated measurements.

    The total is that of `predict_network`. The overhead between layers therefore includes the
    in-network correction and the cost of moved weights; it may be below zero.
    """
    prediction = predict_network(network, bundle, threads=threads)
    bundle = bundle.without_session()
    lowered = lower(network, bundle.setting, bundle.platform)
    alone = _prediction(network, lowered, bundle.isolated(), alone=True)
    alone_ms, placed_ms = (
        sum(layer.execution_ms for layer in each.layers if layer.phase == "execution")
        for each in (alone, prediction)
    )
    overhead_ms = prediction.overhead_ms + placed_ms - alone_ms
    return replace(prediction, layers=alone.layers, overhead_ms=overhead_ms)


def _predict_nodes(
    network: Network,
    lowered: LoweredNetwork,
    bundle: Bundle,
    known: Known,
    limits: Limits,
    *,
    alone: bool,
    custom: CustomTimes,
) -> tuple[tuple[LayerPrediction, ...], list[float], tuple[Skipped, ...]]:
    """Return the layers with a time, the time of every node (or NaN), and the skipped nodes.

    Nodes without a predictor are estimated by the device's `limits`, if there are any, and only
    those of unknown work skipped.
    """
    chosen = [known[node.layer.key] for node in lowered.nodes if node.layer is not None]
    found = [time for time, _ in chosen]
    moved = [0.0] * len(found) if alone else _weights_moved_ms(lowered, bundle, found)
    shares = [1.0 if alone else share for _, share in chosen]
    predicted = iter(zip(found, moved, shares, strict=True))
    layers: list[LayerPrediction] = []
    times_ms: list[float] = []
    skipped: list[Skipped] = []
    counted: set[str] = set()
    for node in lowered.nodes:
        if node.layer is None:
            times_ms.append(math.nan)
            if (stated := custom.layer(node)) is not None:
                times_ms[-1] = stated.execution_ms
                layers.append(stated)
            elif node.role != "view":
                reason = node.reason or "no layer kind fits this operator"
                # An operator with several kernels counts once.
                work = work_of(network, [each for each in node.sources if each not in counted])
                counted.update(node.sources)
                factor = _factor(bundle, node.op)
                estimate = _without_layer(node, work, limits, factor)
                if estimate is None:
                    skipped.append(Skipped(node.name, node.op, reason, *work))
                else:
                    times_ms[-1] = estimate.execution_ms
                    layers.append(estimate)
            continue
        time, moved_ms, share = next(predicted)
        if math.isnan(time.ms) and (stated := custom.layer(node)) is not None:
            times_ms.append(stated.execution_ms)
            layers.append(stated)
            continue
        time = _in_network(priced(time, node.layer, limits), moved_ms, share, node, bundle)
        times_ms.append(time.ms)
        if math.isnan(time.ms):
            reason = f"the bundle has no predictor for {node.layer.kind}"
            work = Work(node.layer.macs, node.layer.moved_bytes)
            skipped.append(Skipped(node.name, node.op, reason, *work))
            continue
        layers.append(
            layer_prediction(
                bundle, node.layer, time, name=node.name, phase=node.role, sources=node.sources
            )
        )
    return tuple(layers), times_ms, tuple(skipped)


def _without_layer(
    node: LoweredNode, work: Work, limits: Limits, factor: float
) -> LayerPrediction | None:
    """Estimate a kernel that no kind of layer describes; None if its work is not known."""
    if math.isnan(work.macs + work.moved_bytes) or (facts := limits()) is None:
        return None
    sheet = estimated_ms(2 * work.macs, work.moved_bytes, facts)
    is_card = facts.device_class != DEFAULT.device_class
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
        lower_bound_ms=facts.least_moving_ms(work.moved_bytes) if is_card else math.nan,
        low_ms=factor * sheet.low_ms,
        high_ms=factor * sheet.high_ms,
    )


def _weights_moved_ms(
    lowered: LoweredNetwork, bundle: Bundle, times: Sequence[Time]
) -> list[float]:
    """Return the extra time of each layer because its weights are in another level of cache.

    Between two uses of a weight, a network reads all its weights, and reads and writes the tensors
    of its largest layer.
    """
    nodes = [(node, node.layer) for node in lowered.nodes if node.layer is not None]
    if not nodes:
        return []
    sizes = [layer.weight_bytes if node.role == "execution" else 0 for node, layer in nodes]
    largest = max(layer.input_bytes + layer.output_bytes for _, layer in nodes)
    faster = math.prod(each.others for each in bundle.layer_calibrations)
    times_ms = [0.0 if math.isnan(time.ms) else time.ms / faster for time in times]
    stored = [bundle.stored_copies.get(layer.kind) for _, layer in nodes]
    moved_ms = weights_moved_ms(
        bundle.costs,
        sum(sizes) + largest,
        times_ms,
        sizes,
        [layer.kind in PACKED_KINDS for _, layer in nodes],
        [
            each.of_layer(time_ms, size) if each is not None and size else None
            for each, time_ms, size in zip(stored, times_ms, sizes, strict=True)
        ],
    )
    return list(map(float, moved_ms))


def _in_network(
    time: Time, moved_ms: float, device_share: float, node: LoweredNode, bundle: Bundle
) -> Time:
    """Turn a layer's isolated time into its time inside the network."""
    assert node.layer is not None
    factor = device_share
    if node.role == "execution":
        factor *= _factor(bundle, group_of(node.layer))
    ms, low_ms, high_ms = (
        factor * (max(each + moved_ms, LEAST_SHARE * each) if moved_ms else each)
        for each in (time.ms, time.low_ms, time.high_ms)
    )
    return time._replace(ms=ms, low_ms=low_ms, high_ms=high_ms)


def _factor(bundle: Bundle, group: str) -> float:
    """Return the time of a group's layers inside a network over what is said of them alone."""
    return math.prod(each.factor(group) for each in bundle.network_calibrations)


def _copies_out_of_range(bundle: Bundle, lowered: LoweredNetwork) -> Iterator[tuple[str, str]]:
    """Yield the name and reason of each input and output larger than all measured copies."""
    for phase, tensors in (("preprocess", lowered.inputs), ("postprocess", lowered.outputs)):
        reasons = bundle.transfers_outside(
            f"{phase}_ms", [tensor_bytes(tensor) for tensor in tensors]
        )
        for tensor, reason in zip(tensors, reasons, strict=True):
            if reason:
                yield tensor.name, reason


def _layer_warnings(layers: Sequence[LayerPrediction]) -> Iterator[str]:
    """Count the layers outside the trained range and those below their bounds."""
    found = {
        "outside the trained range": [
            f"{each.name} ({each.reason})" for each in layers if not each.in_range
        ],
        "predicted faster than the device's peak": [
            f"{each.name} ({each.execution_ms:.3g} ms, at least {each.lower_bound_ms:.3g} ms)"
            for each in layers
            if each.below_bound
        ],
    }
    for what, named in found.items():
        if named:
            counted = f"{len(named)} of {len(layers)} layers are {what}"
            yield Message(f"{counted}, first {named[0]}", counted)


def _refuse_incomplete(
    strict: Strict,
    name: str,
    bundle: Bundle,
    skipped: Sequence[Skipped],
    outside: Sequence[str],
) -> None:
    """Refuse what `strict` does not allow.

    Raises
    ------
    UnsupportedError
        If there is any; names the first ones.
    """
    target = f"device {bundle.device} with {bundle.framework}"
    if strict and skipped:
        named = _first([f"{each.name} ({each.op}): {each.reason}" for each in skipped])
        raise UnsupportedError(
            f"{name}: {len(skipped)} operators have no predictor for {target}: {named}; without "
            "strict the total leaves them out"
        )
    if strict == "range" and outside:
        raise UnsupportedError(
            f"{name}: {len(outside)} layers and copies are outside the trained range of the bundle "
            f"for {target}: {_first(outside)}; use another bundle, or extrapolate without "
            "--strict-range (strict='range')"
        )


def _first(found: Sequence[str]) -> str:
    rest = len(found) - SHOWN_IN_ERROR
    return "; ".join(found[:SHOWN_IN_ERROR]) + (f"; and {rest} more" if rest > 0 else "")
