"""`boosted`: trees that learn the logarithm of measured time over a physical baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError, require
from resperf.features import Array
from resperf.predictors._base import Progress, stored
from resperf.predictors._corrected import Corrected, ResidualTarget
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors._trees import Split, forest_of, onnx_bytes
from resperf.predictors.metrics import mape

Places = npt.NDArray[np.intp]

TREES = 1500
"""At most so many trees unless told otherwise; about 2.2 MB."""

_RATE = 0.04
"""Share of each tree that counts, of many trees."""
_REACH = 2.3
"""What all trees can correct, in logarithms, where they are few: a factor of ten. A tree moves a
row by no more than its share of Huber's slope."""
_LARGEST_RATE = 0.5
_PATIENCE = 200
"""Trees without a better one after which growth stops."""
_FEWEST_JUDGED = 20
"""Validation rows that say how many trees are enough; with fewer, folds of the training rows do."""
_FOLDS = 5
_HUBER = 0.1
_L2 = 3.0


@dataclass(frozen=True)
class _Growth:
    """How trees grow: leaves of each, rows in a leaf at least, and by how many threads.

    Threads that wait for each other take longer than few rows do, a hundred times as long where
    another process wants the cores. Their number changes no tree.
    """

    leaves: int
    rows: int
    threads: int = 1


_GROWTHS: tuple[tuple[float, _Growth], ...] = (
    (1000, _Growth(leaves=15, rows=5)),
    (5000, _Growth(leaves=31, rows=5)),
    (np.inf, _Growth(leaves=63, rows=10, threads=2)),
)
"""Training rows below which a growth holds: few rows want small trees."""


class Boosted(Corrected):
    """Predicts baseline x exp(sum of trees), grown by LightGBM.

    The trees see the same inputs as the network of `residual` and learn the same target. Where a
    layer lies outside the training rows they stay at the edge, and the baseline extrapolates. The
    loss is Huber's, squared up to an error of 10%: measurements have outliers.

    Parameters
    ----------
    kind : str
    epochs : int, optional
        Ignored: the validation rows say how many trees are enough; where there are hardly any,
        cross-validation of the training rows does.
    trees : int
        At most so many. They are what an exported file consists of.

    Attributes
    ----------
    best_trees_ : int
        Trees with the smallest error on the rows that say how many are enough.
    """

    method = "boosted"

    def __init__(self, kind: str, *, epochs: int | None = None, trees: int = TREES) -> None:
        super().__init__(kind, epochs=epochs)
        if trees < 1:
            raise TrainingError(f"trees={trees} must be at least 1")
        self.trees = trees

    def _learn_correction(
        self, target: ResidualTarget, weights: Array | None, seed: int, progress: Progress | None
    ) -> None:
        """Grow as many trees as are enough."""
        booster = self._grow(target, weights, seed, progress)
        dumped = booster.dump_model(num_iteration=booster.best_iteration)["tree_info"]
        self.best_trees_ = len(dumped)
        self._forest = forest_of([tree["tree_structure"] for tree in dumped], _read, "<=")

        def run(inputs: Array) -> Array:
            narrow = inputs.astype(np.float32)
            answers: Array = booster.predict(narrow, num_iteration=booster.best_iteration)
            return answers[:, None]

        self._run: Callable[[Array], Array] = run

    def _grow(
        self, target: ResidualTarget, weights: Array | None, seed: int, progress: Progress | None
    ) -> Any:
        """Return LightGBM's booster; early stopping watches the MAPE of times, and that alone."""
        lightgbm = require("lightgbm", "train")
        growth = next(growth for below, growth in _GROWTHS if len(target.rows) < below)
        settings = _settings(growth, self._rate(), seed)
        patience = lightgbm.early_stopping(_PATIENCE, verbose=False)
        trees = self.trees
        # Rounded to what ONNX Runtime is given, before any threshold is chosen.
        learnt = lightgbm.Dataset(target.rows.astype(np.float32), target.targets, weight=weights)
        # Only what `error` says of its rows is watched, so that they need no targets.
        held_out = learnt.create_valid(
            target.judged.astype(np.float32), np.zeros(len(target.judged))
        )
        by_folds = len(target.judged) < _FEWEST_JUDGED <= len(target.rows)
        if by_folds:
            found = lightgbm.cv(
                settings, learnt, num_boost_round=trees, callbacks=[patience],
                folds=_folds(len(target.rows), seed),
                feval=lambda answers, data: (
                    "mape", mape(np.exp(data.get_label()), np.exp(answers)), False
                ),
            )  # fmt: skip
            trees = len(found["valid mape-mean"])

        def tell(state: Any) -> None:
            if progress is not None:
                judged_mape = state.evaluation_result_list[0][2]
                progress(state.iteration + 1, self.trees, judged_mape)

        booster = lightgbm.train(
            settings,
            learnt,
            num_boost_round=trees,
            valid_sets=[held_out],
            feval=lambda answers, _: ("mape", target.error(answers), False),
            callbacks=[tell] if by_folds else [tell, patience],
        )
        if by_folds:
            booster.best_iteration = trees
        return booster

    def _rate(self) -> float:
        return min(max(_RATE, _REACH / (_HUBER * self.trees)), _LARGEST_RATE)

    def _correction(self, rows: Array) -> Array:
        return self._run(rows)[:, 0]

    def _export_correction(self) -> tuple[bytes, dict[str, Any]]:
        return onnx_bytes(self._forest, len(self.features_)), {"best_trees": self.best_trees_}

    def _load_correction(self, values: Mapping[str, Any], network: OnnxNetwork) -> None:
        self.best_trees_ = stored(values, "best_trees")
        self._run = network


def _folds(rows: int, seed: int) -> list[tuple[Places, Places]]:
    """Return the places of rows that learn and of those that are held out, fold by fold."""
    fold = np.random.default_rng(seed).permutation(rows) % _FOLDS
    return [(np.flatnonzero(fold != each), np.flatnonzero(fold == each)) for each in range(_FOLDS)]


def _read(node: Mapping[str, Any]) -> Split | float:
    """Say what a node of LightGBM's dump is."""
    if "leaf_value" in node:
        return float(node["leaf_value"])
    return (
        int(node["split_feature"]), float(node["threshold"]),
        node["left_child"], node["right_child"],
    )  # fmt: skip


def _settings(growth: _Growth, rate: float, seed: int) -> dict[str, Any]:
    """Return LightGBM's parameters; the same seed gives the same trees."""
    return {
        "objective": "huber",
        "alpha": _HUBER,
        "metric": "None",
        "learning_rate": rate,
        "num_leaves": growth.leaves,
        "min_data_in_leaf": growth.rows,
        "lambda_l2": _L2,
        "feature_fraction": 0.6,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "use_missing": False,
        "feature_pre_filter": False,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": growth.threads,
        "verbosity": -1,
    }
