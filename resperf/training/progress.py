"""Progress of training: bars on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resperf.errors import require
from resperf.heartbeat import Heartbeat

TrainingProgress = Callable[[str, str, int, int, float], None]
"""Called with (kind, phase, epochs done, total epochs, validation MAPE as a fraction)."""


@contextmanager
def progress_bar() -> Iterator[TrainingProgress]:
    """Yield a callback that draws one bar per predictor on stderr, or writes lines to a file."""
    if not sys.stderr.isatty():
        heartbeat = Heartbeat("training")

        def beat(kind: str, phase: str, done: int, epochs: int, error: float) -> None:
            heartbeat.beat(f"{kind} {phase}, epoch {done} of {epochs}, validation {error:.1%}")

        yield beat
        return
    tqdm = require("tqdm", "train").tqdm
    bars: dict[tuple[str, str], object] = {}

    def report(kind: str, phase: str, done: int, epochs: int, error: float) -> None:
        bar = bars.get((kind, phase))
        if bar is None or done <= bar.n:  # type: ignore[attr-defined]
            for finished in bars.values():
                finished.close()  # type: ignore[attr-defined]
            bar = bars[kind, phase] = tqdm(
                total=epochs, desc=f"{kind} {phase}", unit="epoch", file=sys.stderr, leave=False
            )
        bar.set_postfix_str(f"validation {error:.1%}", refresh=False)  # type: ignore[attr-defined]
        bar.update(done - bar.n)  # type: ignore[attr-defined]

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()  # type: ignore[attr-defined]
