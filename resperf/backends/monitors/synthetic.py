"""Monitor of the simulated device, with the device's own clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from resperf.backends._base import Backend
from resperf.backends.monitors._base import Monitor
from resperf.backends.monitors.cpu import limit_private_memory
from resperf.units import NS_PER_S

if TYPE_CHECKING:
    from resperf.backends.synthetic import SyntheticBackend


class SyntheticMonitor(Monitor):
    """Times the reference layer on the simulated clock."""

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the private memory of this process."""
        limit_private_memory(limit_bytes)

    def _prepare(self, backend: Backend) -> None:
        """Use the backend's clock, also for the time since 1970."""
        started_at, clock = time.time(), cast("SyntheticBackend", backend).clock
        self.clock = clock
        self.now = lambda: started_at + clock() / NS_PER_S
