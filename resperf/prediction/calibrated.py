"""Bundles as they answer on this machine, if calibrated for it; what it costs if they are not."""

from __future__ import annotations

from dataclasses import replace

from resperf.bundle import Bundle, Calibration, is_shipped, load_calibration, nearest_machine
from resperf.devices import is_at_hand, target_of
from resperf.errors import ResperfError
from resperf.platform import Platform, this_platform
from resperf.prediction.rules import RULE_OF_METHOD
from resperf.quantities import EXECUTION

COSTS = "On this CPU expect 15-70% error; `resperf calibrate` (1 min) brings it to about 8%"
"""Mean errors of float32 networks between the machines of the shipped bundles
(docs/accuracy.md, held-out networks)."""
COSTS_SCALED = (
    "On such a CPU expect 6-8% error, on others more; `resperf calibrate` (1 min) measures this one"
)
"""The shipped bundle's, in float32 (docs/accuracy.md, held-out networks)."""
_HOSTS, _PROCESSORS = 0.2, 0.5
"""`Calibration.host_ci` for another host of the same model of processor, and for another processor
with the same vectors: rough."""


def calibrated_here(bundle: Bundle) -> Bundle:
    """Return a bundle as it answers on this machine, if `resperf calibrate` was run here.

    If it was not, as on the machine most like this one that the bundle knows.

    Raises
    ------
    BundleError
        If what was stored is damaged.
    """
    here = None if bundle.calibrated_by is not None else _here(bundle)
    if here is None:
        return bundle
    found = load_calibration(bundle, here) or _like(bundle, here)
    return bundle if found is None else bundle.for_machine(found)


def _like(bundle: Bundle, here: Platform) -> Calibration | None:
    """Return what a bundle knows of a machine like this one; None if runs calibrate it besides."""
    found = nearest_machine(bundle)
    if found is None or bundle.runs_calibrations():
        return None
    same = (here.processor, here.model) == (found.platform.processor, found.platform.model)
    return replace(found, host_ci=_HOSTS if same else _PROCESSORS)


def why_not_by_layers(bundle: Bundle) -> str:
    """Say why layers cannot calibrate a bundle for another machine; empty if they can."""
    if not is_at_hand(bundle.device) or not bundle.setting.threads:
        return f"it is of {bundle.device}, which resperf does not measure here"
    try:
        row = target_of(bundle.device, bundle.framework)
    except ResperfError as error:
        return str(error)
    if not row.backend or bundle.platform.accelerators:
        return f"only what runs on processors is calibrated by layers, not {row.name}"
    if bundle.layer_quantity != EXECUTION or not bundle.kinds or bundle.many_settings:
        return "it has no execution times of layers of one machine"
    if bundle.method in RULE_OF_METHOD:
        return f"it adds layers up by the published rule of {bundle.method}"
    return ""


def _here(bundle: Bundle) -> Platform | None:
    """Return this machine if a bundle may have been calibrated for it."""
    known = bundle.calibrated_by
    if (known is not None and not known.from_bundle) or why_not_by_layers(bundle):
        return None
    try:
        return replace(this_platform(bundle.platform.device), probes={})
    except ResperfError:
        return None


def advice(bundle: Bundle) -> str:
    """Say in one line what it costs that a bundle was not calibrated for this machine.

    Empty if it was, if its layers were measured here, or if it cannot be.
    """
    here, known = _here(bundle), bundle.calibrated_by
    if here is None or (known is None and bundle.layer_calibrations):
        return ""
    if known is None and not is_shipped(bundle) and not here.hardware_differences(bundle.platform):
        return ""
    there, costs = bundle.origin.machine, COSTS
    if known is not None:
        there += f"; scaled as on {bundle.platform.machine}, {bundle.platform.instruction_set}"
        costs = COSTS_SCALED
    return f"Using timings of {there} ({bundle.path.name}). {costs}"
