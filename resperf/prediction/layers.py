"""Predicted times of single layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from resperf.bundle import Bundle
from resperf.devices import DeviceFacts, device_facts, estimated_layer_ms, lower_bound_ms
from resperf.devices.estimate import CARDS
from resperf.layers import Layer
from resperf.lowering import lower_layers
from resperf.measurement import layer_key, written_kind
from resperf.prediction.data_sheet import Limits, limits_of, sheet_facts
from resperf.prediction.result import LayerPrediction
from resperf.quantities import EXECUTION, QUANTITIES
from resperf.settings import PASSES, PRECISION_OF


class Time(NamedTuple):
    """One entry of `resperf.bundle.Times`."""

    ms: float
    in_range: bool
    low_ms: float
    high_ms: float
    reason: str
    estimated: bool = False
    """From the device's limits alone."""


def layer_times(
    bundle: Bundle,
    layers: Sequence[Layer],
    quantity: str = EXECUTION,
    optimizers: Sequence[str] = (),
) -> list[Time]:
    """Predict lowered layers.

    Parameters
    ----------
    bundle : Bundle
    layers : sequence of Layer
        Lowered; kinds may be mixed.
    quantity : str
        A name of `resperf.quantities.QUANTITIES`.
    optimizers : sequence of str, optional
        Of each layer's training step; empty for inference.

    Returns
    -------
    list of Time
        In their order.
    """
    times = bundle.predict(layers, quantity, optimizers)
    columns = (
        column.tolist() for column in (times.ms, times.in_range, times.low_ms, times.high_ms)
    )
    return list(map(Time, *columns, times.reason))


TimesByKey = Mapping[str, tuple[Time, float]]
"""Key of a lowered layer -> its execution, and the share of it in which the device works."""


def times_by_key(bundle: Bundle, layers: Sequence[Layer]) -> TimesByKey:
    """Predict the execution of lowered layers of one or many networks, each distinct one once."""
    distinct = {layer.key: layer for layer in layers}
    chosen = [*distinct.values()]
    shares = bundle.gpu_busy_fraction(chosen).tolist()
    return dict(zip(distinct, zip(layer_times(bundle, chosen), shares, strict=True), strict=True))


def priced(time: Time, layer: Layer, limits: Limits, bundle: Bundle) -> Time:
    """Return a layer's time; if it has none, an estimate from the device's limits, if known.

    Of a type that was not measured, as much shorter or longer than float32 as these say.
    """
    lacking = _lacks_type(bundle, layer)
    if not lacking and not math.isnan(time.ms):
        return time
    if (facts := limits()) is None:
        return time._replace(ms=math.nan, low_ms=math.nan, high_ms=math.nan)
    sheet = estimated_layer_ms(layer, facts)
    if math.isnan(sheet.ms):
        reason = no_peak(facts, getattr(layer, "dtype", "float32"))
        return Time(math.nan, False, math.nan, math.nan, reason, estimated=True)
    if not lacking:
        reason = f"no predictor for {layer.kind}"
        return Time(sheet.ms, False, sheet.low_ms, sheet.high_ms, reason, estimated=True)
    plain = layer.replace(dtype="float32")
    (measured,) = layer_times(bundle, [plain])
    ratio = sheet.ms / estimated_layer_ms(plain, facts).ms
    low_ms = min(sheet.low_ms, ratio * measured.low_ms)
    high_ms = max(sheet.high_ms, max(ratio, 1.0) * measured.high_ms)
    return Time(ratio * measured.ms, False, low_ms, high_ms, time.reason, estimated=True)


def _lacks_type(bundle: Bundle, layer: Layer) -> bool:
    """Say whether a card has no units for a layer's type, or this kind no rows of such units.

    Only predictors of many cards know the speed of units that no row of the card shows.
    """
    facts, dtype = sheet_facts(bundle), getattr(layer, "dtype", "float32")
    if facts is None or layer.kind not in bundle.kinds:
        return False
    if bundle.serves_unseen:
        return dtype in PRECISION_OF and math.isnan(facts.peak_of(dtype))
    return dtype not in bundle.part["ranges"].get(layer.kind, {}).get("dtype", [dtype])


def no_peak(facts: DeviceFacts, dtype: str) -> str:
    """Say that a device has no peak of a type, so that nothing is estimated."""
    return f"{facts.device} has no peak of {dtype}"


def layer_prediction(
    bundle: Bundle,
    layer: Layer,
    time: Time,
    *,
    name: str,
    phase: str,
    sources: tuple[str, ...] = (),
    optimizer: str = "",
) -> LayerPrediction:
    """Describe a lowered layer's predicted time.

    Parameters
    ----------
    bundle : Bundle
        Tells which times are estimates; its device gives the lower bound.
    layer : Layer
    time : Time
    name, phase, sources
        As in `LayerPrediction`.
    optimizer : str
        Of the layer's training step; empty for inference.
    """
    facts = device_facts(bundle.device)
    passes = PASSES if optimizer else 1
    bound_ms = math.nan if facts is None else lower_bound_ms(layer, facts, passes)
    if not time.in_range and time.ms < bound_ms:
        # What was not measured is not faster than the data sheet.
        high_ms = max(time.high_ms, CARDS.high * bound_ms)
        time = time._replace(ms=bound_ms, low_ms=bound_ms, high_ms=high_ms)
    kind = written_kind(layer.kind, optimizer)
    stem = QUANTITIES[bundle.layer_quantity].stem
    estimated = time.estimated or f"{kind} {stem}" in bundle.estimates
    return LayerPrediction(
        name=name,
        kind=kind,
        execution_ms=time.ms,
        in_range=time.in_range,
        reason=time.reason,
        low_ms=time.low_ms,
        high_ms=time.high_ms,
        key=layer_key(layer, optimizer),
        macs=layer.macs * passes,
        moved_bytes=layer.moved_bytes,
        sources=sources,
        phase=phase,
        estimated=estimated and not math.isnan(time.ms),
        from_limits=time.estimated,
        inferred=not estimated and bundle.infers(kind, getattr(layer, "dtype", "float32")),
        lower_bound_ms=bound_ms,
    )


def predict_layers(
    layers: Sequence[Layer], bundle: Bundle, optimizers: Sequence[str] = ()
) -> list[LayerPrediction]:
    """Predict single layers: their execution, or whole calls if the bundle has only these.

    Parameters
    ----------
    layers : sequence of Layer
        They are first lowered for the bundle's framework, one to one.
    bundle : Bundle
    optimizers : sequence of str, optional
        Of each layer's training step; empty for inference.

    Returns
    -------
    list of LayerPrediction
        Kinds without a predictor are estimated from the device's limits; without any, and of
        training steps, ``execution_ms`` is NaN. ``phase`` says what it contains.
    """
    bundle = bundle.without_session()
    given = optimizers or [""] * len(layers)
    lowered = lower_layers(layers, bundle.setting, bundle.platform)
    predicted = layer_times(bundle, lowered, bundle.layer_quantity, given)
    limits = limits_of(bundle)
    times = [
        # What a training step takes beside its passes is not known from a data sheet.
        priced(time, layer, (lambda: None) if optimizer else limits, bundle)
        for time, layer, optimizer in zip(predicted, lowered, given, strict=True)
    ]
    return [
        layer_prediction(
            bundle,
            layer,
            time,
            name=f"{written_kind(layer.kind, optimizer)}_{index}",
            phase=QUANTITIES[bundle.own_quantity(written_kind(layer.kind, optimizer))].stem,
            optimizer=optimizer,
        )
        for index, (layer, time, optimizer) in enumerate(zip(lowered, times, given, strict=True))
    ]
