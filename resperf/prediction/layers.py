"""Predicted times of single layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from resperf.bundle import Bundle
from resperf.devices import device_facts, estimated_layer_ms, lower_bound_ms
from resperf.layers import Layer
from resperf.lowering import lower_layers
from resperf.measurement import layer_key, written_kind
from resperf.prediction.data_sheet import Limits, limits_of
from resperf.prediction.result import LayerPrediction
from resperf.quantities import EXECUTION, QUANTITIES
from resperf.settings import PASSES


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


def priced(time: Time, layer: Layer, limits: Limits) -> Time:
    """Return a layer's time; if it has none, an estimate from the device's limits, if known."""
    if not math.isnan(time.ms) or (facts := limits()) is None:
        return time
    sheet = estimated_layer_ms(layer, facts)
    reason = f"no predictor for {layer.kind}"
    return Time(sheet.ms, False, sheet.low_ms, sheet.high_ms, reason, estimated=True)


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
    kind = written_kind(layer.kind, optimizer)
    passes = PASSES if optimizer else 1
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
        estimated=estimated,
        from_limits=time.estimated,
        inferred=not estimated and bundle.infers(kind, getattr(layer, "dtype", "float32")),
        lower_bound_ms=math.nan if facts is None else lower_bound_ms(layer, facts, passes),
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
        time if optimizer else priced(time, layer, limits)
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
