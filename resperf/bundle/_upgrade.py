"""Manifests of schema 1 to 3 in the form of schema 4; missing entries are ``unknown``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.bundle._provenance import unknown_provenance
from resperf.platform import from_fingerprint
from resperf.quantities import quantity_name

COPIES_ASSUMED = "assumed"
"""Marks bundles that do not store how many copies of a layer were measured together."""

_TRAINING = ("training", "ranges", "estimates", "method", "device", "framework", "costs")
_MARK = "1"


def upgraded(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema 1 to 3 in the form of schema 4.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        If it is damaged.
    """
    setting, platform = from_fingerprint(manifest["fingerprint"])
    part: dict[str, Any] = {
        **{name: manifest[name] for name in _TRAINING if name in manifest},
        "settings": [_MARK],
        "platforms": [_MARK],
        "copies": COPIES_ASSUMED,
        "predictors": {
            kind: {
                quantity_name(phase): {**each, "quantity": quantity_name(phase)}
                for phase, each in phases.items()
            }
            for kind, phases in manifest["predictors"].items()
        },
        "transfers": _by_quantity(manifest["transfers"]),
        "errors": {
            split: {kind: _by_quantity(phases) for kind, phases in kinds.items()}
            for split, kinds in manifest["errors"].items()
        },
        "golden": {
            "layers": [
                {
                    "key": entry["key"],
                    "features": entry["features"],
                    "values": _by_quantity(entry["ms"]),
                }
                for entry in manifest["canned"]
            ],
            "networks": [],
        },
    }
    if "intervals" in manifest:
        part["intervals"] = {
            kind: _by_quantity(phases) for kind, phases in manifest["intervals"].items()
        }
    for old, new in (("in_place", "correction"), ("carried", "transferred_calibration")):
        if manifest.get(old) is not None:
            part[new] = manifest[old]
    return {
        "schema_version": manifest["schema_version"],
        "feature_set_version": manifest["feature_set_version"],
        "created": manifest["created"],
        "settings": {_MARK: setting.to_json()},
        "platforms": {_MARK: platform.to_json()},
        "parts": [part],
        "provenance": unknown_provenance(manifest["dataset"], manifest["training"]),
        "files": manifest["files"],
    }


def _by_quantity(phases: Mapping[str, Any]) -> dict[str, Any]:
    return {quantity_name(phase): values for phase, values in phases.items()}
