"""The devices that `resperf.predict` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resperf.bundle import Bundle, bundle_place, bundles_of, devices_of
from resperf.prediction.choice import cards_without


@dataclass(frozen=True)
class KnownDevice:
    """A device that `resperf.predict` takes.

    Attributes
    ----------
    name : str
        Value of `device`.
    frameworks : tuple of str
        Values of `framework`.
    bundles : tuple of str
        Names of the bundles with times of the device, which are values of `bundle` or `device` too.
        Empty if no bundle has any: `predict` then infers from other devices, or estimates from the
        data sheet.
    """

    name: str
    frameworks: tuple[str, ...]
    bundles: tuple[str, ...] = ()


def list_devices(bundle: str | Path | None = None) -> list[KnownDevice]:
    """List the devices that `resperf.predict` takes: those with bundles, then other known GPUs.

    Parameters
    ----------
    bundle : str or Path, optional
        Folder of a bundle, or of several, that is searched first; or the name of a bundle.

    Returns
    -------
    list of KnownDevice
        Damaged bundles are left out; the command `resperf devices` names them.

    Raises
    ------
    BundleError
        If `bundle` is no bundle.

    Examples
    --------
    >>> [each.name for each in resperf.list_devices() if each.bundles]  # doctest: +SKIP
    ['cpu', '1080ti', 'v100', ...]
    """
    parts, _ = bundles_of(None, None, bundle_place(bundle))
    parts_of: dict[str, list[Bundle]] = {}
    for part in parts:
        for name in devices_of(part):
            parts_of.setdefault(name, []).append(part)
    return [
        *(
            KnownDevice(
                name,
                tuple(dict.fromkeys(each.framework for each in own)),
                tuple(dict.fromkeys(each.path.name for each in own)),
            )
            for name, own in parts_of.items()
        ),
        *(KnownDevice(name, (framework,)) for name, framework in cards_without(parts_of)),
    ]
