"""DNNPerf: its equations by hand, gradients, order and batches of graphs, files, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.errors import UnsupportedError
from resperf.network import read_network
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors._graph_network import ATTENTION, READINGS, Architecture, Batch, in_batches
from resperf.predictors._graph_onnx import onnx_bytes
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.dnnperf import DNNPerf, GraphPredictor, read_graph
from resperf.predictors.graph_baselines import (
    BRPNAS,
    GBDT,
    AverageReadout,
    BoostedSums,
    ConcatEdge,
    GraphAttention,
    Logarithms,
    NoTensorCost,
    Perceptron,
    StandardScaler,
)
from resperf.settings import Mode, Setting
from resperf.testing.predictors import check_export

TRAINING = Setting("torch", "2.13.0", mode=Mode.TRAINING, optimizer="sgd")
CARD = Platform("rtx3090")
NODES, EDGES = 5, 3


def random_graph(seed: int, nodes: int = 4) -> Batch:
    """A graph of random features: a chain, an edge from the first to the last node."""
    random = np.random.default_rng(seed)
    sources = np.array([*range(nodes - 1), 0])
    targets = np.array([*range(1, nodes), nodes - 1])
    features = (random.random((rows, width), np.float32)
                for rows, width in ((nodes, NODES), (len(sources), EDGES)))  # fmt: skip
    graph, size = np.zeros(nodes, np.int64), np.array([[nodes]], np.float32)
    return Batch(*features, sources, targets, graph, size)


def by_hand(architecture: Architecture, weights, graph: Batch) -> float:
    """Section III-D, node by node and edge by edge, in float64."""
    w = {name: values.astype(float) for name, values in weights.items()}

    def leaky(x, slope=0.01):
        return np.maximum(0, x) - slope * np.maximum(0, -x)

    h, e = graph.nodes.astype(float), graph.edges.astype(float)
    ends = list(zip(graph.sources, graph.targets, strict=True))
    for turn in range(architecture.rounds):
        if architecture.convolved:
            own = h @ w[f"round_{turn}"]
            sums = np.zeros_like(own)
            for s, d in ends:
                sums[d] += own[s]
            h = np.maximum(sums, 0)
            continue
        own = np.array([leaky(features @ w["node"]) for features in h])
        a = np.concatenate([w["source"], w["target"]])[:, 0]
        scores = [a @ np.concatenate([own[s], own[d]]) for s, d in ends]
        if architecture.reading == ATTENTION:
            logits = [leaky(score, 0.2) for score in scores]
        else:
            e = np.array([1 / (1 + np.exp(-score * (edge @ w["edge"])))
                          for score, edge in zip(scores, e, strict=True)])  # fmt: skip
            logits = [(edge @ w["message"])[0] for edge in e]
        h = np.zeros_like(h)
        for index, (s, d) in enumerate(ends):
            into = sum(np.exp(logits[i]) for i, end in enumerate(ends) if end[1] == d)
            powers = np.exp(logits[index] * own[s])
            if architecture.reading == "features":
                h[d] += powers / powers.sum()
            elif architecture.reading == "gate":
                h[d] += own[s] / (1 + np.exp(-logits[index]))
            else:
                h[d] += np.exp(logits[index]) / into * own[s]
        h = leaky(h)
    x = h.mean(axis=0) if architecture.average else h.sum(axis=0)
    if architecture.with_edges:
        x = np.concatenate([x, e.sum(axis=0)])
    last = len(architecture.dense) - 1
    for index in range(last + 1):
        x = x @ w[f"dense_{index}/kernel"] + w[f"dense_{index}/bias"]
        x = np.maximum(x, 0) if index < last else x
    return float(x[0])


ARCHITECTURES = [
    *(Architecture(NODES, EDGES, 2, reading) for reading in (*READINGS, ATTENTION)),
    Architecture(NODES, EDGES, 1, "gate", average=True),
    Architecture(NODES, EDGES, 3, "edges", with_edges=True),
    Architecture(NODES, EDGES, 0, "gate"),
    Architecture(NODES, EDGES, 2, "gate", average=True, convolved=7, dense=(1,)),
]
IDS = [f"{a.reading}-{a.rounds}{'-average' * a.average}-{a.convolved}" for a in ARCHITECTURES]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_the_file_computes_the_equations_in_any_batch_and_order(architecture, tmp_path) -> None:
    weights = architecture.weights(3)
    graphs = [random_graph(seed, 4 + seed % 7) for seed in range(64)]
    (tmp_path / "n.onnx").write_bytes(onnx_bytes(architecture, weights))
    network = OnnxNetwork(tmp_path / "n.onnx")
    expected = [by_hand(architecture, weights, graph) for graph in graphs]
    assert np.ptp(expected) > 1e-3
    together = network.run(Batch.joined(graphs)._asdict())
    np.testing.assert_allclose(together[:, 0], expected, rtol=1e-4, atol=1e-6)
    alone = network.run(graphs[5]._asdict())
    np.testing.assert_allclose(alone[:, 0], expected[5], rtol=1e-4)
    order = np.random.default_rng(0).permutation(len(graphs[5].nodes))
    index = np.argsort(order)
    shuffled = graphs[5]._replace(
        nodes=graphs[5].nodes[order], sources=index[graphs[5].sources],
        targets=index[graphs[5].targets],
    )  # fmt: skip
    np.testing.assert_allclose(network.run(shuffled._asdict())[:, 0], expected[5], rtol=1e-4)


def test_a_graph_without_edges_is_answered() -> None:
    for architecture in ARCHITECTURES:
        single = random_graph(0)._replace(
            nodes=np.ones((1, NODES), np.float32), edges=np.zeros((0, EDGES), np.float32),
            sources=np.zeros(0, np.int64), targets=np.zeros(0, np.int64),
            graphs=np.zeros(1, np.int64), sizes=np.ones((1, 1), np.float32),
        )  # fmt: skip
        answer = OnnxNetwork(onnx_bytes(architecture, architecture.weights(1))).run(
            single._asdict()
        )
        assert np.isfinite(answer).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_keras_computes_what_the_file_does(architecture) -> None:
    pytest.importorskip("tensorflow")
    from resperf.predictors._graph_fitting import Trainer

    trainer = Trainer(architecture, 1e-3, 3)
    graphs = [random_graph(seed, 4 + seed % 7) for seed in range(70)]
    network = OnnxNetwork(onnx_bytes(architecture, trainer.weights()))
    written = np.concatenate([network.run(batch._asdict()) for batch in in_batches(graphs)])
    np.testing.assert_allclose(trainer.run(in_batches(graphs)), written[:, 0], rtol=1e-4, atol=1e-6)
    alone = trainer.run(in_batches(graphs[:1]))
    np.testing.assert_allclose(alone, written[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_gradients_are_finite_differences(architecture) -> None:
    tf = pytest.importorskip("tensorflow")
    from resperf.predictors._fitting import keras

    ops, random = keras().ops, np.random.default_rng(5)
    # Narrow, so that few units are at their kink.
    architecture = replace(architecture, dense=(6, 1)[-len(architecture.dense) :])
    batch = Batch.joined([random_graph(seed, 5) for seed in range(3)])
    batch = Batch(*(x.astype(float) if x.dtype == np.float32 else x for x in batch))
    weights = {name: values.astype(float) for name, values in architecture.weights(4).items()}

    def loss(values):
        return tf.reduce_sum(architecture.answers(ops, values, batch) ** 2)

    variables = {name: tf.Variable(values) for name, values in weights.items()}
    with tf.GradientTape() as tape:
        total = loss(variables)
    gradients = tape.gradient(total, variables)
    for name, values in weights.items():
        direction, step = random.normal(size=values.shape), 1e-6
        there, back = (
            float(loss({**weights, name: values + sign * step * direction})) for sign in (1, -1)
        )
        slope = float(np.sum(np.asarray(gradients[name]) * direction))
        assert slope == pytest.approx((there - back) / (2 * step), rel=1e-4, abs=1e-8), name


def test_softmax_over_features_leaves_the_number_of_edges() -> None:
    """Whatever the features are: read out, the nodes of a graph sum to its edges."""
    pytest.importorskip("tensorflow")
    from resperf.predictors._fitting import keras

    architecture = Architecture(NODES, EDGES, 3, "features")
    for scale in (1, 1000):
        graph = random_graph(1, 9)
        graph = graph._replace(nodes=scale * graph.nodes, edges=scale * graph.edges)
        nodes, _ = architecture.encoded(keras().ops, architecture.weights(2), graph)
        assert np.asarray(nodes).sum() == pytest.approx(len(graph.sources), rel=1e-5)


@pytest.fixture
def rows(network_file) -> Examples:
    """Chains of convolutions at batch sizes, whose step is in proportion to their FLOPs."""
    random, networks = np.random.default_rng(0), []
    for index in range(40):
        widths = [3, *random.integers(4, 32, random.integers(1, 5)).tolist()]
        nodes, weights, last = [], {}, "x"
        for layer, (width, filters) in enumerate(pairwise(widths)):
            weights[f"w{layer}"] = np.zeros((filters, width, 3, 3), np.float32)
            inputs = [last, f"w{layer}"]
            nodes += [make_node("Conv", inputs, [f"c{layer}"], pads=[1] * 4),
                      make_node("Relu", [f"c{layer}"], [f"r{layer}"])]  # fmt: skip
            last = f"r{layer}"
        ends = {"x": ["n", 3, 16, 16]}, {last: None}
        path = network_file(f"n{index}.onnx", nodes, *ends, weights)
        networks.append(read_network(path, batch=int(random.integers(1, 9))))
    graphs = [read_graph(network, TRAINING, CARD) for network in networks]
    times_ms = np.array([sum(n.get("flops", 0) for n in graph.nodes) / 1e8 for graph in graphs])
    return Examples(networks, "step_ms", times_ms, [TRAINING], [CARD])


class Fixed(DNNPerf):
    """One variant, and fast learning."""

    variants = DNNPerf.variants[-1:]
    rate = 1e-3


def test_it_learns_exports_and_answers_without_keras(rows, tmp_path) -> None:
    pytest.importorskip("tensorflow")
    learnt = Fixed("network", epochs=150).fit(rows, validation=rows, seed=0)
    values = learnt.predict(rows.networks, TRAINING, CARD)["step_ms"].values
    errors = np.abs(values / rows.values - 1)
    # A mean for all rows is off by more than 60%.
    assert np.mean(errors) < 0.25 < 0.6 < np.mean(np.abs(rows.values.mean() / rows.values - 1))
    again = Fixed("network", epochs=150).fit(rows, validation=rows, seed=0)
    assert (
        again.predict(rows.networks, TRAINING, CARD)["step_ms"].values.tolist() == values.tolist()
    )
    stored = json.dumps(learnt.export(tmp_path, "stem"))
    program = (
        "import json, sys\nfrom pathlib import Path\n"
        "from resperf.predictors.dnnperf import DNNPerf\n"
        f"loaded = DNNPerf.load(json.loads({stored!r}), Path({str(tmp_path)!r}))\n"
        "from resperf.network import read_network\nfrom resperf.platform import Platform\n"
        "from resperf.settings import Mode, Setting\n"
        "how = Setting('torch', '2.13.0', mode=Mode.TRAINING, optimizer='sgd')\n"
        f"network = read_network({str(tmp_path / 'n0.onnx')!r}, batch={rows.networks[0].batch})\n"
        "print(loaded.predict([network], how, Platform('rtx3090'))['step_ms'].values[0])\n"
        "assert not {'keras', 'tensorflow', 'torch', 'sklearn', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(values[0], rel=1e-4)


def test_what_the_graph_has_beyond_training_graphs_is_said(rows, network_file) -> None:
    pytest.importorskip("tensorflow")
    learnt = Fixed("network", epochs=1).fit(rows, validation=rows, seed=0)
    assert learnt.account(rows.networks[0], TRAINING, CARD).extrapolated == ""
    # No network takes less than half of the shortest learnt time, whatever the answers.
    learnt._answers = lambda graphs: np.linspace(-1, 1, len(graphs))
    values = learnt.predict(rows.networks, TRAINING, CARD)["step_ms"].values
    assert values.min() == rows.values.min() / 2
    assert values.max() == pytest.approx(rows.values.mean())
    weights = {"w": np.zeros((64, 3, 3, 3), np.float32)}
    nodes = [make_node("Conv", ["x", "w"], ["c"]), make_node("Sigmoid", ["c"], ["y"])]
    path = network_file("wide.onnx", nodes, {"x": ["n", 3, 16, 16]}, {"y": None}, weights)
    account = learnt.account(read_network(path, batch=1), TRAINING, CARD)
    # Wider than any, and with another activation, in both passes.
    words = "4 values of its graph are beyond those learnt from: "
    assert account.extrapolated == f"{words}activation=sigmoid (2), channels_out (2)"
    with pytest.raises(UnsupportedError, match=r"dnnperf learnt from networks on rtx3090, torch"):
        learnt.predict(rows.networks, replace(TRAINING, mode=Mode.INFERENCE, optimizer=""), CARD)
    with pytest.raises(UnsupportedError, match="measure some on t4"):
        learnt.predict(rows.networks, TRAINING, Platform("t4"))


def test_variants_are_trained_and_their_errors_said(rows) -> None:
    pytest.importorskip("tensorflow")
    passes = []
    learnt = DNNPerf("network", epochs=5).fit(
        rows, validation=rows, seed=0, progress=lambda *values: passes.append(values)
    )
    variants = [f"{reading}{loops}" for reading in READINGS for loops in ("", " with self loops")]
    assert [(epoch, epochs) for epoch, epochs, _ in passes] == [(e, 5) for e in range(1, 6)] * 6
    best = [min(error for *_, error in passes[at : at + 5]) for at in range(0, 30, 5)]
    words = ", ".join(f"{name} {error:.1%}" for name, error in zip(variants, best, strict=True))
    chosen = variants[int(np.argmin(best))]
    assert learnt.notes_ == (f"step_ms: softmax read as {chosen}; validation errors: {words}",)
    assert (str(learnt.variant_), learnt.self_loops_) == (chosen, "self loops" in chosen)


def mape_of(predictor: GraphPredictor, rows: Examples) -> float:
    values = predictor.predict(rows.networks, TRAINING, CARD)["step_ms"].values
    return float(np.mean(np.abs(values / rows.values - 1)))


def test_trees_read_sums_of_features(rows, tmp_path) -> None:
    pytest.importorskip("lightgbm")
    learnt = GBDT("network").fit(rows, validation=rows, seed=0)
    values = learnt.predict(rows.networks, TRAINING, CARD)["step_ms"].values
    left = (values - rows.values.mean()) / (rows.values - rows.values.mean())
    # Nearly all rows have a leaf of their own, and 0.99^200 of their distance from the mean left.
    np.testing.assert_allclose(left, 1 - 0.99**200, atol=2e-3)
    check_export(learnt, rows, tmp_path)
    fair = BoostedSums("network").fit(rows, validation=rows, seed=0)
    check_export(fair, rows, tmp_path)
    # Forty rows fill eight leaves.
    assert mape_of(fair, rows) < 0.5 < np.mean(np.abs(rows.values.mean() / rows.values - 1))


@pytest.mark.parametrize(
    "cls",
    [
        AverageReadout,
        BRPNAS,
        ConcatEdge,
        GraphAttention,
        Logarithms,
        NoTensorCost,
        Perceptron,
        StandardScaler,
    ],
)
def test_ablations_learn_and_export(cls, rows, tmp_path) -> None:
    pytest.importorskip("tensorflow")
    learnt = cls("network", epochs=5).fit(rows, validation=rows, seed=0)
    check_export(learnt, rows, tmp_path)
    names = {name for transform in learnt.transforms_ for name in transform.columns}
    sizes = {"flops", "bytes", "output_bytes"}
    assert sizes.isdisjoint(names) == (cls in (BRPNAS, NoTensorCost))
    assert [t.name for t in learnt.transforms_] == [cls.scaler.name] * 2
    if cls in (GraphAttention, Perceptron):
        onnx = pytest.importorskip("onnx")
        weights = {t.name for t in onnx.load(tmp_path / "stem.onnx").graph.initializer}
        assert ("source" in weights, "edge" in weights) == (cls is GraphAttention, False)
