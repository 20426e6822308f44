"""Facts of one device: their form in TOML, and what values they may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resperf import targets
from resperf.errors import ResperfError
from resperf.limits import read_toml

FP32 = "fp32"
PEAK = "peak_tflops"


@dataclass(frozen=True)
class Fact:
    """A number in a device's table: its unit, and the range that is plausible.

    Attributes
    ----------
    unit : str
    low, high : float
        Smallest and largest plausible value.
    needed : str
        ``"always"``, ``"of accelerators"``, or empty if it may be missing.
    """

    unit: str
    low: float
    high: float
    needed: str = ""


_ALWAYS, _ACCELERATORS = "always", "of accelerators"
PEAKS: Mapping[str, Fact] = {
    FP32: Fact("TFLOP/s", 0.01, 500, _ALWAYS),
    "fp32_matrix": Fact("TFLOP/s", 0.1, 2000),
    "tf32": Fact("TFLOP/s", 0.1, 5000),
    "fp16": Fact("TFLOP/s", 0.01, 20000),
    "bf16": Fact("TFLOP/s", 0.01, 20000),
    "int8": Fact("TOP/s", 0.01, 40000),
}
"""Type of value -> its peak, under ``peak_tflops``."""
FACTS: Mapping[str, Fact] = {
    "bandwidth_gb_s": Fact("GB/s", 5, 30000, _ALWAYS),
    "memory_gib": Fact("GiB", 0.5, 2000, _ALWAYS),
    "cache_mib": Fact("MiB", 0.1, 2000, _ALWAYS),
    "multiprocessors": Fact("", 1, 1000, _ACCELERATORS),
    "boost_mhz": Fact("MHz", 200, 10000, _ACCELERATORS),
    "board_w": Fact("W", 1, 3000, _ACCELERATORS),
    "process_nm": Fact("nm", 1, 100, _ACCELERATORS),
    "cores_per_multiprocessor": Fact("", 1, 1024),
    "memory_bus_bits": Fact("bits", 16, 32768),
    "memory_gbit_s_per_pin": Fact("Gbit/s", 0.1, 100),
    "bus_gb_s": Fact("GB/s", 0.1, 2000),
}
"""Other numbers of a device."""
_WORDS = ("name", "class", "aliases", "compute_capability", "bus", "sources")
_FIT = 0.05
"""Share by which a peak may differ from what cores and clock give, and a bandwidth from its bus."""


@dataclass(frozen=True)
class DeviceFacts:
    """Published limits of a device. Numbers that are not known are NaN.

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
    peaks_flops_per_s : mapping of str to float
        Type of value (`PEAKS`) -> operations per second, a multiply-accumulate counting as two.
    bandwidth_bytes_per_s : float
        Of the device's own memory.
    memory_bytes, cache_bytes : int
        Memory of one device, and its last-level cache.
    bus : str
        Between host and device; empty for a CPU.
    bus_bytes_per_s : float
        One direction.
    multiprocessors, cores_per_multiprocessor, boost_mhz, board_w, process_nm : float
        As in ``devices.toml``.
    memory_bus_bits, memory_gbit_s_per_pin : float
        What the bandwidth follows from.
    compute_capability : str
        Such as ``"8.6"`` or ``"gfx90a"``; empty if unknown.
    sources : tuple of str
        Sources of the figures.
    """

    device: str
    name: str
    aliases: tuple[str, ...]
    device_class: str
    peaks_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: int
    cache_bytes: int
    bus: str = ""
    bus_bytes_per_s: float = math.nan
    multiprocessors: float = math.nan
    cores_per_multiprocessor: float = math.nan
    boost_mhz: float = math.nan
    board_w: float = math.nan
    process_nm: float = math.nan
    memory_bus_bits: float = math.nan
    memory_gbit_s_per_pin: float = math.nan
    compute_capability: str = ""
    sources: tuple[str, ...] = ()

    @property
    def peak_flops_per_s(self) -> float:
        """Peak in float32, without tensor or matrix cores."""
        return self.peaks_flops_per_s[FP32]


def read_device(path: Path) -> DeviceFacts:
    """Read a user's own card: a TOML file with one table of the form of ``devices.toml``.

    Raises
    ------
    ResperfError
        If it cannot be read, or a fact is missing, unknown or not plausible.
    """
    tables = read_toml(path, ResperfError)
    if len(tables) != 1 or not isinstance(next(iter(tables.values())), dict):
        raise ResperfError(
            f"{path} needs one table with the facts of one device, such as [mycard]; "
            f"it has {', '.join(tables) or 'none'}"
        )
    ((device, values),) = tables.items()
    facts = facts_of(device, values, str(path))
    known = sorted({row.device_class for row in targets.targets()})
    if facts.device_class not in known:
        raise ResperfError(
            f"{path}: class = {facts.device_class!r}; it must be one of {', '.join(known)}"
        )
    return facts


def facts_of(device: str, values: Mapping[str, Any], where: str) -> DeviceFacts:
    """Make the facts of a device from its table.

    Parameters
    ----------
    device : str
        Name of the table.
    values : mapping
        Parsed TOML.
    where : str
        Named in errors.

    Raises
    ------
    ResperfError
        If a fact is missing, unknown or not plausible; the message names it.
    """
    unknown = sorted(set(values) - {*_WORDS, PEAK, *FACTS})
    if unknown:
        known = ", ".join((*_WORDS, PEAK, *FACTS))
        raise ResperfError(f"{where}: no fact {unknown[0]!r} of a device; known: {known}")
    device_class = _text(values, "class", where)
    if not device_class:
        raise ResperfError(f'{where}: class is missing, such as class = "cuda"')
    peaks = values.get(PEAK, {})
    if not isinstance(peaks, dict):
        raise ResperfError(f"{where}: {PEAK} must be a table such as {{ fp32 = 35.6, fp16 = 71 }}")
    unknown = sorted(set(peaks) - set(PEAKS))
    if unknown:
        raise ResperfError(f"{where}: no type {unknown[0]!r} in {PEAK}; known: {', '.join(PEAKS)}")
    tflops = {
        name: _number(peaks, name, fact, device_class, f"{where}: {PEAK}.{name}")
        for name, fact in PEAKS.items()
    }
    found = {
        name: _number(values, name, fact, device_class, f"{where}: {name}")
        for name, fact in FACTS.items()
    }
    _refuse_contradictions({**found, PEAK: tflops[FP32]}, where)
    return DeviceFacts(
        device=device,
        name=_text(values, "name", where) or device,
        aliases=_texts(values, "aliases", where),
        device_class=device_class,
        peaks_flops_per_s={k: each * 1e12 for k, each in tflops.items() if not math.isnan(each)},
        bandwidth_bytes_per_s=found.pop("bandwidth_gb_s") * 1e9,
        memory_bytes=round(found.pop("memory_gib") * 2**30),
        cache_bytes=round(found.pop("cache_mib") * 2**20),
        bus=_text(values, "bus", where),
        bus_bytes_per_s=found.pop("bus_gb_s") * 1e9,
        compute_capability=_text(values, "compute_capability", where),
        sources=_texts(values, "sources", where),
        **found,
    )


def _text(values: Mapping[str, Any], name: str, where: str) -> str:
    found = values.get(name, "")
    if not isinstance(found, str):
        raise ResperfError(f"{where}: {name} = {found!r} is not text")
    return found


def _texts(values: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ResperfError(f"{where}: {name} = {found!r} is not a list of texts")
    return tuple(found)


def _number(
    values: Mapping[str, Any], name: str, fact: Fact, device_class: str, where: str
) -> float:
    """Return a number; NaN if it is missing and this class of device does not need it."""
    plausible = f"between {fact.low:g} and {fact.high:g} {fact.unit}".rstrip()
    if name not in values:
        host = device_class == targets.DEFAULT.device_class
        if fact.needed == _ALWAYS or (fact.needed and not host):
            raise ResperfError(f"{where} is missing; it is plausible {plausible}")
        return math.nan
    found = values[name]
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ResperfError(f"{where} = {found!r} is not a number; it is plausible {plausible}")
    if not fact.low <= found <= fact.high:
        raise ResperfError(f"{where} = {found:g} is not plausible: it must be {plausible}")
    return float(found)


def _refuse_contradictions(found: Mapping[str, float], where: str) -> None:
    """Compare the peak with cores and clock, and the bandwidth with the memory's bus."""
    cores = found["multiprocessors"] * found["cores_per_multiprocessor"]
    expected = {
        PEAK: (cores * 2 * found["boost_mhz"] / 1e6, "multiprocessors, cores and clock", "fp32"),
        "bandwidth_gb_s": (
            found["memory_bus_bits"] * found["memory_gbit_s_per_pin"] / 8, "bus and rate of the "
            "memory", "",
        ),
    }  # fmt: skip
    for name, (value, origin, part) in expected.items():
        if abs(found[name] - value) > _FIT * value:
            fact = f"{name}.{part}" if part else name
            raise ResperfError(
                f"{where}: {fact} = {found[name]:g} contradicts {origin}, which give {value:.4g}; "
                "correct one of them"
            )
