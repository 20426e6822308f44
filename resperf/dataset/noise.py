"""Noise floor: the error of a perfect predictor against noisy measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resperf.dataset.records import KindTable
from resperf.records import Record

NOISY_SHARE = 0.2
"""Share of noisy rows above which a dataset gets a warning."""


def noise_warning(tables: Iterable[KindTable]) -> str:
    """Return a warning with advice if many measured rows are noisy; else an empty text."""
    rows = [table.noisy[table.ok] for table in tables]
    measured, noisy = sum(map(len, rows)), sum(int(mask.sum()) for mask in rows)
    if noisy <= NOISY_SHARE * measured:
        return ""
    return (
        f"{noisy} of {measured} measured rows ({noisy / measured:.0%}) are noisy: they carry a "
        "flag, or the machine was off its usual speed; close other programs, run the campaign "
        "again into another file (resperf bench -o) and merge both (resperf dataset merge): noisy "
        "rows are not used for layers and networks that have others"
    )


@dataclass(frozen=True)
class NoiseFloor(Record):
    """Differences between two measurements of the same layer or network.

    Attributes
    ----------
    pairs : int
        Number of pairs of measurements; without any, the other figures are NaN.
    median_difference, mean_difference : float
        ``|a - b| / ((a + b) / 2)`` over the pairs, as fractions.
    mape : float
        What a perfect predictor would score: ``mean_difference / sqrt(2)``.
    """

    pairs: int
    median_difference: float
    mean_difference: float
    mape: float


def floor_of_medians(single: float, measured: npt.NDArray[np.int64]) -> float:
    """Return the floor if each layer's time is the median of several measurements.

    The variance of the median of n normal values is about ``pi / (2n + pi - 2)`` of one value's
    for odd n, and one half for two, whose median is their mean.

    Parameters
    ----------
    single : float
        The floor of single measurements (`NoiseFloor.mape`), which may be NaN.
    measured : array (layers,)
        Measurements of each layer.
    """
    variance = np.where(measured == 2, 0.5, math.pi / (2 * measured + math.pi - 2))
    return float(single * np.sqrt(variance).mean())


def noise_floor(table: KindTable, phase: str) -> NoiseFloor:
    """Estimate the least error of any predictor, from layers that were measured repeatedly.

    Let a layer's true time be t and two measurements of it a = t(1 + e1) and b = t(1 + e2), with
    independent errors of mean zero. A perfect predictor gives t, and scores E|e| against a single
    measurement; a pair gives E|a - b| / t = E|e1 - e2|. For normal errors of deviation s,
    E|e| = s sqrt(2/pi), and e1 - e2 is normal with deviation s sqrt(2), so that
    E|e| = E|e1 - e2| / sqrt(2). For any distribution, E|e1 - e2| is between E|e| (Jensen)
    and 2 E|e| (triangle inequality): the true floor is 0.70 to 1.42 times the returned one.

    Parameters
    ----------
    table : KindTable
        Rows that are not ok, or noisy, are left out.
    phase : str
        One that the table has.

    Returns
    -------
    NoiseFloor
        Of neighbouring repeats: a layer that was measured k times gives k - 1 pairs.
    """
    usable = table.select(table.ok & ~table.noisy & (table.times_ms[phase] > 0))
    # Measurements under unlike settings, such as published sessions, or on unlike platforms are not
    # repeats of each other.
    _, layer = np.unique(usable.key.astype(str), return_inverse=True)
    for indices in (usable.setting, usable.machine):
        layer = layer * (1 + int(indices.max(initial=0))) + indices
    order = np.lexsort((usable.repeat, layer))
    layer, times_ms = layer[order], usable.times_ms[phase][order]
    again = layer[1:] == layer[:-1]
    first, second = times_ms[:-1][again], times_ms[1:][again]
    if not len(first):
        return NoiseFloor(0, math.nan, math.nan, math.nan)
    difference = np.abs(first - second) / ((first + second) / 2)
    mean = float(difference.mean())
    return NoiseFloor(len(first), float(np.median(difference)), mean, mean / math.sqrt(2))
