# ruff: noqa: N802, N815 -- the names are NVML's own
"""libnvidia-ml.so in Python: pynvml's own code runs, and its structures and codes are used.

`FakeNvml` stands where pynvml keeps the loaded library. pynvml asks it for functions by their C
names, so a name that NVML does not have fails here as there. Nothing that changes a card exists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

GIBIBYTE = 1 << 30
UNKNOWN_COUNT = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_CARD, _INSTANCE = 1000, 5000
"""First handle of cards, and of their MIG instances."""


@dataclass
class FakeGpu:
    """One card; all values may be changed at any time, and `unsupported` are names of functions."""

    name: str = "NVIDIA GeForce RTX 4090"
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    memory_bytes: int = 24 * GIBIBYTE
    used_bytes: int = 3 * GIBIBYTE
    clock_mhz: int = 2520
    memory_clock_mhz: int = 10501
    max_clock_mhz: int = 3105
    max_memory_clock_mhz: int = 10501
    temperature_c: int = 55
    power_mw: int = 301_500
    power_limit_mw: int = 450_000
    utilisation_percent: int = 97
    reasons: int = pynvml.nvmlClocksEventReasonNone
    throttled_ns: int = 0
    ecc: int = 0
    mig: int = 0
    instances: Sequence[str] = ()
    persistence: int = 1
    capability: tuple[int, int] = (8, 9)
    pcie: tuple[int, int] = (4, 16)
    pids: Sequence[int] = ()
    process_bytes: int = UNKNOWN_COUNT
    is_lost: bool = False
    error: int = pynvml.NVML_ERROR_GPU_IS_LOST
    unsupported: set[str] = field(default_factory=set)


class FakeNvml:
    """The library of a machine with these cards.

    Parameters
    ----------
    gpus : sequence of FakeGpu
    driver, cuda
        Their versions.
    absent : set of str
        Functions that an old driver's library does not have.
    init : int
        What nvmlInit answers.
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu],
        *,
        driver: str = "550.54.15",
        cuda: int = 12040,
        absent: frozenset[str] = frozenset(),
        init: int = pynvml.NVML_SUCCESS,
    ) -> None:
        self.gpus = list(gpus)
        self.called: list[str] = []
        self._driver, self._cuda, self._absent, self._init = driver, cuda, absent, init

    def __getattr__(self, name: str) -> Callable[..., int]:
        plain = name.removesuffix("_v2").removesuffix("_v3")
        answer = getattr(type(self), f"_{plain}", None)
        if answer is None or name in self._absent:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.called.append(name)
            if not plain.startswith("nvmlDevice") or plain in _WITHOUT_HANDLE:
                return int(answer(self, *arguments))
            place = _value(arguments[0])
            gpu = self.gpus[place % _CARD]
            if gpu.is_lost:
                return gpu.error
            if name in gpu.unsupported or plain in gpu.unsupported:
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return int(answer(self, gpu, place, *arguments[1:]) or pynvml.NVML_SUCCESS)

        return call

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        return self._init

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:
        text.value = self._driver.encode()
        return int(pynvml.NVML_SUCCESS)

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> int:
        out._obj.value = self._cuda
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetCount(self, out: Any) -> int:
        out._obj.value = len(self.gpus)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetHandleByIndex(self, index: Any, out: Any) -> int:
        if index.value >= len(self.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = self.gpus[index.value]
        if gpu.is_lost:
            return gpu.error
        _point(out, _CARD + index.value)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:
        for place, gpu in enumerate(self.gpus):
            for number, name in enumerate(gpu.instances):
                if uuid.value.decode() == f"MIG-{name}":
                    _point(out, _INSTANCE + _CARD * number + place)
                    return int(pynvml.NVML_SUCCESS)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        self, gpu: FakeGpu, place: int, out: Any
    ) -> None:
        _point(out, _CARD + self.gpus.index(gpu))

    def _nvmlDeviceGetMigMode(self, gpu: FakeGpu, _: int, now: Any, later: Any) -> None:
        now._obj.value = later._obj.value = gpu.mig

    def _nvmlDeviceGetMaxMigDeviceCount(self, _gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(
        self, gpu: FakeGpu, _: int, index: Any, out: Any
    ) -> int:
        if index.value >= len(gpu.instances):
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        _point(out, _INSTANCE + _CARD * index.value + self.gpus.index(gpu))
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetName(self, gpu: FakeGpu, place: int, text: Any, _size: Any) -> None:
        instance = f" MIG {_of_instance(gpu, place)}" if place >= _INSTANCE else ""
        text.value = (gpu.name + instance).encode()

    def _nvmlDeviceGetUUID(self, gpu: FakeGpu, place: int, text: Any, _size: Any) -> None:
        own = f"MIG-{_of_instance(gpu, place)}" if place >= _INSTANCE else gpu.uuid
        text.value = own.encode()

    def _nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, place: int, out: Any) -> None:
        memory = out._obj
        assert isinstance(memory, pynvml.c_nvmlMemory_t)
        share = 8 if place >= _INSTANCE else 1
        memory.total, memory.used = gpu.memory_bytes // share, gpu.used_bytes // share
        memory.free = memory.total - memory.used

    def _nvmlDeviceGetClockInfo(self, gpu: FakeGpu, _: int, which: Any, out: Any) -> None:
        clocks = {pynvml.NVML_CLOCK_SM: gpu.clock_mhz, pynvml.NVML_CLOCK_MEM: gpu.memory_clock_mhz}
        out._obj.value = clocks[_plain(which)]

    def _nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, _: int, which: Any, out: Any) -> None:
        clocks = {
            pynvml.NVML_CLOCK_SM: gpu.max_clock_mhz,
            pynvml.NVML_CLOCK_MEM: gpu.max_memory_clock_mhz,
        }
        out._obj.value = clocks[_plain(which)]

    def _nvmlDeviceGetTemperature(self, gpu: FakeGpu, _: int, sensor: Any, out: Any) -> int:
        if _plain(sensor) != pynvml.NVML_TEMPERATURE_GPU:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        out._obj.value = gpu.temperature_c
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, _: int, out: Any) -> None:
        assert isinstance(out._obj, pynvml.c_nvmlTemperature_v1_t)
        assert out._obj.version == pynvml.nvmlTemperature_v1
        out._obj.temperature = gpu.temperature_c

    def _nvmlDeviceGetPowerUsage(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.power_mw

    def _nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.power_limit_mw

    def _nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, _: int, out: Any) -> None:
        assert isinstance(out._obj, pynvml.c_nvmlUtilization_t)
        out._obj.gpu = gpu.utilisation_percent

    def _nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.reasons

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetViolationStatus(self, gpu: FakeGpu, _: int, policy: Any, out: Any) -> None:
        assert isinstance(out._obj, pynvml.c_nvmlViolationTime_t)
        thermal = _plain(policy) == pynvml.NVML_PERF_POLICY_THERMAL
        out._obj.violationTime = gpu.throttled_ns if thermal else 0

    def _nvmlDeviceGetEccMode(self, gpu: FakeGpu, _: int, now: Any, later: Any) -> None:
        now._obj.value = gpu.ecc
        later._obj.value = 1 - gpu.ecc

    def _nvmlDeviceGetPersistenceMode(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.persistence

    def _nvmlDeviceGetCudaComputeCapability(
        self, gpu: FakeGpu, _: int, major: Any, minor: Any
    ) -> None:
        major._obj.value, minor._obj.value = gpu.capability

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.pcie[0]

    def _nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu, _: int, out: Any) -> None:
        out._obj.value = gpu.pcie[1]

    def _nvmlDeviceGetComputeRunningProcesses(
        self, gpu: FakeGpu, _: int, count: Any, processes: Any
    ) -> int:
        found = count._obj.value
        count._obj.value = len(gpu.pids)
        if processes is None:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE if gpu.pids else pynvml.NVML_SUCCESS)
        assert isinstance(processes[0], pynvml.c_nvmlProcessInfo_v3_t)
        assert len(gpu.pids) <= found
        for process, pid in zip(processes, gpu.pids, strict=False):
            process.pid, process.usedGpuMemory = pid, gpu.process_bytes
        return int(pynvml.NVML_SUCCESS)


_WITHOUT_HANDLE = (
    "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID",
)  # fmt: skip


def _of_instance(gpu: FakeGpu, place: int) -> str:
    return gpu.instances[(place - _INSTANCE) // _CARD]


def _plain(number: Any) -> int:
    return int(getattr(number, "value", number))


def _value(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _point(out: Any, value: int) -> None:
    """Let the handle that is passed by reference point somewhere, as NVML's opaque ones do."""
    assert isinstance(out._obj, pynvml.c_nvmlDevice_t)
    ctypes.cast(ctypes.pointer(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = value


def install(library: FakeNvml | None) -> None:
    """Put a library where pynvml keeps the one that it has loaded; None is none yet."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


@contextmanager
def installed(library: FakeNvml) -> Iterator[FakeNvml]:
    """Install a library inside the ``with`` block."""
    install(library)
    try:
        yield library
    finally:
        install(None)
