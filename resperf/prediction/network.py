"""Predicting networks with a bundle, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict, Unpack

from resperf.bundle import Bundle
from resperf.devices import device_facts
from resperf.errors import UnsupportedError, listed
from resperf.lowering import LoweredNetwork, lower, too_large
from resperf.network import Network
from resperf.platform import Platform
from resperf.prediction.calibrated import calibrated_with, widths
from resperf.prediction.data_sheet import METHOD, sheet_facts
from resperf.prediction.host import bundle_warnings
from resperf.prediction.overheads import overheads
from resperf.prediction.result import (
    COMPOSED,
    EXECUTING,
    OUTER_PHASES,
    THREE_PHASE,
    WHOLE_NETWORK,
    Interval,
    Overheads,
    Parts,
    Prediction,
    QuantityPrediction,
    Remarks,
    Subject,
)
from resperf.prediction.rules import RULE_OF_METHOD, add_up, bound, composable
from resperf.prediction.times import CustomTimes, TimesByKey, time, times_by_key
from resperf.prediction.whole_network import time_as_a_whole, whole_quantities
from resperf.quantities import EXECUTION, STEP
from resperf.settings import PLAIN_PRECISIONS, PRECISION_OF, Mode, Setting

_MOST_OFF = 2.0
"""Factor within which nine in ten composed steps were that a device, not its host, limits: 114 of
torchvision's networks on three cards, float32 and float16."""
SHOWN_IN_ERROR = 3
"""Operators that an error names; the rest is counted."""
Strict = bool | Literal["range"]
"""True refuses incomplete totals; "range" also layers outside the trained range."""


class Run(TypedDict, total=False):
    """What is asked of the run of a network, as `predict_network` takes it."""

    strict: Strict
    threads: int | None
    host_dispatch_us: float
    custom_ms: Mapping[str, float] | None


def predict_network(
    network: Network, bundle: Bundle, *, whole: bool = True, **run: Unpack[Run]
) -> Prediction:
    """Predict how long one run of a network takes.

    What the bundle has no predictor for is estimated from the device's limits
    (`resperf.devices.estimated_ms`), unless `strict`.

    Parameters
    ----------
    network : Network
    bundle : Bundle
        Predictors of one device and framework.
    whole : bool
        Also use predictors trained on whole networks.
    strict : bool or "range"
        Refuse networks with operators or copies that have no predictor, or too large for the
        device's memory; ``"range"`` also layers or copies outside the trained range. An unknown
        overhead between layers is listed (`Overheads.missing_costs`), not refused.
    threads : int, optional
        Number of threads to predict for; only compared with the bundle's.
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
    (prediction,) = predict_networks([network], bundle, whole=whole, **run)
    return prediction


def predict_networks(
    networks: Sequence[Network],
    bundle: Bundle,
    *,
    strict: Strict = False,
    threads: int | None = None,
    whole: bool = True,
    in_session: bool = False,
    host_dispatch_us: float = math.nan,
    custom_ms: Mapping[str, float] | None = None,
    notes: tuple[str, ...] = (),
    advice: str = "",
    as_step: str = "",
) -> list[Prediction]:
    """Predict many networks as `predict_network` does, but the layers of all of them at once.

    Parameters
    ----------
    networks : sequence of Network
    bundle, strict, threads, whole, host_dispatch_us, custom_ms
        As in `predict_network`.
    in_session : bool
        Predict for the published session that the bundle's setting names, in which a row was
        measured; otherwise for a user, whose session none is.
    notes, advice
        As in `Remarks`.
    as_step : str
        Optimizer: add up its training step of the operators of the passes and the update.

    Returns
    -------
    list of Prediction
        In the order of the networks.

    Raises
    ------
    UnsupportedError
        As `predict_network`.
    """
    quantities = [
        whole_quantities(network, bundle) if whole and not as_step else {} for network in networks
    ]
    # The bundle's own setting may name a session.
    bundle = bundle if in_session else bundle.without_session()
    # Layers are those of a run, not of a training step.
    alone = not bundle.kinds or bundle.setting.mode is Mode.TRAINING
    as_a_whole = [bool(own_quantities) and alone for own_quantities in quantities]
    if custom_ms and any(as_a_whole):
        raise UnsupportedError(
            f"{bundle.path} predicts networks as a whole, without single operators: leave out "
            "--custom, or choose another device or --framework"
        )
    of_layers = not all(as_a_whole)
    if of_layers and bundle.method == METHOD and sheet_facts(bundle) is None:
        raise UnsupportedError(
            f"{bundle.path} estimates from the data sheet of {bundle.device}, which is not known "
            "here; add the file of its facts: --device FILE.toml"
        )
    if of_layers and not composable(bundle.layer_quantity, [bundle.layer_quantity]):
        raise UnsupportedError(
            f"{bundle.path} predicts whole calls: each contains a call and the copies "
            "between host and device, which a network pays once and not per layer; predict single "
            "layers with resperf predict-layer, or use a bundle that was trained on execution"
        )
    lowered = [
        None if is_whole and EXECUTION not in own_quantities
        else _step_of(network, bundle.setting.with_optimizer(as_step), bundle.platform) if as_step
        else lower(network, bundle.setting, bundle.platform)
        for network, own_quantities, is_whole in zip(networks, quantities, as_a_whole, strict=True)
    ]  # fmt: skip
    layers = [
        node.layer
        for graph, is_whole in zip(lowered, as_a_whole, strict=True)
        for node in (graph.nodes if graph is not None and not is_whole else ())
        if node.layer is not None
    ]
    times = times_by_key(bundle, layers) if layers else {}
    predictions = [
        _prediction(
            network, graph, bundle, own_quantities, times, Remarks(notes=notes, advice=advice),
            CustomTimes(network, custom_ms) if custom_ms else None, strict, threads,
            host_dispatch_us,
        )
        for network, graph, own_quantities in zip(networks, lowered, quantities, strict=True)
    ]  # fmt: skip
    return [_as_step(prediction) for prediction in predictions] if as_step else predictions


def _step_of(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    from resperf.lowering.torch_training import training_step

    return training_step(network, setting, platform)


def _as_step(prediction: Prediction) -> Prediction:
    """Return what was added up of the layers of a training step as the quantity that it is."""
    parts, total_ms = prediction.parts, prediction.total_ms
    low_ms, high_ms = prediction.low_ms, prediction.high_ms
    if not prediction.total.waiting_ms:
        low_ms, high_ms = max(low_ms, total_ms / _MOST_OFF), min(high_ms, total_ms * _MOST_OFF)
    step = QuantityPrediction(STEP, total_ms, low_ms, high_ms, "sum of operators", Mode.TRAINING)
    parts = Parts(
        times_ms={EXECUTING: (math.nan,)}, skipped=parts.skipped, quantities=(step,),
        inferred_from=COMPOSED, warnings=parts.warnings,
    )  # fmt: skip
    costs = replace(prediction.overheads, outer_ms=dict.fromkeys(OUTER_PHASES, (math.nan,)))
    total = add_up(parts, costs, WHOLE_NETWORK)
    return replace(prediction, parts=parts, overheads=costs, total=total, interval=Interval())


def _prediction(
    network: Network,
    lowered: LoweredNetwork | None,
    bundle: Bundle,
    quantities: Mapping[str, QuantityPrediction],
    times: TimesByKey,
    remarks: Remarks,
    custom: CustomTimes | None,
    strict: Strict,
    threads: int | None,
    host_dispatch_us: float,
) -> Prediction:
    """Time a network's parts and add them up; as a whole, if that is all that the bundle knows."""
    estimate = not strict
    own_widths, corrected, versions = (math.inf, math.inf), tuple(quantities.values()), True
    if lowered is None or (quantities and not bundle.kinds):
        rule = WHOLE_NETWORK
        parts = time_as_a_whole(network, lowered, bundle, quantities, host_dispatch_us)
    else:
        rule = RULE_OF_METHOD.get(bundle.method, THREE_PHASE)
        parts = time(network, lowered, bundle, times, quantities, custom, estimate=estimate)
        own_widths, corrected = widths(bundle, lowered, parts.layers), ()
        # A framework that was asked lowers as its version here does, and notes what differs.
        versions = lowered.method == "rules"
    costs = overheads(bundle, lowered, rule, host_dispatch_us, estimate=estimate)
    facts = device_facts(bundle.device)
    memory_bytes = math.inf if facts is None else facts.memory_bytes
    too_big = too_large(network, bundle.setting.precision, memory_bytes)
    if strict:
        if too_big:
            raise UnsupportedError(f"{network.name}: {too_big} of {bundle.device}")
        _refuse_incomplete(strict, network.name, bundle, parts, costs)
    total = add_up(parts, costs, rule)
    count = calibrated_with(bundle, corrected)
    copies = [
        f"copies outside the measured range: {listed([name for name, _ in costs.out_of_range])} "
        f"({why})"
        for _, why in costs.out_of_range[:1]
    ]
    own = bundle_warnings(bundle, threads=threads, versions=versions)
    remarks = replace(
        remarks,
        warnings=(*own, *network.notes, *parts.warnings, *copies),
        assumed=(*network.assumed, *(custom.statements() if custom else ())),
        calibrated_by=bundle.calibrated_by,
        calibrated_with=count,
        too_large=too_big,
    )
    setting, own_type = bundle.setting, network.own_type
    precision = setting.precision
    if precision in PLAIN_PRECISIONS or "float" not in own_type:
        precision = PRECISION_OF.get(own_type, precision if "float" in own_type else own_type)
    subject = Subject(
        network.name, bundle.device, bundle.framework, network.batch, bundle.machine,
        str(bundle.path), bundle.method, setting.framework_version, precision, setting.compiled,
    )  # fmt: skip
    interval = bound(parts, costs, total, *own_widths, count)
    return Prediction(subject, parts, costs, total, interval, remarks)


def _refuse_incomplete(
    strict: Strict, name: str, bundle: Bundle, parts: Parts, costs: Overheads
) -> None:
    """Refuse what `strict` does not allow.

    Raises
    ------
    UnsupportedError
        If there is any; names the first ones.
    """
    target = f"device {bundle.device} with {bundle.framework}"
    skipped = (*parts.skipped, *costs.skipped)
    outside = [f"{layer.name}: {layer.reason}" for layer in parts.layers if not layer.in_range]
    outside += [f"copy of {tensor}: {reason}" for tensor, reason in costs.out_of_range]
    outside += [f"{name}: {parts.extrapolated}"] if parts.extrapolated else []
    if skipped:
        named = _first(
            [f"{operator.name} ({operator.op}): {operator.reason}" for operator in skipped]
        )
        raise UnsupportedError(
            f"{name}: {len(skipped)} operators have no predictor for {target}: {named}; without "
            "strict they are estimated or left out"
        )
    if strict == "range" and outside:
        raise UnsupportedError(
            f"{name}: {len(outside)} layers and copies are outside the trained range of the bundle "
            f"for {target}: {_first(outside)}; use another bundle, or extrapolate without "
            "--strict-range"
        )


def _first(texts: Sequence[str]) -> str:
    rest = len(texts) - SHOWN_IN_ERROR
    return "; ".join(texts[:SHOWN_IN_ERROR]) + (f"; and {rest} more" if rest > 0 else "")
