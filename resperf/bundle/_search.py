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
from resperf.devices import canonical_device, device_class, device_facts, is_at_hand, names_like
from resperf.errors import BundleError, DeviceError, did_you_mean, listed, words_like
from resperf.files import write_whole
from resperf.network import MALFORMED
from resperf.platform import Platform, distance, instruction_set
from resperf.records import parse_json
from resperf.settings import PLAIN_PRECISIONS, Setting
from resperf.targets import DEFAULT, UNKNOWN, Target, names_with, target

_PACKAGE = Path(__file__).parents[1]
# A checkout has the shipped bundles beside the package, an installed wheel inside it.
_SHIPPED = (_PACKAGE / "data" / "models" / "bundles", _PACKAGE.parent / "models" / "bundles")
# Published methods that are less accurate: they answer where `--method` or their name asks.
_METHODS = tuple(folder.with_name("methods") for folder in _SHIPPED)

_ANY_GPU = ("gpu", "cuda", "rocm", "mps")
_OTHER_CARD = "for another GPU write mycard.toml (docs/importing.md)"


def user_folder() -> Path:
    """Return the folder of this user's bundles: in ``$RESPERF_HOME``, or the user's data folder.

    Raises
    ------
    BundleError
        If this user has no home folder, as in some containers.
    """
    home = os.environ.get("RESPERF_HOME")
    if home:
        return Path(home) / "bundles"
    folder = _data_folder()
    if folder is None:
        raise BundleError("this user has no home folder for bundles; set RESPERF_HOME to a folder")
    return folder


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


def _data_folder() -> Path | None:
    data = os.environ.get("XDG_DATA_HOME")
    if data:
        return Path(data) / "resperf" / "bundles"
    try:
        return Path.home() / ".local" / "share" / "resperf" / "bundles"
    except RuntimeError:
        return None


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
    roots = [_data_folder(), *_SHIPPED, *(_METHODS if methods else ())]
    with suppress(BundleError):
        roots.insert(0, user_folder())
    later = [folder for root in roots if root is not None for folder in _folders_in(root)]
    return list(dict.fromkeys([*first, *later]))


def _folders_in(root: Path) -> list[Path]:
    """List the bundles in a folder, or the folder if it is a bundle."""
    if (root / MANIFEST).exists():
        return [root.resolve()]
    return [
        manifest.parent.resolve()
        for manifest in sorted(root.glob(f"*/{MANIFEST}"))
        if not manifest.parent.name.startswith(".")
    ]


def find_bundles(
    path: Path | None = None, *, alone: bool = False, checked: bool = False, methods: bool = False
) -> tuple[list[Bundle], dict[Path, BundleError]]:
    """Read every bundle found, best place first.

    Parameters
    ----------
    path : Path, optional
        Folder of a bundle, or of several, that is searched first.
    alone : bool
        Whether `path` is all that is read, if it is a bundle.
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
    alone = alone and path is not None and (path / MANIFEST).exists()
    folders = [path.resolve()] if path and alone else bundle_folders(path, methods=methods)
    return _parts_of(folders, checked=checked)


def find_bundle(
    device: str | None, framework: str | None = None, path: str | Path | None = None
) -> Bundle:
    """Find a bundle by its folder, by its folder's name, or by its device.

    If the best place has several, one is chosen by `best_of`.

    Parameters
    ----------
    device : str or None
        Folder of a bundle, else the name of such a folder in a searched place, else any name of a
        device (`resperf.devices`), in upper or lower case. None takes the bundle in `path`; of
        several, that of the default device.
    framework : str, optional
        Any by default, the best place first.
    path : str or Path, optional
        As ``--bundle``: a folder of a bundle, or of several, that is searched first; or a bundle by
        any name that `device` may be.

    Raises
    ------
    BundleError
        If `path` holds no bundle, or is a damaged one, or if the one that would be chosen is
        damaged.
    DeviceError
        If no bundle fits; the message lists all.
    """
    if device is not None and not device.strip():
        raise DeviceError("the device has an empty name; leave it out, or see: resperf devices")
    root = None
    if path is None:
        device = device or DEFAULT.device_class
    elif device is None and not Path(path).is_dir():
        # By a device's name, the part of that device is found, which may not be the folder's first.
        device = str(path)
    else:
        root = bundle_place(path, framework)
    if root is not None and (root / MANIFEST).exists():
        return _fitting_part(root, device, framework).checked
    folders = bundle_folders(root)
    if device and (named := _named(device, folders)) is not None:
        return _fitting_part(named, None, framework).checked
    if device is None and root is not None:
        folders = _folders_in(root)
        parts, damaged = _parts_of(folders)
        if damaged and not parts:
            raise next(iter(damaged.values()))
        device = _device_of(parts, framework, root)
    else:
        parts, damaged = _parts_of(folders)
    fitting = [part for part in parts if _fits(part, device, framework)]
    if fitting:
        best = best_of(fitting)
        for folder in folders[: folders.index(best.path)]:
            # A damaged bundle is not replaced silently by another of the same name.
            if folder in damaged and folder.name == best.path.name:
                raise damaged[folder]
        return _of_device(best.checked, device)
    if str(device).casefold().partition(":")[0] in _ANY_GPU:
        raise DeviceError(f"{device} is no model of a GPU; name one that `resperf devices` lists")
    wanted = repr(device) + (f" with framework {framework!r}" if framework else "")
    problem = "".join(f"; damaged: {error}" for error in list(damaged.values())[:1])
    if near := _spelt_alike(str(device), parts):
        raise DeviceError(
            f"no device or bundle {wanted}; did you mean {', '.join(near)}? See: resperf devices; "
            f"{_OTHER_CARD}{problem}"
        )
    frameworks = {part.framework for part in parts}
    hint = did_you_mean(framework, frameworks) if framework and framework not in frameworks else ""
    raise DeviceError(
        f"no device or bundle {wanted}{hint}; {_listing(parts)}{problem}; see: resperf devices; "
        f"{_OTHER_CARD}"
    )


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


def _of_device(part: Bundle, device: str | None) -> Bundle:
    """Return a bundle that serves several devices as it answers for one of them."""
    platform = next(iter(platforms_of(part, device).values()), part.platform)
    return part if platform is part.platform else part.for_device(platform)


def bundle_place(word: str | Path | None, framework: str | None = None) -> Path | None:
    """Return the folder given by ``--bundle``: one to search first, or a bundle by any name.

    Raises
    ------
    DeviceError, BundleError
        As `find_bundle`, if it is no folder.
    """
    if word is None or Path(word).is_dir():
        return None if word is None else Path(word)
    return _named(str(word), bundle_folders()) or find_bundle(str(word), framework).path


def named_target(device: str | None, framework: str | None = None) -> Target:
    """Choose the target to measure with by ``--device`` and ``--framework``.

    Parameters
    ----------
    device : str, optional
        As for `find_bundle`, or a class of devices.
    framework : str, optional

    Raises
    ------
    ResperfError
        If there is no such target.
    DeviceError
        If there is no such device; lists the bundles.
    """
    if device is None:
        return target(framework)
    folders = bundle_folders()
    if (named := _named(device, folders)) is not None:
        part = _fitting_part(named, None, framework)
    elif (meant := device_class(device)) != UNKNOWN:
        return target(framework, meant)
    else:
        parts, _ = _parts_of(folders)
        fitting = [part for part in parts if _fits(part, device, framework)]
        if not fitting:
            raise DeviceError(
                f"no device {device!r}; targets that can be measured: {names_with('backend')}; "
                f"{_listing(parts)}"
            )
        part = fitting[0]
    meant = device_class(part.device, part.framework)
    return target(part.framework, None if meant == UNKNOWN else meant)


def _named(word: str, folders: Sequence[Path]) -> Path | None:
    """Return the bundle given by its folder, or by the name of its folder."""
    if (Path(word) / MANIFEST).exists():
        return Path(word)
    of_methods = (folder for root in _METHODS for folder in _folders_in(root))
    return next((folder for folder in (*folders, *of_methods) if folder.name == word), None)


def _listing(parts: Sequence[Bundle]) -> str:
    """List devices and bundles."""
    labels = (f"{name} ({part.framework})" for part in parts for name in platforms_of(part))
    devices, names = listed([*dict.fromkeys(labels)]), listed(_names(parts))
    return f"devices: {devices or 'none'}; bundles: {names or 'none'}"


def _spelt_alike(device: str, parts: Sequence[Bundle]) -> list[str]:
    """Return names of cards, else of bundles and their devices, that are spelt like a new name."""
    names = dict.fromkeys(
        (*(name for part in parts for name in platforms_of(part)), *_names(parts))
    )
    if device in names or device_facts(device) is not None:
        return []
    return names_like(device) or words_like(device, names)


def _names(parts: Sequence[Bundle]) -> tuple[str, ...]:
    """Return the names of bundles."""
    return tuple(dict.fromkeys(part.path.name for part in parts))


def _fits(part: Bundle, device: str | None, framework: str | None) -> bool:
    return framework in (None, part.framework) and bool(platforms_of(part, device))


def _parts_of(
    folders: Sequence[Path], *, checked: bool = False
) -> tuple[list[Bundle], dict[Path, BundleError]]:
    """Read bundles in order; also return the errors of damaged ones."""
    parts: list[Bundle] = []
    damaged = {}
    for folder in folders:
        try:
            bundle = _read(folder)
            parts += (bundle.check() if checked else bundle).parts
        except BundleError as error:
            damaged[folder] = error
    return parts, damaged


def _read(folder: Path) -> Bundle:
    """Read a bundle's manifest; it is cached until the file changes."""
    try:
        state = (folder / MANIFEST).stat()
    except OSError as error:
        raise BundleError(f"{folder} cannot be read ({error.strerror})") from error
    return _read_once(folder, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _read_once(folder: Path, _changed_ns: int, _size_bytes: int) -> Bundle:
    return Bundle.read_only_manifest(folder)


def _fitting_part(path: Path, device: str | None, framework: str | None) -> Bundle:
    """Return a bundle's part for a device and framework.

    Raises
    ------
    DeviceError
        If it has none.
    """
    parts = _read(path.resolve()).parts
    fitting = [part for part in parts if _fits(part, device, framework)]
    if fitting and device is None:
        wanted = _device_of(fitting, framework, path)
        fitting = [part for part in fitting if _fits(part, wanted, framework)]
    if fitting:
        return _of_device(best_of(fitting), device)
    own = next((part for part in parts if _fits(part, device, None)), None)
    hint = (
        f"--framework {own.framework}"
        if own
        else (f"--device {parts[0].device} --framework {parts[0].framework}")
    )
    there = ", and ".join(
        f"device {' or '.join(platforms_of(part))} and framework {part.framework}" for part in parts
    )
    raise DeviceError(
        f"{path} is for {there}, not for "
        f"{device or 'any device'} and {framework or 'any framework'}; "
        f"use {hint}"
    )


def _device_of(parts: Sequence[Bundle], framework: str | None, path: Path) -> str:
    """Choose a device of a folder of bundles if none is named.

    Raises
    ------
    DeviceError
        If there is none, or several and none of them is the default one.
    """
    devices = {
        canonical_device(device).casefold(): device
        for part in parts
        if framework is None or part.framework == framework
        for device in platforms_of(part)
    }
    if len(devices) == 1 or DEFAULT.device_class in devices:
        return devices.get(DEFAULT.device_class) or next(iter(devices.values()))
    there = (
        ", ".join(sorted(devices.values()))
        or f"no undamaged bundle for {framework or 'any framework'}"
    )
    raise DeviceError(f"which device of {path}? There is {there}; name one by --device")


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
        return min(alike, key=lambda part: _distance(nearest_machine(part) or part))
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
    nearest = min(alike, key=_distance, default=None)
    return nearest if nearest is not None and _distance(nearest) < _distance(part) else None


def _distance(where: Bundle | Calibration) -> tuple[int, ...]:
    """Return how far this machine is from that of a bundle or a calibration."""
    return distance(where.setting, where.platform)


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
