"""`boosted`: trees that learn the logarithm of measured time over a physical baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from resperf.errors import TrainingError, require
from resperf.features import Array, Columns
from resperf.predictors._architecture import OnnxNetwork
from resperf.predictors._base import Predictor, Progress, Rows, check_rows, stored
from resperf.predictors._inputs import all_inputs, chosen_inputs, informative
from resperf.predictors._trees import Split, forest_of, onnx_bytes
from resperf.predictors.baseline import Baseline
from resperf.predictors.metrics import mape

_THREADS = 2
_HUBER = 0.1
_L2 = 3.0


@dataclass(frozen=True)
class _Growth:
    """How trees grow: leaves of each, the share of it that counts, and rows in a leaf at least."""

    leaves: int
    rate: float
    rows: int


_GROWTHS: tuple[tuple[float, _Growth], ...] = (
    (1000, _Growth(leaves=15, rate=0.04, rows=5)),
    (5000, _Growth(leaves=31, rate=0.04, rows=5)),
    (np.inf, _Growth(leaves=31, rate=0.08, rows=10)),
)
"""Training rows below which a growth holds: few rows want small trees in small steps."""


class Boosted(Predictor):
    """Predicts baseline x exp(sum of trees), grown by LightGBM.

    The trees see the same inputs as the network of `residual` and learn the same target. Where a
    layer lies outside the training rows they stay at the edge, and the baseline extrapolates. The
    loss is Huber's, squared up to an error of 10%: measurements have outliers.

    Parameters
    ----------
    kind : str
    epochs : int, optional
        Ignored: the validation rows say how many trees are enough.
    trees : int
        At most so many. They are what an exported file consists of: 1,500 are 1.1 MB.

    Attributes
    ----------
    baseline_ : Baseline
    features_ : tuple of str
        Names of the inputs that vary and are not copies of another.
    best_trees_ : int
        Trees with the smallest error on the validation rows.
    """

    method = "boosted"

    def __init__(self, kind: str, *, epochs: int | None = None, trees: int = 1500) -> None:
        super().__init__(kind, epochs=epochs)
        if trees < 1:
            raise TrainingError(f"trees={trees} must be at least 1")
        self.trees = trees

    def fit(
        self,
        columns: Columns,
        times_ms: Array,
        *,
        validation: Rows,
        seed: int,
        weights: Array | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Fit the baseline, then grow trees until the validation rows get no better.

        Raises
        ------
        MissingExtraError
            If LightGBM is not installed.
        TrainingError
            If nothing can be learnt from the rows.
        """
        check_rows(self.kind, columns, times_ms)
        check_rows(self.kind, validation[0], validation[1], at_least=1)
        self.baseline_ = Baseline(self.kind).fit(
            columns, times_ms, validation=validation, seed=seed, weights=weights
        )
        names, matrix, estimate_ms = all_inputs(self.baseline_, columns)
        kept = informative(matrix)
        self.features_ = tuple(names[place] for place in kept)
        booster = self._grow(
            matrix[:, kept], np.log(times_ms / estimate_ms), weights, validation, seed, progress
        )
        dumped = booster.dump_model(num_iteration=booster.best_iteration)["tree_info"]
        self.best_trees_ = len(dumped)
        self._forest = forest_of([tree["tree_structure"] for tree in dumped], _read, "<=")

        def run(rows: Array) -> Array:
            narrow = rows.astype(np.float32)
            answers: Array = booster.predict(narrow, num_iteration=booster.best_iteration)
            return answers[:, None]

        self._run: Callable[[Array], Array] = run
        return self

    def _grow(
        self,
        rows: Array,
        targets: Array,
        weights: Array | None,
        validation: Rows,
        seed: int,
        progress: Progress | None,
    ) -> Any:
        """Return LightGBM's booster; early stopping watches the MAPE of times, and that alone."""
        lightgbm = require("lightgbm", "train")
        judged, judged_baseline_ms = chosen_inputs(self.baseline_, validation[0], self.features_)
        # Rounded to what ONNX Runtime is given, before any threshold is chosen.
        learnt = lightgbm.Dataset(rows.astype(np.float32), targets, weight=weights)
        held_out = learnt.create_valid(
            judged.astype(np.float32), np.log(validation[1] / judged_baseline_ms)
        )

        def error(answers: Array, _: Any) -> tuple[str, float, bool]:
            return "mape", mape(validation[1], judged_baseline_ms * np.exp(answers)), False

        def tell(state: Any) -> None:
            if progress is not None:
                progress(state.iteration + 1, self.trees, state.evaluation_result_list[0][2])

        growth = next(growth for below, growth in _GROWTHS if len(rows) < below)
        patience = int(np.ceil(4 / growth.rate))
        return lightgbm.train(
            _settings(growth, seed),
            learnt,
            num_boost_round=self.trees,
            valid_sets=[held_out],
            feval=error,
            callbacks=[tell, lightgbm.early_stopping(patience, verbose=False)],
        )

    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms."""
        rows, estimate_ms = chosen_inputs(self.baseline_, columns, self.features_)
        times_ms: Array = estimate_ms * np.exp(self._run(rows)[:, 0])
        return times_ms

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the trees; return the baseline and the names of their inputs."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(onnx_bytes(self._forest, len(self.features_)))
        return {
            "kind": self.kind,
            "network": name,
            "baseline": self.baseline_.export(folder, stem),
            "features": list(self.features_),
            "best_trees": self.best_trees_,
        }

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote."""
        self = cls(stored(values, "kind"))
        self.baseline_ = Baseline.load(stored(values, "baseline"), folder)
        self.features_ = tuple(stored(values, "features"))
        self.best_trees_ = stored(values, "best_trees")
        self._run = OnnxNetwork(folder / stored(values, "network"))
        return self


def _read(node: Mapping[str, Any]) -> Split | float:
    """Say what a node of LightGBM's dump is."""
    if "leaf_value" in node:
        return float(node["leaf_value"])
    return (
        int(node["split_feature"]), float(node["threshold"]),
        node["left_child"], node["right_child"],
    )  # fmt: skip


def _settings(growth: _Growth, seed: int) -> dict[str, Any]:
    """Return LightGBM's parameters; the same seed gives the same trees."""
    return {
        "objective": "huber",
        "alpha": _HUBER,
        "metric": "None",
        "learning_rate": growth.rate,
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
        "num_threads": _THREADS,
        "verbosity": -1,
    }
