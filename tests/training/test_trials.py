"""Which rows train, validate and test."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from resperf.features import columns_of
from resperf.layers import Dense
from resperf.splits import split_of_keys
from resperf.training.rows import LayerRows
from resperf.training.trials import Trial, curve, folded, other_file, own_split, shortened


def rows_of(widths: range) -> LayerRows:
    layers = [Dense(batch=1, features_in=4, features_out=width) for width in widths]
    times_ms = np.array(widths, dtype=float)
    return LayerRows(
        "dense", columns_of(layers), tuple(layer.key for layer in layers),
        {"execution_ms": times_ms}, np.ones(len(layers), dtype=np.int64), {},
    )  # fmt: skip


ROWS = rows_of(range(1, 1001))
SPLIT = split_of_keys(ROWS.keys)
TEST = {key for key, test in zip(ROWS.keys, SPLIT.test, strict=True) if test}


def keys_of(*parts: LayerRows) -> set[str]:
    return {key for part in parts for key in part.keys}


def parts_are_apart(trial: Trial) -> bool:
    parts = (trial.train, trial.validation, trial.test)
    return len(keys_of(*parts)) == sum(map(len, parts))


def test_the_own_test_split_is_tested_on() -> None:
    trial = own_split(ROWS)
    assert parts_are_apart(trial)
    assert keys_of(trial.test) == TEST
    assert keys_of(trial.train, trial.validation, trial.test) == set(ROWS.keys)
    assert trial.rows_seen == 1000 - len(TEST)
    # Each layer has its own time.
    assert (trial.test.columns["features_out"] == trial.test.times_ms["execution_ms"]).all()


def test_folds_test_every_row_outside_the_test_split_once_and_none_inside() -> None:
    trials = folded(ROWS, 4, seed=0)
    assert all(parts_are_apart(trial) for trial in trials)
    tested = [key for trial in trials for key in trial.test.keys]
    assert sorted(tested) == sorted(set(ROWS.keys) - TEST)
    seen = keys_of(*(part for trial in trials for part in (trial.train, trial.validation)))
    assert not seen & TEST
    # Of about 900 rows, a fold tests on a quarter and learns from the rest.
    for trial in trials:
        assert 150 < len(trial.test) < 300
        assert trial.rows_seen + len(trial.test) == 1000 - len(TEST)


def test_another_seed_gives_other_folds() -> None:
    assert folded(ROWS, 3, seed=1)[0].test.keys != folded(ROWS, 3, seed=0)[0].test.keys


@pytest.mark.parametrize(("shared", "trained"), [(False, 900), (True, 1000)])
def test_all_rows_of_another_file_are_tested_on(shared: bool, trained: int) -> None:
    other = rows_of(range(901, 1101))  # 100 of its 200 layers are in both files
    trial = other_file(ROWS, other, shared=shared)
    assert trial.test.keys == other.keys
    assert trial.rows_seen == trained
    assert parts_are_apart(trial) is not shared
    # The own test split is training data here: the other file is the test.
    assert keys_of(trial.train) & TEST
    assert keys_of(trial.validation) <= keys_of(ROWS.select(SPLIT.validation))


def test_a_larger_trial_contains_every_row_of_a_smaller_one() -> None:
    whole = own_split(ROWS)
    points = curve([whole], (400, 50, 100, 5000, 9000), seed=3)
    trials = [trial for (trial,) in points]
    # From few to many; counts above the number of rows are one point with all rows.
    assert [trial.rows_seen for trial in trials] == [50, 100, 400, whole.rows_seen]
    for shorter, longer in pairwise(trials):
        assert keys_of(shorter.train) <= keys_of(longer.train)
        assert keys_of(shorter.validation) <= keys_of(longer.validation)
    assert all(trial.test.keys == whole.test.keys for trial in trials)
    assert keys_of(trials[-1].train) == keys_of(whole.train)
    # A ninth of the rows outside the test split are validation rows.
    assert 20 < len(trials[2].validation) < 75


def test_the_rows_of_a_curve_depend_on_the_seed_and_not_on_the_order() -> None:
    whole = own_split(ROWS)
    backwards = own_split(ROWS.select(np.arange(999, -1, -1)))
    few = keys_of(shortened(whole, 50, seed=0).train)
    assert few == keys_of(shortened(backwards, 50, seed=0).train)
    assert few != keys_of(shortened(whole, 50, seed=1).train)


def test_without_counts_there_is_one_point_with_all_rows() -> None:
    ((trial,),) = curve([own_split(ROWS)], (), seed=0)
    assert trial.rows_seen == 1000 - len(TEST)
    points = curve(folded(ROWS, 3, seed=0), (30, 60), seed=0)
    assert [[trial.rows_seen for trial in trials] for trials in points] == [[30] * 3, [60] * 3]
