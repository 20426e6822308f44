"""The contract of a monitor: what watches a device while a backend measures on it.

Campaigns and the measuring of networks talk to this class alone. As it stands, it times a reference
layer now and then with the backend's own sampler, so that a change of the device's speed shows, and
knows of no other disturbance. A class of devices that can be disturbed otherwise derives from it:

    class NvmlMonitor(Monitor):
        device_states = ("throttled",)

        def reading(self, *, force=False):    # clocks, journaled beside the reference
        def active_flags(self, *, record=True):    # {"throttled"} while there is a reason for it
        def memory_bytes(self):    # of the device; `memory_share` of a campaign is of that
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from resperf.backends._base import Backend, Built
from resperf.errors import UnsupportedError, require
from resperf.layers import Conv, Layer
from resperf.timing import Clock, Probe, ReferenceHistory, ReferenceMonitor

REFERENCE = Conv(
    batch=1, channels_in=64, channels_out=64, height=56, width=56, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
"""About a millisecond on two cores: long enough to time, short enough to time often."""
REFERENCE_COST = "reference_ms"
"""Name in a dataset's machine costs of the reference layer's median time."""


@dataclass(frozen=True)
class Reading:
    """What a monitor read at a moment.

    Attributes
    ----------
    at : float
        Seconds since 1970.
    reference_ms : float
        Time of the reference layer; NaN where it was not timed.
    facts : mapping of str to float
        Anything else worth a line in the journal, such as ``{"sm_clock_mhz": 1380.0}``. A
        dataset's machine costs hold the medians.
    """

    at: float
    reference_ms: float = math.nan
    facts: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """Return plain JSON values: moment, time of the reference or None, facts if any."""
        reference_ms = None if math.isnan(self.reference_ms) else self.reference_ms
        return [self.at, reference_ms, *([dict(self.facts)] if self.facts else [])]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Self:
        """Read what `to_json` wrote."""
        at, reference_ms, *facts = values
        return cls(at, math.nan if reference_ms is None else reference_ms, *facts)


class Monitor:
    """Watches a device between `start` and `close`, or inside a ``with`` block.

    Attributes
    ----------
    device_states : tuple of str
        Flags that tell how the device was. One that most rows of a campaign have shows how the
        device usually is, and is then no reason to measure again.
    usual_costs : tuple of str
        Under which names in a dataset's machine costs `usual_times` are found again.
    waits_for : frozenset of str
        States that every network feels and that pass: measuring one waits for their end.
    clock, now : callable
        Nanoseconds that only grow; seconds since 1970. Both are the device's own where it has such.
    history : ReferenceHistory
        Readings of the reference.
    reference : ReferenceMonitor or None
        What times the reference and the probes, if any; None where the framework cannot run it.
    unwatched : str
        Why it cannot.
    """

    device_states: tuple[str, ...] = ()
    usual_costs: tuple[str, ...] = ()
    waits_for: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.clock: Clock = time.perf_counter_ns
        self.now: Callable[[], float] = time.time
        self.history = ReferenceHistory()
        self.reference: ReferenceMonitor | None = None
        self.unwatched = ""
        self._networks = False
        self._built = ExitStack()
        self._before: Collection[str] = ()

    def memory_bytes(self) -> int:
        """Return how much memory subjects can fill: this machine's."""
        return int(require("psutil", "bench").virtual_memory().total)

    def limit_memory(self, limit_bytes: int) -> None:
        """Let allocations of this process fail before the memory is full; called before `start`.

        Does nothing unless a class of devices says how; 0 is no limit.
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
            How old a reading may become before `reading` takes a new one.
        usual : mapping of str to (float, int), optional
            What `usual_times` found earlier, or elsewhere on this device.
        networks : bool
            Whether whole networks are measured, and not layers.
        """
        self._networks = networks
        try:
            reference = self._build(backend, REFERENCE)
        except UnsupportedError as error:
            self.unwatched = str(error)
            return self
        self.reference = ReferenceMonitor(
            reference.isolated,
            interval_s=interval_s,
            now=self.now,
            history=self.history,
            probes=self._probes(backend, usual or {}),
            settle=self._settle(),
        )
        return self

    def _build(self, backend: Backend, layer: Layer) -> Built:
        """Build a layer, which then lives as long as this monitor watches."""
        lowered = backend.lower([layer])[0]
        return self._built.enter_context(backend.layer(lowered, budget_ms=1.0))

    def _probes(
        self, _backend: Backend, _usual: Mapping[str, tuple[float, int]]
    ) -> Mapping[str, Probe]:
        """Build what shows disturbances beside the reference, by the flag that it raises."""
        return {}

    def _settle(self) -> Callable[[], None] | None:
        """Return what has to be waited for before the reference and each probe."""
        return None

    def close(self) -> None:
        """Free what was built to watch with."""
        self._built.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reading(self, *, force: bool = False) -> Reading | None:
        """Read the device if that is due, or at once with `force`; None where it is not."""
        found = None if self.reference is None else self.reference.check(force=force)
        return None if found is None else Reading(*found)

    def active_flags(self, *, record: bool = True) -> set[str]:
        """Return the `device_states` that hold at this moment.

        Parameters
        ----------
        record : bool
            Whether that tells something of what is usual; while waiting for an end it does not.
        """
        return set() if self.reference is None else self.reference.slow_probes(record=record)

    def usual_times(self) -> dict[str, tuple[float, int]]:
        """Return what a later monitor can start from, by `usual_costs`: ms, and of how many checks.

        Empty as long as too little is known.
        """
        return {}

    def costs(self) -> Mapping[str, float]:
        """Measure facts of the device that belong to a dataset's machine costs, now."""
        return {}

    def before(self) -> Reading | None:
        """Begin a layer's measurement; return a reading for the journal where one was due."""
        reading = self.reading()
        self._before = self.active_flags()
        return reading

    def after(self, layer: Layer, time_ms: float) -> tuple[str, ...]:
        """End a layer's measurement; return the flags that its row gets."""
        active = {*self._before, *self.active_flags()}
        return tuple(sorted(active & self.felt_by_layer(layer, time_ms)))

    def felt_by_layer(self, _layer: Layer, _time_ms: float) -> frozenset[str]:
        """Return the states that a layer of such a time could have felt: all."""
        return frozenset(self.device_states)

    def felt_by_network(self, _time_ms: float) -> frozenset[str]:
        """Return the states that a network of such a time could have felt: all."""
        return frozenset(self.device_states)

    def depends_on_place(self, _layer: Layer, _time_ms: float) -> bool:
        """Say whether a layer's time depends on where in memory it lies; such are built again."""
        return False

    def is_steady(self) -> bool:
        """Say whether the device has its usual speed, by the last reading of the reference."""
        return self.reference is None or self.reference.is_steady()
