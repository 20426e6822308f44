"""`polynomial`: polynomial regression, a baseline of the paper's Table 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import require
from resperf.features import Array
from resperf.predictors._paper import FormulaGraph, Inputs, Learnt, PaperRegression

_DEGREE = 3
"""Largest number of factors of a term."""


class Polynomial(PaperRegression):
    """Ordinary least squares on all products of up to three features (scikit-learn).

    220 terms for a convolution. Far outside the training rows a cubic grows without bound.
    """

    method = "polynomial"

    def regress(self, rows: Inputs, targets: Array, seed: int) -> Learnt:
        """Solve the least squares; nothing is random."""
        preprocessing = require("sklearn.preprocessing", "train")
        linear_model = require("sklearn.linear_model", "train")
        terms = preprocessing.PolynomialFeatures(_DEGREE)
        # The first term is 1, so no other constant is needed.
        model = linear_model.LinearRegression(fit_intercept=False)
        model.fit(terms.fit_transform(rows.astype(np.float64)), targets)

        def run(inputs: Inputs) -> Array:
            answers: Array = model.predict(terms.transform(inputs.astype(np.float64)))
            return answers[:, None]

        return run, _onnx(rows.shape[1], factors_of(terms.powers_), model.coef_)


def factors_of(powers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return which features each term multiplies, shape (`_DEGREE`, terms).

    Parameters
    ----------
    powers : array of int (terms, features)
        Exponent of each feature in each term.

    Returns
    -------
    array of int64
        Positions in (1, first feature, second feature, ...): terms of lower degree multiply by 1.
    """
    factors = np.zeros((_DEGREE, len(powers)), np.int64)
    for term, exponents in enumerate(powers):
        places = np.repeat(np.arange(1, len(exponents) + 1), exponents)
        factors[: len(places), term] = places
    return factors


def _onnx(features: int, factors: npt.NDArray[np.int64], coefficients: Array) -> bytes:
    graph = FormulaGraph()
    pads = graph.constant("pads", np.array([0, 1, 0, 0]))
    with_1 = graph.node("Pad", ["x64", pads, graph.constant("one", np.array(1.0))], "with_1")
    product = ""
    for index, chosen in enumerate(factors):
        inputs = [with_1, graph.constant(f"factors_{index}", chosen)]
        factor = graph.node("Gather", inputs, f"factor_{index}", axis=1)
        product = graph.node("Mul", [product, factor], f"product_{index}") if index else factor
    graph.node("MatMul", [product, graph.constant("coefficients", coefficients[:, None])], "y")
    return graph.file(features, double=True)
