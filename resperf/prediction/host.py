"""Warnings where a bundle's times do not hold for this machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from resperf.bundle import Bundle
from resperf.devices import is_at_hand, target_of
from resperf.errors import ResperfError
from resperf.platform import Platform, this_platform
from resperf.settings import Setting


@cache
def installed_version(device: str, framework: str) -> str | None:
    """Return the version of a framework on this machine, or None if it is not installed."""
    try:
        versions = target_of(device, framework).installed()
    except ResperfError:
        return None
    return next(iter(versions.values()), None)


def bundle_warnings(
    bundle: Bundle, *, threads: int | None = None, versions: bool = True
) -> tuple[str, ...]:
    """Return `host_warnings`, and the origin of the layers if they were measured elsewhere."""
    warnings = host_warnings(bundle.setting, bundle.platform, threads=threads, versions=versions)
    if not bundle.layer_calibrations:
        return warnings
    by, how = bundle.calibrated_by, "fitted to whole networks here"
    if by is not None:
        where = f"on {bundle.platform.machine}" if by.from_bundle else "here"
        how = f"scaled by {by.count} calibration layers {where}"
    return (
        *warnings,
        f"the layers were measured on another machine ({bundle.origin.machine}); their times were "
        f"{how}",
    )


def host_warnings(
    setting: Setting, platform: Platform, *, threads: int | None = None, versions: bool = True
) -> tuple[str, ...]:
    """Say how this machine, or the threads asked for, differ from those of a bundle.

    Parameters
    ----------
    setting : Setting
    platform : Platform
        The bundle's.
    threads : int, optional
        Number of threads to predict for; by default that of the bundle.
    versions : bool
        Whether another version of the framework is a difference. It is none where this machine's
        version said which layers run: `resperf.lowering.lower` notes those that differ.

    Returns
    -------
    tuple of str
        One sentence each; empty if nothing differs. Machines are only compared if the bundle's
        device is this machine's (`resperf.devices.is_at_hand`): a bundle for another device is
        meant for another machine.
    """
    warnings = []
    if threads is not None and setting.threads and threads != setting.threads:
        warnings.append(
            f"the bundle was measured with {setting.threads} threads, not {threads}: "
            f"the times are those of {setting.threads} threads"
        )
    if is_at_hand(platform.device):
        try:
            differences = this_platform(platform.device).differences(platform)
        except ResperfError as error:
            return (*warnings, f"this machine cannot be compared with the bundle's: {error}")
        installed = installed_version(platform.device, setting.framework) if versions else None
        here = replace(setting, framework_version=installed or setting.framework_version)
        differences += here.differences(setting)
        if differences:
            first, *others = differences
            also = ", ".join(other.partition(":")[0].replace("_", " ") for other in others)
            warnings.append(
                "times here will differ: the bundle was measured on another machine or version "
                f"({first}{also and f'; also {also}'})"
            )
    return tuple(warnings)
