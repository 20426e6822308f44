"""Lines on stderr where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest

from resperf import heartbeat
from resperf.campaign.progress import Progress
from resperf.cli._options import bar_of_steps
from resperf.heartbeat import Heartbeat
from resperf.training import progress_bar


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_state_is_written_once_a_minute_at_most(capsys) -> None:
    clock = Clock()
    beating = Heartbeat("bench", clock=clock)
    for second in range(0, 190, 10):
        clock.now_s = 100.0 + second
        beating.beat(f"{second} s")
    shown = capsys.readouterr()
    assert shown.err == "bench: 60 s\nbench: 120 s\nbench: 180 s\n"
    assert shown.out == ""


@pytest.fixture
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(heartbeat.Heartbeat.__init__, "__kwdefaults__", {
        "every_s": 0.0, "clock": Clock(),
    })  # fmt: skip


def test_campaigns_training_and_measuring_say_how_far_they_are(at_once, capsys) -> None:
    progress = Progress(9, 0, show=True)
    progress.advance(done=3, total=9, rate=0.5, remaining_s=80.0, failures=1, again=0)
    progress.close()
    with progress_bar() as report:
        report("conv", "execution", 5, 20, 0.125)
    with bar_of_steps("layers") as update:
        update(2, 7, "dense")
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 3 of 9 rows, 0.5 rows/s, 1 min 20 s remaining, 1 failed",
        "training: conv execution, epoch 5 of 20, validation 12.5%",
        "measuring: 2 of 7 layers, dense",
    ]


def test_a_terminal_shows_bars_and_who_asks_for_nothing_gets_nothing(
    at_once, capsys, monkeypatch
) -> None:
    words = {"done": 3, "total": 9, "rate": 0.5, "remaining_s": 80.0, "failures": 0, "again": 0}
    Progress(9, 0, show=False).advance(**words)
    assert capsys.readouterr().err == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress(9, 0, show=True)
    progress.advance(**words)
    progress.close()
    assert "3/9 |" in terminal.getvalue()
    assert "measuring:" not in terminal.getvalue()
