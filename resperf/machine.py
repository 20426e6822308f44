"""What a timing is a timing of: the machine, the framework and all settings that matter to it."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

_INSTRUCTION_SETS = ("avx512f", "avx2", "avx", "sse4_2", "asimd")
_INSTRUCTION_EXTRAS = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "avx_vnni", "sve")


@dataclass(frozen=True)
class Fingerprint:
    """Identity of the machine and settings that a timing belongs to.

    Attributes
    ----------
    device : str
        Name that users write after ``--device``, such as ``"cpu"`` or ``"1080ti"``.
    processor : str
        Marketing name of the processor.
    instruction_set : str
        Vector instructions that frameworks choose their kernels by: ``"avx512f+amx_tile"``.
    cores : int
        Cores that this process may use.
    threads : int
        Threads that the framework computes with.
    memory_bytes : int
        Size of main memory (rounded to GiB, so that reboots do not change it).
    system : str
        Operating system and kernel family.
    framework, framework_version, provider : str
        Such as ``"onnxruntime"``, ``"1.31.1"``, ``"CPUExecutionProvider"``.
    settings : mapping of str to str
        Every other setting that changes a time.
    """

    device: str
    processor: str
    instruction_set: str
    cores: int
    threads: int
    memory_bytes: int
    system: str
    framework: str
    framework_version: str
    provider: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; unknown fields of newer versions are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})

    @property
    def machine(self) -> str:
        """Processor and cores in words, as far as they are known: ``"AMD EPYC, 2 cores"``."""
        cores = f"{self.cores} core{'s' * (self.cores > 1)}" if self.cores else ""
        return ", ".join(filter(None, (self.processor, cores)))

    def differences(self, other: Fingerprint) -> list[str]:
        """Say in what the two differ, one short phrase each; empty where they agree.

        Memory within a tenth is the same: virtual machines give and take a little.
        """
        device = [f"device: {self.device} here, {other.device} there"]
        return (device if self.device != other.device else []) + self.machine_differences(other)

    def machine_differences(self, other: Fingerprint) -> list[str]:
        """Say in what the two differ besides the name of the device, which a user may choose."""
        phrases = []
        for f in dataclasses.fields(self):
            if f.name == "device":
                continue
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if f.name == "memory_bytes" and abs(mine - theirs) <= 0.1 * max(mine, theirs):
                continue
            if f.name == "settings":
                phrases += [
                    f"{k}: {mine.get(k, 'unset')} here, {theirs.get(k, 'unset')} there"
                    for k in sorted(set(mine) | set(theirs))
                    if mine.get(k) != theirs.get(k)
                ]
            elif mine != theirs:
                phrases.append(f"{f.name}: {mine} here, {theirs} there")
        return phrases


@cache
def _cpu_info() -> tuple[str, frozenset[str]]:
    """Processor name and feature flags, as the kernel tells them."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "model name":
                name = value.strip()
            elif label.strip() in ("flags", "Features"):
                return name, frozenset(value.split())
    except OSError:
        pass
    return name, flags


def instruction_set() -> str:
    """Name the vector instructions of this processor, widest first."""
    flags = _cpu_info()[1]
    base = next((known for known in _INSTRUCTION_SETS if known in flags), platform.machine())
    return "+".join([base, *(extra for extra in _INSTRUCTION_EXTRAS if extra in flags)])


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def strangeness(fingerprint: Fingerprint) -> tuple[int, ...]:
    """Sort fingerprints by how unlike this machine they are: those most like it come first.

    What changes times most counts first: cores and threads, then the width of vectors, the
    processor's name, and how many other instructions only one of both has.
    """
    base, *extras = fingerprint.instruction_set.split("+")
    own_base, *own_extras = instruction_set().split("+")
    return (
        fingerprint.cores != usable_cores(),
        fingerprint.threads != fingerprint.cores,
        base != own_base,
        fingerprint.processor != _cpu_info()[0],
        len(set(extras) ^ set(own_extras)),
    )


def this_machine(
    *,
    device: str,
    framework: str,
    framework_version: str,
    provider: str,
    threads: int,
    settings: Mapping[str, str] | None = None,
) -> Fingerprint:
    """Return the fingerprint of this machine under a framework and its settings."""
    gibibyte = 1 << 30
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Fingerprint(
        device=device,
        processor=_cpu_info()[0],
        instruction_set=instruction_set(),
        cores=usable_cores(),
        threads=threads,
        memory_bytes=round(memory_bytes / gibibyte) * gibibyte,
        system=platform.system(),
        framework=framework,
        framework_version=framework_version,
        provider=provider,
        settings=dict(settings or {}),
    )
