"""`polynomial`, `svr`, `xgboost` and `xgboost-log`: the baselines of the paper's Table 1."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from resperf.errors import require
from resperf.features import Array
from resperf.predictors._base import Task
from resperf.predictors._onnx import OnnxGraph, Split, forest_of, onnx_bytes
from resperf.predictors._paper import Inputs, Learnt, PaperMethod


class PaperRegression(PaperMethod):
    """A regression in ms.

    Section 6.1 only mentions "appropriate parameter adjustments"; the settings here are the
    libraries' defaults, which come close to the paper's errors. There is no epoch to choose, so
    validation rows are not used. Negative results become 0 ms.
    """

    log_time: ClassVar[bool] = False
    """Learn ln ms instead of ms."""

    @abstractmethod
    def regress(self, rows: Inputs, targets: Array, seed: int) -> Learnt:
        """Fit the regression to rows (rows, features) and targets (rows,)."""

    def _fit_rows(self, rows: Inputs, task: Task) -> Learnt:
        times_ms = task.examples.values
        return self.regress(rows, np.log(times_ms) if self.log_time else times_ms, task.seed)

    def _times(self, answers: Array) -> Array:
        return np.asarray(np.exp(answers) if self.log_time else np.maximum(answers, 0.0))[:, 0]


class FormulaGraph(OnnxGraph):
    """An ONNX graph in float64 from ``x64`` to ``y``; ``x64`` is the input in float64.

    Sums of large terms that nearly cancel need float64.
    """

    def __init__(self) -> None:
        from onnx import TensorProto

        super().__init__()
        self.node("Cast", ["x"], "x64", to=TensorProto.DOUBLE)


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
            return np.asarray(model.predict(terms.transform(inputs.astype(np.float64))))[:, None]

        return run, _polynomial_onnx(rows.shape[1], factors_of(terms.powers_), model.coef_)


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


def _polynomial_onnx(features: int, factors: npt.NDArray[np.int64], coefficients: Array) -> bytes:
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


_CACHE_MB = 400
"""Memory for values of the kernel during a fit; it changes no result."""


class SVR(PaperRegression):
    """Support vector regression with an RBF kernel (scikit-learn): C 1, epsilon 0.1 ms.

    gamma is 1 / (features x their variance), scikit-learn's ``scale``. Errors below 0.1 ms count
    as none, so short layers are predicted badly. The time of a fit grows with the square of the
    rows.
    """

    method = "svr"
    # A run needs memory for rows x support vectors, which are often most training rows.
    rows_at_once = 256

    def regress(self, rows: Inputs, targets: Array, seed: int) -> Learnt:
        """Solve the quadratic programme; nothing is random."""
        svm = require("sklearn.svm", "train")
        gamma = 1 / (rows.shape[1] * max(float(rows.var(dtype=np.float64)), 1e-12))
        model = svm.SVR(kernel="rbf", C=1.0, epsilon=0.1, gamma=gamma, cache_size=_CACHE_MB)
        model.fit(rows.astype(np.float64), targets)

        def run(inputs: Inputs) -> Array:
            return np.asarray(model.predict(inputs.astype(np.float64)))[:, None]

        vectors, coefficients = model.support_vectors_, model.dual_coef_.T
        if not len(vectors):
            # Every time is within epsilon of the constant.
            vectors, coefficients = np.zeros((1, rows.shape[1])), np.zeros((1, 1))
        return run, _svr_onnx(gamma, vectors, coefficients, float(model.intercept_[0]))


def _svr_onnx(gamma: float, vectors: Array, coefficients: Array, constant: float) -> bytes:
    """Write sum of c_i exp(-gamma |x - v_i|^2) + constant, with |x - v|^2 = x.x - 2 x.v + v.v."""
    graph = FormulaGraph()
    # Rows were rounded to float32 before fitting, so this loses nothing.
    narrow = graph.constant("vectors", vectors.T.astype(np.float32))
    graph.constant("coefficients", coefficients)
    graph.constant("constant", np.array(constant))
    graph.constant("two", np.array(2.0))
    graph.constant("minus_gamma", np.array(-gamma))
    graph.constant("over_features", np.array([1]))
    graph.constant("over_rows", np.array([0]))
    graph.node("CastLike", [narrow, "x64"], "v")
    graph.node("Mul", ["v", "v"], "v_squared")
    graph.node("ReduceSum", ["v_squared", "over_rows"], "v.v")
    graph.node("Mul", ["x64", "x64"], "x_squared")
    graph.node("ReduceSum", ["x_squared", "over_features"], "x.x")
    graph.node("MatMul", ["x64", "v"], "x.v")
    graph.node("Mul", ["x.v", "two"], "2x.v")
    graph.node("Add", ["x.x", "v.v"], "x.x+v.v")
    graph.node("Sub", ["x.x+v.v", "2x.v"], "distance")
    graph.node("Mul", ["distance", "minus_gamma"], "exponent")
    graph.node("Exp", ["exponent"], "kernel")
    graph.node("MatMul", ["kernel", "coefficients"], "sum")
    graph.node("Add", ["sum", "constant"], "y")
    return graph.file(vectors.shape[1], double=True)


_TREES = 100
"""Default of XGBoost's interface for scikit-learn."""


class XGBoost(PaperRegression):
    """XGBoost with its default settings, a baseline of the paper's Table 1.

    100 trees of depth 6, rate 0.3, squared error of ms.
    """

    method = "xgboost"

    def regress(self, rows: Inputs, targets: Array, seed: int) -> Learnt:
        """Grow the trees in one thread, so that the same seed gives the same trees."""
        xgboost = require("xgboost", "train")
        settings = {"objective": "reg:squarederror", "seed": seed, "nthread": 1, "verbosity": 0}
        booster = xgboost.train(settings, xgboost.DMatrix(rows, targets), _TREES)

        def run(inputs: Inputs) -> Array:
            return np.asarray(booster.predict(xgboost.DMatrix(inputs)), dtype=float)[:, None]

        learner = json.loads(booster.save_raw("json"))["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        # XGBoost starts its float32 sum with a constant: one number, or since version 3 a list of
        # one per target. Adding it to the first tree's leaves gives the same rounding.
        constant = np.float32(learner["learner_model_param"]["base_score"].strip("[]"))
        roots = [
            (tree, 0, np.float32(0) if index else constant) for index, tree in enumerate(trees)
        ]
        return run, onnx_bytes(forest_of(roots, _read, "<"), rows.shape[1])


class XGBoostLog(XGBoost):
    """The same on ln ms, a target that suits relative errors."""

    method = "xgboost-log"
    log_time = True


Node = tuple[Mapping[str, Any], int, np.float32]
"""Arrays of a tree, an index into them, and the constant added to the tree's leaves."""


def _read(node: Node) -> Split | float:
    """Parse a node of XGBoost's JSON; leaves store their value in place of a threshold."""
    tree, index, added = node
    # Decimals that are exact as float32 but not as float64.
    number = np.float32(tree["split_conditions"][index])
    left, right = tree["left_children"][index], tree["right_children"][index]
    if left < 0:
        return float(number + added)
    feature = int(tree["split_indices"][index])
    return feature, float(number), (tree, left, added), (tree, right, added)
