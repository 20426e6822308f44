"""Lines on stderr that say how far a long command is, where no terminal shows a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

EVERY_S = 60.0
"""Time between two lines; a command that takes less writes none."""


class Heartbeat:
    """Writes the state of a command at most once in `every_s`.

    Parameters
    ----------
    what : str
        Begins each line, such as ``"bench"``.
    every_s : float
    clock : callable
        Returns seconds.
    """

    def __init__(
        self, what: str, *, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._every_s, self._clock = what, every_s, clock
        self._last_s = clock()

    def beat(self, state: str) -> None:
        """Write the state if the last line, or the start, is long enough ago."""
        now_s = self._clock()
        if now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            sys.stderr.write(f"{self._what}: {state}\n")
            sys.stderr.flush()
