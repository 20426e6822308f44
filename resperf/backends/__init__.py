"""Backends: one file per framework; `resperf.targets` names them, and none is loaded early."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable

from resperf import targets
from resperf.backends._base import Backend, Built, Phase, Shapes
from resperf.errors import ResperfError

__all__ = ["Backend", "Built", "Phase", "Shapes", "backend", "known_settings"]


def backend(framework: str, device_class: str | None = None, /, **settings: object) -> Backend:
    """Start the backend of a target.

    Parameters
    ----------
    framework : str
    device_class : str, optional
        The framework's first with a backend by default.
    **settings
        Passed on, such as ``threads=2``. A backend that takes a ``device`` gets the class of the
        target, such as ``"cuda"``, where none is given.

    Raises
    ------
    ResperfError
        If there is no such target, or a setting that it does not have.
    MissingExtraError
        If its package is not installed.
    """
    # Before the framework starts CUDA, and without meaning elsewhere: GPUs are numbered as by NVML.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    row = targets.target(framework, device_class)
    factory = row.load("backend")
    if "device" in known_settings(row, settings):
        settings = {"device": row.device_class, **settings}
    try:
        started: Backend = factory(**settings)
    except TypeError as error:
        raise ResperfError(f"framework {framework}: {error}") from error
    return started


def known_settings(row: targets.Target, settings: Iterable[str]) -> Collection[str]:
    """Return all settings of a target's backend.

    Raises
    ------
    ResperfError
        If one of these is none; if the backend cannot be imported, as `Target.load`.
    """
    parameters = inspect.signature(row.load("backend")).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else [name for name in settings if name not in parameters]
    if unknown:
        raise ResperfError(
            f"framework {row.framework} on {row.device_class} has no setting "
            f"{', '.join(map(repr, unknown))}; it has: {', '.join(parameters)}"
        )
    return parameters
