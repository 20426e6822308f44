"""Predicting a network by predictors that learnt from whole networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from resperf.bundle import NETWORK, Bundle
from resperf.devices import device_class
from resperf.errors import BundleError, UnsupportedError
from resperf.layers import OPERATOR_DOMAINS
from resperf.lowering import lower, work_of
from resperf.network import Network
from resperf.prediction.data_sheet import completed, sheet_facts
from resperf.prediction.result import (
    USUAL_DISPATCH_US,
    WHOLE_NETWORK,
    Part,
    Prediction,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.rules import three_phase
from resperf.quantities import EXECUTION, STEP
from resperf.settings import Mode, Setting, same_settings
from resperf.targets import DEFAULT
from resperf.units import US_PER_MS

_MODE_OF = {EXECUTION: Mode.INFERENCE, STEP: Mode.TRAINING}
"""Quantity -> the only mode that has it."""


def of_whole_network(network: Network, bundle: Bundle) -> dict[str, QuantityPrediction]:
    """Use the predictors trained on networks whose setting is nearest to the bundle's.

    What only rows of training steps taught is of that mode, beside the quantities of a run. Where
    training steps are asked for, there are only their quantities.
    """
    found = {}
    names = dict.fromkeys(name for part in bundle.parts for name in part.network_quantities)
    for name in names:
        is_run = bundle.setting.mode is Mode.INFERENCE
        for setting in (bundle.setting, *(_of_other_modes(bundle, name) if is_run else ())):
            if setting.mode is not _MODE_OF.get(name, setting.mode):
                continue
            try:
                part = bundle.answering(NETWORK, name, setting, bundle.platform)
                one = part.predict_networks([network], setting, bundle.platform, name)[name]
            except BundleError:
                # Its part has another framework or mode.
                continue
            except UnsupportedError:
                if setting is bundle.setting:
                    raise
                continue
            found[name] = QuantityPrediction(
                name, float(one.values[0]), float(one.low[0]), float(one.high[0]),
                part.method_of(NETWORK, name), setting.mode,
            )  # fmt: skip
            break
    return found


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


def answered(
    empty: Prediction,
    network: Network,
    bundle: Bundle,
    found: Mapping[str, QuantityPrediction],
    *,
    estimated: bool = True,
    host_dispatch_us: float = math.nan,
) -> Prediction:
    """Return the prediction of a network of which only quantities as a whole are known.

    Parameters
    ----------
    empty : Prediction
        Without values.
    network, bundle
    found : mapping of str to QuantityPrediction
        By quantity. Only with ``execution_ms`` the phases are known.
    estimated : bool
        Whether copies that the bundle lacks are estimated from the data sheet.
    host_dispatch_us : float
        NaN if not known.
    """
    whole = replace(empty, rule=WHOLE_NETWORK, quantities=tuple(found.values()))
    if EXECUTION not in found:
        return whole
    lowered = lower(network, bundle.setting, bundle.platform)
    is_host = device_class(bundle.device, bundle.framework) == DEFAULT.device_class
    complete = completed(bundle, sheet_facts(bundle) if estimated else None)
    # A processor computes where the inputs are.
    copied = replace(lowered, inputs=(), outputs=(), unsized_outputs=()) if is_host else lowered
    # The per-run overhead is part of the execution.
    called = complete.with_estimates({"call_ms": 0.0}, {}, "")
    total = three_phase(called, replace(copied, nodes=()), ())
    part = bundle.answering(NETWORK, EXECUTION, bundle.setting, bundle.platform)
    predictor = part.network_predictor(EXECUTION)
    account = predictor.account(network, bundle.setting, bundle.platform)
    answer = replace(
        whole,
        phases=replace(total.phases, execution_ms=found[EXECUTION].value),
        skipped=total.missing,
        # Parts of the execution that are not told apart.
        call_ms=math.nan,
        reshapes_ms=math.nan,
        overhead_ms=math.nan,
        warnings=(*whole.warnings, *lowered.notes),
        lowering=lowered.method,
        nodes=lowered.nodes,
        estimated_phases=tuple(
            phase for phase in ("preprocess", "postprocess") if phase in complete.estimates
        ),
    )
    if account is None:
        return answer
    left_out = tuple(Skipped(network.name, "operator", why) for why in account.left_out)
    answer = replace(
        answer,
        skipped=(*left_out, *_custom(network), *answer.skipped),
        groups=tuple(Part(name, *band) for name, band in account.groups.items()),
        classes=tuple(Part(name, *band) for name, band in account.classes.items()),
        inferred_from=account.inferred_from,
        extrapolated=account.extrapolated,
        warnings=(*answer.warnings, *account.notes),
    )
    return answer if is_host else _with_unknown_dispatch(answer, host_dispatch_us)


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


def _with_unknown_dispatch(answer: Prediction, host_dispatch_us: float) -> Prediction:
    """Say what the host's dispatch may add if it is not known, and widen extrapolated intervals.

    The data contains the dispatch of its hosts, so that this concerns shorter times only.
    """
    if not math.isnan(host_dispatch_us):
        return answer
    kernels = sum(node.role != "view" for node in answer.nodes)
    low_ms, high_ms = (each * kernels / US_PER_MS for each in USUAL_DISPATCH_US)
    if not answer.extrapolated and high_ms <= answer.phases.execution_ms:
        return answer
    warning = (
        "the host's dispatch is not known (--host-dispatch-us) and may decide: the usual "
        f"{USUAL_DISPATCH_US[0]:g} to {USUAL_DISPATCH_US[1]:g} us for each of {kernels} kernels "
        f"take {low_ms:.3g} to {high_ms:.3g} ms"
    )
    quantities = tuple(
        replace(each, high=max(each.high, high_ms))
        if each.name == EXECUTION and answer.extrapolated
        else each
        for each in answer.quantities
    )
    return replace(answer, quantities=quantities, warnings=(*answer.warnings, warning))
