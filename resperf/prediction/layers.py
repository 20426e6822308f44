"""Times of layers without a network around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resperf.bundle import Bundle, Times
from resperf.layers import Layer
from resperf.lowering import lower_layers
from resperf.prediction.result import LayerPrediction


def layer_times(bundle: Bundle, layers: Sequence[Layer], phase: str = "execution") -> Times:
    """Predict lowered layers; equal layers are predicted once.

    Parameters
    ----------
    bundle : Bundle
    layers : sequence of Layer
        Lowered, kinds may be mixed.
    phase : str
        A name of `resperf.measurement.TIMED`.

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
    times = bundle.predict(unique, phase)
    index = np.asarray(order, dtype=np.intp)
    return Times(
        ms=times.ms[index],
        in_range=times.in_range[index],
        reason=tuple(times.reason[place] for place in order),
    )


def predict_layers(layers: Sequence[Layer], bundle: Bundle) -> list[LayerPrediction]:
    """Predict layers as drawn or typed: their execution, or whole calls if a bundle knows no other.

    Parameters
    ----------
    layers : sequence of Layer
        They are lowered for the bundle's framework first, one for one.
    bundle : Bundle

    Returns
    -------
    list of LayerPrediction
        ``execution_ms`` is NaN where the bundle has no predictor for that kind; ``phase`` says
        what it contains.
    """
    lowered = lower_layers(layers, bundle.fingerprint)
    times = layer_times(bundle, lowered, bundle.layer_phase)
    return [
        LayerPrediction(
            name=f"{layer.kind}_{place}",
            kind=layer.kind,
            execution_ms=float(times.ms[place]),
            in_range=bool(times.in_range[place]),
            reason=times.reason[place],
            key=layer.key,
            macs=layer.macs,
            phase=bundle.layer_phase,
        )
        for place, layer in enumerate(lowered)
    ]
