"""Monitors: they watch a device while something is measured; one file per device class."""

from __future__ import annotations

from resperf.backends.monitors._base import REFERENCE, REFERENCE_COST, Monitor, Reading
from resperf.targets import Target

__all__ = ["REFERENCE", "REFERENCE_COST", "Monitor", "Reading", "load_monitor"]


def load_monitor(target: Target) -> Monitor:
    """Make the monitor of a target, not started; a plain `Monitor` if the target names none.

    Raises
    ------
    ResperfError
        If it cannot be imported.
    """
    if not target.monitor:
        return Monitor()
    monitor: Monitor = target.load("monitor")()
    return monitor
