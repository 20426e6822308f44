"""The comparison with engines: one written by hand, and the seven of TensorRT Engine Explorer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import helper

from resperf.dataset.importing.trtexec import read_exports

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests/dataset/importing/trtexec/small.graph.json"
ENGINES = ROOT.parent / "shared/data/trtexec"
needs_engines = pytest.mark.skipif(
    not ENGINES.is_dir(), reason=f"the engines' exports are not in {ENGINES}"
)


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/tensorrt_lowering")


@pytest.fixture
def small(network_file) -> Path:
    """Write the network of the small engine, with the names of its nodes."""

    def node(op: str, number: int, inputs: str, output: str, **attributes: Any) -> Any:
        return helper.make_node(op, inputs.split(), [output], name=f"{op}_{number}", **attributes)

    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", 0, "x w0 b", "t0", **pads), node("Relu", 1, "t0", "c0"),
        node("MaxPool", 2, "c0", "p2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", 3, "p2 w3 b", "t3", **pads), node("Add", 4, "t3 p2", "t4"),
        node("Relu", 5, "t4", "c3"), node("GlobalAveragePool", 6, "c3", "g6"),
        node("Flatten", 7, "g6", "f7"), node("Gemm", 8, "f7 w8 b8", "d8", transB=1),
        node("Softmax", 9, "d8", "y"),
    ]  # fmt: skip
    shapes = {"w0": (4, 3, 3, 3), "w3": (4, 4, 3, 3), "b": (4,), "w8": (10, 4), "b8": (10,)}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return network_file("small.onnx", nodes, {"x": [2, 3, 8, 8]}, {"y": None}, weights)


def printed(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: object
) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, words)])
    tool.main()
    return str(capsys.readouterr().out).splitlines()


def test_a_small_engine_agrees_in_order(
    tool: ModuleType, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    lines = printed(tool, monkeypatch, capsys, SMALL, small, "--precision", "fp16")
    assert lines[-1].split() == ["small", "fp16", "5", "5", "100.0%", "100.0%"]


def test_what_is_fused_otherwise_is_listed(
    tool: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    graph = json.loads(SMALL.read_text())
    layer = next(each for each in graph["Layers"] if each["Name"] == "Conv_0 + Relu_1")
    layer |= {"Name": "Conv_0", "Activation": "NONE", "HasReLU": 0}
    other = tmp_path / "other.graph.json"
    other.write_text(json.dumps(graph))
    lines = printed(tool, monkeypatch, capsys, other, small, "--precision", "fp16", "--differences")
    assert lines[0] == "other"
    assert lines[1].startswith("  engine Conv_0: convolution (3, 3)")
    assert lines[2].startswith("  rules  Conv + Relu (Conv_0): convolution (3, 3)")
    assert lines[-1].split()[4:] == ["80.0%"] * 2


def test_nodes_that_were_compiled_as_a_whole_are_left_out(
    tool: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    graph = json.loads(SMALL.read_text())
    names = [layer["Name"] for layer in graph["Layers"]]
    first, last = names.index("GlobalAveragePool_6"), names.index("Softmax_9")
    whole = {**graph["Layers"][last], "Name": "{ForeignNode[GlobalAveragePool_6...Softmax_9]}"}
    graph["Layers"][first : last + 1] = [
        {**whole, "LayerType": "Myelin", "ParameterType": "Myelin"}
    ]
    other = tmp_path / "other.graph.json"
    other.write_text(json.dumps(graph))
    lines = printed(tool, monkeypatch, capsys, other, small, "--precision", "fp16")
    assert lines[-1].split()[1:] == ["fp16", "3", "3", "100.0%", "100.0%"]


@needs_engines
def test_engines_without_quantisation_have_the_groups_of_the_rules(tool: ModuleType) -> None:
    for name, known in tool.KNOWN.items():
        if not known.quantized:
            engine = read_exports([ENGINES / f"{name}.graph.json.gz"])
            found = tool.compare(engine, *tool.lowered_network(known, engine))
            assert found.in_order >= 0.95, "\n".join(found.differences())


@needs_engines
def test_engines_with_quantisation_are_listed_beside_the_rules(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    lines = printed(tool, monkeypatch, capsys, ENGINES, "--differences")
    for name, known in tool.KNOWN.items():
        if known.quantized:
            assert name in lines
    shares = {line.split()[0]: line.split()[-2] for line in lines if line.endswith("%")}
    assert sum(share == "100.0%" for share in shares.values()) == 6
    assert min(float(share.rstrip("%")) for share in shares.values()) > 90


def test_a_folder_without_the_engines_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with pytest.raises(
        SystemExit, match=r"lacks pytorch-resnet-A100-fp32-resnet\.graph\.json\.gz, "
    ):
        printed(tool, monkeypatch, capsys, tmp_path)


def test_quantisations_are_inserted_where_toolkits_have_them(tool: ModuleType, small: Path) -> None:
    import onnx

    def inserted(*ops: str) -> list[str]:
        made = tool.quantized(onnx.load(small), ops)
        return [node.name for node in made.graph.node if node.op_type == "QuantizeLinear"]

    products = [f"{name}/{place}/Q" for name in ("Conv_0", "Conv_3", "Gemm_8") for place in (0, 1)]
    assert inserted("Conv") == products
    # The shortcut of the sum is its second operand.
    assert sorted(inserted("Conv", "Add")) == sorted([*products, "Add_4/1/Q"])
    assert inserted("GlobalAveragePool") == ["GlobalAveragePool_6/0/Q"]
