"""The baseline finds the true coefficients, and zeros for other terms."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from resperf import targets
from resperf.errors import TrainingError
from resperf.features import Array, Columns, columns_of
from resperf.layers import KINDS, Dense, Elementwise, Layer
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.baseline import Baseline, fit_terms
from resperf.predictors.metrics import mape
from resperf.predictors.terms.work import (
    WORK,
    TermTable,
    constant_terms,
    millions,
    physical_terms,
    terms_of,
)
from resperf.settings import OPTIMIZERS, Setting
from resperf.targets import UNKNOWN

RANDOM = np.random.default_rng(5)
ROWS = np.column_stack([np.ones(60), np.exp(RANDOM.normal(size=(60, 2)))])


def examples(columns: Columns, times_ms: Any) -> Examples:
    return Examples(columns, "execution_ms", times_ms)


def test_coefficients_are_found() -> None:
    expected = np.array([0.5, 2.0, 0.0])
    np.testing.assert_allclose(fit_terms(ROWS, ROWS @ expected), expected, atol=1e-6)


def test_an_outlier_does_not_move_them() -> None:
    expected = np.array([0.5, 2.0, 1.0])
    times_ms = ROWS @ expected
    times_ms[7] *= 5
    np.testing.assert_allclose(fit_terms(ROWS, times_ms), expected, rtol=0.01)


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


@pytest.mark.parametrize("kind", ["conv", "pool", "dense"])
def test_closed_form_times_are_learnt(toy_rows: Any, kind: str) -> None:
    layers, times_ms = toy_rows(kind, 120)
    columns = columns_of(layers)
    fitted = Baseline(kind).fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    others, other_ms = toy_rows(kind, 50, seed=2)
    assert mape(other_ms, fitted.values(columns_of(others))) < 0.02


def test_dense_terms_by_hand() -> None:
    columns = columns_of([Dense(batch=1, features_in=999, features_out=1000, activation="tanh")])
    row = dict(zip(terms_of("dense"), physical_terms("dense", columns)[0], strict=True))
    assert row["weights"] == row["weights one row"] == pytest.approx(4.0)  # 1000 x 1000 x 4 bytes
    assert row["weights beyond cache 2"] == pytest.approx(3.0)
    assert row["weights beyond 4 MB"] == 0
    assert row["depth"] == pytest.approx(999e-6)
    assert row["flops"] == pytest.approx(2 * 999 * 1000 / 1e9)
    assert row["out tanh"] == row["out exponential"] == pytest.approx(0.004)
    assert row["out relu"] == 0


ON_A_CARD = Setting("tensorflow", "1.10"), Platform("1080ti")
ON_A_CPU = Setting("onnxruntime", "1.20"), Platform("cpu")
ON_A_TOY = Setting("synthetic", "1"), Platform("toy")


_SIZES = np.exp(RANDOM.uniform(np.log([1, 8, 8]), np.log([9, 4096, 512]), (200, 3))).astype(int)
DENSE = columns_of([Dense(batch=b, features_in=k, features_out=n) for b, k, n in _SIZES.tolist()])
# The loop over the depth is a term of cards, threads are a term of CPUs.
DENSE_MS = physical_terms("dense", DENSE, ("constant", "depth", "constant threads")) @ np.array(
    [0.01, 30.0, 0.2]
)


@pytest.mark.parametrize(
    ("where", "device_class", "own", "others"),
    [
        (ON_A_CARD, "cuda", {"depth"}, {"constant threads"}),
        (ON_A_CPU, "cpu", {"constant threads"}, {"depth"}),
        # Classes without a table have the terms of all.
        (ON_A_TOY, "synthetic", {"depth", "constant threads"}, set()),
        (None, UNKNOWN, {"depth", "constant threads"}, set()),
    ],
)
def test_a_baseline_is_learnt_with_the_terms_of_its_class_of_devices(
    where: tuple[Setting, Platform] | None,
    device_class: str,
    own: set[str],
    others: set[str],
    tmp_path: Path,
) -> None:
    known = ((where[0],), (where[1],)) if where else ()
    rows = Examples(DENSE, "execution_ms", DENSE_MS, *known)
    fitted = Baseline("dense").fit(rows, validation=rows, seed=0)
    assert own <= set(fitted.terms_)
    assert not others & set(fitted.terms_)
    stored = fitted.export(tmp_path, "dense")
    assert stored["device_class"] == device_class
    loaded = Baseline.load(stored, tmp_path)
    assert loaded.device_class_ == device_class
    np.testing.assert_array_equal(loaded.values(DENSE), fitted.values(DENSE))


def test_another_package_brings_the_terms_of_its_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beads = TermTable(usual={"beads": millions("features_out")}, own={})
    monkeypatch.setitem(sys.modules, "abacus", SimpleNamespace(TERMS=beads))
    row = targets.Target("abacus", "wood", lowering="", terms="abacus:TERMS")
    monkeypatch.setitem(targets._table, ("abacus", "wood"), row)
    where = (Setting("abacus", "1"),), (Platform("wood:0"),)
    times_ms = 0.1 + 5e-3 * DENSE["features_out"]
    rows = Examples(DENSE, "execution_ms", times_ms, *where)
    stored = Baseline("dense").fit(rows, validation=rows, seed=0).export(tmp_path, "dense")
    assert stored["device_class"] == "wood"
    assert stored["terms"]["beads"] == pytest.approx(5e3, rel=0.01)
    np.testing.assert_allclose(Baseline.load(stored, tmp_path).values(DENSE), times_ms, rtol=0.01)


def test_rows_of_two_classes_have_none() -> None:
    both = Examples({}, "execution_ms", np.ones(2), *zip(ON_A_CARD, ON_A_CPU, strict=True))
    assert both.device_class == UNKNOWN


@pytest.mark.parametrize("kind", KINDS)
def test_a_term_means_the_same_in_all_tables(kind: str) -> None:
    """Stored coefficients name their terms only."""
    every = terms_of(kind)
    assert "constant" in every
    for row in targets.with_terms(UNKNOWN):
        for name, term in terms_of(kind, row.device_class).items():
            assert term is every[name]


def test_unknown_terms_are_refused() -> None:
    columns = columns_of([Dense(batch=1, features_in=9, features_out=9)])
    with pytest.raises(TrainingError, match="no physical terms magic"):
        physical_terms("dense", columns, ("magic",))


def test_what_an_optimizer_costs_is_found_in_training_steps() -> None:
    random = np.random.default_rng(2)
    layers = [
        Dense(
            batch=int(random.integers(1, 65)), features_in=int(random.integers(64, 4096)),
            features_out=int(random.integers(64, 4096)),
        )
        for _ in range(200)
    ]  # fmt: skip
    optimizers = [str(each) for each in random.choice(list(OPTIMIZERS), len(layers))]
    ms_per_mb = {"sgd": 0.01, "adam": 0.05}
    times_ms = np.array(
        [
            0.1 + layer.weight_bytes / 1e6 * ms_per_mb.get(optimizer, 0.02)
            for layer, optimizer in zip(layers, optimizers, strict=True)
        ]
    )
    columns = columns_of(layers, optimizers)
    fitted = Baseline("dense").fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    assert mape(times_ms, fitted.values(columns)) < 0.01
    sgd_ms, adam_ms = fitted.values(columns_of(layers[:1] * 2, ("sgd", "adam")))
    assert adam_ms - sgd_ms == pytest.approx(0.04 * layers[0].weight_bytes / 1e6, rel=0.05)


def unary(function: str, count: int, factor: float, seed: int) -> tuple[list[Layer], Array]:
    """Functions of tensors of many sizes: half a microsecond each, and 2 us for 1,000 values."""
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(np.log(2e3), np.log(2e6), count)).astype(int)
    layers = [
        Elementwise(batch=1, outer=1, middle=1, inner=int(size), function=function, second="none")
        for size in sizes
    ]
    return layers, 5e-4 + factor * 2e-6 * sizes


def test_a_function_of_few_rows_takes_as_many_times_as_long_as_they_say(tmp_path: Path) -> None:
    cheap, cheap_ms = unary("neg", 60, 1.0, 1)
    also, also_ms = unary("abs", 60, 1.0, 2)
    rare, rare_ms = unary("square", 5, 8.0, 3)
    columns, times_ms = columns_of([*cheap, *also, *rare]), np.r_[cheap_ms, also_ms, rare_ms]
    fitted = Baseline("elementwise").fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    assert fitted.factors_["neg"] == pytest.approx(fitted.factors_["abs"], rel=0.1)
    # Five rows give most of the factor: one of two rows is shrunk to half.
    slower = fitted.factors_["square"] / fitted.factors_["neg"]
    assert 8.0 ** (4 / 7) < slower < 9.0
    unseen, unseen_ms = unary("square", 30, 8.0, 4)
    assert mape(unseen_ms, fitted.values(columns_of(unseen))) < 0.5
    # An unknown function has a factor of 1.
    other, other_ms = unary("cube", 30, 1.0, 5)
    assert mape(other_ms, fitted.values(columns_of(other))) < 0.2
    stored = fitted.export(tmp_path, "elementwise")
    loaded = Baseline.load(stored, tmp_path)
    np.testing.assert_array_equal(loaded.values(columns), fitted.values(columns))


def test_terms_that_only_sound_constant_are_not() -> None:
    named = constant_terms(("constant", "constant threads", "in", "constant scattered"))
    assert named.tolist() == [True, True, False, False]
    growing = terms_of("indexed")["constant scattered"]
    assert growing({"rows": np.array([2e6]), "scatters": np.array([1.0])}) == pytest.approx(2.0)


def test_a_kind_without_terms_of_its_own_gets_bytes_and_operations() -> None:
    assert set(WORK) <= {*KINDS, "conv_step", "dense_step"}
    plain = terms_of("a kind that is new", "cpu")
    work = {name: np.array([3e6]) for name in ("in_bytes", "out_bytes", "flops")}
    work["threaded"] = np.array([1.0])
    found = {name: term(work)[0] for name, term in plain.items()}
    # 3 MB are 2 MB beyond the smaller cache and none beyond the larger.
    assert found == pytest.approx({
        "constant": 1, "constant threads": 1, "flops": 0.003, "in": 3, "in beyond cache 2": 2,
        "in beyond cache 3": 0, "out": 3, "out beyond cache 2": 2, "out beyond cache 3": 0,
    })  # fmt: skip
