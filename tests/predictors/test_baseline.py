"""The baseline finds coefficients that are there, and none that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resperf.errors import TrainingError
from resperf.features import columns_of
from resperf.layers import OPTIMIZERS, Dense, DenseStep
from resperf.predictors.baseline import Baseline, fit_terms
from resperf.predictors.metrics import mape
from resperf.predictors.terms import TERMS, physical_terms

RANDOM = np.random.default_rng(5)
ROWS = np.column_stack([np.ones(60), np.exp(RANDOM.normal(size=(60, 2)))])


def test_coefficients_are_found() -> None:
    truth = np.array([0.5, 2.0, 0.0])
    np.testing.assert_allclose(fit_terms(ROWS, ROWS @ truth), truth, atol=1e-6)


def test_an_outlier_does_not_move_them() -> None:
    truth = np.array([0.5, 2.0, 1.0])
    times_ms = ROWS @ truth
    times_ms[7] *= 5
    np.testing.assert_allclose(fit_terms(ROWS, times_ms), truth, rtol=0.01)


def test_none_is_negative_and_none_passes_its_bound() -> None:
    times_ms = ROWS @ np.array([0.5, 2.0, 1.0])
    bounded = fit_terms(ROWS, times_ms, largest=np.array([np.inf, 0.5, np.inf]))
    assert bounded[1] == 0.5
    assert (bounded >= 0).all()
    assert bounded[2] > 1.0


def test_a_term_that_few_rows_have_is_left_out() -> None:
    rare = np.zeros(60)
    rare[:2] = 1.0
    found = fit_terms(np.column_stack([ROWS, rare]), ROWS @ np.array([0.5, 2.0, 1.0]) + rare)
    assert found[3] == 0


def test_rows_of_weight_zero_do_not_count() -> None:
    truth = np.array([0.5, 2.0, 1.0])
    times_ms = ROWS @ truth
    times_ms[:20] *= 3
    weights = np.r_[np.zeros(20), np.ones(40)]
    np.testing.assert_allclose(fit_terms(ROWS, times_ms, weights), truth, rtol=1e-6)


@pytest.mark.parametrize("kind", ["conv", "pool", "dense"])
def test_closed_form_times_are_learnt(toy_rows: Any, kind: str) -> None:
    layers, times_ms = toy_rows(kind, 120)
    columns = columns_of(layers)
    fitted = Baseline(kind).fit(columns, times_ms, validation=(columns, times_ms), seed=0)
    others, other_ms = toy_rows(kind, 50, seed=2)
    assert mape(other_ms, fitted.predict(columns_of(others))) < 0.02


def test_dense_terms_by_hand() -> None:
    columns = columns_of([Dense(batch=1, features_in=999, features_out=1000, activation="tanh")])
    row = dict(zip(TERMS["dense"], physical_terms("dense", columns)[0], strict=True))
    assert row["weights"] == row["weights one row"] == pytest.approx(4.0)  # 1000 x 1000 x 4 bytes
    assert row["weights beyond cache 2"] == pytest.approx(3.0)
    assert row["flops"] == pytest.approx(2 * 999 * 1000 / 1e9)
    assert row["out tanh"] == row["out exponential"] == pytest.approx(0.004)
    assert row["out relu"] == 0


def test_unknown_terms_are_refused() -> None:
    columns = columns_of([Dense(batch=1, features_in=9, features_out=9)])
    with pytest.raises(TrainingError, match="no physical terms magic"):
        physical_terms("dense", columns, ("magic",))


def test_what_an_optimizer_costs_is_found_in_training_steps() -> None:
    random = np.random.default_rng(2)
    layers = [
        DenseStep(
            batch=int(random.integers(1, 65)), features_in=int(random.integers(64, 4096)),
            features_out=int(random.integers(64, 4096)), optimizer=str(random.choice(OPTIMIZERS)),
        )
        for _ in range(200)
    ]  # fmt: skip
    ms_per_mb = {"sgd": 0.01, "adam": 0.05}
    times_ms = np.array(
        [0.1 + layer.weight_bytes / 1e6 * ms_per_mb.get(layer.optimizer, 0.02) for layer in layers]
    )
    columns = columns_of(layers)
    fitted = Baseline("dense_step").fit(columns, times_ms, validation=(columns, times_ms), seed=0)
    assert mape(times_ms, fitted.predict(columns)) < 0.01
    sgd, adam = (layers[0].replace(optimizer=name) for name in ("sgd", "adam"))
    apart_ms = fitted.predict(columns_of([adam])) - fitted.predict(columns_of([sgd]))
    assert apart_ms[0] == pytest.approx(0.04 * layers[0].weight_bytes / 1e6, rel=0.05)
