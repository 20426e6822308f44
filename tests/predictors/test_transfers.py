"""Copies between host and device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.predictors.transfers import Transfers

SIZES = np.geomspace(1e3, 5e7, 80)


def test_a_cost_per_byte_that_rises_beyond_a_cache_is_found() -> None:
    times_ms = 0.002 + SIZES / 1e6 * 0.1 + np.maximum(SIZES - 4e6, 0) / 1e6 * 0.2
    fitted = Transfers.fit(SIZES, times_ms)
    # 10 MB: 0.002 + 1.0 + 1.2.
    assert fitted.predict(np.array([1e7]))[0] == pytest.approx(2.202, rel=0.01)
    assert fitted.constant_ms == pytest.approx(0.002, rel=0.01)
    assert (np.diff(fitted.predict(np.geomspace(1, 1e9, 200))) >= 0).all()


def test_views_take_no_time() -> None:
    fitted = Transfers.fit(SIZES, np.zeros(80))
    assert (fitted.predict(SIZES) == 0).all()


def test_rows_without_a_time_are_skipped() -> None:
    times_ms = 0.01 + SIZES / 1e7
    times_ms[::4] = math.nan
    fitted = Transfers.fit(SIZES, times_ms)
    assert fitted.predict(np.array([1e7]))[0] == pytest.approx(1.01, rel=0.01)


def test_json_keeps_every_bit() -> None:
    fitted = Transfers.fit(SIZES, 0.01 + SIZES / 1e7)
    assert Transfers.from_json(fitted.to_json()) == fitted


def test_no_rows_are_refused() -> None:
    with pytest.raises(TrainingError, match="no transfer was measured"):
        Transfers.fit(np.array([1.0]), np.array([math.nan]))
