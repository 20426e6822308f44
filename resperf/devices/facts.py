"""Facts of one device: their form in TOML, and what values they may have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from resperf import targets
from resperf.errors import ResperfError
from resperf.limits import Limit, Limited, limited, read_toml
from resperf.platform import Accelerator, Platform
from resperf.settings import PEAKS_OF
from resperf.units import MS_PER_S

FP32 = "fp32"
UNIFIED = "unified"
"""Bus of a device that computes in the host's memory: inputs and outputs are not copied."""
_OF_ACCELERATORS = ("multiprocessors", "boost_mhz", "board_w", "process_nm")
"""Facts that must be known of every device but a CPU."""
_AT_LEAST_FP32 = ("float32", "int8", "uint8")
"""Types that are as fast as float32 where a device has no units of their own."""
_FIT = 0.05
"""Share by which a peak may differ from what cores and clock give, and a bandwidth from its bus."""


def plausible(low: float, high: float, unit: str = "", default: Any = None) -> Any:
    """Return a field of a number within a plausible range, which may be missing by default."""
    words = f"plausible: between {low:g} and {high:g} {unit}".rstrip()
    return limited(default, Limit(words, lambda value: low <= value <= high))


def ideal_ms(work: float, rate_per_s: float) -> float:
    """Return the time of operations at a peak, or of bytes at a bandwidth, in milliseconds."""
    return work / rate_per_s * MS_PER_S


@dataclass(frozen=True)
class Peaks(Limited):
    """The table ``peak_tflops``: type of value -> its peak, in TFLOP/s."""

    fp32: float = plausible(0.01, 500, "TFLOP/s", MISSING)
    fp32_matrix: float | None = plausible(0.1, 2000, "TFLOP/s")
    tf32: float | None = plausible(0.1, 5000, "TFLOP/s")
    fp16: float | None = plausible(0.01, 20000, "TFLOP/s")
    bf16: float | None = plausible(0.01, 20000, "TFLOP/s")
    fp64: float | None = plausible(0.001, 500, "TFLOP/s")
    int8: float | None = plausible(0.01, 40000, "TOP/s")


@dataclass(frozen=True, kw_only=True)
class _Device:
    """What is the same in a table and in the facts read from it. Unknown numbers are NaN.

    Attributes
    ----------
    name : str
        The maker's name.
    aliases : tuple of str
        Other names; case, spaces and punctuation are ignored.
    device_class : str
        Class of its targets (`resperf.targets`).
    multiprocessors, cores_per_multiprocessor, boost_mhz, board_w, process_nm : float
        As in ``devices.toml``.
    memory_bus_bits, memory_gbit_s_per_pin : float
        What the bandwidth follows from.
    bus : str
        Between host and device, or `UNIFIED`; empty for a CPU.
    bus_gb_s : float
        One direction.
    compute_capability : str
        Such as ``"8.6"`` or ``"gfx90a"``; empty if unknown.
    sources : tuple of str
        Sources of the figures.
    """

    device_class: str
    multiprocessors: float = plausible(1, 1000, default=math.nan)
    boost_mhz: float = plausible(200, 10000, "MHz", math.nan)
    board_w: float = plausible(1, 3000, "W", math.nan)
    process_nm: float = plausible(1, 100, "nm", math.nan)
    cores_per_multiprocessor: float = plausible(1, 1024, default=math.nan)
    memory_bus_bits: float = plausible(16, 32768, "bits", math.nan)
    memory_gbit_s_per_pin: float = plausible(0.1, 100, "Gbit/s", math.nan)
    bus_gb_s: float = plausible(0.1, 2000, "GB/s", math.nan)
    name: str = ""
    aliases: tuple[str, ...] = ()
    compute_capability: str = ""
    bus: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeviceTable(Limited, _Device):
    """The table of a device; ``devices.toml`` says what the words mean.

    Raises
    ------
    ResperfError
        If a fact is not plausible, is missing and needed of accelerators, or contradicts others.
    """

    peak_tflops: Peaks
    bandwidth_gb_s: float = plausible(5, 30000, "GB/s", MISSING)
    memory_gib: float = plausible(0.5, 2000, "GiB", MISSING)
    cache_mib: float = plausible(0.1, 2000, "MiB", MISSING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bus.casefold() == UNIFIED and not math.isnan(self.bus_gb_s):
            raise ResperfError(f'bus = "{UNIFIED}" says that nothing is copied; leave out bus_gb_s')
        cores = self.multiprocessors * self.cores_per_multiprocessor
        pins_gb_s = self.memory_bus_bits * self.memory_gbit_s_per_pin / 8
        for fact, given, value, origin in (
            ("peak_tflops.fp32", self.peak_tflops.fp32, cores * 2 * self.boost_mhz / 1e6,
             "multiprocessors, cores and clock"),
            ("bandwidth_gb_s", self.bandwidth_gb_s, pins_gb_s, "bus and rate of the memory"),
        ):  # fmt: skip
            if abs(given - value) > _FIT * value:
                raise ResperfError(
                    f"{fact}={given:g} contradicts {origin}, which give {value:.4g}; "
                    "correct one of them"
                )


@dataclass(frozen=True, kw_only=True)
class DeviceFacts(_Device):
    """Published limits of a device.

    Attributes
    ----------
    device : str
        Name that users write after ``--device``.
    peaks_flops_per_s : mapping of str to float
        Type of value (`Peaks`) -> operations per second, a multiply-accumulate counting as two.
    bandwidth_bytes_per_s : float
        Of the device's own memory.
    memory_bytes, cache_bytes : int
        Memory of one device, and its last-level cache.
    """

    device: str
    peaks_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: int
    cache_bytes: int

    @property
    def platform(self) -> Platform:
        """The platform of a device of which only the data sheet is known."""
        card = Accelerator(self.name, self.memory_bytes, compute_capability=self.compute_capability)
        return Platform(self.device, processor=self.name, accelerators=(card,))

    @property
    def limits(self) -> dict[str, Any]:
        """What a plot of times beside the device's limits needs, as plain JSON values."""
        names = ("peaks_flops_per_s", "bandwidth_bytes_per_s", "memory_bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes per second between host and device, in one direction."""
        return self.bus_gb_s * 1e9

    def peak_of(self, dtype: str) -> float:
        """Return the peak that frameworks use for a type of values without being asked to.

        NaN for products of a type that the device has no units for, or whose peak is not published.
        """
        usual = PEAKS_OF.get(dtype, (dtype,))[0]
        otherwise = self.peaks_flops_per_s[FP32] if dtype in _AT_LEAST_FP32 else math.nan
        return self.peaks_flops_per_s.get(usual, otherwise)

    def largest_peak_of(self, dtype: str) -> float:
        """Return the largest peak at which a type of values may be computed."""
        if dtype == "float64" and not math.isnan(self.peak_of(dtype)):
            return self.peak_of(dtype)
        names = (FP32, *PEAKS_OF.get(dtype, self.peaks_flops_per_s))
        return max(self.peaks_flops_per_s.get(name, 0.0) for name in names)

    def moving_ms(self, moved_bytes: float) -> float:
        """Return the time of reading and writing bytes in the device's own memory."""
        return ideal_ms(moved_bytes, self.bandwidth_bytes_per_s)

    def least_moving_ms(self, moved_bytes: float) -> float:
        """Return that of the bytes that its last-level cache cannot hold."""
        return self.moving_ms(max(0.0, moved_bytes - self.cache_bytes))


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
    if not device.strip() or not device.isprintable():
        raise ResperfError(f"{path}: {device!r} cannot be the name of a device; write a word")
    facts = facts_of(device, values, str(path))
    classes = sorted({row.device_class for row in targets.targets()})
    if facts.device_class not in classes:
        raise ResperfError(
            f"{path}: class = {facts.device_class!r}; it must be one of {', '.join(classes)}"
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
    own = dict(values)
    device_class = own.pop("class", "")
    needed = () if device_class == targets.DEFAULT.device_class else _OF_ACCELERATORS
    needed = needed if device_class else ("class", *needed)
    try:
        table = DeviceTable.from_table(own, device, needed, device_class=device_class)
    except ResperfError as error:
        raise ResperfError(f"{where}: {error}") from error
    own = {field.name: getattr(table, field.name) for field in dataclasses.fields(_Device)}
    own["name"] = table.name or device
    own["bus"] = UNIFIED if table.bus.casefold() == UNIFIED else table.bus
    peaks = vars(table.peak_tflops)
    return DeviceFacts(
        device=device,
        peaks_flops_per_s={k: tflops * 1e12 for k, tflops in peaks.items() if tflops is not None},
        bandwidth_bytes_per_s=table.bandwidth_gb_s * 1e9,
        memory_bytes=round(table.memory_gib * 2**30),
        cache_bytes=round(table.cache_mib * 2**20),
        **own,
    )
