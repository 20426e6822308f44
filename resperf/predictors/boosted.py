"""`boosted`, the default: trees that learn ln(measured time / a physical baseline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError, require
from resperf.features import Array, Columns, feature_matrix, quantities
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._onnx import Forest, OnnxNetwork, Split, forest_of, onnx_bytes
from resperf.predictors.baseline import Baseline
from resperf.predictors.metrics import mape

Places = npt.NDArray[np.intp]

TREES = 1500
"""Default of the largest number of trees; about 2.2 MB."""

_RATE = 0.04
"""Learning rate of many trees."""
_REACH = 2.3
"""Largest correction that few trees must reach, in logarithms: a factor of ten. A tree moves a row
by at most the learning rate times Huber's slope."""
_LARGEST_RATE = 0.5
"""Limits the rate of so few trees that `_REACH` would ask for more."""
_PATIENCE = 200
"""Trees without improvement after which training stops."""
_FEWEST_VALIDATION = 20
"""Fewest validation rows that choose the number of trees; with fewer, cross-validation does."""
_FOLDS = 5
"""Parts of the training rows in the cross-validation that counts trees."""
_HUBER = 0.1
"""Error from which Huber's loss is linear, in logarithms: measurements have outliers."""
_L2 = 3.0


_GROWTHS: tuple[tuple[float, dict[str, int]], ...] = (
    (1000, {"num_leaves": 15, "min_data_in_leaf": 5, "num_threads": 1}),
    (5000, {"num_leaves": 31, "min_data_in_leaf": 5, "num_threads": 1}),
    (np.inf, {"num_leaves": 63, "min_data_in_leaf": 10, "num_threads": 2}),
)
"""(training rows below which they apply, settings): few rows need small trees. With few rows,
synchronising threads takes longer than the work, a hundred times longer when another process uses
the cores. The number of threads does not change the trees."""


@dataclass(frozen=True)
class CorrectionTarget:
    """What the baseline does not explain.

    Attributes
    ----------
    rows, validation : array (rows, inputs)
        Inputs of the training and of the validation rows.
    targets : array (rows,)
        ln(time / baseline) of the training rows.
    error : callable
        Corrections of the validation rows, (rows,) -> MAPE of the corrected times.
    """

    rows: Array
    targets: Array
    validation: Array
    error: Callable[[Array], float]


@dataclass(frozen=True)
class Described:
    """Layers of one kind as predictors with a correction see them, whatever their baselines.

    Attributes
    ----------
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    quantities : mapping of str to array
        As `resperf.features.quantities` returns them.
    names : tuple of str
    features : array (rows, features)
    """

    columns: Columns
    quantities: Mapping[str, Array]
    names: tuple[str, ...]
    features: Array

    @classmethod
    def of(cls, kind: str, columns: Columns) -> Described:
        """Compute quantities and features once."""
        layer_quantities = quantities(kind, columns)
        return cls(columns, layer_quantities, *feature_matrix(kind, columns, layer_quantities))


class Boosted(LayerPredictor):
    """Predicts baseline x exp(sum of trees), grown by LightGBM.

    The baseline models physical costs, and extrapolates; outside the training rows, trees are
    constant. They learn what the baseline does not explain from features, ln of the baseline, and
    the share of each of its terms. The loss is Huber's, squared up to an error of 10%, because
    measurements have outliers.

    What is loaded is whatever ONNX file gives ln(time / baseline): some shipped files are not of
    trees but of perceptrons.

    Parameters
    ----------
    kind : str
    epochs : int, optional
        Ignored: the validation rows choose the number of trees; if there are too few,
        cross-validation on the training rows does.
    trees : int
        Largest number of trees, which determines the size of the exported file.

    Attributes
    ----------
    baseline_ : Baseline
    features_ : tuple of str
        Names of the inputs that vary and do not duplicate another.
    best_trees_ : int
        Number of trees with the smallest validation error; of a fit, not of what is loaded.
    """

    method = "boosted"

    def __init__(self, kind: str, *, epochs: int | None = None, trees: int = TREES) -> None:
        super().__init__(kind, epochs=epochs)
        if trees < 1:
            raise TrainingError(f"trees={trees} must be at least 1")
        self.trees = trees

    def _learn(self, task: Task) -> None:
        """Fit the baseline, then trees to what it does not explain."""
        examples, validation = task.examples, task.validation
        self.baseline_ = Baseline(self.kind).fit(examples, validation=validation, seed=task.seed)
        names, matrix, estimate_ms = _all_inputs(
            self.baseline_, Described.of(self.kind, examples.columns)
        )
        chosen = informative(matrix)
        self.features_ = tuple(names[index] for index in chosen)
        validation_rows, baseline_ms = self._inputs(Described.of(self.kind, validation.columns))

        def error(corrections: Array) -> float:
            return mape(validation.values, baseline_ms * np.exp(corrections))

        targets = np.log(examples.values / estimate_ms)
        target = CorrectionTarget(matrix[:, chosen], targets, validation_rows, error)
        self._learn_correction(target, task)

    def _learn_correction(self, target: CorrectionTarget, task: Task) -> None:
        """Grow trees; export the best number of them."""
        booster = self.grow(target, task)
        self._forest = forest_of_booster(booster)
        self.best_trees_ = len(self._forest.roots)

        def run(inputs: Array) -> Array:
            narrow, best = inputs.astype(np.float32), booster.best_iteration
            return np.asarray(booster.predict(narrow, num_iteration=best))[:, None]

        # Inputs (rows, inputs) -> ln(time / baseline), (rows, 1).
        self._run: Callable[[Array], Array] = run

    def grow(self, target: CorrectionTarget, task: Task) -> Any:
        """Return LightGBM's booster; early stopping watches only the MAPE of times."""
        lightgbm = require("lightgbm", "train")
        rate = min(max(_RATE, _REACH / (_HUBER * self.trees)), _LARGEST_RATE)
        settings = _settings(self._growth(len(target.rows)), rate, task.seed)
        patience = lightgbm.early_stopping(_PATIENCE, verbose=False)
        trees = self.trees
        # Round to ONNX Runtime's float32 inputs before any threshold is chosen.
        learnt = lightgbm.Dataset(target.rows.astype(np.float32), target.targets)
        # Only `error` of these rows is watched, so they need no targets.
        held_out = learnt.create_valid(
            target.validation.astype(np.float32), np.zeros(len(target.validation))
        )
        by_folds = len(target.validation) < _FEWEST_VALIDATION <= len(target.rows)
        if by_folds:
            history = lightgbm.cv(
                settings, learnt, num_boost_round=trees, callbacks=[patience],
                folds=_folds(len(target.rows), task.seed),
                feval=lambda answers, data: (
                    "mape", mape(np.exp(data.get_label()), np.exp(answers)), False
                ),
            )  # fmt: skip
            trees = len(history["valid mape-mean"])

        def report(state: Any) -> None:
            if task.progress is not None:
                validation_mape = state.evaluation_result_list[0][2]
                task.progress(state.iteration + 1, self.trees, validation_mape)

        booster = lightgbm.train(
            settings,
            learnt,
            num_boost_round=trees,
            valid_sets=[held_out],
            feval=lambda answers, _: ("mape", target.error(answers), False),
            callbacks=[report] if by_folds else [report, patience],
        )
        if by_folds:
            booster.best_iteration = trees
        return booster

    def _growth(self, rows: int) -> dict[str, int]:
        """Return LightGBM's settings of size and threads for a number of rows."""
        return next(growth for below, growth in _GROWTHS if rows < below)

    def _inputs(self, layers: Described) -> tuple[Array, Array]:
        """Return the trees' inputs, (rows, inputs), and the baseline in ms, (rows,)."""
        names, matrix, estimate_ms = _all_inputs(self.baseline_, layers)
        index = {name: index for index, name in enumerate(names)}
        return matrix[:, [index[name] for name in self.features_]], estimate_ms

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        rows, estimate_ms = self._inputs(Described.of(self.kind, columns))
        return np.asarray(estimate_ms * np.exp(self._run(rows)[:, 0]))

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the trees; return the baseline and the names of their inputs."""
        baseline = self.baseline_.export(folder, stem)
        return {"baseline": baseline, **self._store_correction(folder, stem)}

    def _store_correction(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the trees' ONNX file; return its name, its inputs and the number of trees."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(onnx_bytes(self._forest, len(self.features_)))
        return {"network": name, "features": list(self.features_), "best_trees": self.best_trees_}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the baseline, the names of the inputs, and the correction."""
        self.baseline_ = Baseline.load(stored(values, "baseline"), folder)
        self._load_correction(values, folder)

    def _load_correction(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the names of the inputs and the ONNX file."""
        self.features_ = tuple(stored(values, "features", list))
        self._run = OnnxNetwork(folder / stored(values, "network"))


def _all_inputs(baseline: Baseline, layers: Described) -> tuple[tuple[str, ...], Array, Array]:
    """Return names and values of all inputs, (rows, inputs), and the baseline in ms, (rows,).

    Parameters
    ----------
    baseline : Baseline
        Fitted; its kind determines the features.
    layers : Described
    """
    estimate_ms, shares = baseline.shares(layers.columns, layers.quantities)
    names = (*layers.names, "ln baseline", *(f"share {term}" for term in baseline.terms_))
    return names, np.column_stack([layers.features, np.log(estimate_ms), shares]), estimate_ms


def informative(matrix: Array) -> list[int]:
    """Return the columns that vary and do not duplicate (or negate) an earlier one."""
    chosen: list[int] = []
    seen: set[bytes] = set()
    for index in range(matrix.shape[1]):
        column = matrix[:, index]
        deviation = column.std()
        if deviation <= 1e-9 * max(1.0, np.abs(column).max()):
            continue
        scores = np.round((column - column.mean()) / deviation, 6) + 0.0
        sign = 1.0 if scores[np.flatnonzero(scores)[0]] > 0 else -1.0
        normalised = (scores * sign + 0.0).tobytes()
        if normalised not in seen:
            seen.add(normalised)
            chosen.append(index)
    return chosen


def forest_of_booster(booster: Any) -> Forest:
    """Return LightGBM's trees: the best number of them, if early stopping chose one, else all."""
    dumped = booster.dump_model(num_iteration=booster.best_iteration)["tree_info"]
    return forest_of([tree["tree_structure"] for tree in dumped], _read, "<=")


def _folds(rows: int, seed: int) -> list[tuple[Places, Places]]:
    """Return the places of training rows and of held-out rows of each fold."""
    fold = np.random.default_rng(seed).permutation(rows) % _FOLDS
    return [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(_FOLDS)]


def _read(node: Mapping[str, Any]) -> Split | float:
    """Parse a node of LightGBM's dump."""
    if "leaf_value" in node:
        return float(node["leaf_value"])
    return (
        int(node["split_feature"]), float(node["threshold"]),
        node["left_child"], node["right_child"],
    )  # fmt: skip


def _settings(growth: Mapping[str, int], rate: float, seed: int) -> dict[str, Any]:
    """Return LightGBM's parameters; the same seed gives the same trees."""
    return {
        "objective": "huber",
        "alpha": _HUBER,
        "metric": "None",
        "learning_rate": rate,
        "lambda_l2": _L2,
        "feature_fraction": 0.6,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "use_missing": False,
        "feature_pre_filter": False,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
        **growth,
    }
