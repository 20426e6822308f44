"""A linear form fitted to times of networks on one device under one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError, TrainingError
from resperf.features import Array
from resperf.predictors._base import Estimate, stored
from resperf.predictors.intervals import Intervals, assumed
from resperf.predictors.least_squares import independent, solve_squares
from resperf.settings import Setting
from resperf.splits import folds_of

FOLDS = 20
"""Most parts of the networks that are left out one after the other for the intervals."""
_FAR = 2.0
"""How many times larger or smaller than all measured networks one is extrapolated."""


@dataclass(frozen=True)
class LinearFit:
    """Coefficients on one device under one setting.

    Attributes
    ----------
    device : str
    setting : Setting
        Without batch.
    coefficients : mapping of str to float
        Name of a total -> its cost, in the quantity's unit.
    ranges : mapping of str to (float, float)
        Smallest and largest value of each total.
    shortest : float
        Shortest measured time; no prediction is below half of it, where the form may be negative.
    intervals : Intervals or None
        Of networks left out; None for fewer than three networks.
    notes : tuple of str
        What the rows did not tell apart.
    """

    device: str
    setting: Setting
    coefficients: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    shortest: float
    intervals: Intervals | None
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        device: str,
        setting: Setting,
        rows: Sequence[Mapping[str, float]],
        values: Array,
        networks: npt.NDArray[np.str_],
        *,
        relative: bool,
        non_negative: bool,
        parts: Mapping[str, str] | None = None,
    ) -> Self:
        """Fit by least squares.

        Totals that are proportional to others, or a sum of them, in all rows get no coefficient:
        nothing says how the time is divided between them.

        Parameters
        ----------
        device, setting
        rows : sequence of mapping of str to float
            Totals of each row, all of the same names.
        values : array (rows,)
            Above zero.
        networks : array of str (rows,)
            Rows of one network are left out together for the intervals.
        relative : bool
            Whether relative errors are minimised.
        non_negative : bool
        parts : mapping of str to str, optional
            Total -> the total that it is a part of, to whose cost its own is drawn.

        Raises
        ------
        TrainingError
            If there are fewer rows than coefficients.
        """
        whole_of = parts or {}
        known = [name for name in rows[0] if any(row[name] for row in rows)]
        names = [name for name in known if name not in whole_of]
        places = independent(_matrix(rows, names))
        label = f"{setting.framework} on {device}"
        if len(rows) < len(names):
            raise TrainingError(
                f"{label}: {len(rows)} rows do not determine {len(names)} coefficients "
                f"({', '.join(names)}); measure more networks or batch sizes"
            )
        kept = [names[place] for place in places]
        lost = [name for name in names if name not in kept]
        notes = []
        if lost:
            notes.append(
                f"{label}: {', '.join(lost)} cannot be told apart from "
                f"{', '.join(kept)} in these rows and count nothing; "
                "measure other networks, or trust only predictions of such as these"
            )

        fewest = len(kept)
        kept += [name for name in known if whole_of.get(name) in kept]
        matrix = _matrix(rows, kept)
        inside = {
            place: kept.index(whole_of[name]) for place, name in enumerate(kept) if name in whole_of
        }

        def solve(chosen: Any) -> Array:
            return solve_squares(
                matrix[chosen], values[chosen], relative=relative, non_negative=non_negative,
                parts=inside,
            )  # fmt: skip

        coefficients = solve(slice(None))
        shortest = float(values.min())
        folds = np.array(folds_of(networks.tolist(), FOLDS))
        ratios = np.full(len(rows), np.nan)
        for fold in np.unique(folds):
            own = folds == fold
            if fewest <= (~own).sum():
                left_out = np.maximum(matrix[own] @ solve(~own), shortest / _FAR)
                ratios[own] = np.log(values[own] / left_out)
        of_networks = (ratios[networks == name] for name in np.unique(networks))
        groups = [each for each in of_networks if np.isfinite(each).all()]
        return cls(
            device,
            setting,
            {name: float(cost) for name, cost in zip(kept, coefficients, strict=True)},
            {
                name: (min(row[name] for row in rows), max(row[name] for row in rows))
                for name in known
            },
            shortest,
            Intervals.of_groups(groups),
            tuple(notes),
        )

    @property
    def described(self) -> str:
        """Device and setting in words."""
        how = self.setting
        words = (how.mode.value, how.precision, how.layout, how.compiled, how.optimizer)
        return f"{self.device}, {how.framework} ({', '.join(filter(None, words))})"

    def predict(self, rows: Sequence[Mapping[str, float]]) -> Estimate:
        """Predict networks from their totals, with their intervals."""
        values = np.maximum(self._plain(rows), self.shortest / _FAR)
        inside = np.array([not self.outside(row) for row in rows], dtype=bool)
        if self.intervals is None:
            return Estimate(values, *assumed(values, inside))
        return Estimate(values, *self.intervals.bounds(values, inside))

    def _plain(self, rows: Sequence[Mapping[str, float]]) -> Array:
        if rows and (lost := [name for name in self.coefficients if name not in rows[0]]):
            raise BundleError(
                f"the costs of {', '.join(lost)} are of an earlier version; train the bundle again"
            )
        costs = np.array(list(self.coefficients.values()), dtype=float)
        return np.asarray(_matrix(rows, list(self.coefficients)) @ costs)

    def outside(self, row: Mapping[str, float]) -> str:
        """Say why a network is extrapolated; empty if it is like those that were measured."""
        for name, value in row.items():
            least, largest = self.ranges.get(name, (0.0, 0.0))
            if value > 0 == largest:
                return f"{name}: no network that was measured has any"
            if value > _FAR * largest:
                return f"{name}: {value / largest:.3g} times as many as in any that was measured"
            if value < least / _FAR:
                return f"{name}: {value / least:.2g} times as many as in any that was measured"
        return ""

    def remarks(self, rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
        """Say where the form gives less than half the shortest measured time."""
        if (self._plain(rows) >= self.shortest / _FAR).all():
            return ()
        return (
            "the fitted form gives less than half the shortest measured time, "
            f"{self.shortest:.3g}: that half is answered instead",
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "device": self.device,
            "setting": self.setting.to_json(),
            "coefficients": dict(self.coefficients),
            "ranges": {name: list(each) for name, each in self.ranges.items()},
            "shortest": self.shortest,
            "intervals": None if self.intervals is None else self.intervals.to_json(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        intervals = stored(values, "intervals")
        return cls(
            stored(values, "device"),
            Setting.from_json(stored(values, "setting")),
            {name: float(cost) for name, cost in stored(values, "coefficients").items()},
            {name: (low, high) for name, (low, high) in stored(values, "ranges").items()},
            float(stored(values, "shortest")),
            None if intervals is None else Intervals.from_json(intervals),
            tuple(stored(values, "notes")),
        )


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """Return totals, shape (rows, names)."""
    found = np.array([[row[name] for name in names] for row in rows], dtype=float)
    return found.reshape(len(rows), len(names))
