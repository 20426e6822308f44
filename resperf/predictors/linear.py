"""Linear fits: least squares, and linear forms fitted to times of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError, TrainingError, require
from resperf.features import Array
from resperf.predictors._base import Estimate
from resperf.predictors.intervals import Intervals, bounds_of
from resperf.records import Record
from resperf.settings import Setting
from resperf.splits import Mask, folds_of

FOLDS = 20
"""Most parts of the networks that are left out one after the other for the intervals."""
_FAR = 2.0
"""How many times larger or smaller than all measured networks one is extrapolated."""
_COLLINEAR = 1e-6
"""Share of a column that must not follow from the columns before it."""
_OF_PARTS = 0.1
"""How strongly coefficients of parts are drawn to zero, over the length of their total's column:
that of a part with a tenth of the total is half of what the rows ask for."""


@dataclass(frozen=True)
class Robust:
    """How often rows are weighted anew by 1 / sqrt(|error|): squares then count as absolute errors.

    Attributes
    ----------
    rounds : int
        Fits after the first one.
    least_error : float
        Smaller errors count as this one.
    by_squares : bool
        Whether weights are divided by the root of their mean square, not by their mean, so that
        rows weigh about as much against a centre as without weights.
    """

    rounds: int
    least_error: float
    by_squares: bool = True

    def weights(self, errors: Array, of_rows: Array | float = 1.0) -> Array:
        """Return what rows with such errors are multiplied by, beside weights of their own."""
        weights = of_rows / np.sqrt(np.maximum(np.abs(errors), self.least_error))
        usual = np.sqrt(np.mean(weights**2)) if self.by_squares else np.mean(weights)
        return np.asarray(weights / usual)


SQUARES = Robust(rounds=0, least_error=1.0)
"""Rows are weighted once, alike: squares of errors are minimised."""


def fit_coefficients(
    terms: Array,
    values: Array,
    *,
    relative: bool = True,
    non_negative: bool = True,
    robust: Robust = SQUARES,
    weights: Array | None = None,
    strengths: Array | None = None,
    centre: Array | None = None,
    largest: Array | None = None,
    scales: Array | None = None,
) -> Array:
    """Fit coefficients that make ``terms @ coefficients`` close to values.

    Parameters
    ----------
    terms : array (rows, terms)
        Independent columns, unless `strengths` draw the coefficients.
    values : array (rows,)
        Above zero, where errors are relative.
    relative : bool
        Whether errors relative to `values` are minimised.
    non_negative : bool
        Whether coefficients are at least zero.
    robust : Robust, optional
        For absolute errors; squared ones by default.
    weights : array (rows,), optional
    strengths, centre : array (terms,), optional
        ``strengths * (coefficients - centre)`` are squared as well; the centre is zero by default.
    largest : array (terms,), optional
        Upper bounds of non-negative coefficients. Those above are fixed at their bounds, and the
        others fitted again; a term with the bound 0 is left out.
    scales : array (terms,), optional
        What columns are divided by while they are fitted; their lengths by default. Of terms that
        the rows do not tell apart, it decides which gets a coefficient.

    Returns
    -------
    array (terms,)
    """
    matrix, aim = terms, values
    if relative:
        matrix, aim = terms / values[:, None], np.ones(len(values))
    of_rows = 1.0 if weights is None else np.sqrt(weights / weights.mean())
    drawn = np.zeros((0, terms.shape[1])) if strengths is None else np.diag(strengths)
    drawn_to = np.zeros(len(drawn)) if centre is None else drawn @ centre
    # Equal errors, by which rows weigh the same at first.
    coefficients, errors = np.zeros(terms.shape[1]), np.ones(len(aim))
    for _ in range(1 + robust.rounds):
        factors = robust.weights(errors, of_rows)
        rows = np.vstack([matrix * factors[:, None], drawn])
        coefficients = _solve(
            rows, np.append(aim * factors, drawn_to), non_negative, largest, scales
        )
        errors = matrix @ coefficients - aim
    return coefficients


def _solve(
    matrix: Array, aim: Array, non_negative: bool, largest: Array | None, scales: Array | None
) -> Array:
    # Columns of similar scale prevent the solver from zeroing small but real terms.
    lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300) if scales is None else scales
    scaled = matrix / lengths
    if not non_negative:
        return np.asarray(np.linalg.lstsq(scaled, aim, rcond=None)[0] / lengths)
    nnls = require("scipy.optimize", "train").nnls
    bounds = np.full(len(lengths), np.inf) if largest is None else largest
    coefficients = np.zeros(len(lengths))
    held = bounds <= 0
    while True:
        coefficients[held] = bounds[held]
        rest = aim - matrix[:, held] @ bounds[held]
        solution = nnls(scaled[:, ~held], rest, maxiter=100 * len(lengths))[0]
        coefficients[~held] = solution / lengths[~held]
        above = coefficients > bounds
        if not above.any():
            return coefficients
        held |= above


def independent(matrix: Array) -> list[int]:
    """Return the places of columns that do not follow from those before them."""
    scaled = matrix / np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    basis = np.zeros((len(matrix), 0))
    places = []
    for index, column in enumerate(scaled.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        if (length := np.linalg.norm(rest)) > _COLLINEAR:
            basis = np.column_stack([basis, rest / length])
            places.append(index)
    return places


def left_out(groups: Sequence[str], predicted: Callable[[Mask, Mask], Array]) -> Array:
    """Return what is predicted of each row without the rows of its group, shape (rows,).

    Parameters
    ----------
    groups : sequence of str (rows,)
    predicted : callable
        Called with masks of the rows to learn from and of those to predict; returns the latter's
        predictions.
    """
    names = np.array(groups)
    predictions = np.zeros(len(names))
    for name in np.unique(names):
        own = names == name
        predictions[own] = predicted(~own, own)
    return predictions


@dataclass(frozen=True)
class LinearFit(Record):
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
        robust: Robust = SQUARES,
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
        robust : Robust, optional
            For absolute errors.

        Raises
        ------
        TrainingError
            If there are fewer rows than coefficients.
        """
        whole_of = parts or {}
        nonzero = [name for name in rows[0] if any(row[name] for row in rows)]
        names = [name for name in nonzero if name not in whole_of]
        places = independent(_matrix(rows, names))
        label = f"{setting.framework} on {device}"
        if len(rows) < len(names):
            raise TrainingError(
                f"{label}: {len(rows)} rows do not determine {len(names)} coefficients "
                f"({', '.join(names)}); measure more networks or batch sizes"
            )
        kept = [names[index] for index in places]
        lost = [name for name in names if name not in kept]
        notes = []
        if lost:
            notes.append(
                f"{label}: {', '.join(lost)} cannot be told apart from "
                f"{', '.join(kept)} in these rows and count nothing; "
                "measure other networks, or trust only predictions of such as these"
            )

        fewest = len(kept)
        kept += [name for name in nonzero if whole_of.get(name) in kept]
        matrix = _matrix(rows, kept)
        inside = {
            index: kept.index(whole_of[name]) for index, name in enumerate(kept) if name in whole_of
        }

        def solved(chosen: Any) -> Array:
            own = matrix[chosen] / values[chosen, None] if relative else matrix[chosen]
            strengths = np.zeros(len(kept))
            strengths[list(inside)] = _OF_PARTS * np.linalg.norm(own, axis=0)[list(inside.values())]
            return fit_coefficients(
                matrix[chosen], values[chosen], relative=relative, non_negative=non_negative,
                strengths=strengths, robust=robust,
            )  # fmt: skip

        def log_ratios(rest: Mask, own: Mask) -> Array:
            if rest.sum() < fewest:
                return np.full(int(own.sum()), np.nan)
            return np.log(values[own] / np.maximum(matrix[own] @ solved(rest), shortest / _FAR))

        coefficients = solved(slice(None))
        shortest = float(values.min())
        ratios = left_out(folds_of(networks.tolist(), FOLDS), log_ratios)
        of_networks = (ratios[networks == name] for name in np.unique(networks))
        groups = [group for group in of_networks if np.isfinite(group).all()]
        return cls(
            device,
            setting,
            {name: float(cost) for name, cost in zip(kept, coefficients, strict=True)},
            {
                name: (min(row[name] for row in rows), max(row[name] for row in rows))
                for name in nonzero
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
        return Estimate(values, *bounds_of(self.intervals, values, inside))

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


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """Return totals, shape (rows, names)."""
    matrix = np.array([[row[name] for name in names] for row in rows], dtype=float)
    return matrix.reshape(len(rows), len(names))
