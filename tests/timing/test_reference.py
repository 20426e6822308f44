import math

import pytest

from resperf.timing import ReferenceHistory


def history_of(*readings: tuple[float, float]) -> ReferenceHistory:
    history = ReferenceHistory()
    for reading in readings:
        history.add(*reading)
    return history


def test_ratio_is_interpolated_between_readings() -> None:
    history = history_of((0.0, 1.0), (10.0, 2.0), (20.0, 1.0), (30.0, 1.0), (40.0, 1.0))
    assert history.median_ms == 1.0
    assert history.ratio(10.0) == 2.0
    assert history.ratio(5.0) == pytest.approx(1.5)
    assert history.ratio(12.5) == pytest.approx(1.75)
    assert history.ratio(-1.0) == 1.0
    assert history.ratio(99.0) == 1.0


def test_readings_may_come_in_any_order() -> None:
    history = history_of((2.0, 30.0), (1.0, 10.0))
    assert (history.time_ms(1.0), history.time_ms(2.0)) == (10.0, 30.0)
    assert history.latest_ms == 30.0


def test_without_readings_nothing_is_known() -> None:
    assert math.isnan(ReferenceHistory().ratio(0.0))
