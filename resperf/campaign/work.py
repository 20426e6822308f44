"""What a campaign still has to measure, dealt to the devices that share it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from resperf.campaign.plan import Planned

MOST_LOSSES = 3
"""Losses after which an item gets a row though no second device could try it."""

Item = tuple[Planned, float]
"""A measurement, and how many seconds the plan gives it."""


@dataclass
class Work:
    """A queue of measurements for one device, or for several alike ones.

    A measurement is taken by one device at a time. A repeat goes to another device than the first
    measurement of its subject, as long as there is another.

    Attributes
    ----------
    total : int
        Measurements that were ever added.
    remaining_s : float
        What the plan gives those that are pending.
    """

    total: int = 0
    remaining_s: float = 0.0
    _pending: deque[Item] = field(default_factory=deque)
    _known: set[tuple[Hashable, ...]] = field(default_factory=set)
    _taken: dict[str, Item] = field(default_factory=dict)
    _first: dict[tuple[Hashable, ...], str] = field(default_factory=dict)
    _lost: dict[tuple[Hashable, ...], list[str]] = field(default_factory=dict)
    _devices: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, items: Iterable[Item]) -> None:
        """Append measurements, but for those that were added before."""
        with self._lock:
            for item, cost_s in items:
                if item.identity not in self._known:
                    self._known.add(item.identity)
                    self._pending.append((item, cost_s))
                    self.total += 1
                    self.remaining_s += cost_s

    def note(self, identities: Iterable[tuple[Hashable, ...]], device: str) -> None:
        """Leave out what a device has measured already."""
        with self._lock:
            for identity in identities:
                self._known.add(identity)
                self._first.setdefault(identity[:-1], device)

    def __len__(self) -> int:
        """Count the measurements without a row."""
        return len(self._pending) + len(self._taken)

    def join(self, device: str) -> None:
        """Count a device among those that take measurements."""
        with self._lock:
            self._devices.add(device)

    def take(self, device: str) -> Item | None:
        """Return what a device is to measure next; None if there is nothing for it now."""
        with self._lock:
            if item := self._next(device):
                self._taken[device] = item
                self.remaining_s -= item[1]
                self._first.setdefault(item[0].identity[:-1], device)
            return item

    def _next(self, device: str) -> Item | None:
        others = self._devices - {device}
        for index, (item, _) in enumerate(self._pending):
            if not item.repeat or not others or self._first.get(item.identity[:-1]) != device:
                item_and_cost = self._pending[index]
                del self._pending[index]
                return item_and_cost
        return None

    def finish(self, device: str) -> None:
        """Forget what a device took: its row is written."""
        with self._lock:
            self._taken.pop(device, None)

    def leave(self, device: str) -> None:
        """Count a device out; what it took and did not finish is dealt again, first."""
        with self._lock:
            self._devices.discard(device)
            if item := self._taken.pop(device, None):
                self._pending.appendleft(item)
                self.remaining_s += item[1]

    def lose(self, device: str, item: Planned) -> bool:
        """Note that a device was lost while it measured; whether that is the subject's doing.

        It is when two devices, or one time after time, were.
        """
        with self._lock:
            lost = self._lost.setdefault(item.identity, [])
            lost.append(device)
            return len(set(lost)) > 1 or len(lost) >= MOST_LOSSES
