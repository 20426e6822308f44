"""The comparison with traced operators, on two layers whose list is written by hand."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

TOOLS = Path(__file__).parents[2] / "tools" / "benchmarks"

X, W, B = [2, 5, 8], [8, 16], [16]
ROWS, OUT = [10, 8], [10, 16]
TRACED = [
    ["aten._to_copy", [[W, "f4", 1]], [[W, "f2"]], None, 1],
    ["aten._to_copy", [[B, "f4", 1]], [[B, "f2"]], None, 1],
    ["aten._to_copy", [[X, "f4", 0]], [[X, "f2"]], None, 1],
    ["aten.addmm", [[B, "f2", 1], [ROWS, "f2", 0], [W, "f2", 1]], [[OUT, "f2"]], None, 1],
    ["aten.relu_", [[[2, 5, 16], "f2", 0]], [[[2, 5, 16], "f2"]], ["inplace"], 1],
]


def compared(
    tmp_path: Path, traced: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> str:
    """Run the tool on a linear layer with a Relu and return what it prints."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in (("w", W), ("b", B))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    network = tmp_path / "toy-224.onnx"
    network.write_bytes(model.SerializeToString())
    row = {"model": "toy", "size": 224, "reparameterised": False, "ok": 1, "ops": traced}
    lists = tmp_path / "operators.jsonl.gz"
    lists.write_bytes(gzip.compress(json.dumps(row).encode()))
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setattr(sys, "argv", ["compare", str(lists), str(network)])
    import torch_lowering

    torch_lowering.main()
    return str(capsys.readouterr().out)


def test_equal_operators_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text = compared(tmp_path, TRACED, monkeypatch, capsys)
    assert "100.0% of 5 operators agree; 1 of 1 networks reach 95%" in text


def test_an_operator_of_another_type_is_missing_and_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    single = ["aten.relu", [[[2, 5, 16], "f4", 0]], [[[2, 5, 16], "f4"]], None, 1]
    text = compared(tmp_path, [*TRACED[:-1], single], monkeypatch, capsys)
    assert "1 missing relu" in text
    assert "1 extra relu" in text
    assert "80.0% of 5 operators agree; 0 of 1 networks reach 95%" in text
