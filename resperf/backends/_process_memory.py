"""The most memory that this process holds during a run: the host's, or a GPU's."""

from __future__ import annotations

import ctypes
import gc
import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from resperf import nvml
from resperf.errors import ResperfError
from resperf.timing import Sampler

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_KIB = 1024
Run = Callable[[], object]


def resident_bytes() -> int | None:
    """Return what the process holds in memory, once freed memory is returned to the system.

    The peak so far is forgotten. None where Linux does not tell, or does not forget it.
    """
    try:
        _tidy()
        return _read("VmRSS")
    except OSError:
        return None


def process_peak() -> Callable[[Run], Sampler] | None:
    """Return what samples the peak of the process during a run of what is built next.

    What earlier networks have left behind does not count: what the process holds more than now is
    added to what it held before the first one. None where Linux does not tell.
    """
    before_bytes, first_bytes = resident_bytes(), _first_bytes()
    if before_bytes is None or first_bytes is None:
        return None

    def sampler_of(run: Run) -> Sampler:
        def peak() -> float:
            _tidy()
            run()
            return float(_read("VmHWM") - before_bytes + first_bytes)

        return peak

    return sampler_of


@cache
def _first_bytes() -> int | None:
    return resident_bytes()


def process_bytes_on_gpu(device: str) -> Callable[[], float] | None:
    """Return what asks NVML how much of a GPU this process holds; None where NVML does not tell."""
    try:
        gpu = nvml.Gpu(device)
    except ResperfError:
        return None
    return None if math.isnan(gpu.process_bytes()) else gpu.process_bytes


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
