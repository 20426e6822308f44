"""Layers of engines matched with a network's nodes."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.dataset.importing import EngineLayer, EngineTensor, import_trtexec
from resperf.dataset.importing.engine_rows import read_engine_run
from resperf.network import Network, read_network
from resperf.report.engine_nodes import BY_NAMES, BY_SHAPES, nodes_of_layers

ROOT = Path(os.environ.get("RESPERF_PUBLIC_DATA", Path(__file__).parents[3] / "shared" / "data"))
NETWORKS = Path(__file__).parents[2] / "models" / "networks"
CONV = {"ParameterType": "Convolution", "Kernel": [1, 1], "Groups": 1, "Activation": "NONE"}


def layer(*nodes: str, spans: bool = False, inputs: int = 1, **parameters: object) -> EngineLayer:
    tensor = EngineTensor("", (1, 4, 8, 8), "float32", "")
    return EngineLayer(
        " + ".join(nodes), "", (tensor,) * inputs, (tensor,), nodes, spans, parameters, 1.0
    )


@pytest.fixture
def network(network_file) -> Network:
    """Two convolutions side by side, added, with an activation each and one after the sum."""
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], "left"),
        make_node("Relu", ["a"], ["b"], "left relu"),
        make_node("Conv", ["b", "w"], ["c"], "second"),
        make_node("Conv", ["x", "w"], ["d"], "right"),
        make_node("Add", ["c", "d"], ["e"], "sum"),
        make_node("Sigmoid", ["e"], ["y"], "end"),
    ]
    weights = {"w": np.zeros((4, 4, 1, 1), np.float32)}
    shape = [1, 4, 8, 8]
    return read_network(network_file("n.onnx", nodes, {"x": shape}, {"y": shape}, weights))


def test_names(network: Network) -> None:
    layers = [
        layer("left", "left relu"), layer("w", "right"), layer("second", "sum", "end"),
        layer(),
    ]  # fmt: skip
    found, how = nodes_of_layers(layers, network)
    assert how == BY_NAMES
    assert found == [{"left", "left relu"}, {"right"}, {"second", "sum", "end"}, set()]


def test_a_compiled_part_is_all_between_its_ends_that_no_layer_has(network: Network) -> None:
    layers = [layer("right"), layer("left relu", "end", spans=True), layer("left")]
    found, _ = nodes_of_layers(layers, network)
    assert found == [{"right"}, {"left relu", "second", "sum", "end"}, {"left"}]
    found, _ = nodes_of_layers([layer("sum", "sum", spans=True)], network)
    assert found == [{"sum"}]


def test_shapes(network: Network) -> None:
    # The third convolution is the one before the sum whose layer reads a second tensor.
    layers = [
        layer("x1", **{**CONV, "Activation": "RELU"}),
        layer("x2", **CONV),
        layer("x3", inputs=2, **{**CONV, "Activation": "SIGMOID"}),
        layer("x4", **CONV),
    ]
    found, how = nodes_of_layers(layers, network)
    assert how == BY_SHAPES
    assert found == [{"left", "left relu"}, {"second"}, {"right", "sum", "end"}, set()]


@pytest.mark.skipif(
    not (ROOT / "trtexec").is_dir(), reason=f"no engines in {ROOT}; set RESPERF_PUBLIC_DATA"
)
@pytest.mark.parametrize(
    ("engine", "file", "products", "poolings"),
    [
        ("pytorch-resnet-A100-fp16-resnet", "resnet18", 21, 2),
        ("pytorch-resnet-A100-fp32-resnet", "resnet18", 21, 2),
        ("pytorch-resnet-A100-qat-residual-qgap-resnet-qat-residual-qgap", "resnet18", 21, 2),
        ("trex-mobilenet.qat", "mobilenet_v2", 53, 1),
    ],
)
def test_published_engines_and_networks_of_another_exporter(
    tmp_path: Path, engine: str, file: str, products: int, poolings: int
) -> None:
    import_trtexec([*(ROOT / "trtexec").glob(f"{engine}.*")], tmp_path / "a.h5")
    run = read_engine_run(tmp_path / "a.h5")
    network = read_network(NETWORKS / f"{file}.onnx", batch=run.batch)
    found, how = nodes_of_layers(run.layers, network)
    assert how == BY_SHAPES
    ops = {node.name: node.op for node in network.nodes}
    matched = [ops[name] for names in found for name in names]
    assert sum(op in ("Conv", "Gemm") for op in matched) == products
    assert sum("Pool" in op or op == "ReduceMean" for op in matched) == poolings
    # No node is computed twice, and all that is left only changes shapes or is pooled nowhere.
    assert len(matched) == len(set().union(*found))
    left = {op for name, op in ops.items() if name not in set().union(*found)}
    assert left <= {"Flatten", "Reshape", "Squeeze"}
    assert not any(math.isnan(each.ms) for each in run.layers)
