"""Published facts of devices by name, and lower bounds of times that follow from them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from resperf import targets
from resperf.devices.estimate import estimated_layer_ms, estimated_ms, lower_bound_ms
from resperf.devices.facts import FP32, UNIFIED, DeviceFacts, facts_of, read_device
from resperf.errors import ResperfError, UnsupportedError
from resperf.limits import read_toml

__all__ = [
    "FP32", "UNIFIED", "DeviceFacts", "add_device", "canonical_device", "device_class",
    "device_facts", "devices", "estimated_layer_ms", "estimated_ms", "is_at_hand",
    "lower_bound_ms", "names_like", "read_device", "target_of",
]  # fmt: skip


_FILE = Path(__file__).with_name("devices.toml")
_added: dict[str, DeviceFacts] = {}
_NEAR, _MOST_NEAR = 0.5, 4


def add_device(facts: DeviceFacts) -> DeviceFacts:
    """Add a user's own card to this process, by which predictors find it from then on.

    It replaces one of the same table that was added before.

    Raises
    ------
    ResperfError
        If one of its names is another device's.
    """
    for name in (facts.device, facts.name, *facts.aliases):
        existing = device_facts(name)
        replaced = facts.device in _added and existing is _added[facts.device]
        if existing is not None and existing != facts and not replaced:
            raise ResperfError(f"{name!r} is {existing.name} already; give the device another name")
    _added[facts.device] = facts
    for cached in (devices, device_facts, _names):
        cached.cache_clear()
    return facts


def names_like(word: str) -> list[str]:
    """Return the names of devices that are spelt like a word, the nearest first."""
    names = {_plain(device): device for device in devices()}
    near = difflib.get_close_matches(_plain(word), names, _MOST_NEAR, _NEAR)
    return [names[name] for name in near]


@cache
def _tables() -> Mapping[str, Any]:
    """Read ``devices.toml``, whose facts are checked device by device, when they are asked for."""
    return read_toml(_FILE, ResperfError)


@cache
def devices() -> Mapping[str, DeviceFacts]:
    """Return the table ``devices.toml``, and what was added: device -> its facts."""
    return {name: facts for name in {**_tables(), **_added} if (facts := device_facts(name))}


def canonical_device(name: str) -> str:
    """Return the canonical name of a device: ``"GeForce GTX 1080 Ti"`` becomes ``"1080ti"``.

    An unknown name is returned unchanged.
    """
    return _names().get(_plain(name), name)


@cache
def device_facts(name: str) -> DeviceFacts | None:
    """Return the facts of a device by any of its names; None if it is not in the table."""
    device = canonical_device(name)
    if device != name:
        return device_facts(device)
    if device in _added or device not in _tables():
        return _added.get(device)
    return facts_of(device, _tables()[device], _FILE.name)


def known_facts(name: str) -> DeviceFacts:
    """Return the facts of a device by any of its names.

    Raises
    ------
    UnsupportedError
        If it is not in the table.
    """
    facts = device_facts(name)
    if facts is None:
        raise UnsupportedError(
            f"the data sheet of {name!r} is not known; add its facts as in docs/importing.md"
        )
    return facts


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
    return targets.fallback_target(framework, device_class(device, framework))


def is_at_hand(name: str) -> bool:
    """Whether a name means the local device, like ``"cpu"`` and unlike ``"1080ti"``."""
    return device_facts(name) is None and bool(targets.local_class(name))


@cache
def _names() -> Mapping[str, str]:
    names = {
        device: (values.get("name", device), *values.get("aliases", ()))
        for device, values in _tables().items()
    }
    names |= {device: (facts.name, *facts.aliases) for device, facts in _added.items()}
    return {_plain(name): device for device, own in names.items() for name in (device, *own)}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
