"""Loops whose number of turns is known are read as copies of their body."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from resperf.network import Network, read_network

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def file_of(folder: Path, *, by_condition: bool = False, limit: str = "five") -> Path:
    """A file whose loop multiplies by a matrix and keeps each product.

    By its condition it stops after three turns, by its limit after five.
    """
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    inner = [
        helper.make_node("MatMul", ["state", "weights"], ["next"]),
        helper.make_node("Add", ["number", "one"], ["after"]),
    ]
    goes_on = helper.make_node("Identity", ["on"], ["goes_on"])
    if by_condition:
        goes_on = helper.make_node("Less", ["after", "three"], ["goes_on"])
    body = helper.make_graph(
        [*inner, goes_on],
        "body",
        [info("number", INT, []), info("on", BOOL, []), info("state", FLOAT, [2, 8])],
        [info("goes_on", BOOL, []), info("next", FLOAT, [2, 8]), info("next", FLOAT, [2, 8])],
        [one],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", [limit, "", "x"], ["last", "all"], body=body)],
        "loop",
        [info("x", FLOAT, [2, 8]), *([info("n", INT, [])] if limit == "n" else [])],
        [info("last", FLOAT, [2, 8]), info("all", FLOAT, None)],
        [
            numpy_helper.from_array(np.ones((8, 8), np.float32), "weights"),
            numpy_helper.from_array(np.array(5, np.int64), "five"),
            numpy_helper.from_array(np.array(3, np.int64), "three"),
        ],
    )
    path = folder / "loop.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def products(network: Network) -> int:
    return Counter(node.op for node in network.nodes)["MatMul"]


@pytest.mark.parametrize(("by_condition", "turns"), [(False, 5), (True, 3)])
def test_runs_its_body_as_often_as_onnx_runtime(
    tmp_path: Path, by_condition: bool, turns: int
) -> None:
    path = file_of(tmp_path, by_condition=by_condition)
    network = read_network(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    last, stacked = session.run(None, {"x": np.ones((2, 8), np.float32)})
    assert products(network) == turns == len(stacked)
    assert network.tensors["last"].shape == last.shape
    assert network.tensors["all"].shape == stacked.shape


def test_a_stated_value_decides_the_turns(tmp_path: Path) -> None:
    path = file_of(tmp_path, limit="n")
    assert [node.op for node in read_network(path).nodes] == ["Loop"]
    assert products(read_network(path, values={"n": 7})) == 7


def test_a_loop_of_too_many_turns_stays(tmp_path: Path) -> None:
    path = file_of(tmp_path, limit="n")
    network = read_network(path, values={"n": 10**12})
    assert [node.op for node in network.nodes] == ["Loop"]


def test_a_loop_without_a_body_stays(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    model = onnx.load(path)
    del model.graph.node[0].attribute[:]
    onnx.save(model, path)
    assert [node.op for node in read_network(path, shapes={"all": (5, 2, 8)}).nodes] == ["Loop"]


def test_a_loop_whose_limit_is_no_number_stays(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    model = onnx.load(path)
    five = next(x for x in model.graph.initializer if x.name == "five")
    five.CopyFrom(numpy_helper.from_array(np.array([5, 6]), "five"))
    onnx.save(model, path)
    assert [node.op for node in read_network(path).nodes] == ["Loop"]


@pytest.mark.parametrize("op", ["", "Loop"])
def test_loops_that_do_nothing_for_ever_or_hold_loops_stay(tmp_path: Path, op: str) -> None:
    path = file_of(tmp_path, limit="n")
    model = onnx.load(path)
    (body,) = (attribute.g for attribute in model.graph.node[0].attribute)
    if op:
        nested = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
        nested.output[:] = ["inner", "all_inner"]
        body.node.append(nested)
    else:
        del body.node[:]
        for output, name in zip(body.output, ("on", "state", "state"), strict=True):
            output.name = name
    onnx.save(model, path)
    network = read_network(path, values={"n": 10**12 if not op else 3})
    assert [node.op for node in network.nodes] == ["Loop"]
