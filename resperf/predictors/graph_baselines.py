"""What DNNPerf is compared with (section IV-B), and DNNPerf without parts of it (Table VIII)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from resperf.errors import require
from resperf.features import Array
from resperf.features.transforms import ZScore
from resperf.predictors._base import Task
from resperf.predictors._graph_network import ATTENTION, Architecture, Batch
from resperf.predictors._onnx import onnx_bytes
from resperf.predictors.boosted import Boosted, CorrectionTarget, forest_of_booster
from resperf.predictors.dnnperf import DNNPerf, GraphPredictor, Graphs, Variant
from resperf.predictors.metrics import mape
from resperf.quantities import PEAK_MEMORY, STEP


class TreesOnSums(GraphPredictor):
    """Base of trees on the features of nodes, summed over the graph."""

    @abstractmethod
    def _grown(self, rows: Array, validation: Array, task: Task) -> Any:
        """Return LightGBM's trees, from sums of features (rows, features) to answers."""

    def _learn_graphs(self, graphs: Graphs, validation: Graphs, task: Task) -> None:
        """Grow the trees."""
        self._fit_transforms(graphs)
        rows, judged = (_sums(self._scaled(part)) for part in (graphs, validation))
        self._use(onnx_bytes(forest_of_booster(self._grown(rows, judged, task)), rows.shape[1]))

    def _answers(self, graphs: Sequence[Batch]) -> Array:
        return self._network(_sums(graphs))[:, 0]


class GBDT(TreesOnSums):
    """Trees as the paper sets them, by LightGBM: 200 of depth 30, rate 0.01, squared error.

    So few steps leave 13% of each row's distance from the mean.
    """

    method = "dnnperf-gbdt"

    def _grown(self, rows: Array, validation: Array, task: Task) -> Any:
        lightgbm = require("lightgbm", "train")
        settings = {
            "learning_rate": 0.01, "max_depth": 30, "num_leaves": 131072, "min_data_in_leaf": 1,
            "seed": task.seed, "deterministic": True, "num_threads": 1, "verbosity": -1,
        }  # fmt: skip
        learnt = lightgbm.Dataset(rows.astype(np.float32), self._targets(task.examples.values))
        return lightgbm.train(settings, learnt, 200)


class BoostedSums(TreesOnSums):
    """A fair baseline of ours: trees on ln of the value, as many as validation rows ask for."""

    method = "dnnperf-boosted"
    logarithms = True

    def _grown(self, rows: Array, validation: Array, task: Task) -> Any:
        target = CorrectionTarget(
            rows, self._targets(task.examples.values), validation,
            lambda answers: mape(task.validation.values, self._values(answers)),
        )  # fmt: skip
        return Boosted(self.kind).grow(target, task)


def _sums(graphs: Sequence[Batch]) -> Array:
    return np.array([graph.nodes.sum(axis=0, dtype=np.float64) for graph in graphs])


class Perceptron(DNNPerf):
    """The paper's MLP: sums of the nodes' features, no messages, rate 1e-3."""

    method = "dnnperf-mlp"
    schedules: ClassVar[Mapping[str, tuple[int, int]]] = {STEP: (0, 250), PEAK_MEMORY: (0, 200)}
    variants = (Variant("gate", False),)
    rate = 1e-3


class BRPNAS(DNNPerf):
    """BRP-NAS: four graph convolutions of width 600 over types of nodes; it sees no sizes."""

    method = "dnnperf-brp-nas"
    schedules: ClassVar[Mapping[str, tuple[int, int]]] = {STEP: (4, 250), PEAK_MEMORY: (4, 200)}
    variants = (Variant("gate", True),)
    average = True

    def _reads(self, name: str) -> bool:
        return name.startswith("type=") or name == "self"

    def _architecture(self, reading: str) -> Architecture:
        return replace(super()._architecture(reading), convolved=600, dense=(1,))


class Logarithms(DNNPerf):
    """DNNPerf on ln of the value, of which the paper says nothing: relative errors count."""

    method = "dnnperf-log"
    logarithms = True


class GraphAttention(DNNPerf):
    """DNNPerf-GAT: attention between nodes; no features of edges."""

    method = "dnnperf-gat"
    variants = (Variant(ATTENTION, False), Variant(ATTENTION, True))


class StandardScaler(DNNPerf):
    """DNNPerf-StandardScaler: features of mean 0 and deviation 1."""

    method = "dnnperf-standard-scaler"
    scaler: ClassVar[Any] = ZScore


class NoTensorCost(DNNPerf):
    """DNNPerf-NoTensorCost: neither sizes of tensors nor FLOPs."""

    method = "dnnperf-no-tensor-cost"
    with_costs = False


class ConcatEdge(DNNPerf):
    """DNNPerf-ConcatEdge: the perceptron reads sums of nodes and of edges."""

    method = "dnnperf-concat-edge"
    with_edges = True


class AverageReadout(DNNPerf):
    """DNNPerf-AvgReadout: the perceptron reads means of nodes."""

    method = "dnnperf-average-readout"
    average = True
