"""Blocks of networks: what is inside, what they read and write, and what they are predicted as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.errors import NetworkError
from resperf.lowering import work_of
from resperf.network import block_of, read_network

NETWORKS = Path(__file__).parents[2] / "models" / "networks"


@pytest.fixture
def shortcut(network_file) -> Path:
    """Write two convolutions with a shortcut around the second, and a head that is not needed."""
    nodes = [
        make_node("Conv", ["x", "w1"], ["a"], "first"),
        make_node("Relu", ["a"], ["b"], "relu"),
        make_node("Conv", ["b", "w2"], ["c:0"], "second"),
        make_node("Add", ["c:0", "a"], ["d"], "add"),
        make_node("GlobalAveragePool", ["d"], ["y"], "head"),
    ]
    weights = {name: np.zeros((8, 8, 1, 1), np.float32) for name in ("w1", "w2")}
    return network_file("shortcut.onnx", nodes, {"x": ["n", 8, 6, 6]}, {"y": None}, weights)


@pytest.mark.parametrize(
    ("ends", "nodes", "inputs", "outputs"),
    [
        ("first:head", ["first", "relu", "second", "add", "head"], ("x",), ("y",)),
        ("relu:add", ["relu", "second", "add"], ("a",), ("d",)),
        # The shortcut begins before the block.
        ("second:add", ["second", "add"], ("b", "a"), ("d",)),
        ("b:d", ["second", "add"], ("b", "a"), ("d",)),
        ("b:c:0", ["second"], ("b",), ("c:0",)),
        ("a:d", ["relu", "second", "add"], ("a",), ("d",)),
        ("second:second", ["second"], ("b",), ("c:0",)),
    ],
)
def test_a_block_is_what_is_on_the_paths_between(shortcut, ends, nodes, inputs, outputs):
    whole = read_network(shortcut, batch=2)
    block = block_of(whole, ends)
    assert [each.name for each in block.nodes] == nodes
    assert (block.inputs, block.outputs) == (inputs, outputs)
    assert block.name == f"shortcut[{ends}]"
    assert block.batch == 2
    assert work_of(block, nodes) == work_of(whole, nodes)
    assert ("w1" in block.tensors) == ("first" in nodes)


def test_blocks_that_are_not_there_are_refused(shortcut):
    whole = read_network(shortcut, batch=2)
    for ends, reason in (
        ("add:first", "no path leads from 'add' to 'first'"),
        ("first", "is no block; write FROM:TO"),
        ("first:secnd", r"no operator or tensor 'secnd' \(did you mean second\?\)"),
        ("y:first", "no path leads"),
    ):
        with pytest.raises(NetworkError, match=reason):
            block_of(whole, ends)


def test_parts_of_a_network_are_predicted_as_the_whole(cli):
    """A cut between two fused groups: the layers of both parts are those of the whole."""
    words = ("predict", NETWORKS / "vgg16.onnx", "--device", "cpu-onnxruntime-xeon", "--batch", "2")
    whole = cli.document(*words)
    network = read_network(NETWORKS / "vgg16.onnx", batch=2)
    pools = [node for node in network.nodes if node.op == "MaxPool"]
    first, last = network.nodes[0].name, network.nodes[-1].name
    after = next(node.name for node in network.nodes if pools[2].outputs[0] in node.inputs)
    upper = cli.document(*words, "--block", f"{first}:{pools[2].name}")
    lower = cli.document(*words, "--block", f"{after}:{last}")

    def layers(document):
        return [each["execution_ms"] for each in document["layers"] if each["kind"] != "reorder"]

    # How far weights stay in caches between runs depends on all of them.
    assert layers(upper) + layers(lower) == pytest.approx(layers(whole), rel=2e-3)
    assert upper["network"].startswith("vgg16[")
    assert "no path" in cli.error(*words, "--block", f"{last}:{first}")
    assert "--block does not go with --device all" in cli.error(
        "predict", "vgg16", "--device", "all", "--block", "a:b"
    )
