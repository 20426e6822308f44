"""The platform: the machine that a subject runs on, as one value, and what machines differ in."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from resperf.platform_facts import Cache, CpuFacts, cpu_facts
from resperf.settings import Setting

_INSTRUCTION_SETS = ("avx512f", "avx2", "avx", "sse4_2", "asimd")
_INSTRUCTION_EXTRAS = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "avx_vnni", "sve")
_GIBIBYTE = 1 << 30
PROBE = "probe_"
"""How the names of probes of a machine's speed begin, among a dataset's machine costs."""
PROBE_TOLERANCE = 0.1
"""Probes of two machines that differ by less than this share say that both are as fast."""


@dataclass(frozen=True)
class Accelerator:
    """One accelerator of a machine; what is not known is empty or 0.

    Attributes
    ----------
    name : str
        Such as ``"NVIDIA H100 80GB HBM3"``.
    memory_bytes : int
    driver : str
        Version of its driver.
    clock_mhz, memory_clock_mhz : int
        Highest clocks that it may run at.
    power_limit_w : int
    compute_capability : str
        ``"9.0"``.
    """

    name: str
    memory_bytes: int = 0
    driver: str = ""
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    power_limit_w: int = 0
    compute_capability: str = ""


@dataclass(frozen=True)
class Platform:
    """Where something runs; what is not known is None, empty or 0.

    Attributes
    ----------
    device : str
        Name that users write after ``--device``, such as ``"cpu"`` or ``"1080ti"``.
    processor : str
        Marketing name of the processor.
    family, model, stepping : int or None
        Of the processor, as the kernel tells them: one marketing name may stand for several.
    caches : mapping of str to int
        ``"L1d"``, ``"L2"``, ``"L3"`` ... to bytes.
    hypervisor : str
        Vendor of the virtual machine's hypervisor.
    instruction_set : str
        Vector instructions that frameworks choose their kernels by: ``"avx512f+amx_tile"``.
    cores : int
        Cores that this process may use.
    memory_bytes : int
        Size of main memory (rounded to GiB, so that reboots do not change it).
    system : str
        Operating system and kernel family.
    accelerators : tuple of Accelerator
    devices : int
        How many machines or accelerators share one run.
    interconnect : str
        What connects them.
    probes : mapping of str to float
        What short probes said of its speed, by names that end in a unit: ``probe_call_us``,
        ``probe_copy_gb_per_s``.
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
    probes: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash by what is compared; mappings by their items."""
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return hash(
            tuple(tuple(sorted(v.items())) if isinstance(v, Mapping) else v for v in values)
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "accelerators": [dataclasses.asdict(each) for each in self.accelerators],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; unknown fields of newer versions are ignored.

        Raises
        ------
        TypeError
            If a field is missing.
        """
        given = _known_fields(cls, values)
        given["accelerators"] = tuple(
            Accelerator(**_known_fields(Accelerator, each))
            for each in given.get("accelerators", ())
        )
        return cls(**given)

    @property
    def machine(self) -> str:
        """Processor and cores in words, as far as they are known: ``"AMD EPYC, 2 cores"``."""
        cores = f"{self.cores} core{'s' * (self.cores > 1)}" if self.cores else ""
        return ", ".join(filter(None, (self.processor, cores)))

    def with_probes(self, costs: Mapping[str, float]) -> Platform:
        """Return the same platform with the probes of its speed among a dataset's machine costs."""
        return dataclasses.replace(
            self, probes={name: value for name, value in costs.items() if name.startswith(PROBE)}
        )

    def differences(self, other: Platform) -> list[str]:
        """Say in what two platforms differ and what that does to times; empty where they agree.

        One phrase each, in the order of importance. What one side does not know is not compared.
        """
        device = [f"device: {self.device} here, {other.device} there"]
        return (device if self.device != other.device else []) + self.hardware_differences(other)

    def hardware_differences(self, other: Platform) -> list[str]:
        """As `differences`, besides the name of the device, which a user may choose."""
        rules = _ACCELERATED if self.accelerators or other.accelerators else _CPU
        phrases = []
        for name, rule in rules.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if rule.unlike(mine, theirs):
                effect = rule.effect
                if name in ("family", "model") and self.processor == other.processor:
                    effect = "another generation under the same processor name: times may differ"
                if name == "accelerators":
                    mine, theirs = _words_of(mine), _words_of(theirs)
                comma = ", " * bool(effect)
                phrases.append(f"{name}: {mine} here, {theirs} there{comma}{effect}")
        return phrases + self.speed_differences(other)

    def speed_differences(self, other: Platform) -> list[str]:
        """Say which probes of speed differ by more than a tenth, among those that both know."""
        phrases = []
        for name in sorted(self.probes.keys() & other.probes.keys()):
            mine, theirs = self.probes[name], other.probes[name]
            is_time = "_per_" not in name and name.endswith(("_ms", "_us", "_s"))
            faster = theirs / mine if is_time else mine / theirs
            if not 1 / (1 + PROBE_TOLERANCE) <= faster <= 1 + PROBE_TOLERANCE:
                word, times = ("faster", faster) if faster > 1 else ("slower", 1 / faster)
                phrases.append(
                    f"{name}: {mine:.3g} here, {theirs:.3g} there, this machine is "
                    f"{times:.2f} times {word}"
                )
        return phrases


def _known_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    known = {f.name for f in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in known}


@dataclass(frozen=True)
class _Rule:
    """When one fact of two platforms counts as another, and what that does to times."""

    effect: str = ""
    unlike: Callable[[Any, Any], bool] = lambda mine, theirs: mine != theirs


def _both_known(mine: Any, theirs: Any) -> bool:
    """Say whether two facts differ that both sides know."""
    unknown: tuple[Any, ...] = (None, "", 0, {}, ())
    return mine != theirs and mine not in unknown and theirs not in unknown


def _unlike_memory(mine: int, theirs: int) -> bool:
    """Memory within a tenth is the same: virtual machines give and take a little."""
    return abs(mine - theirs) > 0.1 * max(mine, theirs)


_CPU: Mapping[str, _Rule] = {
    "processor": _Rule(),
    "family": _Rule("another processor generation", _both_known),
    "model": _Rule("another processor generation", _both_known),
    "stepping": _Rule("times usually agree", _both_known),
    "caches": _Rule("layers that fit one of them only take other times", _both_known),
    "hypervisor": _Rule("times may differ a little", _both_known),
    "instruction_set": _Rule(),
    "cores": _Rule(),
    "memory_bytes": _Rule("", _unlike_memory),
    "system": _Rule(),
}
"""Facts that times on a CPU depend on."""

_ACCELERATED: Mapping[str, _Rule] = {
    "accelerators": _Rule("another device, driver or clock: all times may differ"),
    "devices": _Rule(),
    "interconnect": _Rule("exchanges between devices take other times", _both_known),
    "processor": _Rule("preprocess, postprocess and launches may take other times", _both_known),
    "cores": _Rule("preprocess, postprocess and launches may take other times", _both_known),
    "memory_bytes": _Rule("", _unlike_memory),
    "system": _Rule(),
}
"""Facts that times on accelerators depend on."""


def _words_of(accelerators: tuple[Accelerator, ...]) -> str:
    """Name accelerators by all that is known of them."""
    words = [
        " ".join(
            [each.name, *(f"{name}={value}" for name, value in dataclasses.asdict(each).items()
                          if value and name != "name")]
        )
        for each in accelerators
    ]  # fmt: skip
    return " and ".join(words) or "none"


def from_fingerprint(values: Mapping[str, Any]) -> tuple[Setting, Platform]:
    """Take apart what bundles, journals and datasets call a fingerprint: both in one object.

    Raises
    ------
    TypeError, ValueError
        If a field is missing or damaged.
    """
    setting = {**values, "options": dict(values.get("settings", {}))}
    return Setting.from_json(setting), Platform.from_json(values)


def to_fingerprint(setting: Setting, platform: Platform) -> dict[str, Any]:
    """Join both to what `from_fingerprint` reads, as plain JSON values."""
    values = {**platform.to_json(), **setting.to_json()}
    return {**values, "settings": values.pop("options")}


@cache
def _here() -> CpuFacts:
    return cpu_facts()


def _processor() -> str:
    return _here().name or platform.processor() or platform.machine()


def instruction_set() -> str:
    """Name the vector instructions of this processor, widest first."""
    flags = _here().flags
    base = next((known for known in _INSTRUCTION_SETS if known in flags), platform.machine())
    return "+".join([base, *(extra for extra in _INSTRUCTION_EXTRAS if extra in flags)])


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_platform(device: str) -> Platform:
    """Describe this machine under the name of a device."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = _here()
    return Platform(
        device=device,
        processor=_processor(),
        family=facts.family,
        model=facts.model,
        stepping=facts.stepping,
        caches={_cache_name(each): each.bytes for each in facts.caches},
        hypervisor=facts.hypervisor,
        instruction_set=instruction_set(),
        cores=usable_cores(),
        memory_bytes=round(memory_bytes / _GIBIBYTE) * _GIBIBYTE,
        system=platform.system(),
    )


def _cache_name(cache: Cache) -> str:
    """Name a cache as people do: ``"L1d"``."""
    return f"L{cache.level}{cache.type[:1] if cache.type != 'unified' else ''}"


def distance(setting: Setting, other: Platform) -> tuple[int, ...]:
    """Sort platforms by how unlike this machine they are: those most like it come first.

    What changes times most counts first: cores and threads, then the width of vectors, the
    processor's name and generation, and how many other instructions only one of both has.
    """
    base, *extras = other.instruction_set.split("+")
    own_base, *own_extras = instruction_set().split("+")
    return (
        other.cores != usable_cores(),
        setting.threads != other.cores,
        base != own_base,
        other.processor != _processor(),
        _both_known(other.model, _here().model),
        len(set(extras) ^ set(own_extras)),
    )
