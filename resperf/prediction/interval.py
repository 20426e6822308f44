"""The 90% interval of a network's time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resperf.prediction.result import (
    WHOLE_NETWORK,
    Interval,
    LayerPrediction,
    Overheads,
    Parts,
    Total,
)
from resperf.quantities import EXECUTION


def bound(
    parts: Parts,
    costs: Overheads,
    total: Total,
    log_width: float = math.inf,
    common_width: float = math.inf,
    calibrated_with: int = 0,
) -> Interval:
    """Return the interval of a total; NaN if a layer that counts has none.

    If whole networks were measured, their errors give the width; layers outside the trained
    range add their own intervals. Otherwise different layers err independently around an error
    that all share (`common_width`), or, where that is not known, all together; other costs are
    taken to be equally uncertain. Times that the user stated are taken as they are, and so is the
    host's dispatch, within `Overheads.host_range_ms`.

    Parameters
    ----------
    parts : Parts
    costs : Overheads
    total : Total
    log_width, common_width : float
        As in `Interval`.
    calibrated_with : int
        As in `Remarks`.
    """
    given_ms = math.fsum(layer.execution_ms for layer in parts.layers if layer.given)
    device_ms = total.total_ms - total.waiting_ms - given_ms
    ends_ms = []
    for sign in (-1, 1):
        if total.rule == WHOLE_NETWORK:
            execution = parts.quantity(EXECUTION)
            end_ms = math.nan
            if execution is not None and not math.isnan(device_ms):
                end_ms = (
                    device_ms / execution.value * (execution.low if sign < 0 else execution.high)
                )
        else:
            widths = log_width, common_width, calibrated_with > 0
            end_ms = _of_layers(sign, device_ms, parts.layers, *widths)
        end_ms += given_ms
        host_ms = costs.host_range_ms[sign > 0]
        if not math.isnan(host_ms) and not math.isnan(end_ms):
            end_ms = max(end_ms, total.total_ms - total.phases.execution_ms + host_ms)
        ends_ms.append(end_ms)
    return Interval(ends_ms[0], ends_ms[1], log_width, common_width)


def _of_layers(
    sign: int,
    total_ms: float,
    layers: Sequence[LayerPrediction],
    log_width: float,
    common_width: float,
    calibrated: bool,
) -> float:
    """Return the lower (-1) or upper (1) end of a total in which the device never waits."""
    layers = [layer for layer in layers if not layer.given]
    layers_ms = sum(layer.execution_ms for layer in layers)
    if not layers_ms:
        return math.nan
    bounds_ms = [layer.low_ms if sign < 0 else layer.high_ms for layer in layers]
    if math.isinf(log_width):
        if math.isinf(common_width):
            return total_ms * sum(bounds_ms) / layers_ms
        off_ms: dict[str, float] = {}
        for layer, bound_ms in zip(layers, bounds_ms, strict=True):
            # Estimates of one kind rest on one guess, and one trend goes on out of range.
            key = layer.key if layer.in_range and not layer.estimated else layer.kind
            off_ms[key] = off_ms.get(key, 0.0) + bound_ms - layer.execution_ms
        own = 1 + sign * math.hypot(*off_ms.values()) / layers_ms
        if own <= 0:
            return 0.0
        return total_ms * math.exp(sign * math.hypot(math.log(own), common_width))
    ratio = math.exp(sign * log_width)
    wider_ms = [
        sign * (bound_ms - layer.execution_ms * ratio)
        for layer, bound_ms in zip(layers, bounds_ms, strict=True)
        # Runs of networks with estimated layers have told how far off such layers are.
        if not layer.in_range and not (calibrated and layer.estimated)
    ]
    # `not extra_ms <= 0` includes NaN.
    return total_ms * ratio + sign * sum(extra_ms for extra_ms in wider_ms if not extra_ms <= 0)
