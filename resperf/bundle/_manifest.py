"""Reading ``bundle.json`` with suspicion: schema, versions, file names, checksums."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resperf.errors import BundleError
from resperf.features import FEATURE_SET_VERSION
from resperf.quantities import quantity_name

MANIFEST = "bundle.json"
SCHEMA_VERSION = 1
SCHEMA_IN_PLACE = 2
"""Of bundles that hold what whole networks taught: who does not read it predicts other totals."""
SCHEMA_CARRIED = 3
"""Of bundles whose layers were measured on another machine, which changes the times of layers."""

_REQUIRED: Mapping[str, type] = {
    "device": str,
    "framework": str,
    "method": str,
    "created": str,
    "fingerprint": dict,
    "costs": dict,
    "predictors": dict,
    "transfers": dict,
    "ranges": dict,
    "errors": dict,
    "canned": list,
    "files": dict,
    "dataset": dict,
    "training": dict,
}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a bundle's manifest and the files it names.

    Raises
    ------
    BundleError
        If the folder is no bundle, is damaged, names files outside itself, or was made by a version
        of resperf whose features were others.
    """
    manifest = parsed_manifest(folder)
    version = manifest.get("schema_version")
    if version not in range(SCHEMA_VERSION, SCHEMA_CARRIED + 1):
        raise BundleError(
            f"{folder} has bundle schema {version!r}, this resperf reads {SCHEMA_VERSION} to "
            f"{SCHEMA_CARRIED}; train it again or update resperf"
        )
    for name, kind in _REQUIRED.items():
        if not isinstance(manifest.get(name), kind):
            raise BundleError(f"{folder / MANIFEST} lacks {name!r}; the bundle is damaged")
    if not isinstance(manifest.get("estimates", {}), dict):
        raise BundleError(f"{folder / MANIFEST} has damaged 'estimates'; train it again")
    if manifest.get("feature_set_version") != FEATURE_SET_VERSION:
        raise BundleError(
            f"{folder} was trained with feature set {manifest.get('feature_set_version')!r}, this "
            f"resperf computes {FEATURE_SET_VERSION}; train it again"
        )
    _check_files(folder, manifest)
    _check_values(folder, manifest)
    try:
        return _by_quantities(manifest)
    except AttributeError as error:
        raise BundleError(f"{folder / MANIFEST} is damaged ({error}); train it again") from error


def _by_quantities(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Name quantities as `resperf.quantities` does where a manifest names phases."""

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {quantity_name(word): value for word, value in values.items()}

    def of_kinds(kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {kind: named(values) for kind, values in kinds.items()}

    errors = {part: of_kinds(kinds) for part, kinds in manifest["errors"].items()}
    return {
        **manifest,
        "predictors": of_kinds(manifest["predictors"]),
        "transfers": named(manifest["transfers"]),
        "errors": errors,
        "canned": [{**entry, "ms": named(entry["ms"])} for entry in manifest["canned"]],
        **({"intervals": of_kinds(manifest["intervals"])} if "intervals" in manifest else {}),
    }


def parsed_manifest(folder: Path) -> dict[str, Any]:
    """Parse a bundle's manifest, whatever it holds.

    Raises
    ------
    BundleError
        If there is none, or it is no JSON object.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleError(
            f"{folder} is not a bundle (no {MANIFEST}); see: resperf devices"
        ) from error
    except NotADirectoryError as error:
        raise BundleError(f"{folder} is a file; a bundle is a folder with {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); restore it or train it again"
        ) from error
    if not isinstance(manifest, dict):
        raise BundleError(f"{path} does not hold a bundle; restore it or train it again")
    return manifest


def _check_values(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse costs that are no numbers, and predictors without ranges or canned times."""
    damaged = [
        f"the cost {name}"
        for name, cost_ms in manifest["costs"].items()
        if not isinstance(cost_ms, int | float) or not math.isfinite(cost_ms)
    ]
    damaged += [
        f"the ranges of {kind}"
        for kind in manifest["predictors"]
        if not _are_ranges(manifest["ranges"].get(kind))
    ]
    damaged += [
        "a canned layer"
        for entry in manifest["canned"]
        if not isinstance(entry, dict) or not {"key", "features", "ms"} <= entry.keys()
    ]
    if damaged:
        raise BundleError(f"{folder / MANIFEST} has {damaged[0]} damaged; train it again")


def _are_ranges(ranges: Any) -> bool:
    return (
        isinstance(ranges, dict)
        and bool(ranges)
        and all(isinstance(each, list) and each for each in ranges.values())
    )


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse names that leave the folder, absent files, and files with other content."""
    files = manifest["files"]
    for name, digest in files.items():
        if not name or name != Path(name).name or "\\" in name or name in (".", ".."):
            raise BundleError(f"{folder} names a file outside its folder ({name!r}); do not use it")
        path = folder / name
        if path.is_symlink():
            raise BundleError(f"{path} is a link; copy the file into the bundle")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BundleError(f"{path} is missing from the bundle; train it again") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise BundleError(f"{path} is damaged (its checksum differs); train it again")
    for kind, phases in manifest["predictors"].items():
        if not isinstance(phases, dict) or not all(isinstance(v, dict) for v in phases.values()):
            raise BundleError(f"{folder / MANIFEST} has a damaged predictor of {kind}")
        for phase, values in phases.items():
            for network in _networks(values):
                if network not in files:
                    raise BundleError(
                        f"{folder} names the file {network!r} for {kind} {phase} without a "
                        "checksum; do not use it"
                    )


def _networks(values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the files that a predictor names, those of its members included."""
    for name, value in values.items():
        if name == "network":
            yield value
        elif isinstance(value, dict):
            yield from _networks(value)
