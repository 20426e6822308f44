"""Disagreement of predictors trained on different samples of the rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.features import columns_of
from resperf.layers import Dense
from resperf.splits import split_of_keys
from resperf.training.rows import LayerRows
from resperf.workflows.adaptive import acquisition_score, disagreement, novelty


def rows_of(layers: list[Dense], times_ms: np.ndarray) -> LayerRows:
    return LayerRows(
        "dense", columns_of(layers), tuple(layer.key for layer in layers),
        {"execution_ms": times_ms}, np.ones(len(layers), dtype=np.int64), {},
    )  # fmt: skip


def test_it_is_larger_where_the_rows_are_few_and_noisy(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 400, noise=0.02)
    # Few rows of wide outputs, whose times scatter by a factor of two.
    wide = np.array([layer.features_out > 512 for layer in layers])
    chosen = ~wide | (np.arange(len(layers)) % 8 == 0)
    random = np.random.default_rng(5)
    times_ms = np.where(wide, times_ms * np.exp(random.normal(0, 0.7, len(layers))), times_ms)
    rows = rows_of([v for v, k in zip(layers, chosen, strict=True) if k], times_ms[chosen])
    known = [Dense(batch=4, features_in=w, features_out=100) for w in range(50, 1000, 50)]
    unknown = [layer.replace(features_out=1500) for layer in known]
    spread = disagreement(rows, columns_of([*known, *unknown]))
    assert spread.shape == (38,)
    assert np.median(spread[19:]) > 2 * np.median(spread[:19]) > 0
    again = disagreement(rows, columns_of([*known, *unknown]))
    assert (again == spread).all()


def test_layers_far_from_all_rows_have_the_highest_score(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 300, noise=0.05)
    rows = rows_of(layers, times_ms)
    # As many layers near a row as far from all rows.
    near = [layer.replace(features_in=layer.features_in + 1) for layer in layers[:20]]
    far = [layer.replace(batch=20_000, features_in=30_000 + n) for n, layer in enumerate(near)]
    columns = columns_of([*near, *far])
    distances = novelty(rows, columns)
    assert distances[20:].min() > 3 * np.median(distances[:20])
    scores, spread = acquisition_score(rows, columns), disagreement(rows, columns)
    assert scores.mean() == pytest.approx(spread.mean())

    def ratio(values: np.ndarray) -> float:
        return float(np.median(values[20:]) / np.median(values[:20]))

    assert ratio(scores) > 3 * ratio(spread)
    # Measured layers score 0; where all are measured, the score is the disagreement.
    split = split_of_keys(rows.keys)
    trained = [layer for layer, train in zip(layers, split.train, strict=True) if train]
    assert acquisition_score(rows, columns_of([*trained[:5], far[0]]))[:5].max() == 0
    measured = columns_of(trained[:5])
    assert (acquisition_score(rows, measured) == disagreement(rows, measured)).all()


def test_too_few_rows_are_refused(
    toy_rows: Callable[..., tuple[list[Dense], np.ndarray]],
) -> None:
    layers, times_ms = toy_rows("dense", 5)
    with pytest.raises(TrainingError, match="rows to learn from"):
        disagreement(rows_of(layers, times_ms), columns_of(layers))
