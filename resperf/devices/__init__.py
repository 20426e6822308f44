"""Published facts of devices by name: peak, bandwidth, memory, bus, aliases."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from resperf import targets
from resperf.layers import Layer
from resperf.units import MS_PER_S

__all__ = [
    "DeviceFacts", "canonical_device", "device_class", "device_facts", "devices", "is_at_hand",
    "lower_bound_ms", "target_of",
]  # fmt: skip


@dataclass(frozen=True)
class DeviceFacts:
    """Published limits of a device.

    Attributes
    ----------
    device : str
        Name that users write after ``--device``.
    name : str
        The maker's name.
    aliases : tuple of str
        Other names; case, spaces and punctuation are ignored.
    device_class : str
        Class of its targets (`resperf.targets`).
    peak_flops_per_s : float
        In float32, a multiply-accumulate counting as two.
    bandwidth_bytes_per_s : float
        Of the device's own memory.
    memory_bytes, cache_bytes : int
        Memory of one device, and its last-level cache.
    bus : str
        Between host and device; empty for a CPU.
    bus_bytes_per_s : float
        One direction; NaN for a CPU.
    source : str
        Source of the figures.
    """

    device: str
    name: str
    aliases: tuple[str, ...]
    device_class: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    memory_bytes: int
    cache_bytes: int
    bus: str
    bus_bytes_per_s: float
    source: str


@cache
def devices() -> Mapping[str, DeviceFacts]:
    """Return the table ``devices.toml``: device -> its facts."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    return {device: _facts(device, values) for device, values in tomllib.loads(text).items()}


def _facts(device: str, values: Mapping[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        device=device,
        name=values["name"],
        aliases=tuple(values["aliases"]),
        device_class=values["class"],
        peak_flops_per_s=values["peak_tflops"] * 1e12,
        bandwidth_bytes_per_s=values["bandwidth_gb_s"] * 1e9,
        memory_bytes=round(values["memory_gib"] * 2**30),
        cache_bytes=round(values["cache_mib"] * 2**20),
        bus=values["bus"],
        bus_bytes_per_s=values.get("bus_gb_s", math.nan) * 1e9,
        source=values["source"],
    )


def canonical_device(name: str) -> str:
    """Return the canonical name of a device: ``"GeForce GTX 1080 Ti"`` becomes ``"1080ti"``.

    An unknown name is returned unchanged.
    """
    return _names().get(_plain(name), name)


@cache
def device_facts(name: str) -> DeviceFacts | None:
    """Return the facts of a device by any of its names; None if it is not in the table."""
    return devices().get(canonical_device(name))


def device_class(name: str, framework: str | None = None) -> str:
    """Return the class of a device: of a known GPU, else the class in its name.

    Parameters
    ----------
    name : str
    framework : str, optional
        If it has a single device class, names without a class have that one.

    Returns
    -------
    str
        `resperf.targets.UNKNOWN` if the class cannot be determined.
    """
    facts = device_facts(name)
    return targets.device_class(name, framework) if facts is None else facts.device_class


def target_of(device: str, framework: str) -> targets.Target:
    """Return the target of a bundle or dataset, by the names in its fingerprint.

    Raises
    ------
    ResperfError
        If the framework has no target.
    """
    return targets.stand_in(framework, device_class(device, framework))


def is_at_hand(name: str) -> bool:
    """Whether a name means the local device, like ``"cpu"`` and unlike ``"1080ti"``."""
    return device_facts(name) is None and targets.is_at_hand(name)


@cache
def _names() -> Mapping[str, str]:
    return {
        _plain(name): device
        for device, facts in devices().items()
        for name in (device, facts.name, *facts.aliases)
    }


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def lower_bound_ms(layer: Layer, facts: DeviceFacts) -> float:
    """Return a lower bound of a layer's time on a device, in milliseconds.

    The larger of two times. Memory: each value is moved once, except those that the last-level
    cache may still hold. Compute: the operations at peak. Fast convolutions (Winograd, FFT) save at
    most a factor of the number of pixels in the window, so the operations are divided by it.
    """
    taps = getattr(layer, "kernel_height", 1) * getattr(layer, "kernel_width", 1)
    strides = getattr(layer, "stride_height", 1) * getattr(layer, "stride_width", 1)
    skipped_bytes = layer.input_bytes * max(0.0, 1 - taps / strides)
    moved_bytes = max(0.0, layer.moved_bytes - skipped_bytes - facts.cache_bytes)
    memory_ms = moved_bytes / facts.bandwidth_bytes_per_s * MS_PER_S
    return max(memory_ms, 2 * layer.macs / taps / facts.peak_flops_per_s * MS_PER_S)
