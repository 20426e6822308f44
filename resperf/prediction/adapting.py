"""Bundles as they answer on this machine, if it was adapted to; what it costs if it was not."""

from __future__ import annotations

from dataclasses import replace

from resperf.bundle import Adaptation, Bundle, is_shipped, load_adaptation
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
"""`Adaptation.host_ci` for another host of the same model of processor, and for another processor
with the same vectors: rough."""


def as_adapted(bundle: Bundle) -> Bundle:
    """Return a bundle as it answers on this machine: adapted, if `resperf calibrate` was run here.

    If it was not, as on the machine most like this one that the bundle knows.

    Raises
    ------
    BundleError
        If what was stored is damaged.
    """
    here = None if bundle.adapted is not None else _here(bundle)
    if here is None:
        return bundle
    kept = load_adaptation(bundle, here) or _like(bundle, here)
    return bundle if kept is None else bundle.adapted_to(kept)


def _like(bundle: Bundle, here: Platform) -> Adaptation | None:
    """Return what a bundle knows of a machine like this one; None if runs calibrate it besides."""
    found = bundle.nearest
    if found is None or bundle.calibration() is not None:
        return None
    same = (here.processor, here.model) == (found.platform.processor, found.platform.model)
    return replace(found, host_ci=_HOSTS if same else _PROCESSORS)


def why_not_adaptable(bundle: Bundle) -> str:
    """Say why a bundle cannot be adapted to another machine; empty if it can."""
    if not is_at_hand(bundle.device) or not bundle.setting.threads:
        return f"it is of {bundle.device}, which resperf does not measure here"
    try:
        row = target_of(bundle.device, bundle.framework)
    except ResperfError as error:
        return str(error)
    if not row.backend or bundle.platform.accelerators:
        return f"only what runs on processors is adapted, not {row.name}"
    if bundle.layer_quantity != EXECUTION or not bundle.kinds or bundle.many_settings:
        return "it has no execution times of layers of one machine"
    if bundle.method in RULE_OF_METHOD:
        return f"it adds layers up by the published rule of {bundle.method}"
    return ""


def _here(bundle: Bundle) -> Platform | None:
    """Return this machine if a bundle may have been adapted to it."""
    if (bundle.adapted is not None and not bundle.adapted.from_bundle) or why_not_adaptable(bundle):
        return None
    try:
        return replace(this_platform(bundle.platform.device), probes={})
    except ResperfError:
        return None


def advice(bundle: Bundle) -> str:
    """Say in one line what it costs that a bundle was not adapted to this machine.

    Empty if it was, if its layers were measured here, or if it cannot be.
    """
    here = _here(bundle)
    if here is None or bundle.transferred is not None:
        return ""
    from_others = is_shipped(bundle) or bundle.adapted is not None
    if not from_others and not here.hardware_differences(bundle.platform):
        return ""
    there, costs = bundle.platforms[0].machine, COSTS
    if bundle.adapted is not None:
        there += f"; scaled as on {bundle.platform.machine}, {bundle.platform.instruction_set}"
        costs = COSTS_SCALED
    return f"Using timings of {there} ({bundle.path.name}). {costs}"
