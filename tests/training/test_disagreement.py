"""Predictors that learnt from different samples of the rows: where they disagree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.features import columns_of
from resperf.layers import Dense
from resperf.splits import split_of_keys
from resperf.training.disagreement import disagreement, doubt_of, novelty
from resperf.training.rows import LayerRows


def rows_of(layers: list[Dense], times_ms: np.ndarray) -> LayerRows:
    return LayerRows(
        "dense", columns_of(layers), tuple(layer.key for layer in layers),
        {"execution_ms": times_ms}, np.ones(len(layers), dtype=np.int64), {},
    )  # fmt: skip


def test_it_is_larger_where_the_rows_say_less(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 400, noise=0.02)
    # Few rows of wide outputs, whose times scatter by a factor of two.
    wide = np.array([layer.features_out > 512 for layer in layers])
    kept = ~wide | (np.arange(len(layers)) % 8 == 0)
    random = np.random.default_rng(5)
    times_ms = np.where(wide, times_ms * np.exp(random.normal(0, 0.7, len(layers))), times_ms)
    rows = rows_of([v for v, k in zip(layers, kept, strict=True) if k], times_ms[kept])
    known = [Dense(batch=4, features_in=w, features_out=100) for w in range(50, 1000, 50)]
    unknown = [layer.replace(features_out=1500) for layer in known]
    spread = disagreement(rows, columns_of([*known, *unknown]))
    assert spread.shape == (38,)
    assert np.median(spread[19:]) > 2 * np.median(spread[:19]) > 0
    again = disagreement(rows, columns_of([*known, *unknown]))
    assert (again == spread).all()
    assert (disagreement(rows, columns_of([*known, *unknown]), seed=1) != spread).any()


def test_layers_unlike_all_rows_are_doubted_most(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 300, noise=0.05)
    rows = rows_of(layers, times_ms)
    # As many that differ a little from rows, as lie far beyond them all.
    near = [layer.replace(features_in=layer.features_in + 1) for layer in layers[:20]]
    far = [layer.replace(batch=20_000, features_in=30_000 + n) for n, layer in enumerate(near)]
    columns = columns_of([*near, *far])
    distances = novelty(rows, columns)
    assert distances[20:].min() > 3 * np.median(distances[:20])
    doubts, spread = doubt_of(rows, columns), disagreement(rows, columns)
    assert doubts.mean() == pytest.approx(spread.mean())

    def ratio(values: np.ndarray) -> float:
        return float(np.median(values[20:]) / np.median(values[:20]))

    assert ratio(doubts) > 3 * ratio(spread)
    # What is measured already is not doubted; where all is, it counts as the predictors say.
    split = split_of_keys(rows.keys)
    trained = [layer for layer, train in zip(layers, split.train, strict=True) if train]
    assert doubt_of(rows, columns_of([*trained[:5], far[0]]))[:5].max() == 0
    measured = columns_of(trained[:5])
    assert (doubt_of(rows, measured) == disagreement(rows, measured)).all()


def test_too_few_rows_are_refused(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 5)
    with pytest.raises(TrainingError, match="rows to learn from"):
        disagreement(rows_of(layers, times_ms), columns_of(layers))
