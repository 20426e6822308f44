"""A monitor as one of a GPU would be: its library answers from a script, and nothing else is real.

Measuring processes import it by name, so it lies in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.backends.monitors import Monitor, Reading
from resperf.layers import Layer

THERMAL, POWER_CAP = 0x40, 0x4
GIGABYTE = 10**9


class FakeNvml:
    """Answers as pynvml does: hot while its device is slow, capped from the fourth layer on."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def clock_mhz(self) -> int:
        return round(1400 / self._device.slowdown)

    def throttle_reasons(self) -> int:
        hot = THERMAL if self._device.slowdown > 1 else 0
        return hot | (POWER_CAP if self._device._built >= 4 else 0)


class NvmlLikeMonitor(Monitor):
    """Reads clocks and throttle reasons; has no reference layer and no machine checks."""

    reference = None
    device_states = ("thermal", "power_cap")
    waits_for = frozenset({"thermal"})

    def memory_bytes(self) -> int:
        return 16 * GIGABYTE

    def limit_memory(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes

    def _prepare(self, backend: Any) -> None:
        self._nvml = FakeNvml(backend)
        self.clock = backend.clock  # an event timer's

    def reading(self, *, force: bool = False) -> Reading | None:
        return Reading(self.now(), facts={"sm_clock_mhz": float(self._nvml.clock_mhz())})

    def active_flags(self, *, record: bool = True) -> set[str]:
        reasons = self._nvml.throttle_reasons()
        bits = {"thermal": THERMAL, "power_cap": POWER_CAP}
        return {name for name, bit in bits.items() if reasons & bit}

    def felt_by_layer(self, layer: Layer, time_ms: float) -> frozenset[str]:
        # A capped clock slows arithmetic, not the wait for memory.
        memory_bound = layer.moved_bytes > layer.macs
        return frozenset({"thermal"} if memory_bound else self.device_states)

    def costs(self) -> Mapping[str, float]:
        return {"memory_limit_gb": self.limit_bytes / GIGABYTE}
