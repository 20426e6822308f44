"""The platform: the machine that a subject runs on, as one value, and differences of machines."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from resperf.records import Record, hash_of_fields
from resperf.settings import Setting
from resperf.targets import local_devices
from resperf.units import format_bytes

UNNAMED_HYPERVISOR = "unknown"
"""A hypervisor whose name the system does not report."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class CpuFacts:
    """Identity of a processor, as far as the system reports it.

    Attributes
    ----------
    name : str
        Marketing name; empty if unknown.
    flags : frozenset of str
        Features, such as ``"avx2"``.
    family, model, stepping : int or None
        Of x86 processors; None elsewhere.
    caches : mapping of str to int
        Name (``"L1d"``, ``"L3"``) of each cache of the first core -> bytes, nearest first; empty if
        unknown.
    hypervisor : str
        Such as ``"QEMU"``; `UNNAMED_HYPERVISOR` if its name is unknown, empty if there is none.
    """

    name: str = ""
    flags: frozenset[str] = frozenset()
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    caches: Mapping[str, int] = field(default_factory=dict)
    hypervisor: str = ""


@cache
def cpu_facts(root: Path = Path("/")) -> CpuFacts:
    """Read the facts of this machine's processor; unreadable facts are absent.

    Parameters
    ----------
    root : Path
        Folder that holds ``proc`` and ``sys``.
    """
    first, _, _ = _text(root / "proc/cpuinfo").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    info = {label.strip(): value.strip() for label, _, value in pairs}
    flags = info.get("flags") or info.get("Features", "")
    caches = []
    for index in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = _number(_text(index / "level")), _text(index / "size")
        number, kind = _number(size.rstrip("KMG")), _text(index / "type").lower()
        if level is not None and number is not None:
            letter = "" if kind == "unified" else kind[:1]
            caches.append((f"L{level}{letter}", number * _UNITS.get(size[-1], 1)))
    hypervisor = _text(root / "sys/hypervisor/type")
    if not hypervisor and "hypervisor" in flags.split():
        # In a guest, the vendor of the board is the hypervisor's.
        hypervisor = _text(root / "sys/class/dmi/id/sys_vendor") or UNNAMED_HYPERVISOR
    return CpuFacts(
        name=info.get("model name", ""),
        flags=frozenset(flags.split()),
        family=_number(info.get("cpu family", "")),
        model=_number(info.get("model", "")),
        stepping=_number(info.get("stepping", "")),
        caches=dict(sorted(caches)),
        hypervisor=hypervisor,
    )


def clock_governors(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the distinct governors of the processors' clocks; empty if none is reported."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({word for word in map(_text, files) if word}))


def container_cores(root: Path = Path("/")) -> float | None:
    """Return how many cores' time the container may use; None without such a limit."""
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    quota_us, period_us = _number(quota), _number(period)
    return quota_us / period_us if quota_us and period_us else None


def container_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory the container may use; None without such a limit."""
    return _number(_text(root / "sys/fs/cgroup/memory.max"))


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory programs can still get; None where the system does not tell."""
    lines = _text(root / "proc/meminfo").splitlines()
    sizes_kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(size_kib) << 10 for size_kib in sizes_kib), None)


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


_INSTRUCTION_SETS = ("avx512f", "avx2", "avx", "sse4_2", "asimd")
_INSTRUCTION_EXTRAS = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "avx_vnni", "sve")
_GIBIBYTE = 1 << 30
CHECK_PREFIX = "check_"
"""Prefix of speed checks among a dataset's machine costs."""
SPEED_TOLERANCE = 0.1
"""Machines whose machine checks differ by less than this share count as equally fast."""

OVERSUBSCRIBED = "oversubscribed"
"""What `Platform.interconnect` says of more processes and threads than cores."""


@dataclass(frozen=True)
class Accelerator(Record):
    """One accelerator of a machine; unknown values are empty or 0.

    Attributes
    ----------
    name : str
        Such as ``"NVIDIA H100 80GB HBM3"``.
    memory_bytes : int
    driver : str
        Driver version.
    clock_mhz, memory_clock_mhz : int
        Maximum clocks.
    power_limit_w : int
    compute_capability : str
        ``"9.0"``.
    uuid_hash : str
        Equal for the same card only.
    cuda : str
        Newest CUDA version that the driver supports.
    ecc, mig : str
        Whether memory is error-corrected, and the card divided: ``"on"`` or ``"off"``.
    pcie : str
        Best link of card and slot: ``"PCIe 4.0 x16"``.
    """

    name: str
    memory_bytes: int = 0
    driver: str = ""
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    power_limit_w: int = 0
    compute_capability: str = ""
    uuid_hash: str = ""
    cuda: str = ""
    ecc: str = ""
    mig: str = ""
    pcie: str = ""


@dataclass(frozen=True)
class Platform(Record):
    """Where a subject runs; unknown values are None, empty or 0.

    Attributes
    ----------
    device : str
        Name that users write after ``--device``, such as ``"cpu"`` or ``"1080ti"``.
    processor : str
        Marketing name of the processor.
    family, model, stepping : int or None
        Of the processor, as reported by the kernel: one marketing name may cover several.
    caches : mapping of str to int
        Name (``"L1d"``, ``"L2"``, ``"L3"``) -> bytes.
    hypervisor : str
        Vendor of the virtual machine's hypervisor.
    instruction_set : str
        Vector instructions, by which frameworks choose kernels: ``"avx512f+amx_tile"``.
    cores : int
        Cores that this process may use.
    memory_bytes : int
        Size of main memory, rounded to GiB so that reboots do not change it.
    system : str
        Operating system and kernel family.
    accelerators : tuple of Accelerator
    devices : int
        Number of machines or accelerators that share one run.
    interconnect : str
        Connection between them, with the number of hosts: ``"gloo on 1 host"``.
    machine_checks : mapping of str to float
        Results of short checks of its speed; names end in a unit: ``check_call_us``,
        ``check_copy_gb_per_s``.
    """

    device: str
    processor: str = ""
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    caches: Mapping[str, int] = field(default_factory=dict)
    hypervisor: str = ""
    instruction_set: str = ""
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    accelerators: tuple[Accelerator, ...] = ()
    devices: int = 1
    interconnect: str = ""
    machine_checks: Mapping[str, float] = field(default_factory=dict)

    __hash__ = hash_of_fields

    @property
    def machine(self) -> str:
        """Processor and cores, as far as known: ``"AMD EPYC, 2 cores"``."""
        cores = f"{self.cores} core{'s' * (self.cores > 1)}" if self.cores else ""
        return ", ".join(filter(None, (self.processor, cores)))

    def with_machine_checks(self, costs: Mapping[str, float]) -> Platform:
        """Return this platform with the speed checks among a dataset's machine costs."""
        return dataclasses.replace(
            self,
            machine_checks={
                name: value for name, value in costs.items() if name.startswith(CHECK_PREFIX)
            },
        )

    def differences(self, other: Platform) -> list[str]:
        """Return the differences of two platforms and their effect on times.

        One phrase each, most important first. Facts that one side does not know are not compared.
        """
        device = [f"device: {self.device} here, {other.device} there"]
        return (device if self.device != other.device else []) + self.hardware_differences(other)

    @property
    def kind(self) -> Platform:
        """The same platform without what tells one card from another of its kind."""
        cards = tuple(dataclasses.replace(card, uuid_hash="") for card in self.accelerators)
        return dataclasses.replace(self, accelerators=cards)

    @property
    def is_processor(self) -> bool:
        """Whether it computes on cores of its own; platforms of imported times name none."""
        return self.cores > 0 and not self.accelerators

    def hardware_differences(self, other: Platform) -> list[str]:
        """Return the `differences` without the name of the device, which a user may choose."""
        phrases = []
        ours, others = self.accelerators, other.accelerators
        if len(ours) != len(others) or any(map(_facts_that_differ, ours, others)):
            phrases.append(
                f"accelerators: {_words_of(ours, others)} here, {_words_of(others, ours)} there, "
                "another device, driver or clock: all times may differ"
            )
        for name, effect in (_WITH_ACCELERATORS if ours or others else _ON_CPU).items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if not _both_known(mine, theirs):
                continue
            # The memory of virtual machines varies a little.
            if name == "memory_bytes" and abs(mine - theirs) <= 0.1 * max(mine, theirs):
                continue
            if name in ("family", "model") and self.processor == other.processor:
                effect = "another generation under the same processor name"
            if isinstance(mine, Mapping):
                unlike = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
                mine, theirs = (
                    ", ".join(f"{name} {format_bytes(own[name])}" for name in own if name in unlike)
                    for own in (mine, theirs)
                )
            if any(phrase.endswith(f", {effect}") for phrase in phrases):
                effect = ""  # Said once.
            phrases.append(f"{name}: {mine} here, {theirs} there{', ' * bool(effect)}{effect}")
        return phrases + self.speed_differences(other)

    def same_hardware(self, other: Platform) -> bool:
        """Whether both are hardware of the same known description."""
        return bool(other.processor) and not self.hardware_differences(other)

    def speed_differences(self, other: Platform) -> list[str]:
        """Say which checks of speed differ by more than a tenth, among those that both know."""
        phrases = []
        for name in sorted(self.machine_checks.keys() & other.machine_checks.keys()):
            mine, theirs = self.machine_checks[name], other.machine_checks[name]
            is_time = "_per_" not in name and name.endswith(("_ms", "_us", "_s"))
            faster = theirs / mine if is_time else mine / theirs
            if not 1 / (1 + SPEED_TOLERANCE) <= faster <= 1 + SPEED_TOLERANCE:
                word, times = ("faster", faster) if faster > 1 else ("slower", 1 / faster)
                phrases.append(
                    f"{name}: {mine:.3g} here, {theirs:.3g} there, this machine is "
                    f"{times:.2f} times {word}"
                )
        return phrases


def alike(platforms: Sequence[Platform]) -> list[int]:
    """Return for each platform the index of the first one from which it does not differ."""
    return [
        next(index for index, other in enumerate(platforms) if not other.differences(mine))
        for mine in platforms
    ]


def _both_known(mine: Any, theirs: Any) -> bool:
    """Whether two values differ and both are known."""
    unknown: tuple[Any, ...] = (None, "", 0, {}, (), UNNAMED_HYPERVISOR)
    return mine != theirs and mine not in unknown and theirs not in unknown


def _facts_that_differ(one: Accelerator, other: Accelerator) -> list[str]:
    names = (f.name for f in dataclasses.fields(Accelerator))
    return [name for name in names if _both_known(getattr(one, name), getattr(other, name))]


_TRANSFERS = "times of transfers between devices may differ"

_ON_CPU: Mapping[str, str] = {
    "processor": "",
    "family": "another processor generation",
    "model": "another processor generation",
    "stepping": "times usually agree",
    "caches": "times of layers that fit only one of them may differ",
    "hypervisor": "times may differ a little",
    "instruction_set": "",
    "cores": "",
    "memory_bytes": "",
    "system": "",
    "devices": "",
    "interconnect": _TRANSFERS,
}
"""Facts that affect times on a CPU -> their effect, if it is known."""

_WITH_ACCELERATORS: Mapping[str, str] = {
    "devices": "",
    "interconnect": _TRANSFERS,
    "processor": "preprocess, postprocess and launch times may differ",
    "cores": "preprocess, postprocess and launch times may differ",
    "memory_bytes": "",
    "system": "",
}
"""Facts that affect times on accelerators, beside those of the accelerators."""


def _words_of(mine: tuple[Accelerator, ...], others: tuple[Accelerator, ...]) -> str:
    """Describe accelerators by what they do not share with as many others, else by all facts."""
    words = []
    for index, accelerator in enumerate(mine):
        facts = dataclasses.asdict(accelerator)
        if len(mine) == len(others):
            facts = {name: facts[name] for name in _facts_that_differ(accelerator, others[index])}
        shown = (f"{name}={value}" for name, value in facts.items() if value and name != "name")
        words.append(" ".join([accelerator.name, *shown]))
    return " and ".join(words) or "none"


def _processor() -> str:
    return cpu_facts().name or platform.processor() or platform.machine()


def instruction_set() -> str:
    """Return the vector instructions of this processor, widest first."""
    flags = cpu_facts().flags
    base = next((name for name in _INSTRUCTION_SETS if name in flags), platform.machine())
    return "+".join([base, *(extra for extra in _INSTRUCTION_EXTRAS if extra in flags)])


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_platform(device: str) -> Platform:
    """Return this machine as the platform of a device.

    Parameters
    ----------
    device : str
        Any name. One that means an accelerator of this machine, such as ``"cuda:0"``, is looked
        up: the platform has its facts and its usual name, such as ``"rtx4090"``.

    Raises
    ------
    MissingExtraError, ResperfError
        If an accelerator cannot be looked up (`resperf.nvml.Gpu`).
    """
    accelerators: tuple[Accelerator, ...] = ()
    if look_up := local_devices(device):
        device, accelerator = look_up(device)
        accelerators = (accelerator,)
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0  # not on Windows
    memory_bytes = pages and pages * os.sysconf("SC_PAGE_SIZE")
    facts = cpu_facts()
    return Platform(
        device=device,
        processor=_processor(),
        family=facts.family,
        model=facts.model,
        stepping=facts.stepping,
        caches=facts.caches,
        hypervisor=facts.hypervisor,
        instruction_set=instruction_set(),
        cores=usable_cores(),
        memory_bytes=round(memory_bytes / _GIBIBYTE) * _GIBIBYTE,
        system=platform.system(),
        accelerators=accelerators,
    )


def distance(setting: Setting, other: Platform) -> tuple[int, ...]:
    """Return a sort key: the fingerprint distance of a platform from this machine.

    Facts with the largest effect on times come first: cores and threads, vector width, the
    processor's name and generation, and the number of instruction sets that only one has.
    """
    base, *extras = other.instruction_set.split("+")
    own_base, *own_extras = instruction_set().split("+")
    return (
        other.cores != usable_cores(),
        setting.threads != other.cores,
        base != own_base,
        other.processor != _processor(),
        _both_known(other.model, cpu_facts().model),
        len(set(extras) ^ set(own_extras)),
    )
