"""Facts that Linux reports of a processor, since different ones share a marketing name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

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
    return CpuFacts(
        name=info.get("model name", ""),
        flags=frozenset(flags.split()),
        family=_number(info.get("cpu family", "")),
        model=_number(info.get("model", "")),
        stepping=_number(info.get("stepping", "")),
        caches=_caches(root / "sys/devices/system/cpu/cpu0/cache"),
        hypervisor=_hypervisor(root, info),
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


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _caches(folder: Path) -> dict[str, int]:
    caches = []
    for index in folder.glob("index*"):
        level, size = _number(_text(index / "level")), _text(index / "size")
        number = _number(size.rstrip("KMG"))
        if level is None or number is None:
            continue
        kind = _text(index / "type").lower()
        letter = "" if kind == "unified" else kind[:1]
        caches.append((f"L{level}{letter}", number * _UNITS.get(size[-1], 1)))
    return dict(sorted(caches))


def _hypervisor(root: Path, info: Mapping[str, str]) -> str:
    """Return the hypervisor's name; in a guest, the vendor of the board is the hypervisor's."""
    if named := _text(root / "sys/hypervisor/type"):
        return named
    if "hypervisor" not in info.get("flags", "").split():
        return ""
    return _text(root / "sys/class/dmi/id/sys_vendor") or UNNAMED_HYPERVISOR
