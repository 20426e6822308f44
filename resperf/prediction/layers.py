"""Predicted times of single layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from resperf.bundle import Bundle
from resperf.devices import device_facts, lower_bound_ms
from resperf.layers import Layer
from resperf.lowering import lower_layers
from resperf.prediction.result import LayerPrediction
from resperf.quantities import EXECUTION, QUANTITIES


class Time(NamedTuple):
    """One entry of `resperf.bundle.Times`."""

    ms: float
    in_range: bool
    low_ms: float
    high_ms: float
    reason: str


def layer_times(bundle: Bundle, layers: Sequence[Layer], quantity: str = EXECUTION) -> list[Time]:
    """Predict lowered layers; equal layers are predicted once.

    Parameters
    ----------
    bundle : Bundle
    layers : sequence of Layer
        Lowered; kinds may be mixed.
    quantity : str
        A name of `resperf.quantities.QUANTITIES`.

    Returns
    -------
    list of Time
        In their order.
    """
    keys = [layer.key for layer in layers]
    unique = dict(zip(keys, layers, strict=True))
    times = bundle.predict(list(unique.values()), quantity)
    columns = (each.tolist() for each in (times.ms, times.in_range, times.low_ms, times.high_ms))
    rows = map(Time, *columns, times.reason)
    by_key = dict(zip(unique, rows, strict=True))
    return [by_key[key] for key in keys]


def layer_prediction(
    bundle: Bundle,
    layer: Layer,
    time: Time,
    *,
    name: str,
    phase: str,
    sources: tuple[str, ...] = (),
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
    """
    facts = device_facts(bundle.device)
    return LayerPrediction(
        name=name,
        kind=layer.kind,
        execution_ms=time.ms,
        in_range=time.in_range,
        reason=time.reason,
        low_ms=time.low_ms,
        high_ms=time.high_ms,
        key=layer.key,
        macs=layer.macs,
        moved_bytes=layer.moved_bytes,
        sources=sources,
        phase=phase,
        estimated=f"{layer.kind} {QUANTITIES[bundle.layer_quantity].stem}" in bundle.estimates,
        lower_bound_ms=math.nan if facts is None else lower_bound_ms(layer, facts),
    )


def predict_layers(layers: Sequence[Layer], bundle: Bundle) -> list[LayerPrediction]:
    """Predict single layers: their execution, or whole calls if the bundle has only these.

    Parameters
    ----------
    layers : sequence of Layer
        They are first lowered for the bundle's framework, one to one.
    bundle : Bundle

    Returns
    -------
    list of LayerPrediction
        ``execution_ms`` is NaN if the bundle has no predictor for that kind; ``phase`` says what
        it contains.
    """
    lowered = lower_layers(layers, bundle.setting, bundle.platform)
    times = layer_times(bundle, lowered, bundle.layer_quantity)
    return [
        layer_prediction(
            bundle,
            layer,
            time,
            name=f"{layer.kind}_{place}",
            phase=QUANTITIES[bundle.layer_quantity].stem,
        )
        for place, (layer, time) in enumerate(zip(lowered, times, strict=True))
    ]
