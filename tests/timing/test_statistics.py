import math
import random
from statistics import median

import pytest

from resperf.measurement import capped
from resperf.timing.protocol import (
    drifts,
    interval_rank,
    median_interval,
    relative_half_width,
)


def test_five_samples_cannot_bound_a_median_at_95_percent() -> None:
    # The extremes of five cover the median with 1 - 2/32 = 93.75%.
    assert interval_rank(5, 0.95) is None
    assert interval_rank(5, 0.93) == 1


@pytest.mark.parametrize(
    ("count", "rank"),
    # Tables of the sign test: 1 - 2 P(Binomial(n, 1/2) < k) >= 0.95.
    [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (50, 18), (100, 40)],
)
def test_ranks_are_those_of_the_sign_test(count: int, rank: int) -> None:
    assert interval_rank(count, 0.95) == rank


def test_many_samples_use_the_normal_distribution() -> None:
    # (400 - 1.96 * 20) / 2 = 180.4
    assert interval_rank(400, 0.95) == 180


def test_interval_is_made_of_order_statistics() -> None:
    samples = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]
    assert median_interval(samples, 0.95) == (2.0, 8.0)
    assert relative_half_width(samples, 0.95) == pytest.approx(3.0 / 5.0)
    assert median_interval(samples[:5], 0.95) == (-math.inf, math.inf)


def test_interval_covers_the_true_median_as_often_as_stated() -> None:
    source = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = median_interval([source.lognormvariate(0, 1) for _ in range(20)], 0.95)
        held += low <= 1.0 <= high
    # Rank 6 of 20 covers 95.9%.
    assert 0.945 <= held / 2000 <= 0.972


def test_a_zero_median_is_never_precise() -> None:
    assert relative_half_width([0.0] * 10, 0.95) == math.inf


def test_a_steady_rise_is_a_drift() -> None:
    # Means of 4: thirds differ by 2/10.5 = 19%.
    assert drifts([10.0, 10.2, 10.4, 10.6, 10.8, 11.0, 11.2, 11.4, 11.6, 11.8])
    assert drifts([11.8, 11.6, 11.4, 11.2, 11.0, 10.8, 10.6, 10.4, 10.2, 10.0])


def test_a_small_rise_is_no_drift() -> None:
    assert not drifts([10.0 + 0.01 * i for i in range(30)])


def test_noise_is_no_drift() -> None:
    source = random.Random(2)
    found = sum(drifts([source.gauss(1.0, 0.3) for _ in range(30)]) for _ in range(1000))
    assert found / 1000 < 0.03


def test_few_samples_drift_only_if_they_all_move_one_way() -> None:
    assert drifts([1.0, 1.1, 1.2, 1.3, 1.4])
    assert not drifts([1.0, 1.2, 1.1, 1.3, 1.4])
    assert not drifts([1.0, 2.0, 3.0])


def test_equal_times_do_not_drift() -> None:
    assert not drifts([1.0] * 20)


def test_capping_returns_few_samples_in_their_order() -> None:
    assert capped([3.0, 1.0, 2.0], 64) == (3.0, 1.0, 2.0)


def test_capping_returns_quantiles() -> None:
    # Positions 0, 2.5, 5, 7.5, 10 of 0..10.
    assert capped([float(i) for i in range(10, -1, -1)], 5) == (0.0, 2.5, 5.0, 7.5, 10.0)
    source = random.Random(3)
    many = [source.random() for _ in range(1000)]
    few = capped(many, 64)
    assert len(few) == 64
    assert few == tuple(sorted(few))
    # Neighbouring quantiles of values between 0 and 1 are 1/63 apart.
    assert median(few) == pytest.approx(median(many), abs=1 / 63 / 2)
