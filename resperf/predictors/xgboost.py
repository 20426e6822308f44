"""`xgboost` and `xgboost-log`: boosted trees on the paper's features, without a baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from resperf.errors import require
from resperf.features import Array
from resperf.predictors._paper import Inputs, Learnt, PaperRegression
from resperf.predictors._trees import Split, forest_of, onnx_bytes

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
            answers: Array = booster.predict(xgboost.DMatrix(inputs)).astype(float)
            return answers[:, None]

        learner = json.loads(booster.save_raw("json"))["learner"]
        return run, onnx_bytes(forest_of(_roots(learner), _read, "<"), rows.shape[1])


class XGBoostLog(XGBoost):
    """The same on ln ms, a target that suits relative errors."""

    method = "xgboost-log"
    log_time = True


Node = tuple[Mapping[str, Any], int, np.float32]
"""Arrays of a tree, an index into them, and the constant added to the tree's leaves."""


def _roots(learner: Mapping[str, Any]) -> list[Node]:
    """Return the root of each tree.

    XGBoost starts its float32 sum with a constant. Adding it to the first tree's leaves gives the
    same rounding.
    """
    # One number, or since version 3 a list of one per target.
    constant = np.float32(learner["learner_model_param"]["base_score"].strip("[]"))
    trees = learner["gradient_booster"]["model"]["trees"]
    return [(tree, 0, np.float32(0) if index else constant) for index, tree in enumerate(trees)]


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
