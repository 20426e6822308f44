from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resperf.dataset import floor_of_medians, noise_floor, noise_warning, read_table
from resperf.layers import Dense
from resperf.measurement import Measurement

MeasuredFactory = Callable[..., Measurement]
FileFactory = Callable[..., Path]
OTHER = Dense(batch=2, features_in=9, features_out=4)


def test_pairs_are_neighbouring_repeats_of_a_layer(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    path = write(
        "a.h5",
        measured(execution_ms=(9.0,), repeat=0),
        measured(OTHER, execution_ms=(4.0,), repeat=0),
        measured(execution_ms=(11.0,), repeat=2),  # comes after repeat 1
        measured(execution_ms=(11.0,), repeat=1),
        measured(OTHER, execution_ms=(6.0,), repeat=1),
    )
    floor = noise_floor(read_table(path)["dense"], "execution_ms")
    # |9 - 11| / 10 = 0.2, |11 - 11| = 0, |4 - 6| / 5 = 0.4
    assert floor.pairs == 3
    assert floor.median_difference == pytest.approx(0.2)
    assert floor.mean_difference == pytest.approx(0.2)
    assert floor.mape == pytest.approx(0.2 / math.sqrt(2))


def test_more_than_a_fifth_of_noisy_rows_is_said(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    def rows(noisy: int, all_rows: int) -> list[Measurement]:
        return [
            measured(
                OTHER.replace(features_in=place + 1),
                # Noisy by a flag, or by the reference layer.
                flags=("drift",) if place < noisy and place % 2 else (),
                reference_ratio=1.5 if place < noisy and not place % 2 else 1.0,
            )
            for place in range(all_rows)
        ]

    def warning(name: str, noisy: int) -> str:
        return noise_warning(read_table(write(name, *rows(noisy, 10))).values())

    assert warning("few.h5", 2) == ""
    said = warning("many.h5", 3)
    assert said.startswith("3 of 10 measured rows (30%) are noisy")
    assert "resperf bench" in said


def test_flagged_and_failed_rows_make_no_pair(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    path = write("a.h5", measured(), measured(repeat=1, flags=("busy",)), measured(OTHER))
    floor = noise_floor(read_table(path)["dense"], "execution_ms")
    assert floor.pairs == 0
    assert math.isnan(floor.mape)


def test_the_floor_is_what_a_perfect_predictor_scores(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    generator = np.random.default_rng(0)
    true_ms = generator.uniform(1, 100, size=600)
    seen_ms = true_ms[:, None] * (1 + 0.02 * generator.standard_normal((600, 2)))
    rows = [
        measured(OTHER.replace(features_in=layer + 1), execution_ms=(time_ms,), repeat=repeat)
        for layer, times_ms in enumerate(seen_ms.tolist())
        for repeat, time_ms in enumerate(times_ms)
    ]
    floor = noise_floor(read_table(write("a.h5", *rows))["dense"], "execution_ms")
    perfect = np.mean(np.abs(seen_ms - true_ms[:, None]) / seen_ms)
    assert floor.pairs == 600
    assert floor.mape == pytest.approx(perfect, rel=0.06)


@pytest.mark.parametrize(("count", "within"), [(1, 1e-12), (2, 0.01), (3, 0.02), (5, 0.02)])
def test_medians_of_several_measurements_have_a_lower_floor(count: int, within: float) -> None:
    generator = np.random.default_rng(1)
    medians = np.median(generator.standard_normal((400_000, count)), axis=1)
    expected = np.abs(medians).mean() / math.sqrt(2 / math.pi) if count > 1 else 1.0
    assert floor_of_medians(1.0, np.full(4, count)) == pytest.approx(expected, rel=within)


def test_the_floor_of_medians_is_a_mean_over_layers() -> None:
    assert floor_of_medians(0.1, np.array([1, 2])) == pytest.approx(0.1 * (1 + math.sqrt(0.5)) / 2)
    assert math.isnan(floor_of_medians(math.nan, np.array([3])))
