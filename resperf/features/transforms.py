"""Transforms of features and targets, stored as plain JSON.

`fit` learns a transform from training rows, with scipy. Applying it needs numpy only, so that a
bundle predicts the same numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError, TrainingError, require
from resperf.features import Array
from resperf.records import Record


class Transform(Record, ABC):
    """The contract of a transform; arrays are (rows, columns) unless stated otherwise."""

    name: ClassVar[str]
    columns: tuple[str, ...]

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Transform values."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, `name` among them."""
        return {"name": self.name, **super().to_json()}


def _checked(values: Array, names: Sequence[str]) -> Array:
    """Refuse unusable training values: fewer than two rows, or values that are not finite."""
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise TrainingError(
            f"{len(names)} columns were named, the values have shape {matrix.shape}"
        )
    if len(matrix) < 2:
        raise TrainingError(f"{len(matrix)} rows are too few to learn from; measure more layers")
    for column, name in enumerate(names):
        bad = np.flatnonzero(~np.isfinite(matrix[:, column]))
        if len(bad):
            raise TrainingError(
                f"column {name} holds {matrix[bad[0], column]} in row {bad[0]}; "
                "check the dataset with: resperf dataset check"
            )
    return matrix


@dataclass(frozen=True)
class BoxCox(Transform):
    """Box-Cox transform with one fitted lambda per column (ResPerfNet appendix D, equation 10).

    The equation's first line misprints (x^lambda - 1) / lambda, which is used here.
    """

    name: ClassVar[str] = "box_cox"

    columns: tuple[str, ...]
    lambdas: tuple[float, ...]

    @classmethod
    def fit(cls, values: Array, columns: Sequence[str]) -> Self:
        """Find the lambda of largest likelihood for each column.

        Raises
        ------
        TrainingError
            If there are fewer than two rows, or a column has a value that is not finite or not
            above zero, or is constant.
        """
        matrix = _checked(values, columns)
        for column, name in enumerate(columns):
            lowest, highest = matrix[:, column].min(), matrix[:, column].max()
            if lowest <= 0:
                raise TrainingError(
                    f"Box-Cox needs values above 0; column {name} holds {lowest:g}: "
                    "leave the column out or shift it"
                )
            if lowest == highest:
                raise TrainingError(
                    f"Box-Cox needs different values; column {name} is {lowest:g} in every row: "
                    "leave the column out"
                )
        stats = require("scipy.stats", "train")
        lambdas = [float(stats.boxcox(matrix[:, column])[1]) for column in range(len(columns))]
        return cls(tuple(columns), tuple(lambdas))

    def apply(self, values: Array) -> Array:
        """Return (x^lambda - 1) / lambda, or ln x where lambda is 0."""
        logs = np.log(values)
        powers = np.array(self.lambdas)
        safe = np.where(powers == 0, 1.0, powers)
        return np.where(powers == 0, logs, np.expm1(safe * logs) / safe)


@dataclass(frozen=True)
class ZScore(Transform):
    """Zero mean and unit standard deviation per column (ResPerfNet appendix C, equation 9).

    A constant column has no deviation: its sigma is stored as 1, so it becomes 0.
    """

    name: ClassVar[str] = "z_score"

    columns: tuple[str, ...]
    means: tuple[float, ...]
    sigmas: tuple[float, ...]

    @classmethod
    def fit(cls, values: Array, columns: Sequence[str]) -> Self:
        """Learn mean and population standard deviation of each column.

        Raises
        ------
        TrainingError
            If there are fewer than two rows, or a value is not finite.
        """
        matrix = _checked(values, columns)
        constant = matrix.min(axis=0) == matrix.max(axis=0)
        # The mean of equal values may be off by a rounding error, the value itself is not.
        means = np.where(constant, matrix[0], matrix.mean(axis=0))
        sigmas = np.where(constant, 1.0, matrix.std(axis=0))
        return cls(tuple(columns), tuple(means.tolist()), tuple(sigmas.tolist()))

    def apply(self, values: Array) -> Array:
        """Return (x - mean) / sigma."""
        return np.asarray((values - np.array(self.means)) / np.array(self.sigmas))


@dataclass(frozen=True)
class MinMax(Transform):
    """The range of each column becomes 0 to 1 (DNNPerf, section III-C3).

    A constant column becomes 0. Values beyond the range are not cut off: `outside` names them.
    """

    name: ClassVar[str] = "min_max"

    columns: tuple[str, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @classmethod
    def fit(cls, values: Array, columns: Sequence[str]) -> Self:
        """Learn the smallest and the largest value of each column.

        Raises
        ------
        TrainingError
            If there are fewer than two rows, or a value is not finite.
        """
        matrix = _checked(values, columns)
        lows, highs = matrix.min(axis=0).tolist(), matrix.max(axis=0).tolist()
        return cls(tuple(columns), tuple(lows), tuple(highs))

    def apply(self, values: Array) -> Array:
        """Return (x - low) / (high - low), or 0 where both are equal."""
        lows, ranges = np.array(self.lows), np.array(self.highs) - np.array(self.lows)
        return np.asarray((values - lows) / np.where(ranges > 0, ranges, np.inf))

    def outside(self, values: Array) -> npt.NDArray[np.bool_]:
        """Return which values are beyond the range of their column."""
        return (values < np.array(self.lows)) | (values > np.array(self.highs))


TRANSFORMS: Mapping[str, type[Transform]] = {cls.name: cls for cls in (BoxCox, ZScore, MinMax)}


def transform_from_json(values: Mapping[str, Any]) -> Any:
    """Make the step that `to_json` described.

    Raises
    ------
    BundleError
        If the description is not of a known step.
    """
    try:
        return TRANSFORMS[values["name"]].from_json(values)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(
            f"no transform {values.get('name')!r} with these settings; "
            "the bundle was made by another version of resperf: train it again"
        ) from error
