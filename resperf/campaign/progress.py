"""Progress of a campaign on stderr: rows done, rate, remaining time, failures."""

from __future__ import annotations

import sys
from typing import Any

from resperf.errors import require
from resperf.heartbeat import Heartbeat


class Progress:
    """A progress bar if stderr is a terminal, else a line now and then.

    Parameters
    ----------
    total : int
        Measurements of the campaign.
    done : int
        Measurements of earlier starts.
    show : bool
        False hides both.
    """

    def __init__(self, total: int, done: int, *, show: bool) -> None:
        self._bar: Any = None
        self._heartbeat = Heartbeat("measuring") if show and not sys.stderr.isatty() else None
        if show and sys.stderr.isatty():
            tqdm = require("tqdm", "bench")
            self._bar = tqdm.tqdm(
                total=total,
                initial=done,
                file=sys.stderr,
                unit="row",
                bar_format="{n_fmt}/{total_fmt} |{bar:30}| {postfix}",
            )

    def advance(
        self, *, done: int, total: int, rate: float, remaining_s: float, failures: int, again: int
    ) -> None:
        """Show the state after a measurement."""
        words = [f"{rate:.1f} rows/s", f"{format_duration(remaining_s)} remaining"]
        words += [f"{failures} failed"] if failures else []
        words += [f"{again} measured again"] if again else []
        if self._heartbeat is not None:
            self._heartbeat.beat(f"{done} of {total} rows, {', '.join(words)}")
        if self._bar is None:
            return
        # tqdm would put a comma in front of a postfix given to set_postfix.
        self._bar.postfix = ", ".join(words)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Close the bar; its last state remains on the screen."""
        if self._bar is not None:
            self._bar.close()


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units: ``"1 h 05 min"``, ``"3 min 20 s"``, ``"8 s"``."""
    total_s = max(0, round(seconds))
    hours, minutes, rest = total_s // 3600, total_s % 3600 // 60, total_s % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
