"""`svr`: support vector regression, a baseline of the paper's Table 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import require
from resperf.features import Array
from resperf.predictors._regression import Inputs, Learnt, PaperRegression, formula_bytes

_CACHE_MB = 400


class SVR(PaperRegression):
    """Support vector regression with an RBF kernel (scikit-learn): C 1, epsilon 0.1 ms.

    gamma is 1 / (features x their variance), scikit-learn's ``scale``. Errors below 0.1 ms count
    as none, so short layers are predicted badly. The time of a fit grows with the square of the
    rows.
    """

    method = "svr"
    # A run needs memory for rows x support vectors, which are often most training rows.
    rows_at_once = 256

    def regress(
        self,
        rows: Inputs,
        targets: Array,
        weights: Array | None,
        seed: int,  # noqa: ARG002
    ) -> Learnt:
        """Solve the quadratic programme; nothing is random."""
        svm = require("sklearn.svm", "train")
        gamma = 1 / (rows.shape[1] * max(float(rows.var(dtype=np.float64)), 1e-12))
        model = svm.SVR(kernel="rbf", C=1.0, epsilon=0.1, gamma=gamma, cache_size=_CACHE_MB)
        model.fit(rows.astype(np.float64), targets, sample_weight=weights)

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
    from onnx import TensorProto, helper

    constants: dict[str, npt.NDArray[Any]] = {
        # Rows were rounded to float32 before fitting, so this loses nothing.
        "vectors": np.ascontiguousarray(vectors.T.astype(np.float32)),
        "coefficients": coefficients.astype(np.float64),
        "constant": np.array(constant),
        "two": np.array(2.0),
        "minus_gamma": np.array(-gamma),
        "over_features": np.array([1]),
        "over_rows": np.array([0]),
    }
    steps: list[tuple[str, list[str], str, dict[str, int]]] = [
        ("Cast", ["vectors"], "v", {"to": TensorProto.DOUBLE}),
        ("Mul", ["v", "v"], "v_squared", {}),
        ("ReduceSum", ["v_squared", "over_rows"], "v.v", {"keepdims": 1}),
        ("Mul", ["x64", "x64"], "x_squared", {}),
        ("ReduceSum", ["x_squared", "over_features"], "x.x", {"keepdims": 1}),
        ("MatMul", ["x64", "v"], "x.v", {}),
        ("Mul", ["x.v", "two"], "2x.v", {}),
        ("Add", ["x.x", "v.v"], "x.x+v.v", {}),
        ("Sub", ["x.x+v.v", "2x.v"], "distance", {}),
        ("Mul", ["distance", "minus_gamma"], "exponent", {}),
        ("Exp", ["exponent"], "kernel", {}),
        ("MatMul", ["kernel", "coefficients"], "sum", {}),
        ("Add", ["sum", "constant"], "y", {}),
    ]
    nodes = [
        helper.make_node(op, inputs, [output], name=output, **attributes)
        for op, inputs, output, attributes in steps
    ]
    return formula_bytes(vectors.shape[1], nodes, constants)
