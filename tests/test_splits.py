"""Splits depend on keys alone."""

from __future__ import annotations

import numpy as np

from resperf.splits import (
    first_of_keys,
    fold_of_keys,
    pack_keys,
    split_of_keys,
    was_packed,
)

KEYS = [f"dense:batch={n}" for n in range(4000)]


def test_every_key_is_in_exactly_one_part_of_about_the_right_size() -> None:
    split = split_of_keys(KEYS)
    counted = split.train.astype(int) + split.validation + split.test
    assert (counted == 1).all()
    # Three standard deviations of 4,000 draws are 2 points for 80% and 1.4 for 10%.
    assert abs(split.train.mean() - 0.8) < 0.02
    assert abs(split.test.mean() - 0.1) < 0.015


def test_the_part_of_a_key_does_not_depend_on_other_keys() -> None:
    whole, some = split_of_keys(KEYS), split_of_keys(KEYS[::-7])
    np.testing.assert_array_equal(whole.test[::-7], some.test)
    np.testing.assert_array_equal(whole.train[::-7], some.train)


def test_the_split_is_the_same_in_every_version() -> None:
    # Written down once: a change would move test rows of old bundles into training.
    test = np.flatnonzero(split_of_keys(KEYS[:40]).test)
    assert test.tolist() == TEST_OF_THE_FIRST_40


def test_another_seed_is_another_split() -> None:
    assert (split_of_keys(KEYS, seed=1).test != split_of_keys(KEYS).test).any()


def test_packed_keys_are_recognised_and_others_are_not() -> None:
    packed = pack_keys(KEYS[:1000])
    assert was_packed(KEYS[:1000], packed).all()
    assert was_packed(KEYS[1000:], packed).sum() <= 1
    assert len(packed) < 5.4 * 1000
    assert not was_packed(KEYS[:3], pack_keys([])).any()


def test_the_first_keys_are_nested_and_of_the_requested_number() -> None:
    smaller, larger = first_of_keys(KEYS, 100), first_of_keys(KEYS, 1000)
    assert (smaller.sum(), larger.sum()) == (100, 1000)
    assert not (smaller & ~larger).any()
    assert first_of_keys(KEYS, 9999).all()
    # Which keys come first has nothing to do with the part they are in: 10% +- 3 deviations.
    assert abs(split_of_keys(KEYS).test[larger].mean() - 0.1) < 0.03


def test_folds_are_of_about_the_same_size_and_hold_by_key() -> None:
    fold = fold_of_keys(KEYS, 5)
    # 800 each, three standard deviations are 76.
    assert (np.abs(np.bincount(fold, minlength=5) - 800) < 76).all()
    np.testing.assert_array_equal(fold[::-3], fold_of_keys(KEYS[::-3], 5))


def test_no_keys() -> None:
    assert split_of_keys([]).train.shape == (0,)


TEST_OF_THE_FIRST_40 = [0, 13, 19, 20, 21, 32, 35]
