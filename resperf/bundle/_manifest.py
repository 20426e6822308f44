"""Reading and validating ``bundle.json``: schema, versions, file names, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any

from resperf.bundle._provenance import UNKNOWN
from resperf.errors import BundleError, ResperfError
from resperf.features import FEATURE_SET_VERSION
from resperf.network import MALFORMED
from resperf.quantities import Level
from resperf.records import parse_json

MANIFEST = "bundle.json"
NETWORK = Level.NETWORK.value
"""Used in place of a layer kind if the subjects are networks."""
SCHEMA_VERSION = 1
_LONGEST_MS = 1e6
"""Above all costs."""

_TOP: Mapping[str, type] = {
    "created": str,
    "settings": dict,
    "platforms": dict,
    "parts": list,
    "provenance": dict,
    "files": dict,
}
_PART: Mapping[str, type] = {
    "device": str, "framework": str, "method": str, "settings": list, "platforms": list,
    "costs": dict, "copies": dict, "predictors": dict, "transfers": dict, "ranges": dict,
    "errors": dict, "intervals": dict, "golden": dict, "training": dict,
}  # fmt: skip
_PROVENANCE: Mapping[str, type | UnionType] = {
    "datasets": list, "resperf": str, "commit": str, "changes": list | str, "rebuildable": dict,
}  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a bundle's manifest and check its structure, but no other file.

    Raises
    ------
    BundleError
        If the folder is no bundle, is damaged, or is of a schema that is not known.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
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
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{folder} has bundle schema {version!r}, this resperf reads {SCHEMA_VERSION}; "
            "train it again or update resperf"
        )
    _refuse(folder, _structural_damage(manifest))
    return manifest


@contextmanager
def damage_named(folder: Path) -> Iterator[None]:
    """Name the bundle in errors of its content.

    Raises
    ------
    BundleError
        In place of another error.
    """
    try:
        yield
    except BundleError:
        raise
    except (ResperfError, *MALFORMED) as error:
        raise BundleError(
            f"{folder} is not a valid bundle ({type(error).__name__}: {error}); "
            "restore it or train it again"
        ) from error


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check a bundle's files, and what its predictors need besides.

    Raises
    ------
    BundleError
        If files are missing, damaged or outside the folder, or if it was made by a version of
        resperf with other features.
    """
    if manifest.get("feature_set_version") != FEATURE_SET_VERSION:
        raise BundleError(
            f"{folder} was trained with feature set {manifest.get('feature_set_version')!r}, this "
            f"resperf computes {FEATURE_SET_VERSION}; train it again"
        )
    for name, digest in manifest["files"].items():
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
    for part in manifest["parts"]:
        _refuse(folder, _damage(part, manifest["files"]))


def _refuse(folder: Path, problems: Iterator[str]) -> None:
    """Raise the first problem of a bundle, if there is any; the others may follow from it."""
    for problem in problems:
        raise BundleError(f"{folder / MANIFEST} {problem}; restore it or train it again")


def _structural_damage(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Find missing entries, of the provenance too, and parts without a setting and a platform."""
    yield from _lacking(manifest, _TOP)
    provenance, where = manifest["provenance"], " in its provenance"
    yield from _lacking(provenance, _PROVENANCE, where)
    yield from _lacking(provenance["rebuildable"], {"answer": str, "why": str}, where)
    packages = provenance.get("packages", UNKNOWN)
    if packages != UNKNOWN and not isinstance(packages, dict):
        yield f"has the packages damaged{where}"
    for dataset in provenance["datasets"]:
        yield from _lacking(dataset, {"name": str, "checksum": str}, where)
    for change in provenance["changes"] if provenance["changes"] != UNKNOWN else ():
        yield from _lacking(change, {"date": str, "reason": str}, where)
    if not manifest["parts"]:
        yield "has no parts"
    for part in manifest["parts"]:
        yield from _lacking(part, _PART)
        for name in ("settings", "platforms"):
            if not part[name] or not set(map(str, part[name])) <= manifest[name].keys():
                yield f"has the {name} of a part damaged"


def _lacking(values: Any, types: Mapping[str, type | UnionType], where: str = "") -> Iterator[str]:
    for name, kind in types.items():
        if not isinstance(values, dict) or not isinstance(values.get(name), kind):
            yield f"lacks {name!r}{where}"


def _damage(part: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[str]:
    """Find costs that are not numbers, predictors without ranges, files without checksum."""
    for name, cost_ms in part["costs"].items():
        if type(cost_ms) not in (int, float) or not 0 <= cost_ms < _LONGEST_MS:
            yield f"has the cost {name} damaged"
    for kind, quantities in part["predictors"].items():
        ranges = part["ranges"].get(kind)
        fields = [*ranges.values()] if isinstance(ranges, dict) else []
        # All values of a field are numbers, or all are text.
        fit = (
            isinstance(values, list)
            and values
            and any(all(isinstance(v, sort) for v in values) for sort in ((int, float), str))
            for values in fields
        )
        if kind != NETWORK and not (fields and all(fit)):
            yield f"has the ranges of {kind} damaged"
        for quantity, values in quantities.items():
            if values.get("quantity") != quantity:
                yield f"has the predictor of {kind} {quantity} damaged"
            if "network" in values and (name := values["network"]) not in files:
                yield f"names the file {name!r} for {kind} {quantity} without a checksum"
    if not isinstance(part.get("estimates", {}), dict):
        yield "has the estimates damaged"
