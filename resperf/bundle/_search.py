"""Where bundles are searched, and which one is chosen for a device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from resperf.bundle._bundle import Bundle
from resperf.bundle._manifest import MANIFEST, structured_manifest
from resperf.devices import canonical_device, device_class, is_at_hand
from resperf.errors import BundleError, DeviceError
from resperf.platform import Platform, distance
from resperf.settings import Setting
from resperf.targets import DEFAULT, UNKNOWN, Target, names_with, target


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


def default_folder(setting: Setting, platform: Platform, device: str | None = None) -> Path:
    """Return the default folder of a new bundle: DEVICE-FRAMEWORK, and threads if not all.

    Raises
    ------
    BundleError
        As `user_folder`.
    """
    name = f"{device or platform.device}-{setting.framework}"
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


def _places(extra: Path | None) -> Iterator[Path]:
    """Yield the folders to search, best first."""
    if extra is not None:
        yield extra
    with suppress(BundleError):
        yield user_folder()
    data = _data_folder()
    if data is not None:
        yield data
    package = Path(__file__).parents[1]
    yield package / "data" / "models" / "bundles"
    # A checkout has the shipped bundles beside the package, an installed wheel inside it.
    yield package.parent / "models" / "bundles"


def bundle_folders(extra: Path | None = None) -> list[Path]:
    """List folders that look like bundles, best place first, without reading them.

    Parameters
    ----------
    extra : Path, optional
        Folder of a bundle, or of several, that is searched first.

    Raises
    ------
    BundleError
        If `extra` holds no bundle.
    """
    found: dict[Path, None] = {}
    for place in _places(extra):
        found |= dict.fromkeys(_folders_in(place))
        if place is extra and not found:
            raise BundleError(f"{extra} holds no bundle; see: resperf devices")
    return list(found)


def _folders_in(place: Path) -> list[Path]:
    """List the bundles in a folder, or the folder if it is a bundle."""
    if (place / MANIFEST).exists():
        return [place.resolve()]
    return [
        manifest.parent.resolve()
        for manifest in sorted(place.glob(f"*/{MANIFEST}"))
        if not manifest.parent.name.startswith(".")
    ]


def find_bundles(
    extra: Path | None = None,
) -> tuple[list[Bundle], list[tuple[Path, BundleError]]]:
    """Load every bundle found, best place first.

    Returns
    -------
    bundles : list of Bundle
        All parts of the undamaged ones.
    damaged : list of (Path, BundleError)
        The others' folders and errors.

    Raises
    ------
    BundleError
        If `extra` holds no bundle, or is a damaged one.
    """
    bundles: list[Bundle] = []
    damaged = []
    for folder in bundle_folders(extra):
        try:
            bundles += Bundle.load(folder).parts
        except BundleError as error:
            if extra is not None and folder == extra.resolve():
                raise
            damaged.append((folder, error))
    return bundles, damaged


def find_bundle(
    device: str | None, framework: str | None = None, path: Path | None = None
) -> Bundle:
    """Find a bundle by its folder, by its folder's name, or by its device.

    If the best place has several for this machine's device with one framework, the one measured on
    the machine most similar to this one is chosen.

    Parameters
    ----------
    device : str or None
        Folder of a bundle, else the name of such a folder in a searched place, else any name of a
        device (`resperf.devices`), in upper or lower case. None takes the bundle in `path`; of
        several, that of the default device.
    framework : str, optional
        Any by default, the best place first.
    path : Path, optional
        Folder of a bundle, or of several, that is searched first.

    Raises
    ------
    BundleError
        If `path` holds no bundle, or is a damaged one, or if the one that would be chosen is
        damaged.
    DeviceError
        If no bundle fits; the message lists all.
    """
    if path is not None and (path / MANIFEST).exists():
        return _part(_fitting_label(path, device, framework))
    folders = bundle_folders(path)
    if device and (named := _named(device, folders)) is not None:
        return find_bundle(None, framework, named)
    labels, damaged = _labels(folders)
    if device is None and path is not None:
        there = set(_folders_in(path))
        labels = [label for label in labels if label.path in there]
        damaged = [(folder, error) for folder, error in damaged if folder in there]
        if damaged and not labels:
            raise damaged[0][1]
        device = _device_of(labels, framework, path)
    fitting = [label for label in labels if label.fits(device, framework)]
    if fitting:
        found = _most_like_here(fitting)
        _refuse_substitute(found, damaged, folders)
        return _part(found)
    wanted = repr(device) + (f" with framework {framework!r}" if framework else "")
    problem = f"; damaged: {damaged[0][1]}" if damaged else ""
    raise DeviceError(
        f"no bundle {wanted}; {_known(labels)}{problem}; make one with: resperf train FILE.h5, or "
        "name a folder, such as that of resperf demo: demo/cpu-onnxruntime"
    )


def bundle_place(word: str | Path | None, framework: str | None = None) -> Path | None:
    """Return the folder given by ``--bundle``: one to search first, or a bundle by any name.

    Raises
    ------
    DeviceError, BundleError
        As `find_bundle`, if it is no folder.
    """
    if word is None or Path(word).is_dir():
        return None if word is None else Path(word)
    return find_bundle(str(word), framework).path


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
        label = _fitting_label(named, None, framework)
    elif (meant := device_class(device)) != UNKNOWN:
        return target(framework, meant)
    else:
        labels, _ = _labels(folders)
        fitting = [each for each in labels if each.fits(device, framework)]
        if not fitting:
            raise DeviceError(
                f"no device {device!r}; targets that can be measured: {names_with('backend')}; "
                f"{_known(labels)}"
            )
        label = fitting[0]
    meant = device_class(label.device, label.framework)
    return target(label.framework, None if meant == UNKNOWN else meant)


def _named(word: str, folders: Sequence[Path]) -> Path | None:
    """Return the bundle given by its folder, or by the name of its folder."""
    if (Path(word) / MANIFEST).exists():
        return Path(word)
    return next((folder for folder in folders if folder.name == word), None)


def _known(labels: Sequence[_Label]) -> str:
    """List devices and bundles."""
    devices = ", ".join(dict.fromkeys(f"{each.device} ({each.framework})" for each in labels))
    names = ", ".join(dict.fromkeys(each.path.name for each in labels))
    return f"devices: {devices or 'none'}; bundles: {names or 'none'}"


def _part(label: _Label) -> Bundle:
    """Load the part of a bundle that a label describes."""
    return loaded(label.path).parts[label.place]


def loaded(folder: Path) -> Bundle:
    """Load a bundle; it is cached until its manifest changes.

    Raises
    ------
    BundleError
        As `Bundle.load`.
    """
    return _loaded(folder, *_state(folder))


@lru_cache(maxsize=8)
def _loaded(folder: Path, _changed_ns: int, _size_bytes: int) -> Bundle:
    return Bundle.load(folder)


@dataclass(frozen=True)
class _Label:
    """What a bundle's manifest says about one part; other files are not read."""

    path: Path
    place: int
    device: str
    framework: str
    setting: Setting
    platform: Platform

    def fits(self, device: str | None, framework: str | None) -> bool:
        return (framework is None or self.framework == framework) and (
            device is None
            or device == self.path.name
            or canonical_device(self.device).casefold() == canonical_device(device).casefold()
        )


def _labels(folders: Sequence[Path]) -> tuple[list[_Label], list[tuple[Path, BundleError]]]:
    """Read the labels of bundles' parts in order; also return damaged folders and errors."""
    labels: list[_Label] = []
    damaged = []
    for folder in folders:
        try:
            labels += _labels_of(folder)
        except BundleError as error:
            damaged.append((folder, error))
    return labels, damaged


def _labels_of(folder: Path) -> tuple[_Label, ...]:
    """Read the labels of one bundle's parts.

    Raises
    ------
    BundleError
        If its manifest is damaged.
    """
    return _read_labels(folder, *_state(folder))


def _state(folder: Path) -> tuple[int, int]:
    """Return modification time and size of a bundle's manifest."""
    try:
        state = (folder / MANIFEST).stat()
    except OSError as error:
        raise BundleError(f"{folder} cannot be read ({error.strerror})") from error
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=64)
def _read_labels(folder: Path, _changed_ns: int, _size_bytes: int) -> tuple[_Label, ...]:
    try:
        manifest = structured_manifest(folder)
        return tuple(
            _Label(
                folder,
                place,
                str(part["device"]),
                str(part["framework"]),
                Setting.from_json(manifest["settings"][part["settings"][0]]),
                Platform.from_json(manifest["platforms"][part["platforms"][0]]),
            )
            for place, part in enumerate(manifest["parts"])
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"{folder / MANIFEST} is damaged ({type(error).__name__}: {error}); restore it or "
            "train it again"
        ) from error


def _fitting_label(path: Path, device: str | None, framework: str | None) -> _Label:
    """Return the label of a bundle's part for a device and framework.

    Raises
    ------
    DeviceError
        If it has none.
    """
    labels = _labels_of(path.resolve())
    fitting = [label for label in labels if label.fits(device, framework)]
    if fitting and device is None:
        wanted = _device_of(fitting, framework, path)
        fitting = [label for label in fitting if label.fits(wanted, framework)]
    if fitting:
        return _most_like_here(fitting)
    own = next((label for label in labels if label.fits(device, None)), labels[0])
    right = {"device": own.device, "framework": own.framework}
    if own.fits(device, None):
        del right["device"]
    there = ", and ".join(f"device {each.device} and framework {each.framework}" for each in labels)
    raise DeviceError(
        f"{path} is for {there}, not for "
        f"{device or 'any device'} and {framework or 'any framework'}; "
        f"use {' '.join(f'--{name} {value}' for name, value in right.items())}"
    )


def _device_of(labels: Sequence[_Label], framework: str | None, path: Path) -> str:
    """Choose a device of a folder of bundles if none is named.

    Raises
    ------
    DeviceError
        If there is none, or several and none of them is the default one.
    """
    devices = {
        canonical_device(label.device).casefold(): label.device
        for label in labels
        if framework is None or label.framework == framework
    }
    if len(devices) == 1 or DEFAULT.device_class in devices:
        return devices.get(DEFAULT.device_class) or next(iter(devices.values()))
    there = (
        ", ".join(sorted(devices.values()))
        or f"no undamaged bundle for {framework or 'any framework'}"
    )
    raise DeviceError(f"which device of {path}? There is {there}; name one by --device")


def _refuse_substitute(
    found: _Label, damaged: Sequence[tuple[Path, BundleError]], folders: Sequence[Path]
) -> None:
    """Refuse to replace a damaged bundle silently by another of the same name.

    Raises
    ------
    BundleError
        The error of the damaged one.
    """
    before = folders[: folders.index(found.path)]
    for folder, error in damaged:
        if folder.name == found.path.name and folder in before:
            raise error


def _most_like_here(labels: Sequence[_Label]) -> _Label:
    """Return the first label, or of bundles beside it the one most similar to this machine."""
    first = labels[0]
    if not is_at_hand(first.device):
        return first
    beside = [
        label
        for label in labels
        if (label.path.parent, label.device, label.framework)
        == (first.path.parent, first.device, first.framework)
    ]
    return min(beside, key=lambda label: distance(label.setting, label.platform))
