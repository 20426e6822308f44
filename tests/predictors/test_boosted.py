"""Boosted trees on the baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resperf.features import Array, Columns, columns_of
from resperf.predictors import Examples
from resperf.predictors.boosted import Boosted, Described
from resperf.predictors.metrics import mape

pytest.importorskip("lightgbm")
pytest.importorskip("scipy")

Rows = tuple[Columns, Array]


def examples(columns: Columns, times_ms: Any) -> Examples:
    return Examples(columns, "execution_ms", times_ms)


def rows_of(toy_rows: Any, count: int, seed: int, noise: float = 0.0) -> Rows:
    """Times of dense layers that depend on the width in a way that no physical term has."""
    layers, times_ms = toy_rows("dense", count, seed=seed, noise=noise)
    slow = np.array([layer.features_out % 16 < 8 for layer in layers])
    return columns_of(layers), times_ms * np.where(slow, 1.6, 1.0)


@pytest.fixture(scope="module")
def fitted(toy_rows: Any) -> Boosted:
    columns, times_ms = rows_of(toy_rows, 400, 1)
    return Boosted("dense").fit(
        examples(columns, times_ms), validation=examples(*rows_of(toy_rows, 80, 2)), seed=0
    )


def test_trees_learn_what_the_baseline_cannot(fitted: Boosted, toy_rows: Any) -> None:
    columns, times_ms = rows_of(toy_rows, 200, 3)
    off = mape(times_ms, fitted.values(columns))
    assert off < 0.3 * mape(times_ms, fitted.baseline_.values(columns))


def test_the_file_takes_the_same_branches_on_every_threshold(toy_rows: Any, tmp_path: Any) -> None:
    columns, times_ms = rows_of(toy_rows, 400, 1)
    # Few trees: each leaf is far above the rounding of float32 sums.
    fitted = Boosted("dense", trees=30).fit(
        examples(columns, times_ms), validation=examples(*rows_of(toy_rows, 80, 2)), seed=0
    )
    loaded = Boosted.load(fitted.export(tmp_path, "s"), tmp_path)
    others, _ = rows_of(toy_rows, 50, 4)
    rows, _ = fitted._inputs(Described.of(fitted.kind, others))
    # Rows exactly on thresholds, and one float32 beside them.
    forest = fitted._forest
    # LightGBM reads values of up to 1e-35 as 0: its threshold beside 0 is no value of a row.
    real = np.abs(forest.thresholds) > 1e-34
    features, thresholds = forest.features[real], forest.thresholds[real]
    assert len(thresholds) > 200
    on = np.repeat(rows[:1], len(features), axis=0).astype(np.float32)
    at = np.arange(len(on)), features
    on[at] = thresholds
    beside = on.copy()
    beside[at] = np.nextafter(thresholds, np.float32(np.inf))
    every = np.concatenate([rows, on, beside]).astype(np.float64)
    np.testing.assert_allclose(loaded._run(every), fitted._run(every), atol=1e-6)
    assert np.abs(fitted._run(on) - fitted._run(beside)).max() > 1e-3


def test_validation_rows_say_how_many_trees_are_enough(toy_rows: Any) -> None:
    columns, times_ms = rows_of(toy_rows, 120, 1, noise=0.3)
    told: list[tuple[int, int, float]] = []
    fitted = Boosted("dense", trees=400).fit(
        examples(columns, times_ms), validation=examples(*rows_of(toy_rows, 60, 2)), seed=0,
        progress=lambda *each: told.append(each),
    )  # fmt: skip
    errors = [error for _, _, error in told]
    assert [done for done, _, _ in told] == list(range(1, len(told) + 1))
    assert fitted.best_trees_ == 1 + int(np.argmin(errors))
    validation_rows, validation_ms = rows_of(toy_rows, 60, 2)
    assert mape(validation_ms, fitted.values(validation_rows)) == pytest.approx(min(errors))
    # More trees would have learnt the noise.
    assert fitted.best_trees_ < 400


def test_far_outside_the_data_the_baseline_extrapolates(fitted: Boosted, toy_rows: Any) -> None:
    layers, _ = toy_rows("dense", 5)
    huge = columns_of([layers[0].replace(features_in=500_000, features_out=300_000)])
    ratio = fitted.values(huge)[0] / fitted.baseline_.values(huge)[0]
    assert 0.6 < ratio < 1.7


def test_hardly_any_validation_rows_do_not_say_how_many_trees_are_enough(toy_rows: Any) -> None:
    columns, times_ms = rows_of(toy_rows, 120, 1, noise=0.05)

    def fitted_by(count: int, factor: float) -> Boosted:
        validation_rows, validation_ms = rows_of(toy_rows, count, 2)
        return Boosted("dense").fit(
            examples(columns, times_ms),
            validation=examples(validation_rows, factor * validation_ms),
            seed=0,
        )

    # Three bad rows would stop before the first tree; so few are not used for that.
    few = fitted_by(3, 3.0)
    assert few.best_trees_ == fitted_by(3, 1.0).best_trees_ > 20
    assert fitted_by(25, 3.0).best_trees_ != fitted_by(25, 1.0).best_trees_
    others, others_ms = rows_of(toy_rows, 200, 3)
    assert mape(others_ms, few.values(others)) < 0.15
