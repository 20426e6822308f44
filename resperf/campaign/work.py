"""What a campaign still has to measure, dealt to the devices that share it."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from resperf.campaign.plan import Planned

Item = tuple[Planned, float]
"""A measurement, and how many seconds the plan gives it."""
Identity = tuple[Hashable, ...]


@dataclass
class Work:
    """A queue of measurements for one device, or for several alike ones.

    A measurement is taken by one device at a time. A repeat goes to another device than the first
    measurement of its subject, as long as there is another.

    Attributes
    ----------
    remaining_s : float
        What the plan gives those that are pending.
    """

    remaining_s: float = 0.0
    _pending: deque[Item] = field(default_factory=deque)
    _added: set[Identity] = field(default_factory=set)
    _taken: dict[str, Item] = field(default_factory=dict)
    _first: dict[Identity, str] = field(default_factory=dict)
    _losses: Counter[Identity] = field(default_factory=Counter)
    _devices: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        """Count the measurements without a row."""
        return len(self._pending) + len(self._taken)

    def add(self, items: Iterable[Item]) -> None:
        """Append measurements, but for those that were added before."""
        with self._lock:
            for item, cost_s in items:
                if item.identity not in self._added:
                    self._added.add(item.identity)
                    self._pending.append((item, cost_s))
                    self.remaining_s += cost_s

    def note(self, identities: Iterable[Identity], device: str) -> None:
        """Leave out what a device has measured already."""
        for identity in identities:
            self._added.add(identity)
            self._first.setdefault(identity[:-1], device)

    def join(self, device: str) -> None:
        """Count a device among those that take measurements."""
        with self._lock:
            self._devices.add(device)

    def take(self, device: str) -> Item | None:
        """Return what a device is to measure next; None if there is nothing for it now."""
        with self._lock:
            alone = not self._devices - {device}
            for index, (item, cost_s) in enumerate(self._pending):
                subject = item.identity[:-1]
                if alone or not item.repeat or self._first.get(subject) != device:
                    del self._pending[index]
                    self._taken[device] = item, cost_s
                    self._first.setdefault(subject, device)
                    self.remaining_s -= cost_s
                    return item, cost_s
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

    def lose(self, item: Planned) -> bool:
        """Note that a device was lost while it measured; twice is the subject's doing."""
        with self._lock:
            self._losses[item.identity] += 1
            return self._losses[item.identity] > 1
