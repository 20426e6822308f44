"""Lines on stderr where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest

from resperf import heartbeat
from resperf.cli._options import bar_of_steps
from resperf.heartbeat import Steps
from resperf.training import progress_bar
from resperf.units import format_duration


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_state_is_written_once_a_minute_at_most(capsys, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr("resperf.heartbeat.time.monotonic", clock)
    steps = Steps("rows", doing="bench")
    for second in range(0, 190, 10):
        clock.now_s = 100.0 + second
        steps.show(second, 190, "conv")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"bench: {second} of 190 rows, conv" for second in (60, 120, 180)
    ]
    assert shown.out == ""


def test_durations_are_written_in_two_units() -> None:
    written = [format_duration(seconds) for seconds in (3900.0, 80.0, 8.2)]
    assert written == ["1 h 05 min", "1 min 20 s", "8 s"]


@pytest.fixture
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)


def test_campaigns_training_and_measuring_say_how_far_they_are(at_once, capsys) -> None:
    steps = Steps("rows", total=9)
    steps.show(3, 9, "0.5 rows/s", "1 failed")
    steps.close()
    with progress_bar() as report:
        report("conv", "execution", 5, 20, 0.125)
    with bar_of_steps("layers") as update:
        update(2, 7, "dense")
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 3 of 9 rows, 0.5 rows/s, 1 failed",
        "training: 5 of 20 epochs, conv execution, validation 12.5%",
        "measuring: 2 of 7 layers, dense",
    ]


def test_a_terminal_shows_bars(at_once, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    steps = Steps("rows", total=9, leave=True)
    steps.show(3, 9, "0.5 rows/s")
    steps.close()
    assert "3/9 |" in terminal.getvalue()
    assert "measuring:" not in terminal.getvalue()
