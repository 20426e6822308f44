"""GHN-2's graphs and vectors: by hand, beside a slow reading of the equations, and of networks."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from resperf.dataset.hdf5 import read_networks
from resperf.errors import NetworkError
from resperf.features.ghn2 import CHANNELS, GHN2, KERNELS, SIZE, Embedding, codes
from resperf.features.primitives import TYPES, UNKNOWN, PrimitiveGraph, primitive_graph
from resperf.network import Network, read_given_network, read_graph, read_network

ROOT = Path(__file__).parents[2]


def random_weights(seed: int, *, shapes: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = {"types": rng.normal(size=(len(TYPES), SIZE))}
    if shapes:
        weights["channels"] = rng.normal(size=(len(CHANNELS), SIZE // 4))
        weights["kernels"] = rng.normal(size=(len(KERNELS), SIZE // 4))
    for name in ("mlp", "mlp_sp"):
        for layer, (inputs, outputs) in enumerate(((SIZE, SIZE // 2), (SIZE // 2, SIZE))):
            weights[f"{name}.{layer}.weight"] = rng.normal(size=(outputs, inputs)) / 4
            weights[f"{name}.{layer}.bias"] = rng.normal(size=outputs) / 4
    for part in ("read", "held"):
        weights[f"gru.{part}.weight"] = rng.normal(size=(3 * SIZE, SIZE)) / 4
        weights[f"gru.{part}.bias"] = rng.normal(size=3 * SIZE) / 4
    weights["norm.weight"] = rng.normal(size=SIZE)
    weights["norm.bias"] = rng.normal(size=SIZE)
    return weights


def random_graph(rng: np.random.Generator) -> PrimitiveGraph:
    count = int(rng.integers(2, 70))
    edges = {(int(rng.integers(node)), node) for node in range(1, count)}
    edges |= {
        tuple(sorted(rng.choice(count, 2, replace=False).tolist())) for _ in range(count // 3)
    }
    shapes = ((), (24,), (64, 3, 7, 7), (1000, 2048, 1, 1), (48, 1, 5, 5))
    return PrimitiveGraph(
        tuple(rng.choice((*TYPES, UNKNOWN), count)),
        tuple(shapes[index] for index in rng.integers(len(shapes), size=count)),
        tuple(edges),
    )


def reference(weights: dict[str, np.ndarray], graph: PrimitiveGraph) -> np.ndarray:
    """Equations 3 and 4 as they are written: paths by breadth-first search, sums term by term."""
    w, count = weights, len(graph.types)

    def mlp(name: str, x: np.ndarray) -> np.ndarray:
        hidden = np.maximum(w[f"{name}.0.weight"].dot(x) + w[f"{name}.0.bias"], 0)
        return np.maximum(w[f"{name}.1.weight"].dot(hidden) + w[f"{name}.1.bias"], 0)

    def gru(message: np.ndarray, h: np.ndarray) -> np.ndarray:
        wi, wh = np.split(w["gru.read.weight"], 3), np.split(w["gru.held.weight"], 3)
        bi, bh = np.split(w["gru.read.bias"], 3), np.split(w["gru.held.bias"], 3)
        r, z = (
            1 / (1 + np.exp(-(wi[g].dot(message) + bi[g] + wh[g].dot(h) + bh[g]))) for g in (0, 1)
        )
        n = np.tanh(wi[2].dot(message) + bi[2] + r * (wh[2].dot(h) + bh[2]))
        return (1 - z) * n + z * h

    def lengths_from(start: int, edges: list[tuple[int, int]]) -> dict[int, int]:
        lengths, front = {start: 0}, [start]
        while front:
            front = [v for u in front for s, v in edges if s == u and v not in lengths
                     and not lengths.update({v: lengths[u] + 1})]  # fmt: skip
        return lengths

    def nearest(table: np.ndarray, value: int) -> int:
        return 0 if value == 0 else min(range(1, len(table)), key=lambda i: abs(table[i] - value))

    h = []
    for kind, shape in zip(graph.types, graph.shapes, strict=True):
        state = np.zeros(SIZE) if kind == UNKNOWN else w["types"][TYPES.index(kind)].copy()
        if "channels" in w:
            sides = [*shape, 0, 0, 0, 0][:4]
            state += np.concatenate(
                [w["channels"][nearest(CHANNELS, side)] for side in sides[:2]]
                + [w["kernels"][nearest(KERNELS, side)] for side in sides[2:]]
            )
        h.append(state)
    for order in (range(count), range(count - 1, -1, -1)):
        edges = [(u, v) if order[0] == 0 else (v, u) for u, v in graph.edges]
        paths = [lengths_from(u, edges) for u in range(count)]
        for v in order:
            message = np.zeros(SIZE)
            for u in range(count):
                s = paths[u].get(v, 0)
                if s == 1:
                    message += mlp("mlp", h[u])
                elif 1 < s <= 50:
                    message += mlp("mlp_sp", h[u]) / s
            h[v] = gru(message, h[v])
    normed = [
        (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w["norm.weight"] + w["norm.bias"] for x in h
    ]
    return np.mean(normed, axis=0)


def test_a_chain_of_three_nodes_by_hand() -> None:
    # Only the first number of a state is not 0. Both MLPs return its positive part, and the gates
    # are 1/2, so that a state becomes half of itself and half of tanh(message).
    weights = {name: np.zeros_like(value) for name, value in random_weights(0).items()}
    for name, kind, value in (
        ("types", "input", 0.8),
        ("types", "conv", -0.4),
        ("types", "sum", 2),
    ):
        weights[name][TYPES.index(kind), 0] = value
    for name in ("mlp", "mlp_sp"):
        weights[f"{name}.0.weight"][0, 0] = weights[f"{name}.1.weight"][0, 0] = 1
    weights["gru.read.weight"][2 * SIZE, 0] = 1
    weights["norm.weight"][:] = 1
    a = 0.8 / 2
    b = (-0.4 + math.tanh(a)) / 2  # below 0: it passes nothing on
    c = (2 + math.tanh(0 + a / 2)) / 2
    c = c / 2
    b = (b + math.tanh(c)) / 2
    a = (a + math.tanh(b + c / 2)) / 2
    # LayerNorm of (x, 0, ..., 0): mean x / 32, variance 31 x^2 / 1024.
    first = [(x - x / 32) / math.sqrt(31 * x * x / 1024 + 1e-5) for x in (a, b, c)]
    graph = PrimitiveGraph(("input", "conv", "sum"), ((), (), ()), ((0, 1), (1, 2)))

    vector = GHN2(weights).embed(graph)

    assert vector[0] == pytest.approx(sum(first) / 3, abs=1e-6)
    assert vector[1:] == pytest.approx(-sum(first) / 3 / 31, abs=1e-6)


@pytest.mark.parametrize("seed", range(50))
def test_vectors_are_those_of_the_equations(seed: int) -> None:
    weights = random_weights(seed, shapes=seed % 2 == 0)
    graph = random_graph(np.random.default_rng(seed))
    assert GHN2(weights).embed(graph) == pytest.approx(reference(weights, graph), abs=1e-6)


def test_another_order_of_the_same_nodes_gives_the_same_vector() -> None:
    rng = np.random.default_rng(3)
    ghn2 = GHN2(random_weights(3))
    # Two branches, one after the other, or in turns.
    kinds = ["input", "conv", "bias", "conv", "bn", "sum"]
    shapes = [(), (8, 3, 3, 3), (8,), (8, 3, 5, 5), (8,), ()]
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)]
    order = [0, 3, 1, 4, 2, 5]
    place = {old: new for new, old in enumerate(order)}
    permuted = PrimitiveGraph(
        tuple(kinds[old] for old in order),
        tuple(shapes[old] for old in order),
        tuple((place[u], place[v]) for u, v in rng.permutation(edges).tolist()),
    )
    graph = PrimitiveGraph(tuple(kinds), tuple(shapes), tuple(edges))
    assert ghn2.embed(permuted) == pytest.approx(ghn2.embed(graph), abs=1e-12)


def test_a_path_of_more_than_50_edges_is_left_out() -> None:
    count = 60
    chain = PrimitiveGraph(
        ("conv",) * count, ((),) * count, tuple((node, node + 1) for node in range(count - 1))
    )
    direct, virtual = chain.path_weights()
    assert direct[51].nonzero()[0].tolist() == [50]
    assert virtual[51].nonzero()[0].tolist() == list(range(1, 50))
    assert virtual[51, 1] == 1 / 50
    assert virtual[51, 49] == 1 / 2


def test_codes_are_those_of_the_nearest_channels_and_kernels() -> None:
    graph = PrimitiveGraph(("conv", "bn", "input", UNKNOWN), ((1000, 2, 1, 2), (9999,), (), ()), ())
    kinds, outputs, inputs, heights, widths = codes(graph).T.tolist()
    assert kinds == [TYPES.index("conv"), TYPES.index("bn"), TYPES.index("input"), len(TYPES)]
    assert [CHANNELS[index] for index in outputs] == [992, 8192, 0, 0]
    assert [CHANNELS[index] for index in inputs] == [1, 0, 0, 0]
    assert [KERNELS[index] for index in heights] == [1, 0, 0, 0]
    assert [KERNELS[index] for index in widths] == [1, 0, 0, 0]


def measured_networks(*names: str) -> dict[str, Network]:
    dataset = read_networks(ROOT / "datasets" / "h200-torch-networks-fp32.h5")
    subjects = {row.subject.name: row.subject.digest for row in dataset.measurements}
    return {name: read_graph(dataset.graphs[subjects[name]], name, batch=1) for name in names}


def test_only_weight_shapes_tell_a_network_from_its_wide_twin() -> None:
    networks = measured_networks("resnet50", "wide_resnet50_2")
    graphs = [primitive_graph(network) for network in networks.values()]
    narrow, wide = (GHN2(random_weights(1, shapes=False)).embed(graph) for graph in graphs)
    assert np.linalg.norm(narrow - wide) == 0
    narrow, wide = (GHN2(random_weights(1)).embed(graph) for graph in graphs)
    assert np.linalg.norm(narrow - wide) > 0.01


# Worked out from the networks' definitions: resnet50 has 53 convolutions with a norm each and a
# dense layer; a squeeze-and-excitation of efficientnet_b0 is a mean, two biased convolutions and a
# gate, and 16 of its blocks have one, 9 a sum; a block of the transformers has 6 products with
# weights (vit: 4), two norms and two sums.
COUNTS = {
    "resnet50": {"input": 1, "conv": 54, "bias": 54, "max_pool": 1, "sum": 16, "glob_avg": 1},
    "efficientnet_b0": {
        "input": 1, "conv": 66, "bias": 82, "sep_conv": 16, "glob_avg": 17, "cse": 16, "sum": 9,
    },
    "vit_tiny_patch16_224": {
        "input": 1, "conv": 50, "bias": 50, "pos_enc": 1, "ln": 25, "msa": 12, "sum": 24,
    },
}  # fmt: skip


def test_operators_become_the_types_of_ghn2() -> None:
    for name, network in measured_networks(*COUNTS).items():
        assert Counter(primitive_graph(network).types) == COUNTS[name], name


def test_edges_lead_around_operators_without_a_node() -> None:
    graph = primitive_graph(read_network(ROOT / "models" / "networks" / "resnet18.onnx", batch=1))
    block = graph.types[4:9]
    assert block == ("conv", "bn", "conv", "bn", "sum")
    assert graph.shapes[4:9] == ((64, 64, 3, 3), (64,), (64, 64, 3, 3), (64,), ())
    assert {edge for edge in graph.edges if edge[1] in range(4, 9)} == {
        (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (3, 8),
    }  # fmt: skip


def test_unknown_operators_are_counted_and_many_are_refused() -> None:
    (network,) = measured_networks("hrnet_w18_small").values()
    assert primitive_graph(network).unknown == {"Resize": 10}
    node = helper.make_node("Det", ["x"], ["y"])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 3, 3)), ("y", (1,)))
    )
    model = helper.make_model(helper.make_graph([node], "other", [x], [y]))
    with pytest.raises(NetworkError, match=r"other: GHN-2 has no type for 1 of 2 .* \(Det \(1\)\)"):
        primitive_graph(read_given_network(model))


@pytest.mark.parametrize(("variant", "least"), [("ghn2", 0.5), ("ghn2-paper", 0.4)])
def test_shipped_networks_learnt_and_know_measured_ones(variant: str, least: float) -> None:
    shipped = Embedding.load(variant)
    training = shipped.training
    assert training["variant"] == variant
    assert training["chance"] == 0.1
    assert training["untrained"] < 0.2
    assert least < training["accuracy"] < 1
    names = [network.name for network in shipped.networks]
    assert {"resnet50", "vgg16", "wide_resnet50_2", "bert_base_128"} <= {*names}
    assert (ROOT / "models" / "embeddings" / f"{variant}.npz").stat().st_size < 100_000
    graphs = map(primitive_graph, measured_networks("resnet50", "wide_resnet50_2").values())
    narrow, wide = (shipped.ghn2.embed(graph) for graph in graphs)
    assert (np.linalg.norm(narrow - wide) > 0.001) == (variant == "ghn2")
    # Files keep half of float32's digits of a vector's weights: their vectors are of these.
    graph = primitive_graph(read_network(ROOT / "models" / "networks" / "vgg16.onnx", batch=1))
    (cosine, nearest), *_ = shipped.nearest(graph)
    assert nearest.name == "vgg16"
    assert cosine == pytest.approx(1, abs=1e-6)
