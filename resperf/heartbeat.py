"""How far a long command is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

from resperf.errors import require

EVERY_S = 60.0
"""Time between two lines, and before the first; a command that takes less writes none."""


class Steps:
    """Shows how far a command is.

    Parameters
    ----------
    what : str
        What is counted, such as ``"rows"``; nothing is shown if it is empty.
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
        self._what, self._doing, self._bar = what, doing, None
        self._last_s = time.monotonic()
        if what and sys.stderr.isatty():
            tqdm: Any = require("tqdm", "bench")
            self._bar = tqdm.tqdm(
                total=total, initial=done, file=sys.stderr, leave=leave,
                bar_format="{n_fmt}/{total_fmt} |{bar:30}| {postfix}",
            )  # fmt: skip

    def show(self, done: int, total: int, *words: str) -> None:
        """Show how many of how many are done, and what else there is to say."""
        if self._bar is None:
            now_s = time.monotonic()
            if self._what and now_s - self._last_s >= EVERY_S:
                self._last_s = now_s
                state = f"{done} of {total} {self._what}, {', '.join(words)}"
                sys.stderr.write(f"{self._doing}: {state}\n")
                sys.stderr.flush()
            return
        # tqdm would put a comma in front of a postfix given to set_postfix.
        self._bar.postfix, self._bar.total = ", ".join(words), total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
