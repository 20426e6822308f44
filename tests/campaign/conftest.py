"""What campaigns of layers and of networks must both survive."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from resperf.measurement import Status


class Failure(NamedTuple):
    """A failure of the simulated device, and the row that it should become."""

    name: str
    status: Status
    detail: str


FAILURES = (
    Failure("crash", Status.CRASHED, "SIGSEGV"),
    Failure("kill", Status.OUT_OF_MEMORY, "killed by the system"),
    Failure("memory", Status.OUT_OF_MEMORY, "on demand"),
    Failure("error", Status.CRASHED, "RuntimeError: synthetic: an unforeseen error"),
    Failure("unsupported", Status.UNSUPPORTED, "on demand"),
    Failure("hang", Status.TIMEOUT, "no answer within "),
)


@pytest.fixture(params=FAILURES, ids=lambda failure: failure.name)
def failure(request: pytest.FixtureRequest) -> Failure:
    """Return one failure after the other."""
    found: Failure = request.param
    return found


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def interrupt(request: pytest.FixtureRequest) -> Callable[[Path], threading.Thread]:
    """Send a signal to this process once a journal has five rows."""

    def wait(journal: Path) -> None:
        while not journal.exists() or journal.read_bytes().count(b'{"row"') < 5:
            time.sleep(0.02)
        os.kill(os.getpid(), request.param)

    def start(journal: Path) -> threading.Thread:
        thread = threading.Thread(target=wait, args=[journal], daemon=True)
        thread.start()
        return thread

    return start
