"""One measurement at a time on a device that two would share, such as a GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from resperf.backends.monitors import Monitor
from resperf.disk_cache import folder_of
from resperf.errors import CampaignError
from resperf.files import lock


@contextmanager
def only_campaign_on(monitor: Monitor) -> Iterator[None]:
    """Keep other campaigns and measurements off the device inside the ``with`` block.

    The lock is a file in the cache folder; the system releases it however this process ends. Where
    there can be no such file, nothing is locked.

    Raises
    ------
    CampaignError
        If another one measures on it.
    ResperfError
        If the device is not there.
    """
    name = monitor.exclusive
    if not name:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path = folder_of("locks") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield
            return
        stack.callback(os.close, file)
        if not lock(file):
            holder = os.read(file, 20).decode(errors="replace").strip()
            raise CampaignError(
                f"another resperf (process {holder}) is measuring on {monitor.device}; wait for "
                "it to end, or choose another device"
            )
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
