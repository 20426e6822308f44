"""Robust statistics of repeated timings: the median's interval, and drift."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, StatisticsError, correlation, median

SIGNIFICANT_Z = 2.576
"""Two-sided 1% point of the normal distribution."""


@cache
def interval_rank(count: int, confidence: float) -> int | None:
    """Find which order statistics bound the median, counted from the ends (1 = the extremes).

    The interval from the k-th smallest to the k-th largest of n independent samples holds the
    median with probability ``1 - 2 P(Binomial(n, 1/2) < k)``, whatever the distribution.

    Parameters
    ----------
    count : int
        Number of samples.
    confidence : float
        Wanted probability, such as 0.95.

    Returns
    -------
    int or None
        The largest k with at least this confidence; None where even the extremes have less (fewer
        than six samples at 95%).
    """
    if count > 100:
        # The normal approximation of the binomial is accurate to well within one rank.
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        return max(1, math.floor((count - z * math.sqrt(count)) / 2))
    outside, rank = 0.0, None
    for k in range(1, count // 2 + 1):
        outside += 2 * math.comb(count, k - 1) * 0.5**count
        if 1 - outside < confidence:
            break
        rank = k
    return rank


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median.

    Parameters
    ----------
    samples : sequence of float
        In any order and unit.
    confidence : float
        Such as 0.95.

    Returns
    -------
    (float, float)
        Infinite at both ends where there are too few samples.
    """
    rank = interval_rank(len(samples), confidence)
    if rank is None:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def relative_half_width(samples: Sequence[float], confidence: float) -> float:
    """Half the width of the median's interval over the median; infinite where unknown."""
    low, high = median_interval(samples, confidence)
    middle = median(samples)
    return (high - low) / 2 / middle if middle > 0 else math.inf


def drifts(samples: Sequence[float], tolerance: float = 0.05) -> bool:
    """Say whether times drifted while they were taken.

    Two conditions must hold. Spearman's rank correlation with the order of sampling is significant
    at 1% (below eight samples: the times only rise or only fall), which excludes noise. The medians
    of the first and the last third differ by more than `tolerance` of the whole median, which
    excludes irrelevant drifts.

    Parameters
    ----------
    samples : sequence of float
        In the order they were taken.
    tolerance : float
        Smallest shift that counts, as a share of the median.
    """
    count, middle = len(samples), median(samples)
    if count < 4 or middle <= 0:
        return False
    third = count // 3
    shift = abs(median(samples[-third:]) - median(samples[:third])) / middle
    if shift <= tolerance:
        return False
    correlation = abs(rank_correlation(samples, range(count)))
    if count < 8:
        return correlation > 1 - 1e-12
    return correlation * math.sqrt(count - 1) > SIGNIFICANT_Z


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of two sequences of equal length; ties have their mean rank.

    0 where all values of one are equal.
    """
    try:
        return correlation(_mean_ranks(first), _mean_ranks(second))
    except StatisticsError:
        return 0.0


def _mean_ranks(samples: Sequence[float]) -> list[float]:
    ordered = sorted(samples)
    return [(bisect_left(ordered, x) + bisect_right(ordered, x) - 1) / 2 for x in samples]
