"""Predicting a network by predictors that learnt from whole networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from resperf.bundle import NETWORK, Bundle
from resperf.devices import device_class
from resperf.errors import BundleError, UnsupportedError
from resperf.layers import OPERATOR_DOMAINS
from resperf.lowering import LoweredNetwork, work_of
from resperf.network import Network
from resperf.platform import Platform
from resperf.prediction.result import (
    EXECUTING,
    USUAL_DISPATCH_US,
    Part,
    Parts,
    QuantityPrediction,
    Skipped,
)
from resperf.quantities import EXECUTION, LATENCY, STEP
from resperf.settings import Mode, Setting, same_settings
from resperf.targets import DEFAULT
from resperf.units import US_PER_MS

_MODE_OF = {EXECUTION: Mode.INFERENCE, LATENCY: Mode.INFERENCE, STEP: Mode.TRAINING}
"""Quantity -> the only mode that has it."""


def whole_quantities(network: Network, bundle: Bundle) -> dict[str, QuantityPrediction]:
    """Use the predictors trained on networks whose setting is nearest to the bundle's.

    What only rows of training steps taught is of that mode, beside the quantities of a run. Where
    training steps are asked for, there are only their quantities.
    """
    quantities: dict[str, QuantityPrediction] = {}
    names = dict.fromkeys(name for part in bundle.parts for name in part.network_quantities)
    for name in names:
        is_run = bundle.setting.mode is Mode.INFERENCE
        for setting in (bundle.setting, *(_of_other_modes(bundle, name) if is_run else ())):
            if setting.mode is not _MODE_OF.get(name, setting.mode):
                continue
            try:
                part = bundle.part_for(NETWORK, name, setting, bundle.platform)
                (quantities[name],) = time_quantity([network], name, part, setting, bundle.platform)
            except BundleError:
                # Its part has another framework or mode.
                continue
            except UnsupportedError:
                if setting is bundle.setting:
                    raise
                continue
            break
    return quantities


def time_quantity(
    subjects: Sequence[Any], name: str, part: Bundle, setting: Setting, platform: Platform
) -> list[QuantityPrediction]:
    """Predict a quantity of networks, or of what stands for them (`Predictor.at_batches`)."""
    estimate = part.predict_networks(subjects, setting, platform, name)[name]
    rows = zip(estimate.values.tolist(), estimate.low.tolist(), estimate.high.tolist(), strict=True)
    method = part.method_of(NETWORK, name)
    return [QuantityPrediction(name, *row, method, setting.mode) for row in rows]


def _of_other_modes(bundle: Bundle, quantity: str) -> list[Setting]:
    """Return settings of other modes that a network's quantity is predicted for, nearest first.

    They have the precision that is asked for, or its fallback, and are compiled or not
    as it is.
    """
    asked = bundle.setting
    precisions = {same_settings(asked)["precision"], bundle.fallbacks.get(asked.precision)}
    return sorted(
        (
            replace(setting, precision=asked.precision)
            for part in bundle.parts
            if part.has(NETWORK, quantity)
            for setting in part.settings
            if setting.framework == bundle.framework
            and setting.mode is not asked.mode
            and setting.is_compiled == asked.is_compiled
            and same_settings(setting)["precision"] in precisions
        ),
        key=lambda setting: len(setting.differences(asked)),
    )


def time_as_a_whole(
    network: Network,
    lowered: LoweredNetwork | None,
    bundle: Bundle,
    predicted: Mapping[str, QuantityPrediction],
    host_dispatch_us: float = math.nan,
) -> Parts:
    """Return what is known of a network whose layers are not predicted.

    Parameters
    ----------
    network : Network
    lowered : LoweredNetwork or None
        None if its execution is not among the quantities.
    bundle : Bundle
    predicted : mapping of str to QuantityPrediction
        By quantity.
    host_dispatch_us : float
        NaN if not known.
    """
    quantities = tuple(predicted.values())
    if lowered is None:
        return Parts(times_ms={EXECUTING: (math.nan,)}, quantities=quantities)
    parts = Parts(
        times_ms={EXECUTING: (predicted[EXECUTION].value,)},
        nodes=lowered.nodes,
        lowering=lowered.method,
        quantities=quantities,
        warnings=lowered.notes,
    )
    setting, platform = bundle.setting, bundle.platform
    part = bundle.part_for(NETWORK, EXECUTION, setting, platform)
    account = part.network_predictor(EXECUTION).account(network, setting, platform)
    if account is None:
        return parts
    left_out = (Skipped(network.name, "operator", why) for why in account.left_out)
    parts = replace(
        parts,
        skipped=(*left_out, *_custom(network)),
        groups=tuple(Part(name, *band) for name, band in account.groups.items()),
        classes=tuple(Part(name, *band) for name, band in account.classes.items()),
        inferred_from=account.inferred_from,
        extrapolated=account.extrapolated,
        warnings=(*lowered.notes, *account.notes),
    )
    is_host = device_class(bundle.device, bundle.framework) == DEFAULT.device_class
    if is_host or not math.isnan(host_dispatch_us):
        return parts
    return _with_unknown_dispatch(parts, predicted[EXECUTION].value, lowered.starts)


def _custom(network: Network) -> Iterator[Skipped]:
    """Name the custom operators: no network that was measured has them.

    Those of unknown size are left out by the predictor itself.
    """
    for node in network.nodes:
        ends = filter(None, (*node.inputs, *node.outputs))
        if node.domain not in OPERATOR_DOMAINS and all(name in network.tensors for name in ends):
            op = f"{node.domain}.{node.op}"
            reason = f"no layer kind for operator {op}"
            yield Skipped(node.name, op, reason, *work_of(network, [node.name]))


def _with_unknown_dispatch(parts: Parts, execution_ms: float, kernels: int) -> Parts:
    """Say what the host's unknown dispatch may add, and widen extrapolated intervals.

    The data contains the dispatch of its hosts, so that this concerns shorter times only.
    """
    low_ms, high_ms = (dispatch_us * kernels / US_PER_MS for dispatch_us in USUAL_DISPATCH_US)
    if not parts.extrapolated and high_ms <= execution_ms:
        return parts
    warning = (
        f"the host's launches may take longer than the device: {kernels} x "
        f"{USUAL_DISPATCH_US[0]:g} to {USUAL_DISPATCH_US[1]:g} us = {low_ms:.3g} to {high_ms:.3g} "
        "ms; set --host-dispatch-us"
    )
    quantities = tuple(
        replace(quantity, high=max(quantity.high, high_ms))
        if quantity.name == EXECUTION and parts.extrapolated
        else quantity
        for quantity in parts.quantities
    )
    return replace(parts, quantities=quantities, warnings=(*parts.warnings, warning))
