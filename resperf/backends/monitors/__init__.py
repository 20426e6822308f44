"""Monitors: what watches a class of devices while something is measured; one file per class."""

from __future__ import annotations

import importlib

from resperf.backends.monitors._base import REFERENCE, REFERENCE_COST, Monitor, Reading

__all__ = [
    "MONITORS", "REFERENCE", "REFERENCE_COST", "Monitor", "Reading", "load_monitor", "monitor_of",
]  # fmt: skip

_CPU = "resperf.backends.monitors.cpu:CpuMonitor"
MONITORS: dict[str, str] = {
    "onnxruntime": _CPU,
    "tensorflow": _CPU,
    "synthetic": "resperf.backends.monitors.synthetic:SyntheticMonitor",
}
"""Framework -> module:class of what watches the devices that it runs on."""


def monitor_of(framework: str) -> str:
    """Name what watches the devices of a framework: a plain `Monitor`, empty, unless it says."""
    return MONITORS.get(framework, "")


def load_monitor(name: str = "") -> Monitor:
    """Make a monitor that has not started yet.

    Parameters
    ----------
    name : str
        ``module:class``, as `monitor_of` says; a plain `Monitor` if empty.
    """
    if not name:
        return Monitor()
    module, _, made = name.partition(":")
    monitor: Monitor = getattr(importlib.import_module(module), made)()
    return monitor
