"""Joining what exporters write in parts, on networks with nothing else in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from resperf.network import Network, Node, Rewritten, Tensor
from resperf.network.canonical import canonical

Nodes = Sequence[tuple[str, str, list[str]]]
SHAPE = (2, 5, 8)


def joined(
    nodes: Nodes,
    values: Mapping[str, Any],
    *,
    opset: int = 13,
    outputs: tuple[str, ...] = (),
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rewritten:
    """Nodes as (op, output and name, inputs); every tensor has one shape but for constants."""
    tensors = {name: Tensor(name, SHAPE, "float32") for name in ("x", *(n[1] for n in nodes))}
    for name, value in values.items():
        array = np.asarray(value, np.float32)
        tensors[name] = Tensor(name, array.shape, "float32", array, is_weight=True)
    made = tuple(
        Node(name, op, "", tuple(inputs), (name,), (attributes or {}).get(name, {}))
        for op, name, inputs in nodes
    )
    last = (nodes[-1][1], *outputs)
    return canonical(Network("net", made, tensors, ("x",), last, {"": opset}, 2))


GELU = [
    ("Div", "d", ["x", "root"]),
    ("Erf", "e", ["d"]),
    ("Add", "a", ["e", "one"]),
    ("Mul", "m", ["x", "a"]),
    ("Mul", "y", ["m", "half"]),
]
GELU_VALUES = {"root": 1.4142135, "one": 1.0, "half": 0.5}


@pytest.mark.parametrize("factors", [("x", "a", "half"), ("x", "half", "a"), ("a", "half", "x")])
def test_gelu_with_its_factors_in_any_order(factors: tuple[str, str, str]) -> None:
    first, second, third = factors
    nodes = [*GELU[:3], ("Mul", "m", [first, second]), ("Mul", "y", ["m", third])]
    found = joined(nodes, GELU_VALUES)
    (node,) = found.network.nodes
    assert (node.op, node.inputs, node.outputs) == ("Gelu", ("x",), ("y",))
    assert found.sources == {"y": ("d", "e", "a", "m", "y")}


def test_parts_stay_where_the_operator_set_has_the_whole() -> None:
    # A network that computes gelu itself: PyTorch's exporter writes Gelu since operator set 20.
    assert len(joined(GELU, GELU_VALUES, opset=20).network.nodes) == 5


def test_parts_that_something_else_reads_stay() -> None:
    assert len(joined(GELU, GELU_VALUES, outputs=("e",)).network.nodes) == 5


def test_another_constant_is_no_gelu() -> None:
    assert len(joined(GELU, {**GELU_VALUES, "half": 0.6}).network.nodes) == 5


NORM = [
    ("ReduceMean", "mean", ["x"]),
    ("Sub", "d", ["x", "mean"]),
    ("Pow", "p", ["d", "two"]),
    ("ReduceMean", "var", ["p"]),
    ("Add", "e", ["var", "epsilon"]),
    ("Sqrt", "root", ["e"]),
    ("Div", "q", ["d", "root"]),
    ("Mul", "m", ["q", "scale"]),
    ("Add", "y", ["m", "bias"]),
]
NORM_VALUES = {"two": 2.0, "epsilon": 1e-5, "scale": np.ones(8), "bias": np.zeros(8)}
LAST = {"mean": {"axes": (-1,)}, "var": {"axes": (-1,)}}


def test_layer_normalisation() -> None:
    (node,) = joined(NORM, NORM_VALUES, attributes=LAST).network.nodes
    assert (node.op, node.inputs) == ("LayerNormalization", ("x", "scale", "bias"))
    assert node.attributes["epsilon"] == pytest.approx(1e-5)


def test_a_mean_over_another_axis_is_no_layer_normalisation() -> None:
    other = {"mean": {"axes": (1,)}, "var": {"axes": (1,)}}
    assert len(joined(NORM, NORM_VALUES, attributes=other).network.nodes) == len(NORM)


@pytest.mark.parametrize(("gate", "whole"), [("Sigmoid", "Swish"), ("HardSigmoid", "HardSwish")])
def test_a_tensor_times_its_own_gate(gate: str, whole: str) -> None:
    nodes = [(gate, "s", ["x"]), ("Mul", "y", ["s", "x"])]
    (node,) = joined(nodes, {}).network.nodes
    assert (node.op, node.inputs) == (whole, ("x",))


def test_the_gate_of_another_tensor_stays() -> None:
    nodes = [("Relu", "r", ["x"]), ("Sigmoid", "s", ["r"]), ("Mul", "y", ["s", "x"])]
    assert len(joined(nodes, {}).network.nodes) == 3


def test_a_bias_of_zeros_is_dropped() -> None:
    weights = {"w": np.ones((8, 5, 1))}
    for bias, inputs in ((0.0, ("x", "w")), (1.0, ("x", "w", "b"))):
        values = {**weights, "b": np.full(8, bias)}
        (node,) = joined([("Conv", "y", ["x", "w", "b"])], values).network.nodes
        assert node.inputs == inputs


def test_products_with_a_bias_of_another_length_stay() -> None:
    nodes = [("MatMul", "m", ["x", "w"]), ("Add", "y", ["m", "b"])]
    for length, count in ((8, 1), (1, 2)):
        values = {"w": np.ones((8, 8)), "b": np.ones(length)}
        assert len(joined(nodes, values).network.nodes) == count


def test_statistics_that_a_batch_normalisation_computes_are_part_of_it() -> None:
    nodes = [
        ("ReduceMean", "mean", ["x"]),
        ("ReduceMean", "kept", ["x"]),
        ("Sub", "d", ["x", "kept"]),
        ("Mul", "square", ["d", "d"]),
        ("ReduceMean", "var", ["square"]),
        ("BatchNormalization", "y", ["x", "scale", "bias", "mean", "var"]),
    ]
    values = {"scale": np.ones(5), "bias": np.zeros(5)}
    (node,) = joined(nodes, values).network.nodes
    assert node.inputs == ("x", "scale", "bias")
    assert node.attributes["training_mode"] == 1


def test_factors_of_one_and_assignments_to_all_of_a_tensor_are_nothing() -> None:
    (node,) = joined([("Mul", "y", ["x", "one"])], {"one": 1.0}).network.nodes
    assert (node.op, node.inputs) == ("Identity", ("x",))
    nodes = [("Relu", "r", ["x"]), ("ScatterND", "y", ["x", "rows", "r"])]
    for rows, op in (([[0], [1]], "Identity"), ([[1], [0]], "ScatterND")):
        last = joined(nodes, {"rows": rows}).network.nodes[-1]
        assert last.op == op


def test_a_copy_into_all_of_a_tensor_stays() -> None:
    nodes = [("CastLike", "r", ["x", "x"]), ("ScatterND", "y", ["x", "rows", "r"])]
    assert joined(nodes, {"rows": [[0], [1]]}).network.nodes[-1].op == "ScatterND"


@pytest.mark.parametrize(("dtype", "op"), [("int4", "MatMul"), ("float8e4m3fn", "Gemm")])
def test_a_product_reads_its_matrix_of_few_bits_packed(dtype: str, op: str) -> None:
    def whole(dtype: str) -> Rewritten:
        weights = {name: Tensor(name, (8, 8), kind, is_weight=True)
                   for name, kind in (("q", dtype), ("s", "float32"))}  # fmt: skip
        made = {name: Tensor(name, SHAPE, "float32") for name in ("x", "w", "y")}
        nodes = (Node("d", "DequantizeLinear", "", ("q", "s"), ("w",), {}),
                 Node("p", op, "", ("x", "w"), ("y",), {}))  # fmt: skip
        net = Network("net", nodes, made | weights, ("x",), ("y",), {"": 21}, None)
        return canonical(net)

    (node,) = whole(dtype).network.nodes
    assert (node.op, node.inputs) == ("MatMulNBits", ("x", "q", "s"))
    assert set(whole(dtype).sources[node.name]) == {"d", "p"}
    assert len(whole("int8").network.nodes) == 2
