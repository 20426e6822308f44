"""NVIDIA GPUs, through NVML: clocks, heat, power, other processes; nothing is ever changed.

Around each configuration it is asked whether the card is

- ``throttled``: by heat, or because it gets too little power (also between two checks, where the
  card counts how long heat slowed it down),
- ``power_cap``: held back by its power limit, which data-centre cards are at for hours: then it is
  their normal state (`Monitor.device_states`),
- ``shared``: in use by another process,
- ``clocks``: slower than usual in this campaign for none of these reasons.

What was disturbed is measured again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from functools import cached_property
from statistics import median

from resperf.backends._base import Backend, Built
from resperf.backends.monitors._base import Monitor, Reading
from resperf.measurement import THROTTLED
from resperf.nvml import Gpu, GpuState, word_of
from resperf.quantities import layer_quantity
from resperf.timing import Sampler
from resperf.units import format_bytes

POWER_CAP, SHARED, CLOCKS = "power_cap", "shared", "clocks"
SLOW_CLOCK = 0.9
"""Share of the usual clock of the multiprocessors below which a configuration is measured again."""
FEWEST_CLOCKS, CLOCKS_KEPT = 20, 500
"""Checks before there is a usual clock, and those that it is the median of."""
THROTTLED_SHARE = 0.1
"""Share of the time between two checks for which heat may slow the card down."""
USUAL_CLOCK = "usual_sm_clock_mhz"


class CudaMonitor(Monitor):
    """Watches the GPU that `device` names, and times the reference layer on it."""

    device_states = (THROTTLED, POWER_CAP, SHARED, CLOCKS)
    usual_costs = (USUAL_CLOCK,)
    waits_for = frozenset({THROTTLED, SHARED})

    def __init__(self) -> None:
        super().__init__()
        self._clocks_mhz: deque[float] = deque(maxlen=CLOCKS_KEPT)
        self._throttled: tuple[float, float] | None = None
        self._limit_bytes = 0
        self._members = 0

    @cached_property
    def gpu(self) -> Gpu:
        """The card, found when it is first asked; errors as of `resperf.nvml.Gpu`."""
        return Gpu(self.device or "cuda")

    @property
    def exclusive(self) -> str:
        """The card: two campaigns would slow each other down; errors as of `resperf.nvml.Gpu`."""
        return f"gpu-{self.gpu.facts().uuid_hash or self.gpu.number}"

    def check(self) -> None:
        """Ask the card for anything."""
        self.gpu.check()

    def limit_memory(self, limit_bytes: int) -> None:
        """Remember the limit: a card's memory cannot be limited from outside."""
        self._limit_bytes = limit_bytes

    def check_memory(self, least_bytes: float) -> None:
        """Refuse what needs more than the limit; what is larger than it seems the framework does.

        Raises
        ------
        MemoryError
            If it needs more.
        """
        if 0 < self._limit_bytes < least_bytes:
            raise MemoryError(
                f"needs at least {format_bytes(least_bytes)}, more than the "
                f"{format_bytes(self._limit_bytes)} that may be used of {self.device or 'cuda'}"
            )

    def memory_bytes(self) -> int:
        """Return the card's memory; that of the machine, if the card shares it."""
        return self.gpu.memory_bytes() or super().memory_bytes()

    def _prepare(self, backend: Backend) -> None:
        """Find the card by its UUID where no word names it; go on from the usual clock."""
        platform = backend.platform()
        accelerators = platform.accelerators
        if not self.device and accelerators:
            self.device = word_of(accelerators[0])
        # Where several processes share a run, the first has this card besides this process.
        self._members = int(platform.devices > 1)
        mhz, checks = self._usual_before.get(USUAL_CLOCK, (math.nan, 0))
        self._clocks_mhz = deque([mhz] * min(checks, CLOCKS_KEPT), maxlen=CLOCKS_KEPT)

    def _fixed_work(self, reference: Built) -> Sampler:
        """Time many copies on the device: alone, the reference is a launch of the host's."""
        return reference.phases[layer_quantity(reference.phases)].sampler

    def reading(self, *, force: bool = False) -> Reading | None:
        """Read the reference and, right behind its load, what NVML says of the card."""
        due = force or self.now() - self._last_at >= self._interval_s
        if not due:
            return None
        reading = super().reading(force=True) or Reading(self.now())
        self._last_at = reading.at if self._reference is None else self._last_at
        return replace(reading, facts=self.gpu.state().numbers)

    def active_flags(self, *, record: bool = True) -> set[str]:
        """Return the states in which the card is, or was since the last check."""
        state = self.gpu.state()
        flags = set()
        if state.is_throttled or self._was_throttled():
            flags.add(THROTTLED)
        if POWER_CAP in (state.reasons or ()):
            flags.add(POWER_CAP)
        if (state.other_processes or 0) > self._members:
            flags.add(SHARED)
        if not flags and self._has_slow_clock(state, record=record):
            flags.add(CLOCKS)
        return flags

    def _was_throttled(self) -> bool:
        """Whether heat slowed the card down for long since the last check, as far as it counts."""
        throttled_s, at = self.gpu.throttled_s(), self.now()
        before, self._throttled = self._throttled, None
        if throttled_s is None:
            return False
        self._throttled = (throttled_s, at)
        return before is not None and throttled_s - before[0] > THROTTLED_SHARE * (at - before[1])

    def _has_slow_clock(self, state: GpuState, *, record: bool) -> bool:
        """Whether the card's clock under load is below its usual one."""
        clock_mhz, reasons = state.sm_clock_mhz, state.reasons
        if clock_mhz is None or reasons is None or "idle" in reasons:
            return False  # without reasons, an idle card cannot be told from a slow one
        slow = clock_mhz < SLOW_CLOCK * self._usual_mhz
        if record:
            self._clocks_mhz.append(clock_mhz)
        return slow

    @property
    def _usual_mhz(self) -> float:
        """Median of the last checks under load; NaN before there are enough."""
        return median(self._clocks_mhz) if len(self._clocks_mhz) >= FEWEST_CLOCKS else math.nan

    def usual_times(self) -> dict[str, tuple[float, int]]:
        """Return the usual clock, in MHz."""
        mhz = self._usual_mhz
        return {} if math.isnan(mhz) else {USUAL_CLOCK: (mhz, len(self._clocks_mhz))}
