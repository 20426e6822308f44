"""`baseline`: a sum of physical terms with coefficients of at least zero."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.features import Array, Columns
from resperf.measurement import written_kind
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors.linear import Robust, fit_coefficients
from resperf.predictors.terms.work import choices_of, constant_terms, physical_terms, terms_of
from resperf.settings import OPTIMIZER

ROBUST = Robust(rounds=15, least_error=0.02)
"""Relative errors count by their absolute value, so that outliers do not decide."""
_FEWEST_ROWS, _FEWEST_SHARE = 3, 0.02
"""A term that fewer rows have, or a smaller share of them, gets no coefficient: it would fit their
noise and extrapolate badly."""
_SLOWEST_MS_PER_MB = 0.3
"""No memory is slower than 3 GB/s. Terms beyond a cache are small in most rows, so that noise would
otherwise give them huge coefficients."""
_FACTOR_ITERATIONS = 3
"""How often factors and coefficients are fitted in turn, since each depends on the other."""
_LARGEST_FACTOR = 30.0
_FACTOR_ROWS = 2.0
"""A factor fitted to this many rows is shrunk to half, in logarithms."""
_VARIABLE_SHARE = 0.5
"""Rows with a smaller share of variable time are not used to fit factors."""


def fit_terms(terms: Array, times_ms: Array, largest: Array | None = None) -> Array:
    """Fit coefficients c >= 0 that make ``terms @ c`` close to the times, relative to each time.

    Parameters
    ----------
    terms : array (rows, terms)
    times_ms : array (rows,)
        Above zero.
    largest : array (terms,), optional
        Upper bounds of the coefficients. A term that few rows have gets 0: it would fit their noise
        and extrapolate badly.

    Returns
    -------
    array (terms,)
        In ms per unit of each term.
    """
    frequent = np.count_nonzero(terms, axis=0) >= max(_FEWEST_ROWS, _FEWEST_SHARE * len(terms))
    bounds = np.where(frequent, np.inf if largest is None else largest, 0.0)
    return fit_coefficients(terms, times_ms, robust=ROBUST, largest=bounds)


def _choice_factors(
    parts: Array, constant: npt.NDArray[np.bool_], choices: Array, times_ms: Array
) -> dict[str, float]:
    """Return for each choice the ratio of measured to predicted variable time of its rows.

    Parameters
    ----------
    parts : array (rows, terms)
        In ms, without factors.
    constant : array of bool (terms,)
    choices : array of str (rows,)
    times_ms : array (rows,)
    """
    fixed_ms, variable_ms = parts[:, constant].sum(axis=1), parts[:, ~constant].sum(axis=1)
    measured_ms = times_ms - fixed_ms
    usable = (measured_ms > _VARIABLE_SHARE * times_ms) & (variable_ms > 0)
    logs = np.log(measured_ms[usable] / variable_ms[usable])
    # A factor common to all belongs to the coefficients.
    logs -= np.median(logs) if len(logs) else 0.0
    factors = {}
    for choice in np.unique(choices[usable]):
        own = logs[choices[usable] == choice]
        log = np.median(own) * len(own) / (len(own) + _FACTOR_ROWS)
        bound = np.log(_LARGEST_FACTOR)
        factors[str(choice)] = float(np.exp(np.clip(log, -bound, bound)))
    return factors


class Baseline(LayerPredictor):
    """Physical terms only: plausible far from the data, and the basis of `boosted`.

    Attributes
    ----------
    device_class_ : str
        Class of the devices that it was learnt for; `resperf.targets.UNKNOWN` if not known or
        several.
    terms_ : tuple of str
        Names of the terms with a coefficient above zero.
    coefficients_ : array (terms,)
        In ms per unit of the term.
    factors_ : mapping of str to float
        Choice of the kind's `Layer.FUNCTION` -> factor of all terms that are not constant; 1
        if absent.
    floor_ms_ : float
        Smallest prediction: a fifth of the shortest training time.
    """

    method = "baseline"

    def _learn(self, task: Task) -> None:
        """Fit coefficients and factors alternately; nothing is random, and there are no epochs."""
        examples = task.examples
        self.device_class_ = examples.device_class
        name = written_kind(self.kind, OPTIMIZER in examples.columns)
        names = tuple(terms_of(name, self.device_class_))
        terms = physical_terms(self.kind, examples.columns, names, device_class=self.device_class_)
        choices = choices_of(self.kind, examples.columns)
        largest = np.array([_SLOWEST_MS_PER_MB if " beyond " in name else np.inf for name in names])
        self.factors_: dict[str, float] = {}
        coefficients = fit_terms(terms, examples.values, largest=largest)
        for _ in range(_FACTOR_ITERATIONS):
            if choices is None:
                break
            self.factors_ = _choice_factors(
                terms * coefficients, constant_terms(names), choices, examples.values
            )
            scaled = terms * self._scales(names, examples.columns)
            coefficients = fit_terms(scaled, examples.values, largest=largest)
        used = np.flatnonzero(coefficients > 0)
        self.terms_ = tuple(names[index] for index in used)
        self.coefficients_ = coefficients[used]
        self.floor_ms_ = float(examples.values.min()) / 5

    def shares(
        self, columns: Columns, layer_quantities: Mapping[str, Array] | None = None
    ) -> tuple[Array, Array]:
        """Return the estimate in ms, shape (rows,), and the share of each term, (rows, terms).

        `layer_quantities` is the result of `resperf.features.quantities`, where it was already
        computed.
        """
        terms = physical_terms(
            self.kind, columns, self.terms_, layer_quantities, self.device_class_
        )
        parts = terms * self._scales(self.terms_, columns) * self.coefficients_
        estimate_ms = np.maximum(parts.sum(axis=1), self.floor_ms_)
        return estimate_ms, parts / estimate_ms[:, None]

    def _scales(self, names: tuple[str, ...], columns: Columns) -> Array:
        """Return the factor of each term of each layer, (rows, terms) or (1, 1)."""
        choices = choices_of(self.kind, columns)
        if choices is None or not self.factors_:
            return np.ones((1, 1))
        factors = np.array([self.factors_.get(str(choice), 1.0) for choice in choices])
        return np.where(constant_terms(names), 1.0, factors[:, None])

    def values(self, columns: Columns) -> Array:
        """Return the estimate of each layer in ms."""
        return self.shares(columns)[0]

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Return names and coefficients; there is no network to write."""
        return {
            "device_class": self.device_class_,
            "terms": dict(zip(self.terms_, self.coefficients_.tolist(), strict=True)),
            "factors": self.factors_,
            "floor_ms": self.floor_ms_,
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read names, coefficients and factors."""
        self.device_class_ = str(stored(values, "device_class"))
        terms = stored(values, "terms")
        self.terms_ = tuple(terms)
        self.coefficients_ = np.array(list(terms.values()), dtype=float)
        factors = stored(values, "factors")
        self.factors_ = {str(name): float(factor) for name, factor in factors.items()}
        self.floor_ms_ = float(stored(values, "floor_ms"))
