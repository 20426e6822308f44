"""Multiply-adds and bytes of operators from the graph alone, all by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from resperf.lowering import LoweredNode, multiplied, slow_kernel, tensor_bytes, work_of
from resperf.network import Network, Node, Tensor


def work(op, inputs, outputs, attributes=None, *, domain="", dtype="float32"):
    """Return the work of one operator; None is an unknown shape."""
    ins, outs = ({f"{side}{place}": shape for place, shape in enumerate(shapes)}
                 for side, shapes in (("i", inputs), ("o", outputs)))  # fmt: skip
    tensors = {
        name: Tensor(name, shape, dtype)
        for name, shape in (ins | outs).items()
        if shape is not None
    }
    node = Node("n", op, domain, tuple(ins), tuple(outs), attributes or {})
    return work_of(Network("net", (node,), tensors, tuple(ins), tuple(outs), {"": 17}, None), ["n"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_products_multiply_alike_in_every_type(dtype):
    size = np.dtype(dtype).itemsize
    # 1 x 8 x 5 x 5 values, each of 2 channels of its group and 3 x 3 pixels.
    shapes = [(1, 4, 7, 7), (8, 2, 3, 3)], [(1, 8, 5, 5)]
    conv = work("Conv", *shapes, {"group": 2}, dtype=dtype)
    assert conv == (200 * 18, (196 + 144 + 200) * size)
    # Rows times columns times depth.
    assert work("MatMul", [(2, 3, 4), (4, 5)], [(2, 3, 5)], dtype=dtype).macs == 30 * 4
    assert work("Gemm", [(4, 3), (4, 5), (5,)], [(3, 5)], {"transA": 1}, dtype=dtype).macs == 60
    turned = dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB"), 1)
    shapes = [(4, 3, 7), (5, 3, 4)], [(3, 7, 5)]
    assert work("FusedMatMul", *shapes, turned, dtype=dtype).macs == 3 * 7 * 5 * 4


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "macs"),
    [
        # One axis, as in audio.
        ("Conv", [(1, 4, 9), (6, 4, 3)], [(1, 6, 7)], {}, 42 * 12),
        # Each of 2 x 9 values goes to 5 channels of 2 x 2 pixels.
        ("ConvTranspose", [(1, 2, 3, 3), (2, 5, 2, 2)], [(1, 5, 4, 4)], {}, 18 * 20),
        ("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": "bij,bjk->bik"}, 120),
        ("Einsum", [(2, 3), (3, 2)], [(2,)], {"equation": "ij,ji->i"}, 6),
        # First 2 x 3 x 4 x 5 for the first pair, then 2 x 3 x 5 x 7.
        ("Einsum", [(2, 3, 4), (2, 4, 5), (2, 5, 7)], [(2, 3, 7)],
         {"equation": "bij,bjk,bkl->bil"}, 120 + 210),
        ("Einsum", [(6, 2, 3, 4), (4, 5), (2, 5, 7)], [(6, 2, 3, 7)],
         {"equation": "...ij,jk,...kl->...il"}, 12 * 3 * 4 * 5 + 12 * 3 * 5 * 7),
        # Each of 3 x 2 steps meets all weights of 4 gates.
        ("LSTM", [(3, 2, 5), (1, 16, 5), (1, 16, 4)], [(3, 1, 2, 4)], {}, 6 * (80 + 64)),
        # 2 regions of 3 channels and 2 x 2 values, of 2 x 2 samples of 4 pixels each.
        ("RoiAlign", [(1, 3, 8, 8), (2, 4), (2,)], [(2, 3, 2, 2)], {"sampling_ratio": 2},
         24 * 16),
        # Half of 8 x 8 pixels over 2 x 2 values.
        ("MaxRoiPool", [(1, 3, 8, 8), (2, 5)], [(2, 3, 2, 2)], {}, 24 * 4),
        # 2 x 2 places of 3 x 3 pixels, 5 channels, and as many samples of 4.
        ("DeformConv", [(1, 5, 4, 4), (7, 5, 3, 3), (1, 18, 2, 2)], [(1, 7, 2, 2)], {},
         28 * 45 + 4 * 4 * 9 * 5),
        ("GridSample", [(1, 2, 4, 4, 4), (1, 3, 3, 3, 3)], [(1, 2, 3, 3, 3)], {}, 54 * 8 * 8),
        ("AveragePool", [(1, 2, 4, 4)], [(1, 2, 2, 2)], {"kernel_shape": (3, 3)}, 8 * 9),
        ("GlobalMaxPool", [(1, 2, 4, 4)], [(1, 2, 1, 1)], {}, 32),
        # Operators without multiply-adds.
        ("Relu", [(1, 2)], [(1, 2)], {}, 0),
        ("Transpose", [(1, 2)], [(2, 1)], {"perm": (1, 0)}, 0),
    ],
)  # fmt: skip
def test_multiply_adds_follow_from_shapes(op, inputs, outputs, attributes, macs):
    assert work(op, inputs, outputs, attributes).macs == macs


def test_attention_is_counted_by_its_layer_kind():
    heads = {"num_heads": 2}
    tokens = [(1, 6, 8)] * 3
    found = work("MultiHeadAttention", tokens, [(1, 6, 8)], heads, domain="com.microsoft")
    # Scores and their sums: 2 heads of 6 x 6 products of 4 values, twice.
    assert found.macs == 2 * 2 * 36 * 4
    assert found.moved_bytes == 4 * 48 * 4


def test_unknown_shapes_give_unknown_work():
    assert all(map(math.isnan, work("Conv", [None, (8, 4, 3, 3)], [None])))
    assert math.isnan(work("Einsum", [(2, 3)], [(2,)], {"equation": "ij->i"}).macs)
    foreign = work("Sparkle", [(1, 2)], [(1, 2)], domain="com.example")
    assert math.isnan(foreign.macs)
    assert foreign.moved_bytes == 16
    assert all(map(math.isnan, work("Loop", [(1,)], [(1,)])))


def test_fused_nodes_do_not_move_tensors_between_them():
    shape = (1, 4)
    names = ("x", "between", "y", "z")
    tensors = {name: Tensor(name, shape, "float32") for name in names}
    nodes = (
        Node("first", "Relu", "", ("x",), ("between",), {}),
        Node("second", "Neg", "", ("between",), ("y",), {}),
        Node("third", "Abs", "", ("between",), ("z",), {}),
    )
    network = Network("net", nodes, tensors, ("x",), ("y",), {"": 17}, 1)
    assert work_of(network, ["second"]).moved_bytes == 2 * 16
    # x is read, y is written, and `between` is written for the third node.
    assert work_of(network, ["first", "second"]).moved_bytes == 3 * 16
    assert work_of(network, ["first", "second", "third"]).moved_bytes == 2 * 16
    assert work_of(network, []) == (0, 0)


@pytest.mark.parametrize(
    ("op", "inputs", "result", "attributes", "macs"),
    [
        ("MatMulNBits", [(2, 64), (16, 2, 16), (32,)], (2, 16), {"K": 64, "N": 16}, 2 * 64 * 16),
        # Heads that share 2 keys and values; a cache of 7 tokens before 3.
        ("GroupQueryAttention", [(1, 3, 8), (1, 3, 4), (1, 3, 4), (1, 2, 7, 2), (1, 2, 7, 2)],
         (1, 3, 8), {"num_heads": 4, "kv_num_heads": 2}, 2 * 24 * 10),
        # 5 tokens of 4 values, each given to 2 experts of 6.
        ("MoE", [(5, 4), (5, 8), (8, 6, 4), (), (8, 4, 6)], (5, 4), {"k": 2}, 10 * 4 * 6 * 2),
        ("BiasSplitGelu", [(1, 2, 8), (8,)], (1, 2, 4), {}, 0),
    ],
)  # fmt: skip
def test_operators_of_onnx_runtime(op, inputs, result, attributes, macs):
    assert work(op, inputs, [result], attributes, domain="com.microsoft").macs == macs


def transform(op: str, shapes, values, result, attributes) -> float:
    """Return the multiply-adds of a transform; constants by position."""
    tensors = {f"i{place}": Tensor(f"i{place}", shape, "float32", values.get(place))
               for place, shape in enumerate(shapes) if shape is not None}  # fmt: skip
    inputs = tuple(f"i{place}" if shape is not None else "" for place, shape in enumerate(shapes))
    tensors["y"] = Tensor("y", result, "float32")
    node = Node("n", op, "", inputs, ("y",), attributes)
    return work_of(Network("net", (node,), tensors, ("i0",), ("y",), {"": 20}, None), ["n"]).macs


def test_transforms_of_powers_of_two_and_of_other_lengths():
    number = np.array
    # 3 rows of 8: half of 5 n log2 n. Of 6 values: three of 16, the first from 11 on.
    assert transform("DFT", [(3, 8, 1)], {}, (3, 8, 2), {}) == 3 * 20 * 3
    assert transform("DFT", [(3, 6, 1)], {}, (3, 6, 2), {}) == 3 * 3 * 40 * 4
    given = [(3, 6, 1), (), ()], {1: number(8), 2: number(1)}
    assert transform("DFT", *given, (3, 8, 2), {}) == 3 * 20 * 3
    # 2 sounds in 5 frames of 8.
    shapes, result = [(2, 24, 1), (), (8,)], (2, 5, 5, 2)
    assert transform("STFT", shapes, {1: number(4)}, result, {}) == 10 * 20 * 3
    shapes = [(2, 24, 1), (), None, ()]
    assert transform("STFT", shapes, {1: number(4), 3: number(8)}, result, {}) == 10 * 20 * 3
    # An axis that only a run knows.
    assert math.isnan(transform("DFT", [(3, 8, 1), None, ()], {}, (3, 8, 2), {}))


def test_boxes_are_sorted_by_class_and_compared_with_those_that_were_chosen():
    shapes = [(1, 1024, 4), (1, 5, 1024)]
    assert work("NonMaxSuppression", shapes, [(50, 3)]).macs == 5 * 1024 * 10 + 2 * 50 * 10


def test_weights_of_few_bits_are_packed_and_tables_are_read_by_rows():
    assert tensor_bytes(Tensor("w", (3, 5), "int4")) == 8
    assert tensor_bytes(Tensor("w", (3, 5), "float8e4m3fn")) == 15
    # 2 rows of 4 values, their indices, and as much written.
    assert work("Gather", [(100, 4), (2,)], [(2, 4)]).moved_bytes == 32 + 8 + 32


def test_products_that_no_output_needs_have_the_type_of_what_they_multiply():
    node = Node("n", "MatMul", "", ("a", "b"), ("c",), {})
    tensors = {name: Tensor(name, (4, 4), "float64") for name in "abc"}
    live = Network("net", (node,), tensors, ("a", "b"), ("c",), {"": 17}, None)
    assert multiplied(live, ["n"]) == ("float64", 1)
    dead = replace(live, nodes=(), outputs=("a",), dead_nodes=(node,))
    assert multiplied(dead, ["n"]) == ("float64", 1)


def test_products_of_weights_that_are_inputs_have_the_type_of_what_they_multiply():
    node = Node("n", "MatMul", "", ("v", "w"), ("c",), {})
    weights = {name: Tensor(name, (4, 4), "float16", is_weight=True) for name in "vwc"}
    network = Network(
        "net", (), {}, (), ("c",), {"": 17}, None,
        weight_nodes=(node,), overridable=("v", "w"), weight_tensors=weights,
    )  # fmt: skip
    assert multiplied(network, ["n"]) == ("float16", 1)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "kernel"),
    [
        ("Einsum", 3, {"equation": "bld, bln, bld -> bldn"}, "outer Einsum"),
        ("Einsum", 3, {"equation": "bhid,bhjd,hd->bhij"}, "outer Einsum"),
        ("Einsum", 3, {"equation": "bij,bjk,bkl->bil"}, ""),
        ("Einsum", 2, {"equation": "bld,dn->bldn"}, ""),
        ("MatMulNBits", 3, {"bits": 8}, "unpacked MatMulNBits"),
        ("MatMulNBits", 3, {"bits": 8, "accuracy_level": 4}, ""),
        ("MatMulNBits", 3, {"bits": 4}, ""),
        ("QuantizeLinear", 2, {"axis": 3}, "slow QuantizeLinear"),
        ("DequantizeLinear", 2, {"axis": -1}, "slow DequantizeLinear"),
        ("QuantizeLinear", 3, {}, ""),
        ("ArgMax", 1, {"axis": 1}, "slow ArgMax"),
        ("ArgMin", 1, {"axis": 3}, ""),
        ("LpNormalization", 1, {"axis": 2}, "slow LpNormalization"),
        ("LpNormalization", 1, {}, ""),
        ("LogSoftmax", 1, {"axis": 1}, "slow LogSoftmax"),
        ("LogSoftmax", 1, {"axis": 2}, ""),
        ("ReduceLogSumExp", 1, {}, "slow ReduceLogSumExp"),
        ("Softmax", 1, {"axis": 1}, ""),
    ],
)
def test_kernels_that_run_value_by_value_are_named(op, operands, attributes, kernel):
    # (batch, channels, rows, columns); a scale for each column, one for all values otherwise.
    names = ("x", "s", "z")[:operands]
    shapes = {"x": (1, 8, 4, 6), "s": (6,) if attributes else (1,), "z": ()}
    tensors = {name: Tensor(name, shapes[name], "float32") for name in names}
    node = Node("n", op, "", names, ("y",), attributes)
    network = Network("net", (node,), tensors, names, ("y",), {"": 17}, None)
    assert slow_kernel(network, LoweredNode("l", op, None, "unknown", sources=("n",))) == kernel
    # Fused into another kernel, or another node.
    assert not slow_kernel(network, LoweredNode("l", "QLinearConv", None, "unknown", sources="n"))
    assert not slow_kernel(network, LoweredNode("l", op, None, "unknown", sources=("another",)))


@pytest.mark.parametrize(
    ("op", "axes", "kernel"),
    [
        ("ReduceMean", (0, 2), "slow ReduceMean"),
        ("ReduceMax", (1, -1), "slow ReduceMax"),
        ("ReduceSum", (0, 2, 3), ""),
        ("ReduceMean", (1, 2), ""),
        ("ReduceMin", (), ""),
        ("CumSum", (3,), "slow CumSum"),
        ("CumSum", (1,), ""),
    ],
)
@pytest.mark.parametrize("is_input", [True, False])
def test_axes_decide_about_kernels(op, axes, kernel, is_input):
    is_input = is_input or op == "CumSum"
    value = np.array(axes[0] if op == "CumSum" else axes, np.int64)
    tensors = {
        "x": Tensor("x", (2, 8, 4, 6), "float32"),
        "a": Tensor("a", value.shape, "int64", value, is_weight=True),
    }
    names = ("x", "a") if is_input else ("x",)
    node = Node("n", op, "", names, ("y",), {} if is_input else {"axes": axes})
    network = Network("net", (node,), tensors, ("x",), ("y",), {"": 17}, None)
    assert slow_kernel(network, LoweredNode("l", op, None, "unknown", sources=("n",))) == kernel


@pytest.mark.parametrize(
    ("dtype", "shapes", "kernel"),
    [
        ("int64", [(8, 256), (8, 256)], "slow Div"),
        ("int32", [(8, 1), (256,)], "slow Div"),
        ("int64", [(8, 255), (8, 255)], ""),
        ("float32", [(8, 256), (8, 256)], ""),
    ],
)
def test_integers_are_divided_value_by_value(dtype, shapes, kernel):
    shapes = {"x": shapes[0], "d": shapes[1], "y": np.broadcast_shapes(*shapes)}
    tensors = {name: Tensor(name, shape, dtype) for name, shape in shapes.items()}
    node = Node("n", "Div", "", ("x", "d"), ("y",), {})
    network = Network("net", (node,), tensors, ("x", "d"), ("y",), {"": 17}, None)
    assert slow_kernel(network, LoweredNode("l", "Div", None, "unknown", sources=("n",))) == kernel
