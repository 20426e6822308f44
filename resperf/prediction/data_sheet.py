"""What a bundle does not have, from the device's data sheet: for accelerators with known facts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from resperf.bundle import Bundle
from resperf.devices import DeviceFacts, device_facts, target_of
from resperf.errors import ResperfError
from resperf.features import FEATURE_SET_VERSION
from resperf.platform import Accelerator, Platform
from resperf.predictors.transfers import Transfers
from resperf.quantities import EXECUTION
from resperf.settings import Setting
from resperf.targets import DEFAULT

METHOD = "data_sheet"
"""Method of what `sheet_bundle` returns."""
_COPY_CALL_MS = 0.01
_BUS_TIMES_LONGER = 1.25
"""Copies from pinned memory reach about 80% of the bus."""
_HOW = "bytes over the published rate of the bus"


def sheet_facts(bundle: Bundle) -> DeviceFacts | None:
    """Return the facts from which what a bundle lacks is estimated; None if there are none.

    CPUs have none: their peaks say little about single operators, and their bundles have nearly
    all kinds. Bundles of whole calls have times that do not add up.
    """
    facts = device_facts(bundle.device)
    if facts is None or facts.device_class == DEFAULT.device_class:
        return None
    return facts if bundle.layer_quantity == EXECUTION else None


def completed(bundle: Bundle, facts: DeviceFacts | None) -> Bundle:
    """Return a bundle with the costs that its target does not have, and with estimated copies.

    Parameters
    ----------
    bundle : Bundle
    facts : DeviceFacts or None
        None: estimate no copies.
    """
    try:
        free = target_of(bundle.device, bundle.framework).free
    except ResperfError:
        free = ()
    costs = {name: 0.0 for name in free if name not in bundle.costs}
    copies = {} if facts is None else _copies(facts)
    return bundle.with_estimates(costs, copies, _HOW) if costs or copies else bundle


def _copies(facts: DeviceFacts) -> dict[str, Transfers]:
    """Estimate the copies between host and device."""
    if math.isnan(facts.bus_bytes_per_s):
        return {}
    ms_per_mb = _BUS_TIMES_LONGER * 1e9 / facts.bus_bytes_per_s
    copy = Transfers(_COPY_CALL_MS, (0.0,), (ms_per_mb,), math.inf)
    return {"preprocess_ms": copy, "postprocess_ms": copy}


def platform_of(facts: DeviceFacts) -> Platform:
    """Return the platform of a device of which only the data sheet is known."""
    card = Accelerator(facts.name, facts.memory_bytes, compute_capability=facts.compute_capability)
    return Platform(facts.device, processor=facts.name, accelerators=(card,))


def sheet_bundle(facts: DeviceFacts, setting: Setting) -> Bundle:
    """Return a bundle without any predictor: all that it says is estimated."""
    part = {
        "device": facts.device,
        "framework": setting.framework,
        "method": METHOD,
        "settings": ["1"],
        "platforms": ["1"],
        **{
            name: {}
            for name in (
                "costs",
                "predictors",
                "transfers",
                "ranges",
                "errors",
                "golden",
                "training",
            )
        },
    }
    manifest = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "feature_set_version": FEATURE_SET_VERSION,
        "settings": {"1": setting.to_json()},
        "platforms": {"1": platform_of(facts).to_json()},
        "parts": [part],
        "provenance": {},
        "files": {},
    }
    return Bundle(Path(f"data sheet of {facts.device}"), manifest)
