"""PredictDDL: times of distributed training from a network's vector and the cluster's facts.

Assogba, Lima, Rafique and Kwon, "PredictDDL: Reusable Workload Performance Prediction for
Distributed Deep Learning" (CLUSTER 2023), sections III-C to III-G. Totals of the network stand
beside the vector: it does not know how much work there is (`resperf.features.ghn2`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from resperf.devices import FP32, device_facts
from resperf.errors import UnsupportedError, require
from resperf.features import Array, Columns
from resperf.features.ghn2 import SIZE, Embedding
from resperf.features.primitives import primitive_graph
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._base import Estimate, Predicted, Predictor, Task, stored
from resperf.predictors.network_totals import Counted, Totals, counted
from resperf.quantities import STEP, Level
from resperf.settings import Setting, same_settings

_FOLDS = 5
_NAMES = np.array([
    *(f"vector {index}" for index in range(SIZE)), "devices", "cores", "memory", "device FLOP/s",
    "device bytes/s", "batch", *Totals._fields[:-1],
])  # fmt: skip
"""Features of a row: vector, cluster, device (its data sheet) and totals of a batch."""


class _Described(NamedTuple):
    """What is known of a network: its vector (32,), and its totals at its batch size."""

    vector: Array
    counts: Counted


def _pairs(z: Array) -> Array:
    first, second = np.triu_indices(z.shape[1])
    return np.hstack([z, z[:, first] * z[:, second]])


_TERMS: Mapping[str, Callable[[Array], Array]] = {
    "linear": lambda z: z,
    "powers": lambda z: np.hstack([z, z**2]),
    "full": _pairs,
}
"""Form -> its terms of standardised features (rows, features)."""


class PredictDDL(Predictor):
    """A second-order polynomial as PredictDDL writes it: first and second powers, least squares.

    Other forms are below. Settings are chosen by networks left out; a feature that is not known of
    every row is left out, and said.
    """

    method = "predictddl"
    level = Level.NETWORK
    quantities = frozenset({STEP})
    uses_validation = False
    form: ClassVar[str] = "powers"
    log: ClassVar[bool] = False
    """Whether ln ms is learnt instead of ms."""
    embedding: ClassVar[str] = "ghn2"

    @property
    def depends_on_devices(self) -> bool:
        """Whether several devices matter: they are a feature."""
        return True

    def prepared(self, networks: Sequence[Any]) -> Sequence[Any]:
        """Describe each network, by its folded graph, so that exporters do not matter."""
        ghn2, described = Embedding.load(self.embedding).ghn2, dict[int, _Described]()
        for one in networks:
            if not isinstance(one, _Described) and id(one) not in described:
                vector = ghn2.embed(primitive_graph(one).folded())
                described[id(one)] = _Described(vector, counted(one))
        return [described.get(id(one), one) for one in networks]

    def _table(self, networks: Sequence[_Described], where: Sequence[Platform]) -> Array:
        """Return the features of rows, (rows, len(_NAMES)); NaN if not known.

        For ln ms all but the vector are logarithms, so that products and ratios are sums.
        """
        rows = []
        for (vector, counts), platform in zip(networks, where, strict=True):
            facts = device_facts(platform.device)
            peaks = (
                (facts.peaks_flops_per_s[FP32], facts.bandwidth_bytes_per_s) if facts else (0, 0)
            )
            sizes = [platform.devices, platform.cores, platform.memory_bytes, *peaks, counts.images]
            values = np.array(
                [size or math.nan for size in sizes] + list(counts.totals[:-1]), float
            )
            rows.append([*vector, *(np.log(values + 1) if self.log else values)])
        return np.array(rows).reshape(-1, len(_NAMES))

    def _learn(self, task: Task) -> None:
        examples, how = task.examples, task.examples.per_row()
        networks = self.prepared(examples.networks)
        groups = list(examples.groups or [one.counts.name for one in networks])
        if len(set(groups)) < 2:  # none can be left out
            groups = [str(number) for number in range(len(groups))]
        table = self._table(networks, [platform for _, platform in how])
        is_known = np.isfinite(table).all(0)
        if not is_known.all():
            self.notes_ = (f"not known of every row, left out: {', '.join(_NAMES[~is_known])}",)
        used = is_known & (np.ptp(np.nan_to_num(table), axis=0) > 0)
        y = np.log(examples.values) if self.log else examples.values
        x, shift, scale = table[:, used], float(y.mean()), float(y.std()) or 1.0
        centre, spread = x.mean(0), x.std(0)
        self.values_ = {
            "names": _NAMES[used].tolist(), "centre": centre.tolist(), "spread": spread.tolist(),
            "shift": shift, "scale": scale, "ways": sorted({_way(setting) for setting, _ in how}),
            "most": max(platform.devices for _, platform in how),
            **self._regress((x - centre) / spread, (y - shift) / scale, groups, task.seed),
        }  # fmt: skip

    def _regress(self, x: Array, y: Array, groups: Sequence[str], seed: int) -> dict[str, Any]:
        """Fit standardised values; return plain lists, which `_answer` reads."""
        linear = require("sklearn.linear_model", "train")
        if self.form != "full":
            fit = linear.LinearRegression().fit(_TERMS[self.form](x), y)
        else:
            fit = _chosen(linear.Ridge(), {"alpha": np.logspace(-5, 4, 10)}, _pairs(x), y, groups)
        return {"coefficients": fit.coef_.tolist(), "constant": float(fit.intercept_)}

    def _answer(self, x: Array) -> Array:
        """Return the standardised times of standardised features (rows, features)."""
        terms = _TERMS[self.form](x)
        return np.asarray(terms @ self.values_["coefficients"] + self.values_["constant"])

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict steps; results below 0 become 0 ms."""
        values = self.values_
        if _way(setting) not in values["ways"]:
            raise self.no_rows_error(values["ways"], setting, platform)
        networks = self.prepared(cast("Sequence[Network]", subjects))
        table = self._table(networks, [platform] * len(networks))
        table = table[:, np.isin(_NAMES, values["names"])]
        if np.isnan(table).any():
            lacking = np.array(values["names"])[np.isnan(table).any(0)]
            raise UnsupportedError(
                f"{self.method} needs {', '.join(lacking)}, not known of {platform.device}; give a "
                "device with a data sheet (`resperf devices`)"
            )
        answers = self._answer((table - values["centre"]) / values["spread"])
        answers = answers * values["scale"] + values["shift"]
        times_ms = np.exp(answers) if self.log else np.maximum(answers, 0)
        return {STEP: Estimate.without_bounds(times_ms)}

    def most_devices(self, setting: Setting, platform: Platform) -> int:
        """Return how many devices shared one run at most, of those that it learnt from."""
        return int(self.values_["most"])

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Return everything as JSON; there is no network to write."""
        return {"values": self.values_}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        self.values_ = stored(values, "values", dict)


def _way(setting: Setting) -> str:
    return ", ".join(filter(None, same_settings(setting).values()))


def _chosen(model: Any, grid: Any, x: Array, y: Array, groups: Sequence[str]) -> Any:
    """Fit the best settings of a grid, judged on groups left out."""
    selection = require("sklearn.model_selection", "train")
    folds = selection.GroupKFold(min(_FOLDS, len(set(groups))))
    search = selection.GridSearchCV(model, grid, cv=folds, scoring="neg_mean_absolute_error")
    return search.fit(x, y, groups=groups).best_estimator_


class Types(PredictDDL):
    """The same with the vector that the paper describes: types of operators alone."""

    method, embedding = "predictddl-types", "ghn2-paper"


class Linear(PredictDDL):
    """Linear regression, one of the paper's four."""

    method, form = "predictddl-linear", "linear"


class Full(PredictDDL):
    """A second-order polynomial with products of features, by ridge regression."""

    method, form = "predictddl-full", "full"


class Log(Full):
    """The same of ln ms, ours: relative errors count, and work / devices is a difference."""

    method, log = "predictddl-log", True


class SupportVectors(PredictDDL):
    """Support vector regression by the grid of the paper and of GHN-2's code."""

    method = "predictddl-svr"

    def _regress(self, x: Array, y: Array, groups: Sequence[str], seed: int) -> dict[str, Any]:
        common = {"C": [1, 10, 50, 100, 200, 500, 1000], "epsilon": [0.05, 0.1, 0.2]}
        # The features are z-scores: `auto`, 1 / features, is the same number in each fold.
        gammas = [1 / x.shape[1], 0.05, 0.1, 0.2, 0.5]
        grid = [{"kernel": ["linear"], **common}, {"kernel": ["rbf"], "gamma": gammas, **common}]
        fit = _chosen(require("sklearn.svm", "train").SVR(), grid, x, y, groups)
        return {
            "vectors": fit.support_vectors_.tolist(), "weights": fit.dual_coef_[0].tolist(),
            "constant": float(fit.intercept_[0]),
            "gamma": fit.gamma if fit.kernel == "rbf" else 0,
        }  # fmt: skip

    def _answer(self, x: Array) -> Array:
        values, vectors = self.values_, np.array(self.values_["vectors"])
        kernel = x @ vectors.T
        if values["gamma"]:
            squares = (x**2).sum(1)[:, None] + (vectors**2).sum(1) - 2 * kernel
            kernel = np.exp(-values["gamma"] * squares)
        return np.asarray(kernel @ values["weights"] + values["constant"])


class Perceptron(PredictDDL):
    """A perceptron with one hidden layer of 1 to 5 neurons, the paper's grid."""

    method = "predictddl-mlp"

    def _regress(self, x: Array, y: Array, groups: Sequence[str], seed: int) -> dict[str, Any]:
        neural = require("sklearn.neural_network", "train")
        model = neural.MLPRegressor(solver="lbfgs", max_iter=2000, random_state=seed)
        sizes = {"hidden_layer_sizes": [(neurons,) for neurons in range(1, 6)]}
        fit = _chosen(model, sizes, x, y, groups)
        return {
            "weights": [weights.tolist() for weights in fit.coefs_],
            "biases": [biases.tolist() for biases in fit.intercepts_],
        }

    def _answer(self, x: Array) -> Array:
        (first, second), (inner, outer) = self.values_["weights"], self.values_["biases"]
        return np.asarray(np.maximum(x @ first + inner, 0) @ second + outer)[:, 0]
