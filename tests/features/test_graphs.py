"""Graphs of operators: sizes of the paper's networks, a small one by hand, devices, loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from resperf.devices import device_facts
from resperf.features.graphs import Graph, graph_of, matrix
from resperf.layers import layer_of_operator
from resperf.lowering._read import operator_of
from resperf.network import Network, Node, read_network


def layer_of(network: Network, node: Node):
    """Read an operator as the predictor does, for the few operators here."""
    if node.op in ("Dropout", "Flatten", "Loss", "Mystery"):
        return None, 0.0
    layer = layer_of_operator(operator_of(network, node))
    return layer, float(layer.flops)


def chain(network_file, name: str, image: int, words: Sequence[str]) -> Network:
    """Write a chain of convolutions ``c3x64``, ``c3x64v`` (no padding), pools, dropouts, views."""
    nodes, weights, channels, last = [], {}, 3, "x"
    for index, word in enumerate(words):
        out = f"t{index}"
        if word[0] == "c":
            size, filters = map(int, word[1:].rstrip("v").split("x"))
            pad = 0 if word.endswith("v") else size // 2
            weights |= {f"w{index}": np.zeros((filters, channels, size, size), np.float32),
                        f"b{index}": np.zeros(filters, np.float32)}  # fmt: skip
            conv = make_node("Conv", [last, f"w{index}", f"b{index}"], [f"{out}c"], pads=[pad] * 4)
            nodes += [conv, make_node("Relu", [f"{out}c"], [out])]
            channels = filters
        elif word == "pool":
            two = {"kernel_shape": [2, 2], "strides": [2, 2]}
            nodes.append(make_node("MaxPool", [last], [out], **two))
        elif word == "drop":
            nodes.append(make_node("Dropout", [last], [out]))
        elif word == "flat":
            nodes.append(make_node("Flatten", [last], [out]))
        elif word == "squeeze":
            axes = {f"axes{index}": np.array([2, 3], np.int64)}
            weights |= axes
            nodes.append(make_node("Squeeze", [last, *axes], [out]))
        last = out
    path = network_file(f"{name}.onnx", nodes, {"x": [2, 3, image, image]}, {last: None}, weights)
    return read_network(path)


LENET = ("c5x8", "pool", "c5x8", "pool", "c2x9v", "flat", "drop", "drop")
"""Eight layer calls: which operators they are does not matter to the counts."""
ALEXNET = (
    "c3x8", "pool", "c3x8", "pool", "c3x8", "c3x8", "c3x8", "pool", "c4x9v", "drop", "c1x9", "drop",
    "c1x10", "squeeze",
)  # fmt: skip
VGG11 = (
    "c3x4", "pool", "c3x4", "pool", "c3x4", "c3x4", "pool", "c3x4", "c3x4", "pool", "c3x4", "c3x4",
    "pool", "c1x8v", "drop", "c1x8", "drop", "c1x10", "squeeze",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "nodes", "edges"), [(LENET, 18, 25), (ALEXNET, 28, 40), (VGG11, 38, 55)]
)
def test_chains_have_the_sizes_of_table_iii(network_file, words, nodes, edges) -> None:
    graph = graph_of(chain(network_file, "chain", 32, words), layer_of, training=True)
    assert (len(graph.nodes), len(graph.edges)) == (nodes, edges)
    assert len(graph.sources) == len(graph.targets) == edges
    # Edges lead from what runs earlier to what runs later.
    assert all(source < target for source, target in zip(graph.sources, graph.targets, strict=True))


@pytest.fixture
def small(network_file) -> Path:
    """Write a grouped convolution with an activation, a max pool, and their sum with itself."""
    nodes = [
        make_node("Conv", ["x", "w", "b"], ["c"], "conv", group=2, pads=[1, 0, 1, 0]),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[3, 1], strides=[2, 1]),
        make_node("Add", ["p", "p"], ["y"], "sum"),
    ]
    weights = {"w": np.zeros((6, 2, 3, 3), np.float32), "b": np.zeros(6, np.float32)}
    return network_file("small.onnx", nodes, {"x": ["n", 4, 5, 7]}, {"y": None}, weights)


def test_a_small_graph_by_hand(small) -> None:
    graph = graph_of(read_network(small, batch=3), layer_of, training=True)
    types = [name for node in graph.nodes for name in node if name.startswith("type=")]
    assert types == [
        f"type={name}"
        for name in ("Conv", "MaxPool", "Add", "Loss", "Loss_BP", "Add_BP", "MaxPool_BP", "Conv_BP")
    ]
    conv, pool, conv_back, pool_back = (graph.nodes[index] for index in (0, 1, 7, 6))
    result, pooled = 3 * 6 * 5 * 5, 3 * 6 * 2 * 5
    assert conv["flops"] == 2 * (2 * 9 + 1) * result
    assert conv_back["flops"] == conv["flops"]  # of weights alone: the image needs no gradient
    assert conv["weight_bytes"] == conv_back["weight_gradient_bytes"] == 4 * (2 * 9 + 1) * 6
    assert (conv["input_bytes"], conv["output_bytes"]) == (4 * 3 * 4 * 5 * 7, 4 * result)
    assert conv["temporary_bytes"] == 4 * (4 * 9) * 25
    assert (conv_back["output_gradient_bytes"], conv_back["output_bytes"]) == (4 * result, 0)
    assert conv["activation=relu"] == conv_back["activation=relu"] == 1
    hyperparameters = ("batch", "channels_in", "channels_out", "groups", "kernel_height", "pad_top")
    assert [conv[name] for name in hyperparameters] == [3, 4, 6, 2, 3, 1]
    assert (conv["pad_left"], conv["bias"], pool["stride_height"]) == (0, 1, 2)
    assert (pool["temporary_bytes"], pool_back["output_bytes"]) == (8 * pooled, 4 * result)
    passed = {
        (source, target): edge
        for source, target, edge in zip(graph.sources, graph.targets, graph.edges, strict=True)
    }
    sizes = {end: edge.get("bytes", 0.0) for end, edge in passed.items()}
    assert sizes == {
        (0, 1): 4 * result, (6, 7): 4 * result, (0, 6): 4 * result,
        (1, 2): 4 * pooled, (5, 6): 4 * pooled, (1, 5): 4 * pooled,
        (2, 3): 4 * pooled, (4, 5): 4 * pooled, (2, 4): 4 * pooled, (3, 4): 0,
    }  # fmt: skip
    forward = {end for end, edge in passed.items() if edge.get("forward")}
    assert forward == {(0, 1), (1, 2), (2, 3)}
    assert all(edge.get("backward") == 1 for end, edge in passed.items() if end not in forward)


def test_inference_is_the_forward_nodes(small) -> None:
    network = read_network(small, batch=3)
    graph, whole = (graph_of(network, layer_of, training=training) for training in (False, True))
    assert graph.nodes == whole.nodes[:3]
    assert (graph.sources, graph.targets) == ((0, 1), (1, 2))
    assert graph.edges == whole.edges[:2]


def test_activations_of_what_others_read_too_are_nodes(network_file) -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("Relu", ["c"], ["r"]),
        make_node("Relu", ["r"], ["s"]),
        make_node("Add", ["c", "s"], ["y"]),
    ]
    weights = {"w": np.zeros((4, 4, 1, 1), np.float32)}
    path = network_file("n.onnx", nodes, {"x": [1, 4, 5, 5]}, {"y": None}, weights)
    graph = graph_of(read_network(path), layer_of, training=False)
    assert (len(graph.nodes), len(graph.edges)) == (4, 4)


def test_temporary_tensors_and_rates(network_file) -> None:
    nodes = [
        make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=8),
        make_node("Dropout", ["h", "ratio"], ["d"]),
        make_node("Mystery", ["d"], ["y"], domain="elsewhere"),
    ]
    weights = {"w": np.zeros((1, 32, 5), np.float32), "r": np.zeros((1, 32, 8), np.float32),
               "ratio": np.array(0.3, np.float32)}  # fmt: skip
    outputs = {"y": (TensorProto.FLOAT, [7, 1, 2, 8])}
    path = network_file("n.onnx", nodes, {"x": [7, 2, 5]}, outputs, weights)
    lstm, dropout, unknown = graph_of(read_network(path), layer_of, training=False).nodes
    assert lstm["temporary_bytes"] == 4 * 7 * 2 * 32
    assert (dropout["rate"], dropout["temporary_bytes"]) == (pytest.approx(0.3), 7 * 2 * 8)
    assert unknown == {
        "type=Mystery": 1, "flops": 0, "weight_bytes": 0, "temporary_bytes": 0,
        "input_bytes": 4 * 7 * 2 * 8, "output_bytes": 4 * 7 * 2 * 8,
    }  # fmt: skip


def test_devices_and_self_loops() -> None:
    graph = Graph(({"flops": 2.0}, {"flops": 3.0}), ({"forward": 1.0, "bytes": 8.0},), (0,), (1,))
    card = device_facts("rtx3090")
    named = graph.on(card)
    assert [node["device_flops_per_s"] for node in named.nodes] == [35.6e12] * 2
    assert {node["device_memory"] for node in named.nodes} == {24 * 2**30}
    assert named.edges[0] == {"forward": 1, "bytes": 8, "bandwidth": 936e9}
    assert graph.on(None) == graph
    loops = graph.with_self_loops()
    assert (loops.sources, loops.targets) == ((0, 0, 1), (1, 0, 1))
    assert loops.edges[1:] == ({"self": 1.0}, {"self": 1.0})


def test_a_matrix_has_the_named_features_only() -> None:
    rows = matrix([{"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 4.0}], ["b", "a"])
    np.testing.assert_array_equal(rows, [[2, 1], [3, 0]])
