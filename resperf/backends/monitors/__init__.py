"""Monitors: they watch a device while something is measured; one file per device class."""

from __future__ import annotations

from resperf.backends.monitors._base import REFERENCE_COST, Monitor, Reading
from resperf.targets import Target

__all__ = ["REFERENCE_COST", "Monitor", "Reading", "load_monitor"]


def load_monitor(target: Target, device: str = "") -> Monitor:
    """Make the monitor of a target, not started; a plain `Monitor` if the target names none.

    Parameters
    ----------
    target : Target
    device : str
        Word of the local device, such as ``"cuda:1"``; the backend's own if it is empty.

    Raises
    ------
    ResperfError
        If it cannot be imported.
    """
    monitor: Monitor = target.load("monitor")() if target.monitor else Monitor()
    monitor.device = device
    return monitor
