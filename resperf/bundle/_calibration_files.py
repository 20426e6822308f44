"""Where calibrations are kept: one file for each bundle and machine, beside the user's bundles."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from resperf.bundle._bundle import Bundle
from resperf.bundle._calibration import Calibration
from resperf.bundle._search import user_folder
from resperf.errors import BundleError
from resperf.files import write_whole
from resperf.platform import Platform

_FOLDER = "calibrated"


def calibration_file(bundle: Bundle, platform: Platform) -> Path:
    """Return the file of a bundle's calibration for a machine, whether it exists or not.

    Raises
    ------
    BundleError
        If this user has no home folder.
    """
    files = sorted(bundle.manifest["files"].items())
    index = bundle.manifest["parts"].index(bundle.part)
    # Tells the part of the bundle from all others.
    bundle_id = hashlib.sha256(repr((bundle.created, files, index)).encode()).hexdigest()
    facts = {name: value for name, value in platform.to_json().items() if name != "machine_checks"}
    text = json.dumps([bundle_id, facts], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return user_folder().parent / _FOLDER / f"{bundle.path.name}-{digest}.json"


def save_calibration(bundle: Bundle, calibration: Calibration) -> Path:
    """Write a calibration, in place of an earlier one of the same bundle and machine.

    Raises
    ------
    BundleError, OutputError
        If this user has no folder for it, or it cannot be written.
    """
    path = calibration_file(bundle, calibration.platform)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(
            f"{path.parent} cannot be made ({error.strerror}); set RESPERF_HOME to a folder"
        ) from error
    write_whole(path, json.dumps(calibration.to_json(), indent=1).encode())
    return path


def load_calibration(bundle: Bundle, platform: Platform) -> Calibration | None:
    """Return the calibration of a bundle for a machine; None if there is none.

    Raises
    ------
    BundleError
        If it is damaged.
    """
    try:
        path = calibration_file(bundle, platform)
        changed = path.stat()
    except (BundleError, OSError):
        return None
    return _read(path, changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, _changed_ns: int, _size_bytes: int) -> Calibration:
    try:
        return Calibration.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BundleError(
            f"{path} is no valid calibration ({type(error).__name__}: {error}); measure it again: "
            "resperf calibrate, or forget it: resperf calibrate --forget"
        ) from error
