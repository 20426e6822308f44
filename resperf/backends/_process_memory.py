"""The memory of this process, by Linux's own count (``/proc/self/status``)."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from resperf.timing import Sampler

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_KIB = 1024


def resident_bytes() -> int | None:
    """Return what the process holds in memory, once freed memory is returned to the system.

    The peak so far is forgotten. None where Linux does not tell, or does not forget it.
    """
    try:
        _tidy()
        return _read("VmRSS")
    except OSError:
        return None


def peak_resident_bytes(run: Callable[[], object], before_bytes: int) -> Sampler:
    """Return the most memory that the process holds during a run beyond what it held before."""

    def peak() -> float:
        _tidy()
        run()
        return float(_read("VmHWM") - before_bytes)

    return peak


def _tidy() -> None:
    gc.collect()
    with suppress(AttributeError):  # of the C library of GNU only
        ctypes.CDLL(None).malloc_trim(0)
    _RESET.write_text(_RESET_PEAK)


def _read(name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    if match is None:
        raise OSError(f"{_STATUS} has no {name}")
    return int(match[1]) * _KIB
