"""Manifests of schema 1 to 3 in the form of schema 4; missing entries are ``unknown``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.bundle._provenance import unknown_provenance
from resperf.layers import kind_of_key
from resperf.measurement import layer_kind, quantity_of
from resperf.platform import from_fingerprint
from resperf.quantities import quantity_name
from resperf.settings import OPTIMIZER, Setting

COPIES_ASSUMED = "assumed"
"""Marks bundles that do not store how many copies of a layer were measured together."""

_MOVED = ("device", "framework", "method", "costs", "ranges", "training", "estimates")
"""Entries that belong to a part now."""
_OF_PHASES: Mapping[str, int] = {"predictors": 1, "transfers": 0, "errors": 2, "intervals": 1}
"""Entries by phase that are by quantity now, and how deep the phases are."""
_RENAMED: Mapping[str, str] = {"in_place": "correction", "carried": "transferred_calibration"}
_MARK = "1"


def upgraded(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema 1 to 3 in the form of schema 4.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        If it is damaged.
    """
    setting, platform = from_fingerprint(manifest["fingerprint"])
    golden = [
        {name: entry[name] for name in ("key", "features")}
        | {"values": _by_quantity(entry["ms"], 0)}
        for entry in manifest["canned"]
    ]
    part = {
        **{name: manifest[name] for name in _MOVED if name in manifest},
        **{
            name: _by_quantity(manifest[name], depth)
            for name, depth in _OF_PHASES.items()
            if name in manifest
        },
        **{new: manifest[old] for old, new in _RENAMED.items() if manifest.get(old) is not None},
        "settings": [_MARK],
        "platforms": [_MARK],
        "copies": COPIES_ASSUMED,
        "golden": {"layers": golden, "networks": []},
    }
    for predictors in part["predictors"].values():
        for quantity, values in predictors.items():
            values["quantity"] = quantity
    unchanged = ("schema_version", "feature_set_version", "created", "files")
    return {
        **{name: manifest[name] for name in unchanged if name in manifest},
        "settings": {_MARK: setting.to_json()},
        "platforms": {_MARK: platform.to_json()},
        "parts": [part],
        "provenance": unknown_provenance(manifest["dataset"], manifest["training"]),
    }


def _by_quantity(values: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Name phases, so many levels down, as quantities."""
    if depth:
        return {name: _by_quantity(each, depth - 1) for name, each in values.items()}
    return {quantity_name(phase): each for phase, each in values.items()}


def with_quantities_of_steps(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest in which training steps have ``step_ms`` and settings of their own.

    In older ones they have ``execution_ms``, under the setting of the forward passes.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        If it is damaged.
    """
    settings, parts = dict(manifest["settings"]), []
    for part in manifest["parts"]:
        steps = [kind for kind in part["predictors"] if kind != layer_kind(kind)]
        if not steps or any(settings[mark].get(OPTIMIZER) for mark in part["settings"]):
            parts.append(part)
            continue
        mark = part["settings"][0]
        first = Setting.from_json(settings[mark])
        optimizers = {each for kind in steps for each in part["ranges"][kind][OPTIMIZER]}
        added = {
            f"{mark}-{each}": first.with_optimizer(each).to_json() for each in sorted(optimizers)
        }
        settings |= added
        parts.append({**_renamed(part), "settings": [*part["settings"], *added]})
    return {**manifest, "settings": settings, "parts": parts}


def _renamed(part: Mapping[str, Any]) -> dict[str, Any]:
    golden = [
        {**each, "values": _with_steps(each["values"], kind_of_key(each["key"]))}
        for each in part["golden"]["layers"]
    ]
    return {**_with_steps(part), "golden": {**part["golden"], "layers": golden}}


def _with_steps(values: Any, kind: str = "") -> Any:
    """Rename quantities below the name of a kind of training steps."""
    if not isinstance(values, dict):
        return values
    return {
        quantity_of(kind, name): _with_steps(each, kind if name == layer_kind(name) else name)
        for name, each in values.items()
    }
