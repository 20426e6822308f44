"""The contract of a monitor, which watches a device while a backend measures on it.

Campaigns and measurements of networks use this class only. The base class times a reference layer
at intervals with the backend's own sampler, which shows changes of the device's speed. Monitors of
device classes with other disturbances derive from it:

    class NvmlMonitor(Monitor):
        device_states = ("throttled",)

        def reading(self, *, force=False):    # clocks, journaled beside the reference
        def active_flags(self, *, record=True):    # {"throttled"} while the device is throttled
        def memory_bytes(self):    # of the device; a campaign's `memory_share` refers to it
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from resperf.backends._base import Backend, Built, Closing
from resperf.errors import UnsupportedError, require
from resperf.layers import Conv, Layer
from resperf.measurement import TOLERANCE
from resperf.timing import Clock, MachineCheck, ReferenceHistory, Sampler

# Of about a millisecond each: half a percent of the 3 s between readings; 7 may be disturbed.
RUNS_PER_READING = 15
REFERENCE_COST = "reference_ms"
"""Name of the reference layer's median time in a dataset's machine costs."""


@dataclass(frozen=True)
class Reading:
    """What a monitor read at one moment.

    Attributes
    ----------
    at : float
        Seconds since 1970.
    reference_ms : float
        Time of the reference layer; NaN if it was not timed.
    facts : mapping of str to float
        Further values for the journal, such as ``{"sm_clock_mhz": 1380.0}``. A dataset's machine
        costs hold their medians.
    """

    at: float
    reference_ms: float = math.nan
    facts: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """Return plain JSON values: moment, time of the reference or None, and any facts."""
        reference_ms = None if math.isnan(self.reference_ms) else self.reference_ms
        return [self.at, reference_ms, *([dict(self.facts)] if self.facts else [])]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Self:
        """Read what `to_json` wrote."""
        at, reference_ms, *facts = values
        return cls(at, math.nan if reference_ms is None else reference_ms, *facts)


class Monitor(Closing):
    """Watches a device between `start` and `close`, or inside a ``with`` block.

    Attributes
    ----------
    reference : Layer or None
        Is timed at intervals; None if other readings show the device's speed.
    device_states : tuple of str
        Flags for states of the device. A flag of most rows of a campaign is the device's normal
        state, and no reason to measure again.
    usual_costs : tuple of str
        Names of the `usual_times` in a dataset's machine costs.
    waits_for : frozenset of str
        Temporary states that affect every network: measuring a network waits for their end.
    device : str
        Word of the local device, such as ``"cuda:1"``; set by `load_monitor`.
    clock, now : callable
        Monotonic nanoseconds; seconds since 1970. A device may provide its own.
    history : ReferenceHistory
        Readings of the reference.
    machine_checks : mapping of str to MachineCheck
        Flag -> machine check, in the order of checking.
    unwatched : str
        Why the framework cannot run the reference.
    """

    # About a millisecond on two cores: long enough to time, short enough to time often.
    reference: Layer | None = Conv(
        batch=1, channels_in=64, channels_out=64, height=56, width=56, kernel_height=3,
        kernel_width=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
    )  # fmt: skip
    device_states: tuple[str, ...] = ()
    usual_costs: tuple[str, ...] = ()
    waits_for: frozenset[str] = frozenset()
    device: str = ""

    def __init__(self) -> None:
        self.clock: Clock = time.perf_counter_ns
        self.now: Callable[[], float] = time.time
        self.history = ReferenceHistory()
        self.machine_checks: Mapping[str, MachineCheck] = {}
        self.unwatched = ""
        self._reference: Sampler | None = None
        self._interval_s = 0.0
        self._last_at = -math.inf
        self._networks = False
        self._built = ExitStack()
        self._before: Collection[str] = ()

    def memory_bytes(self) -> int:
        """Return the memory that subjects can use: this machine's."""
        return int(require("psutil", "bench").virtual_memory().total)

    @property
    def exclusive(self) -> str:
        """What only one campaign at a time may measure on, as a file's name; empty if several may.

        Raises
        ------
        ResperfError
            If the device is not there.
        """
        return ""

    def check(self) -> None:
        """Find out whether the device still answers; the base class believes so.

        Raises
        ------
        DeviceLostError
            If it does not.
        """

    def limit_memory(self, limit_bytes: int) -> None:
        """Make allocations of this process fail before memory is full; called before `start`.

        The base class does nothing. 0 is no limit.
        """

    def check_memory(self, _least_bytes: float) -> None:
        """Refuse what needs at least so much memory, before it is built; the base class does not.

        Raises
        ------
        MemoryError
            If that is more than the limit.
        """

    def start(
        self,
        backend: Backend,
        *,
        interval_s: float = 3.0,
        usual: Mapping[str, tuple[float, int]] | None = None,
        networks: bool = False,
    ) -> Self:
        """Watch the device of a backend.

        Parameters
        ----------
        backend : Backend
        interval_s : float
            Age from which `reading` takes a new reading.
        usual : mapping of str to (float, int), optional
            `usual_times` of earlier monitors of this device.
        networks : bool
            Whether whole networks are measured instead of layers.
        """
        self._networks = networks
        self._interval_s = interval_s
        self._usual_before = usual or {}
        self._prepare(backend)
        if self.reference is None:
            return self
        try:
            (lowered,) = backend.lower([self.reference])
            reference = self._built.enter_context(backend.layer(lowered, budget_ms=1.0))
        except UnsupportedError as error:
            self.unwatched = str(error)
            return self
        checks = self._machine_checks(backend)
        self.watch(self._fixed_work(reference), interval_s=interval_s, machine_checks=checks)
        return self

    def watch(
        self,
        reference: Sampler,
        *,
        interval_s: float,
        machine_checks: Mapping[str, MachineCheck] | None = None,
    ) -> None:
        """Time this reference, fixed work of about a millisecond, and run these checks."""
        self._reference, self._interval_s = reference, interval_s
        self.machine_checks = machine_checks or {}

    def _prepare(self, _backend: Backend) -> None:
        """Set what watching needs, such as the device's own clock; called first by `start`."""

    def _fixed_work(self, reference: Built) -> Sampler:
        """Return what times the reference."""
        return reference.isolated

    def _machine_checks(self, _backend: Backend) -> Mapping[str, MachineCheck]:
        """Build further machine checks of disturbances, by the flag that they set."""
        return {}

    def _settle(self) -> None:
        """Wait until threads of other work are idle; called before the reference and each check."""

    def close(self) -> None:
        """Free the reference and the machine checks."""
        self._built.close()

    def reading(self, *, force: bool = False) -> Reading | None:
        """Read the device if a reading is due or with `force`; else return None.

        Its moment is the middle of `RUNS_PER_READING` runs of the reference after a warm-up, its
        time their median.
        """
        at = self.now()
        if self._reference is None or not (force or at - self._last_at >= self._interval_s):
            return None
        self._settle()
        self._reference()
        times_ms = [self._reference() for _ in range(RUNS_PER_READING)]
        self._last_at = self.now()
        reading = Reading((at + self._last_at) / 2, median(times_ms))
        self.history.add(reading.at, reading.reference_ms)
        return reading

    def active_flags(self, *, record: bool = True) -> set[str]:
        """Return the `device_states` that hold now: the flag of the first check that is slow.

        The cause of a slow check also changes the times of later ones, which are then skipped.

        Parameters
        ----------
        record : bool
            Whether the check counts towards the usual times; checks while waiting do not.
        """
        for name, check in self.machine_checks.items():
            self._settle()
            if check.is_slow(record=record):
                return {name}
        return set()

    def usual_times(self) -> dict[str, tuple[float, int]]:
        """Return usual time (ms) and number of checks, by `usual_costs`, for later monitors.

        Empty before there are enough checks.
        """
        return {}

    def costs(self) -> Mapping[str, float]:
        """Measure facts of the device for a dataset's machine costs, now."""
        return {}

    def before(self) -> Reading | None:
        """Begin a layer's measurement; return a reading for the journal if one was due."""
        reading = self.reading()
        self._before = self.active_flags()
        return reading

    def after(self, layer: Layer, time_ms: float) -> tuple[str, ...]:
        """End a layer's measurement; return the flags of its row."""
        active = {*self._before, *self.active_flags()}
        return tuple(sorted(active & self.felt_by_layer(layer, time_ms)))

    def felt_by_layer(self, _layer: Layer, _time_ms: float) -> frozenset[str]:
        """Return the states that can affect a layer of this time: all."""
        return frozenset(self.device_states)

    def felt_by_network(self, _time_ms: float) -> frozenset[str]:
        """Return the states that can affect a network of this time: all."""
        return frozenset(self.device_states)

    def depends_on_place(self, _layer: Layer, _time_ms: float) -> bool:
        """Whether a layer's time depends on memory addresses, so that it is built repeatedly."""
        return False

    def is_steady(self) -> bool:
        """Whether the last reading of the reference has the device's usual speed."""
        ratio = self.history.latest_ms / self.history.median_ms
        return self._reference is None or abs(ratio - 1) <= TOLERANCE
