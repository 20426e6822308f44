"""What all backends share: how many copies of a layer one run holds."""

from __future__ import annotations

import itertools

from resperf.backends._base import copies_for
from resperf.copies import MAX_COPIES


def test_the_fastest_run_without_the_call_says_how_many_copies_there_are() -> None:
    times_ms = iter([0.9, 0.3, 0.8, 0.7, 0.6])
    # A layer of 0.3 - 0.1 ms fills a millisecond five times.
    assert copies_for(lambda: next(times_ms), 0.1, 0, 50.0) == 5
    assert list(times_ms) == []
    assert copies_for(lambda: 0.1, 5.0, 0, 50.0) == MAX_COPIES
    assert copies_for(lambda: 0.1, 5.0, 0, 50.0, 16) == 16


def test_a_layer_beyond_the_budget_is_timed_once() -> None:
    times_ms = itertools.count(60.0)
    assert copies_for(lambda: next(times_ms), 0.0, 0, 50.0) == 1
    assert next(times_ms) == 61.0
