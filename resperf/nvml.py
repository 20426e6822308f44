"""NVIDIA's management library (NVML): what a GPU is, and how it is at this moment.

The one home of ``nvidia-ml-py`` (`pynvml`). Only functions that read are called: no setting of a
card is ever changed. What a card or its driver does not answer is None, never 0.

NVML counts GPUs by their place on the bus; `resperf.backends.backend` makes CUDA do so too, which
by itself puts the fastest first. ``CUDA_VISIBLE_DEVICES`` hides GPUs and orders them anew, and is
followed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from resperf.devices import canonical_device
from resperf.errors import DeviceLostError, ResperfError, require
from resperf.platform import Accelerator
from resperf.targets import device_number
from resperf.units import NS_PER_S

REASONS: Mapping[str, int] = {
    "idle": 0x1, "application_clocks": 0x2, "power_cap": 0x4, "hardware_slowdown": 0x8,
    "sync_boost": 0x10, "software_thermal": 0x20, "hardware_thermal": 0x40, "power_brake": 0x80,
    "display_clocks": 0x100,
}  # fmt: skip
"""Why clocks are what they are -> bit of NVML's clocks event reasons."""
THROTTLING = frozenset({"hardware_slowdown", "software_thermal", "hardware_thermal", "power_brake"})
"""Reasons for which a card is slower than it can be for long."""
_CLOCK_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
)  # fmt: skip
"""Drivers before 535 know the second name only."""
_TEMPERATURE = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
"""CUDA 14 is to know the second name only."""
_PREFIX = "nvidia-"
"""Of the names of cards that are in no table (`resperf.targets`)."""
_HOST_PIDS = 0xEFFFFFFC
"""Number of the pid namespace of the host, outside of all containers."""
_ORDER, _VISIBLE = "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class GpuFacts(Accelerator):
    """What a GPU is.

    Attributes
    ----------
    number : int
        As in ``cuda:0``.
    persistence : str
        ``"on"`` or ``"off"``; empty if unknown.
    trouble : str
        Why it cannot be used, if so: it is lost, or in MIG mode without an instance.
    """

    number: int
    persistence: str = ""
    trouble: str = ""

    @property
    def device(self) -> str:
        """Name that users write: ``"rtx4090"``; of a card in no table, NVML's in small letters."""
        canonical = canonical_device(self.name)
        if canonical != self.name:
            return canonical
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.casefold()).strip("-")
        return slug if slug.startswith(_PREFIX) else _PREFIX + slug

    @property
    def accelerator(self) -> Accelerator:
        """What platforms store of it."""
        return Accelerator(**{row.name: getattr(self, row.name) for row in fields(Accelerator)})


@dataclass(frozen=True)
class GpuState:
    """How a GPU is at this moment. None is unknown.

    Attributes
    ----------
    sm_clock_mhz, memory_clock_mhz : float
    temperature_c, power_w : float
    utilisation_percent : float
        Share of the last second or so during which a kernel ran.
    used_memory_bytes : float
    reasons : frozenset of str
        Names in `REASONS` that hold.
    other_processes : int
        Processes with a CUDA context on it, without this one.
    """

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    utilisation_percent: float | None = None
    used_memory_bytes: float | None = None
    reasons: frozenset[str] | None = None
    other_processes: int | None = None

    @property
    def is_throttled(self) -> bool:
        """Whether heat or a lack of power is known to slow it down."""
        return bool(self.reasons and self.reasons & THROTTLING)

    @property
    def numbers(self) -> dict[str, float]:
        """Return the known numbers by name, and the throttling reasons as 0 or 1."""
        numbers = {k: float(v) for k, v in vars(self).items() if isinstance(v, int | float)}
        if self.reasons is not None:
            numbers["is_throttled"] = float(self.is_throttled)
            numbers["is_power_capped"] = float("power_cap" in self.reasons)
        return numbers


class Gpu:
    """A GPU, by the word that users write: ``"cuda"`` is the first, ``"cuda:1"`` the second.

    Parameters
    ----------
    word : str

    Raises
    ------
    MissingExtraError
        If nvidia-ml-py is not installed.
    DeviceLostError
        If the GPU does not answer any more; also raised by all methods.
    ResperfError
        If there is no driver, or no such GPU; the message lists those that are there.
    """

    def __init__(self, word: str = "cuda") -> None:
        self._nvml = _started()
        self.number = device_number(word)
        visible = _visible(self._nvml)
        if self.number >= len(visible):
            there = ", ".join(f"cuda:{gpu.number} ({gpu.name})" for gpu in gpus()) or "no GPU"
            chosen = os.environ.get(_VISIBLE)
            hidden = "" if chosen is None else f" with {_VISIBLE}={chosen}"
            raise ResperfError(f"there is no device {word}: this machine has {there}{hidden}")
        nvml, own = self._nvml, visible[self.number]
        handles = None if own.isdecimal() else _by_uuid(nvml, own, nvml.nvmlDeviceGetCount())
        try:
            self._card, instance = handles or (nvml.nvmlDeviceGetHandleByIndex(int(own)), None)
        except nvml.NVMLError as error:
            raise _lost_error(self.number, error) from error
        self._instance = self._first_instance() if instance is None else instance

    def facts(self) -> GpuFacts:
        """Ask what it is."""
        nvml, card, own = self._nvml, self._card, self._instance
        clock = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
        sm_mhz, memory_mhz = (self._ask("nvmlDeviceGetMaxClockInfo", card, kind) for kind in clock)
        generation = self._ask("nvmlDeviceGetMaxPcieLinkGeneration", card)
        width = self._ask("nvmlDeviceGetMaxPcieLinkWidth", card)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", card)
        cuda = self._ask("nvmlSystemGetCudaDriverVersion")
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", card)
        uuid = self._ask("nvmlDeviceGetUUID", own)
        return GpuFacts(
            number=self.number,
            name=self._ask("nvmlDeviceGetName", own) or "NVIDIA GPU",
            uuid_hash=hashlib.sha256(uuid.encode()).hexdigest()[:16] if uuid else "",
            driver=self._ask("nvmlSystemGetDriverVersion") or "",
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            compute_capability="{}.{}".format(*capability) if capability else "",
            memory_bytes=self.memory_bytes() or 0,
            clock_mhz=sm_mhz or 0,
            memory_clock_mhz=memory_mhz or 0,
            power_limit_w=round((limit_mw or 0) / 1000),
            ecc=_on_or_off(self._ask("nvmlDeviceGetEccMode", card)),
            mig=_on_or_off(self._ask("nvmlDeviceGetMigMode", card)),
            persistence=_on_or_off(self._ask("nvmlDeviceGetPersistenceMode", card)),
            pcie=f"PCIe {generation}.0 x{width}" if generation and width else "",
        )

    def state(self) -> GpuState:
        """Ask how it is now, in a few calls of microseconds to a millisecond."""
        nvml, card = self._nvml, self._card
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", card)
        utilisation = self._ask("nvmlDeviceGetUtilizationRates", card)
        memory = self._ask("nvmlDeviceGetMemoryInfo", self._instance)
        reasons, bits = None, self._first_answer(_CLOCK_REASONS, card)
        if bits is not None:
            reasons = frozenset(name for name, bit in REASONS.items() if bits & bit)
        return GpuState(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", card, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", card, nvml.NVML_CLOCK_MEM),
            temperature_c=self._first_answer(_TEMPERATURE, card, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            utilisation_percent=None if utilisation is None else utilisation.gpu,
            used_memory_bytes=None if memory is None else memory.used,
            reasons=reasons,
            other_processes=self._other_processes(),
        )

    def throttled_s(self) -> float | None:
        """Return for how long heat has slowed it down since the driver was loaded."""
        policy = self._nvml.NVML_PERF_POLICY_THERMAL
        status = self._ask("nvmlDeviceGetViolationStatus", self._card, policy)
        return None if status is None else status.violationTime / NS_PER_S

    def memory_bytes(self) -> int | None:
        """Return its memory; None where it shares the host's."""
        memory = self._ask("nvmlDeviceGetMemoryInfo", self._instance)
        return None if memory is None else int(memory.total)

    def process_bytes(self) -> float:
        """Return the memory that this process holds, its CUDA context included; NaN if unknown."""
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", self._instance) or ()
        # In a container, NVML names processes by the host's numbers: a single one is this one.
        single = len(processes) == 1 and not _is_host()
        own = (process for process in processes if single or process.pid == os.getpid())
        held = next((process.usedGpuMemory for process in own), None)
        return math.nan if held is None else float(held)

    def check(self) -> None:
        """Raise DeviceLostError if it does not answer any more."""
        self._ask("nvmlDeviceGetMemoryInfo", self._instance)
        self._ask("nvmlDeviceGetClockInfo", self._card, self._nvml.NVML_CLOCK_SM)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of NVML; None if this card or driver does not answer it."""
        call = getattr(self._nvml, function, None)
        if call is None:  # another version of nvidia-ml-py
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in (
                self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED,
            ):  # fmt: skip
                raise _lost_error(self.number, error) from error
            return None

    def _first_answer(self, functions: Sequence[str], *arguments: Any) -> Any:
        """Ask by the name that this driver knows."""
        answers = (self._ask(function, *arguments) for function in functions)
        return next((answer for answer in answers if answer is not None), None)

    def _other_processes(self) -> int | None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", self._instance)
        if processes is None:
            return None
        pids = {process.pid for process in processes}
        if os.getpid() in pids or _is_host():
            return len(pids - {os.getpid()})
        # In a container, NVML names processes by the host's numbers: one of them is this one.
        return max(0, len(pids) - 1)

    def _first_instance(self) -> Any:
        """Return the MIG instance that CUDA uses, which is the first, or the card if it has none.

        Raises
        ------
        ResperfError
            If the card is in MIG mode without an instance: CUDA then sees no device.
        """
        if _on_or_off(self._ask("nvmlDeviceGetMigMode", self._card)) != "on":
            return self._card
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", self._card) or 0):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", self._card, index)
            if instance is not None:
                return instance
        raise ResperfError(
            f"cuda:{self.number} is in MIG mode and has no instance; make one with nvidia-smi mig, "
            "or choose another device"
        )


def gpus() -> list[GpuFacts]:
    """Return the GPUs that CUDA may use here, and what is wrong with those that it cannot use.

    Raises
    ------
    MissingExtraError, ResperfError
        If there is no nvidia-ml-py or no driver.
    """
    return [_facts(number) for number in range(len(_visible(_started())))]


def _facts(number: int) -> GpuFacts:
    try:
        return Gpu(f"cuda:{number}").facts()
    except ResperfError as error:
        return GpuFacts(number=number, name="unknown", trouble=str(error))


def local_device(word: str) -> tuple[str, Accelerator]:
    """Return name and facts of a GPU for `resperf.platform.this_platform`; errors as of `Gpu`."""
    facts = Gpu(word).facts()
    return facts.device, facts.accelerator


def word_of(accelerator: Accelerator) -> str:
    """Return the word of this machine's GPU that an accelerator describes; errors as of `Gpu`."""
    for facts in gpus():
        if facts.uuid_hash in ("", accelerator.uuid_hash):
            return f"cuda:{facts.number}"
    raise ResperfError(f"this machine does not have the {accelerator.name} that is measured on")


def _started() -> Any:
    """Return pynvml, ready to be asked.

    Raises
    ------
    MissingExtraError, ResperfError
        If it is not installed, or finds no driver.
    """
    nvml = require("pynvml", "cuda")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        advice = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: install the "
            "NVIDIA driver, or start the container with its GPUs (docker run --gpus all)",
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded: install it, or "
            "load it with modprobe nvidia",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while another "
            "version is loaded: reboot",
            nvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA driver: check the "
            "rights of /dev/nvidia*",
        }
        why = advice.get(error.value, str(error))
        raise ResperfError(f"no NVIDIA GPU can be used: {why}") from error
    return nvml


def _lost_error(number: int, error: Exception) -> DeviceLostError:
    return DeviceLostError(
        f"cuda:{number} is lost ({error}); the system's log (dmesg) may say why, and a reboot "
        "usually brings it back"
    )


def _visible(nvml: Any) -> list[str]:
    """Return numbers and UUIDs of the GPUs that CUDA may use, in its order.

    Raises
    ------
    ResperfError
        If CUDA was told to count them otherwise than NVML does.
    """
    count = nvml.nvmlDeviceGetCount()
    order = os.environ.get(_ORDER, "PCI_BUS_ID")
    if count > 1 and order != "PCI_BUS_ID":
        raise ResperfError(
            f"{_ORDER}={order} numbers GPUs otherwise than NVML; unset it, or set PCI_BUS_ID"
        )
    places = [str(number) for number in range(count)]
    words = os.environ.get(_VISIBLE)
    if words is None:
        return places
    # CUDA ignores what follows a word that means nothing.
    return list(
        itertools.takewhile(
            lambda word: word in places or _by_uuid(nvml, word, count) is not None,
            map(str.strip, words.split(",")),
        )
    )


def _by_uuid(nvml: Any, word: str, count: int) -> tuple[Any, Any] | None:
    """Return card and MIG instance of a UUID, or of a card's as far as it tells it apart."""
    with contextlib.suppress(nvml.NVMLError):
        if word.startswith("MIG-"):
            instance = nvml.nvmlDeviceGetHandleByUUID(word)
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance), instance
    for index in range(count if word.startswith("GPU-") else 0):
        with contextlib.suppress(nvml.NVMLError):
            card = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(card).startswith(word):
                return card, None
    return None


def _on_or_off(state: Any) -> str:
    """Return a mode in words; of the pair (current, after a reboot) the current one."""
    current = state[0] if isinstance(state, list | tuple) else state
    return "" if current is None else "on" if current else "off"


def _is_host() -> bool:
    """Whether this process sees the host's process numbers; true where that cannot be told."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PIDS
    except OSError:
        return True
