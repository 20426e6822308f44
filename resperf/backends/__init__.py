"""Backends: one file per framework; `resperf.targets` names them, and none is loaded early."""

from __future__ import annotations

import os

from resperf import targets
from resperf.backends._base import Backend, Built, Phase
from resperf.errors import ResperfError

__all__ = ["Backend", "Built", "Phase", "backend"]


def backend(framework: str, device_class: str | None = None, /, **settings: object) -> Backend:
    """Start the backend of a target.

    Parameters
    ----------
    framework : str
    device_class : str, optional
        The framework's first with a backend by default.
    **settings
        Passed on, such as ``threads=2``.

    Raises
    ------
    ResperfError
        If there is no such target, or a setting that it does not have.
    MissingExtraError
        If its package is not installed.
    """
    # Before the framework starts CUDA, and without meaning elsewhere: GPUs are numbered as by NVML.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    factory = targets.target(framework, device_class).load("backend")
    try:
        started: Backend = factory(**settings)
    except TypeError as error:
        raise ResperfError(f"framework {framework}: {error}") from error
    return started
