"""How far a long command is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from resperf.errors import require

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


class Steps:
    """Shows how far a command is.

    Parameters
    ----------
    what : str
        What is counted, such as ``"rows"``.
    total, done : int
        Of all, and of earlier starts.
    leave : bool
        Whether the bar's last state remains on the screen.
    doing : str
        Begins each line that is written where there is no terminal.
    """

    def __init__(
        self,
        what: str,
        *,
        total: int = 0,
        done: int = 0,
        leave: bool = False,
        doing: str = "measuring",
    ) -> None:
        self._what, self._heartbeat, self._bar = what, Heartbeat(doing), None
        if sys.stderr.isatty():
            tqdm: Any = require("tqdm", "bench")
            self._bar = tqdm.tqdm(
                total=total, initial=done, file=sys.stderr, leave=leave,
                bar_format="{n_fmt}/{total_fmt} |{bar:30}| {postfix}",
            )  # fmt: skip

    def show(self, done: int, total: int, *words: str) -> None:
        """Show how many of how many are done, and what else there is to say."""
        if self._bar is None:
            self._heartbeat.beat(f"{done} of {total} {self._what}, {', '.join(words)}")
            return
        # tqdm would put a comma in front of a postfix given to set_postfix.
        self._bar.postfix, self._bar.total = ", ".join(words), total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
