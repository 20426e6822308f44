"""Predicted times of single layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from resperf.bundle import Bundle, Times
from resperf.devices import device_facts, lower_bound_ms
from resperf.layers import Layer
from resperf.lowering import lower_layers
from resperf.prediction.result import LayerPrediction
from resperf.quantities import EXECUTION, QUANTITIES


class Time(NamedTuple):
    """One entry of `resperf.bundle.Times`."""

    ms: float
    in_range: bool
    reason: str
    low_ms: float
    high_ms: float


def layer_times(bundle: Bundle, layers: Sequence[Layer], quantity: str = EXECUTION) -> Times:
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
    Times
        One entry per layer, in their order.
    """
    places: dict[str, int] = {}
    unique: list[Layer] = []
    order = []
    for layer in layers:
        place = places.setdefault(layer.key, len(unique))
        if place == len(unique):
            unique.append(layer)
        order.append(place)
    times = bundle.predict(unique, quantity)
    index = np.asarray(order, dtype=np.intp)
    return Times(
        ms=times.ms[index],
        in_range=times.in_range[index],
        reason=tuple(times.reason[place] for place in order),
        low_ms=times.low_ms[index],
        high_ms=times.high_ms[index],
    )


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


def times_in_order(times: Times) -> list[Time]:
    """Return one `Time` per layer, in plain Python values."""
    columns = (times.ms, times.in_range, times.reason, times.low_ms, times.high_ms)
    return [
        Time(float(ms), bool(in_range), reason, float(low_ms), float(high_ms))
        for ms, in_range, reason, low_ms, high_ms in zip(*columns, strict=True)
    ]


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
        for place, (layer, time) in enumerate(zip(lowered, times_in_order(times), strict=True))
    ]
