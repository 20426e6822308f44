"""Where bundles are searched, and which one is chosen for a device."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from resperf.bundle._bundle import Bundle
from resperf.bundle._calibration import Calibration
from resperf.bundle._manifest import MANIFEST
from resperf.devices import device_facts, is_at_hand
from resperf.errors import BundleError
from resperf.files import write_whole
from resperf.network import MALFORMED
from resperf.platform import Platform, distance, instruction_set
from resperf.records import parse_json
from resperf.settings import PLAIN_PRECISIONS, Setting

_PACKAGE = Path(__file__).parents[1]
# A checkout has the shipped bundles beside the package, an installed wheel inside it.
_SHIPPED = (_PACKAGE / "data" / "models" / "bundles", _PACKAGE.parent / "models" / "bundles")
# Published methods that are less accurate: they answer where `--method` or their name asks.
_METHODS = tuple(folder.with_name("methods") for folder in _SHIPPED)


def user_folder() -> Path:
    """Return the folder of this user's bundles: in ``$RESPERF_HOME``, or the user's data folder.

    Raises
    ------
    BundleError
        If this user has no home folder, as in some containers.
    """
    folders = _user_folders()
    if not folders:
        raise BundleError("this user has no home folder for bundles; set RESPERF_HOME to a folder")
    return folders[0]


def _user_folders() -> list[Path]:
    """List the folders of this user's bundles, the one that new ones go to first."""
    home, data = os.environ.get("RESPERF_HOME"), os.environ.get("XDG_DATA_HOME")
    folders = [Path(home) / "bundles"] if home else []
    with suppress(RuntimeError):
        share = Path(data) if data else Path.home() / ".local" / "share"
        folders.append(share / "resperf" / "bundles")
    return folders


def default_folder(setting: Setting, platform: Platform) -> Path:
    """Return the default folder of a new bundle: DEVICE-FRAMEWORK, and threads if not all.

    Raises
    ------
    BundleError
        As `user_folder`.
    """
    name = f"{platform.device}-{setting.framework}"
    if setting.threads not in (0, platform.cores):
        name += f"-{setting.threads}threads"
    return user_folder() / name


def is_shipped(bundle: Bundle) -> bool:
    """Say whether a bundle came with resperf."""
    return bundle.path.parent.resolve() in {folder.resolve() for folder in (*_SHIPPED, *_METHODS)}


def bundle_folders(extra: Path | None = None, *, methods: bool = False) -> list[Path]:
    """List folders that look like bundles, best place first, without reading them.

    Parameters
    ----------
    extra : Path, optional
        Folder of a bundle, or of several, that is searched first.
    methods : bool
        Whether shipped bundles that only answer for their method are listed too.

    Raises
    ------
    BundleError
        If `extra` holds no bundle.
    """
    first = [] if extra is None else _folders_in(extra)
    if extra is not None and not first:
        raise BundleError(f"{extra} holds no bundle; see: resperf devices")
    roots = (*_user_folders(), *_SHIPPED, *(_METHODS if methods else ()))
    later = [folder for root in roots for folder in _folders_in(root)]
    return list(dict.fromkeys([*first, *later]))


def _folders_in(root: Path) -> list[Path]:
    """List the bundles in a folder, or the folder if it is a bundle."""
    if is_bundle(root):
        return [root.resolve()]
    return [
        manifest.parent.resolve()
        for manifest in sorted(root.glob(f"*/{MANIFEST}"))
        if not manifest.parent.name.startswith(".")
    ]


def is_bundle(folder: str | Path) -> bool:
    """Say whether a folder looks like a bundle."""
    return (Path(folder) / MANIFEST).exists()


def named_bundle(word: str | Path, extra: Path | None = None) -> Path | None:
    """Return the bundle given by its folder, or by the folder's name in a searched place."""
    if is_bundle(word):
        return Path(word).resolve()
    folders = bundle_folders(extra, methods=True)
    return next((folder for folder in folders if folder.name == str(word)), None)


def find_bundles(
    path: Path | None = None, *, alone: bool = False, checked: bool = False, methods: bool = False
) -> tuple[list[Bundle], dict[Path, BundleError]]:
    """Read every bundle found, best place first.

    Parameters
    ----------
    path : Path, optional
        Folder of a bundle, or of several, that is searched first.
    alone : bool
        Whether only `path` is searched.
    checked : bool
        Whether all files are read and checked, not the manifests alone (`Bundle.check`).
    methods : bool
        As of `bundle_folders`.

    Returns
    -------
    parts : list of Bundle
        All parts of the undamaged ones.
    damaged : mapping of Path to BundleError
        The others' folders and errors.

    Raises
    ------
    BundleError
        If `path` holds no bundle.
    """
    folders = bundle_folders(path, methods=methods)
    if path is not None and alone:
        folders = _folders_in(path)
    parts: list[Bundle] = []
    damaged = {}
    for folder in folders:
        try:
            state = (folder / MANIFEST).stat()
            bundle = _read_once(folder, state.st_mtime_ns, state.st_size)
            parts += (bundle.check() if checked else bundle).parts
        except BundleError as error:
            damaged[folder] = error
        except OSError as error:
            damaged[folder] = BundleError(f"{folder} cannot be read ({error.strerror})")
    return parts, damaged


def platforms_of(part: Bundle, device: str | None = None) -> dict[str, Platform]:
    """Return a part's devices with their platforms, that of most rows first.

    Parameters
    ----------
    part : Bundle
    device : str, optional
        That one alone, by any name; by the bundle's name, the first.
    """
    # One platform may have a name of the user's choice.
    platforms = {part.device: part.platform}
    if len({platform.device for platform in part.platforms}) > 1:
        for platform in part.platforms:
            platforms.setdefault(platform.device, platform)
    if device is None:
        return platforms
    facts = device_facts(device)
    for name, platform in platforms.items():
        is_card = facts is not None and device_facts(name) is facts
        if is_card or name.casefold() == device.casefold():
            return {name: platform}
    return {part.device: part.platform} if part.path.name == device else {}


@lru_cache(maxsize=64)
def _read_once(folder: Path, _changed_ns: int, _size_bytes: int) -> Bundle:
    return Bundle.read_only_manifest(folder)


def best_of(parts: Sequence[Bundle]) -> Bundle:
    """Choose between bundles of one device; the place of the first one decides.

    For this machine's device, the one measured on the most similar machine, or calibrated for it.
    For others, one of the framework's default precision, not compiled; then the one with most kinds
    of layers and quantities of networks; then the newest.
    """
    first = parts[0]
    beside = [part for part in parts if part.path.parent == first.path.parent]
    if is_at_hand(first.device):
        of_first = (first.device, first.framework)
        alike = [part for part in beside if (part.device, part.framework) == of_first]
        nearest = {part: nearest_machine(part) or part for part in alike}
        return min(
            nearest, key=lambda part: distance(nearest[part].setting, nearest[part].platform)
        )
    newest_first = sorted(beside, key=lambda part: part.created, reverse=True)
    return min(newest_first, key=_fewest_missing)


def nearest_machine(part: Bundle) -> Calibration | None:
    """Return a bundle's calibration for the machine with this one's vectors that is most like it.

    None if there is none, or the bundle's own machine is at least as similar.
    """
    vectors = instruction_set().partition("+")[0]
    alike = (
        calibration
        for calibration in machines_of(part)
        if calibration.platform.instruction_set.partition("+")[0] == vectors
    )
    machines: list[Bundle | Calibration] = [part, *alike]
    nearest = min(machines, key=lambda where: distance(where.setting, where.platform))
    return nearest if isinstance(nearest, Calibration) else None


def machines_of(part: Bundle) -> tuple[Calibration, ...]:
    """Return a bundle's calibrations by layers for other machines than its own."""
    return tuple(
        calibration
        for calibration in part.calibrations
        if calibration.scales_layers and calibration not in part.layer_calibrations
    )


def _fewest_missing(part: Bundle) -> tuple[bool, bool, int]:
    """Return a sort key: bundles that answer more questions without being asked for come first."""
    setting = part.setting
    special = setting.precision not in PLAIN_PRECISIONS
    count = len(part.kinds) + len(part.network_quantities)
    return special, setting.is_compiled, -count


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
    return _read_calibration(path, changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=64)
def _read_calibration(path: Path, _changed_ns: int, _size_bytes: int) -> Calibration:
    try:
        return Calibration.from_json(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, *MALFORMED) as error:
        raise BundleError(
            f"{path} is no valid calibration ({type(error).__name__}: {error}); measure it again: "
            "resperf calibrate, or forget it: resperf calibrate --forget"
        ) from error
