"""`svr`: support vector regression, a baseline of the paper's Table 1."""

from __future__ import annotations

import numpy as np

from resperf.errors import require
from resperf.features import Array
from resperf.predictors._paper import FormulaGraph, Inputs, Learnt, PaperRegression

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
            answers: Array = model.predict(inputs.astype(np.float64))
            return answers[:, None]

        vectors, coefficients = model.support_vectors_, model.dual_coef_.T
        if not len(vectors):
            # Every time is within epsilon of the constant.
            vectors, coefficients = np.zeros((1, rows.shape[1])), np.zeros((1, 1))
        return run, _onnx(gamma, vectors, coefficients, float(model.intercept_[0]))


def _onnx(gamma: float, vectors: Array, coefficients: Array, constant: float) -> bytes:
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
