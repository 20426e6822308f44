"""DNNPerf: a graph neural network that predicts step times and peak memory of training.

Gao et al., "Runtime Performance Prediction for Deep Learning Models with Graph Neural Network"
(ICSE-SEIP 2023). Graphs are those of `resperf.features.graphs`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from resperf.devices import device_facts
from resperf.errors import LayerError, UnsupportedError
from resperf.features import Array, Columns
from resperf.features.graphs import Graph, graph_of, matrix
from resperf.features.transforms import MinMax, transform_from_json
from resperf.layers import Layer, layer_of_operator
from resperf.lowering import macs_of
from resperf.lowering._read import operator_of
from resperf.lowering.torch import as_run
from resperf.network import MALFORMED, Network, Node
from resperf.platform import Platform
from resperf.predictors._base import Account, Estimate, Examples, Predicted, Predictor, Task, stored
from resperf.predictors._graph_fitting import Fitted, Learning, fit_graphs
from resperf.predictors._graph_network import READINGS, Architecture, Batch, in_batches
from resperf.predictors._graph_onnx import onnx_bytes
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.convmeter import INFERRED_FROM
from resperf.predictors.metrics import mape
from resperf.quantities import PEAK_MEMORY, STEP, Level
from resperf.settings import Mode, Setting, same_settings

Graphs = Sequence[Graph]


class Variant(NamedTuple):
    """What a softmax normalises, and whether nodes read themselves: the paper leaves both open."""

    reading: str
    self_loops: bool

    def __str__(self) -> str:
        return f"{self.reading}{' with self loops' * self.self_loops}"


class GraphPredictor(Predictor):
    """Base of methods that read graphs of networks.

    Attributes
    ----------
    transforms_ : tuple of Transform
        What scales the features of nodes, and of edges.
    learnt_from_ : list of str
        Devices and settings of the training rows.
    mean_ : float
        Mean of the learnt values, which answers are relative to.
    least_ : float
        Half of the smallest learnt value: no network is predicted below.
    self_loops_ : bool
        Whether each node has an edge to itself.
    """

    level = Level.NETWORK
    quantities = frozenset({STEP, PEAK_MEMORY})
    scaler: ClassVar[Any] = MinMax
    """Transform of the features."""

    with_costs: ClassVar[bool] = True
    """Whether sizes of tensors and FLOPs are read."""
    logarithms: ClassVar[bool] = False
    """Whether logarithms of values are learnt."""
    self_loops_ = False

    @abstractmethod
    def _learn_graphs(self, graphs: Graphs, validation: Graphs, task: Task) -> None:
        """Learn `_targets`; sets `transforms_`."""

    @abstractmethod
    def _answers(self, graphs: Sequence[Batch]) -> Array:
        """Return answers, (graphs,): values over `mean_`, or their logarithms."""

    def _learn(self, task: Task) -> None:
        """Read the graphs of all rows, then learn from them."""
        self.learnt_from_ = sorted({_way(*row) for row in task.examples.per_row()})
        values = task.examples.values
        self.mean_, self.least_ = float(values.mean()), float(values.min()) / 2
        self._learn_graphs(_graphs_of(task.examples), _graphs_of(task.validation), task)

    def _fit_transforms(self, graphs: Graphs) -> None:
        """Learn the ranges of all features of training graphs."""
        transforms = []
        for side in ("nodes", "edges"):
            features = [named for graph in graphs for named in getattr(graph, side)]
            names = sorted({name for named in features for name in named if self._reads(name)})
            transforms.append(self.scaler.fit(matrix(features, names), names))
        self.transforms_ = tuple(transforms)

    def _reads(self, name: str) -> bool:
        return self.with_costs or not name.endswith(("bytes", "flops"))

    def _scaled(self, graphs: Graphs) -> list[Batch]:
        return [Batch.of(self._as_read(graph), *self.transforms_) for graph in graphs]

    def _as_read(self, graph: Graph) -> Graph:
        return graph.with_self_loops() if self.self_loops_ else graph

    def _targets(self, values: Array) -> Array:
        return np.log(values / self.mean_) if self.logarithms else values / self.mean_

    def _values(self, answers: Array) -> Array:
        relative = np.exp(answers) if self.logarithms else answers
        return np.maximum(relative * self.mean_, self.least_)

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict whole networks."""
        if _way(setting, platform) not in self.learnt_from_:
            raise self.no_rows_error(self.learnt_from_, setting, platform)
        networks = cast("Sequence[Network]", subjects)
        graphs = self._scaled([read_graph(network, setting, platform) for network in networks])
        return {self.quantity_: Estimate.without_bounds(self._values(self._answers(graphs)))}

    def account(self, network: Network, setting: Setting, platform: Platform) -> Account:
        """Say which features of a network's graph are beyond those of the training graphs."""
        graph = self._as_read(read_graph(network, setting, platform))
        beyond: Counter[str] = Counter()
        for features, transform in zip((graph.nodes, graph.edges), self.transforms_, strict=True):
            names = [name for named in features for name, value in named.items() if value]
            beyond.update(n for n in names if self._reads(n) and n not in transform.columns)
            if isinstance(transform, MinMax):
                outside = transform.outside(matrix(features, transform.columns)).sum(axis=0)
                beyond.update(dict(zip(transform.columns, outside.tolist(), strict=True)))
        words = ", ".join(f"{name} ({count})" for name, count in beyond.most_common(3) if count)
        why = f"{beyond.total()} values of its graph are beyond those learnt from: {words}"
        return Account(INFERRED_FROM, {}, {}, why if words else "")

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the ONNX file; return how graphs are read and scaled."""
        (folder / f"{stem}.onnx").write_bytes(self._content)
        return {
            "network": f"{stem}.onnx", "learnt_from": self.learnt_from_, "mean": self.mean_,
            "least": self.least_, "self_loops": self.self_loops_,
            "transforms": [transform.to_json() for transform in self.transforms_],
        }  # fmt: skip

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read how graphs are read and scaled, and the ONNX file."""
        self.transforms_ = tuple(map(transform_from_json, stored(values, "transforms", list)))
        self.learnt_from_ = stored(values, "learnt_from", list)
        self.mean_, self.least_ = (stored(values, name, float) for name in ("mean", "least"))
        self.self_loops_ = stored(values, "self_loops", bool)
        self._network = OnnxNetwork(folder / stored(values, "network"))

    def _use(self, content: bytes) -> None:
        """Predict by an ONNX file that was just written."""
        self._content, self._network = content, OnnxNetwork(content)


class DNNPerf(GraphPredictor):
    """DNNPerf as section IV-C sets it: Adam at 1e-4 on the squared error, 64 graphs a step.

    The paper's message, softmax(W e h), does not say what is normalised, and without self loops no
    node reads its own features. All variants are trained; the one with the smallest error on
    validation rows answers, and `notes_` has all errors.

    Attributes
    ----------
    variant_ : Variant
        The chosen one; of a fit, not of what is loaded.
    best_epoch_ : int
        The same.
    """

    method = "dnnperf"
    schedules: ClassVar[Mapping[str, tuple[int, int]]] = {STEP: (3, 250), PEAK_MEMORY: (1, 200)}
    """Quantity -> rounds of message passing, and epochs."""
    variants: ClassVar[Sequence[Variant]] = tuple(
        Variant(reading, loops) for reading in READINGS for loops in (False, True)
    )
    """What is tried."""
    rate: ClassVar[float] = 1e-4
    """Learning rate."""
    average: ClassVar[bool] = False
    """Whether features of nodes are averaged, not summed."""
    with_edges: ClassVar[bool] = False
    """Whether features of edges are summed as well."""

    def _learn_graphs(self, graphs: Graphs, validation: Graphs, task: Task) -> None:
        """Train all variants, and choose the best by validation rows."""
        fits = {x: self._fitted(x, graphs, validation, task) for x in self.variants}
        self.variant_ = min(fits, key=lambda variant: fits[variant].error)
        if len(fits) > 1:
            words = ", ".join(f"{variant} {fitted.error:.1%}" for variant, fitted in fits.items())
            chosen = f"{self.quantity_}: softmax read as {self.variant_}"
            self.notes_ = (f"{chosen}; validation errors: {words}",)
        self._prepare(self.variant_, graphs)
        self.best_epoch_ = fits[self.variant_].epoch
        weights = fits[self.variant_].weights
        self._use(onnx_bytes(self._architecture(self.variant_.reading), weights))

    def _prepare(self, variant: Variant, graphs: Graphs) -> None:
        self.self_loops_ = variant.self_loops
        self._fit_transforms([self._as_read(graph) for graph in graphs])

    def _fitted(self, variant: Variant, graphs: Graphs, judged: Graphs, task: Task) -> Fitted:
        """Train one variant."""
        self._prepare(variant, graphs)
        learning = Learning(
            self._scaled(graphs), self._targets(task.examples.values), self._scaled(judged),
            lambda answers: mape(task.validation.values, self._values(answers)),
            self.rate, task.seed, task.progress,
        )  # fmt: skip
        epochs = self.epochs or self.schedules[self.quantity_][1]
        return fit_graphs(self._architecture(variant.reading), learning, epochs)

    def _architecture(self, reading: str) -> Architecture:
        nodes, edges = (len(transform.columns) for transform in self.transforms_)
        rounds, _ = self.schedules[self.quantity_]
        return Architecture(nodes, edges, rounds, reading, self.average, self.with_edges)

    def _answers(self, graphs: Sequence[Batch]) -> Array:
        return np.concatenate([self._network.run(x._asdict())[:, 0] for x in in_batches(graphs)])


def _graphs_of(rows: Examples) -> list[Graph]:
    """Return the graph of each row."""
    how = rows.per_row()
    return [read_graph(x, *own) for x, own in zip(rows.networks, how, strict=True)]


def read_graph(network: Network, setting: Setting, platform: Platform) -> Graph:
    """Return the graph of a network as it runs: of training with all backward passes."""
    training = setting.mode is Mode.TRAINING
    graph = graph_of(as_run(network, setting), read_operator, training=training)
    return graph.on(device_facts(platform.device))


def read_operator(network: Network, node: Node) -> tuple[Layer | None, float]:
    """Return the layer of an operator, and its FLOPs: 0 where they are not known."""
    try:
        layer = layer_of_operator(operator_of(network, node))
    except (LayerError, UnsupportedError, *MALFORMED):
        return None, float(np.nan_to_num(2 * macs_of(network, node)))
    return layer, float(layer.flops)


def _way(setting: Setting, platform: Platform) -> str:
    """Return what must agree between training rows and what is predicted."""
    return ", ".join(filter(None, (platform.device, *same_settings(setting).values())))
