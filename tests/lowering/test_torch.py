"""PyTorch's rules on small networks whose kernels are plain to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resperf.layers import Dense
from resperf.layers.attention import Attention
from resperf.layers.cast import Cast
from resperf.layers.elementwise import Elementwise
from resperf.layers.matmul import MatMul
from resperf.layers.move import Move
from resperf.layers.norm import Norm
from resperf.layers.reduce import Reduce
from resperf.layers.select import Select
from resperf.layers.top_k import TopK
from resperf.layers.transpose import Transpose
from resperf.lowering import LoweredNode, lower, lower_layers
from resperf.lowering.torch import run_kernels
from resperf.network import Network, Node, Tensor
from resperf.platform import Platform
from resperf.settings import Setting

Shape = tuple[int, ...]
PLATFORM = Platform("cuda", "any", instruction_set="", cores=2, memory_bytes=1, system="Linux")
EAGER = Setting("torch", "2.9.1")
AMP = Setting("torch", "2.9.1", precision="amp")
COMPILED = Setting("torch", "2.9.1", compiled="dynamo")


def network_of(
    nodes: list[tuple[str, str, list[str]]],
    shapes: dict[str, Shape],
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    values: Mapping[str, Any] | None = None,
    opset: int = 20,
) -> Network:
    """Nodes as (op, output and name, inputs); tensors whose names begin with w are constants."""
    tensors = {
        name: Tensor(name, shape, "float32", is_weight=name.startswith("w"))
        for name, shape in shapes.items()
    }
    for name, value in (values or {}).items():
        array = np.asarray(value)
        tensors[name] = Tensor(name, array.shape, array.dtype.name, array, is_weight=True)
    return Network(
        name="net",
        nodes=tuple(
            Node(name, op, "", tuple(inputs), (name,), (attributes or {}).get(name, {}))
            for op, name, inputs in nodes
        ),
        tensors=tensors,
        inputs=("x",),
        outputs=(nodes[-1][1],),
        opsets={"": opset},
        batch=2,
    )


def lowered(network: Network, setting: Setting = EAGER) -> tuple[LoweredNode, ...]:
    return lower(network, setting, PLATFORM).nodes


def ops(network: Network, setting: Setting = EAGER) -> list[str]:
    return [node.op for node in lowered(network, setting)]


ROWS = {"x": (2, 5, 8), "w": (8, 16), "wb": (16,), "m": (2, 5, 16), "a": (2, 5, 16)}
LINEAR = [("MatMul", "m", ["x", "w"]), ("Add", "a", ["m", "wb"])]


def test_a_product_and_its_bias_are_one_kernel() -> None:
    (node,) = lowered(network_of(LINEAR, ROWS))
    assert node.op == "addmm"
    # 2 x 5 rows.
    assert node.layer == Dense(batch=10, features_in=8, features_out=16, bias=True)
    assert node.sources == ("m", "a")


def test_a_product_that_is_read_elsewhere_is_not_joined() -> None:
    nodes = [*LINEAR, ("Mul", "y", ["m", "a"])]
    assert ops(network_of(nodes, {**ROWS, "y": (2, 5, 16)})) == ["mm", "add", "mul"]


def test_turned_rows_are_multiplied_in_batches() -> None:
    shapes = {**ROWS, "x": (2, 8, 5), "t": (2, 5, 8)}
    nodes = [("Transpose", "t", ["x"]), ("MatMul", "m", ["t", "w"]), ("Add", "a", ["m", "wb"])]
    found = lowered(network_of(nodes, shapes, {"t": {"perm": (0, 2, 1)}}))
    assert [node.op for node in found] == ["bmm", "add"]
    assert isinstance(found[0].layer, MatMul)
    assert (found[0].layer.rows, found[0].layer.depth, found[0].layer.columns) == (5, 8, 16)


def test_views_cost_nothing_and_copies_are_made_where_no_view_fits() -> None:
    nodes = [
        ("Reshape", "r", ["x", "w0"]),
        ("Transpose", "t", ["r"]),
        ("Reshape", "y", ["t", "w1"]),
        ("Relu", "z", ["y"]),
    ]
    shapes = {
        "x": (2, 6, 8),
        "r": (2, 6, 2, 4),
        "t": (2, 2, 6, 4),
        "y": (2, 2, 24),
        "z": (2, 2, 24),
    }
    values = {"w0": [2, 6, 2, 4], "w1": [2, 2, 24]}
    found = lowered(network_of(nodes, shapes, {"t": {"perm": (0, 2, 1, 3)}}, values))
    assert [node.op for node in found] == ["clone", "relu"]
    assert isinstance(found[0].layer, Transpose)
    assert found[0].layer.output_bytes == 2 * 6 * 8 * 4
    # Every node of the file belongs to some kernel.
    assert {name for node in found for name in node.sources} == {"r", "t", "y", "z"}


def test_contiguous_behind_a_transposition_copies() -> None:
    nodes = [("Transpose", "t", ["x"]), ("Identity", "i", ["t"]), ("Relu", "y", ["i"])]
    shapes = dict.fromkeys(("t", "i", "y"), (2, 8, 5)) | {"x": (2, 5, 8)}
    assert ops(network_of(nodes, shapes, {"t": {"perm": (0, 2, 1)}})) == ["clone", "relu"]


def test_slices_splits_and_single_places_are_views() -> None:
    nodes = [
        ("Slice", "s", ["x", "w0", "w1", "w2"]),
        ("Gather", "g", ["s", "w3"]),
        ("Relu", "y", ["g"]),
    ]
    shapes = {"x": (2, 6, 8), "s": (2, 4, 8), "g": (2, 8), "y": (2, 8)}
    values = {"w0": [1], "w1": [5], "w2": [1], "w3": 0}
    assert ops(network_of(nodes, shapes, {"g": {"axis": 1}}, values)) == ["relu"]


def test_halves_joined_the_other_way_round_roll() -> None:
    nodes = [
        ("Slice", "a", ["x", "w1", "w3", "w0"]),
        ("Slice", "b", ["x", "wz", "w1", "w0"]),
        ("Concat", "y", ["a", "b"]),
    ]
    shapes = {"x": (3, 4), "a": (2, 4), "b": (1, 4), "y": (3, 4)}
    values = {"w0": [0], "w1": [1], "w3": [3], "wz": [0]}
    assert ops(network_of(nodes, shapes, {"y": {"axis": 0}}, values)) == ["roll"]


def test_a_roll_along_two_axes_reads_what_is_rolled() -> None:
    """As in Swin: it was taken to read the first roll, a tensor that nobody makes: a weight."""
    nodes = [
        ("Relu", "r", ["x"]),
        ("Slice", "a", ["r", "w1", "w3", "w0"]),
        ("Slice", "b", ["r", "w0", "w1", "w0"]),
        ("Concat", "c", ["a", "b"]),
        ("Slice", "d", ["c", "w1", "w4", "w1"]),
        ("Slice", "e", ["c", "w0", "w1", "w1"]),
        ("Concat", "y", ["d", "e"]),
        ("Relu", "z", ["y"]),
    ]
    whole = (3, 4)
    shapes = {"x": whole, "r": whole, "a": (2, 4), "b": (1, 4), "c": whole, "d": (3, 3),
              "e": (3, 1), "y": whole, "z": whole}  # fmt: skip
    values = {"w0": [0], "w1": [1], "w3": [3], "w4": [4]}
    network = network_of(nodes, shapes, {"c": {"axis": 0}, "y": {"axis": 1}}, values)
    relu, roll, last = run_kernels(network, Setting("torch"))
    assert (relu.op, roll.op, last.op) == ("relu", "roll", "relu")
    assert (roll.operands, roll.storages) == (("r",), ("r",))
    assert last.storages == ("y",)


def test_a_new_axis_on_every_part_is_a_stack() -> None:
    nodes = [
        ("Unsqueeze", "a", ["x", "w0"]),
        ("Unsqueeze", "b", ["x", "w0"]),
        ("Concat", "y", ["a", "b"]),
    ]
    shapes = {"x": (3, 4), "a": (1, 3, 4), "b": (1, 3, 4), "y": (2, 3, 4)}
    (node,) = lowered(network_of(nodes, shapes, {"y": {"axis": 0}}, {"w0": [0]}))
    assert node.op == "stack"
    assert node.layer is not None
    assert node.layer.output_bytes == 2 * 3 * 4 * 4


HEADS = {"x": (2, 3, 5, 8), "k": (2, 3, 5, 8), "t": (2, 3, 8, 5), "qs": (2, 3, 5, 8)}
HEADS |= {"ks": (2, 3, 8, 5), "s": (2, 3, 5, 5), "p": (2, 3, 5, 5), "o": (2, 3, 5, 8)}
ATTENTION = [
    ("Relu", "k", ["x"]),
    ("Transpose", "t", ["k"]),
    ("Mul", "qs", ["x", "w8"]),
    ("Mul", "ks", ["t", "w8"]),
    ("MatMul", "s", ["qs", "ks"]),
    ("Softmax", "p", ["s"]),
    ("MatMul", "o", ["p", "x"]),
]
TURNED = {"t": {"perm": (0, 1, 3, 2)}, "p": {"axis": -1}}


def attention() -> Network:
    return network_of(ATTENTION, HEADS, TURNED, {"w8": np.float32(8**-0.25)})


def test_attention_is_one_kernel() -> None:
    relu, node = lowered(attention())
    assert relu.op == "relu"
    assert node.layer == Attention(
        batch=2, queries=5, keys=5, heads=3, head_size=8, value_size=8, features=0
    )
    assert node.sources == ("t", "qs", "ks", "s", "p", "o")


def test_attention_was_in_parts_before_version_2() -> None:
    expected = ["relu", "bmm", "mul", "_softmax", "bmm"]
    assert ops(attention(), Setting("torch", "1.12.0")) == expected


def test_attention_that_scales_its_scores_alone_stays_in_parts() -> None:
    nodes = [
        ("Transpose", "t", ["x"]),
        ("MatMul", "s", ["x", "t"]),
        ("Mul", "qs", ["s", "w8"]),
        ("Softmax", "p", ["qs"]),
        ("MatMul", "o", ["p", "x"]),
    ]
    shapes = HEADS | {"qs": (2, 3, 5, 5)}
    network = network_of(nodes, shapes, TURNED, {"w8": np.float32(8**-0.5)})
    # The transposed keys are copied, since products take matrices of one batch axis.
    assert ops(network) == ["bmm", "mul", "_softmax", "bmm"]


@pytest.mark.parametrize(
    ("mask", "masked"), [((1, 3, 5, 5), True), ((3, 5, 5), True), ((5, 5), False)]
)
def test_a_mask_of_attention_counts_if_each_head_has_its_own(mask: Shape, masked: bool) -> None:
    shapes = HEADS | {"wm": mask}
    node = lowered(network_of([("Attention", "o", ["x", "x", "x", "wm"])], shapes))[0]
    assert isinstance(node.layer, Attention)
    assert node.layer.masked == masked
    # Queries, keys and values; the mask of one sequence is read for all of them.
    assert node.layer.input_bytes == 4 * (3 * 2 * 3 * 5 * 8 + masked * 3 * 5 * 5)


WINDOWS = {"x": (2, 4, 3, 5, 8), "o": (2, 4, 3, 5, 8), "wm": (3, 5, 5)}
UNFUSED = ["mul", "mul", "bmm", "add", "_softmax", "bmm"]
"""PyTorch 2.13's operators for attention in parts; views left out."""
CASTS = ["_to_copy"] * 4
"""Autocast's, of queries, keys, values and the mask."""
SAFE = ["_softmax", "eq", "amin", "where"]
"""As which its softmax sets rows of minus infinity to zero."""


def windows() -> Network:
    return network_of([("Attention", "o", ["x", "x", "x", "wm"])], WINDOWS)


def test_attention_on_five_axes_has_no_kernel_of_its_own() -> None:
    assert ops(windows(), Setting("torch", "2.4.0")) == UNFUSED
    assert ops(windows()) == [*UNFUSED[:4], *SAFE, "bmm"]
    amp = lowered(windows(), Setting("torch", "2.4.0", precision="amp"))
    assert [node.op for node in amp] == [*CASTS, *UNFUSED]
    products = [node.layer for node in amp if node.op == "bmm"]
    assert all(isinstance(layer, MatMul) and layer.dtype == "float16" for layer in products)
    assert [layer.batch for layer in products if layer] == [24, 24]


def test_attention_on_five_axes_computes_in_single_precision_since_version_2_5() -> None:
    nodes = lowered(windows(), Setting("torch", "2.5.0", precision="amp"))
    # Queries, keys and values are cast back, and at the end what the softmax and all return.
    assert [node.op for node in nodes] == [
        *CASTS, *["_to_copy"] * 3, *UNFUSED[:4], *SAFE, "_to_copy", "bmm", "_to_copy",
    ]  # fmt: skip
    products = [node.layer for node in nodes if node.op == "bmm"]
    assert all(isinstance(layer, MatMul) and layer.dtype == "float32" for layer in products)
    assert nodes[-1].layer == Cast(batch=2, values=480, dtype="float32", dtype_out="float16")


def test_attention_without_known_shapes_is_not_rewritten() -> None:
    network = network_of([("Attention", "o", ["x", "k", "x"])], {"x": WINDOWS["x"]})
    (node,) = lowered(network)
    assert node.layer is None
    assert "the shape of 'k' is not known" in node.reason


def test_autocast_casts_operands_of_products_and_keeps_norms_in_single_precision() -> None:
    nodes = [
        *LINEAR,
        ("LayerNormalization", "n", ["a", "wg", "wb"]),
        ("Add", "y", ["n", "a"]),
    ]
    shapes = {**ROWS, "wg": (16,), "n": (2, 5, 16), "y": (2, 5, 16)}
    found = lowered(network_of(nodes, shapes), AMP)
    # The input, the matrix and the bias are cast; the norm's input is cast back.
    expected = ["_to_copy"] * 3 + ["addmm", "_to_copy", "native_layer_norm", "add"]
    assert [node.op for node in found] == expected
    product, norm = found[3].layer, found[5].layer
    assert isinstance(product, Dense)
    assert product.dtype == "float16"
    assert isinstance(norm, Norm)
    assert norm.dtype == "float32"
    back = found[4].layer
    assert isinstance(back, Cast)
    assert back.input_bytes == 2 * 5 * 16 * 2
    assert back.output_bytes == 2 * 5 * 16 * 4


def test_autocast_casts_a_weight_once_and_an_input_each_time() -> None:
    nodes = [("MatMul", "a", ["x", "w"]), ("MatMul", "b", ["x", "w"]), ("Add", "y", ["a", "b"])]
    shapes = {"x": (4, 8), "w": (8, 8), "a": (4, 8), "b": (4, 8), "y": (4, 8)}
    assert ops(network_of(nodes, shapes), AMP).count("_to_copy") == 3


def test_softmax_computes_in_single_precision_without_a_cast() -> None:
    nodes = [("MatMul", "a", ["x", "w"]), ("Softmax", "y", ["a"])]
    shapes = {"x": (4, 8), "w": (8, 8), "a": (4, 8), "y": (4, 8)}
    assert ops(network_of(nodes, shapes), AMP) == ["_to_copy", "_to_copy", "mm", "_softmax"]


def test_half_precision_has_no_casts() -> None:
    (node,) = lowered(network_of(LINEAR, ROWS), Setting("torch", "2.9.1", precision="fp16"))
    assert isinstance(node.layer, Dense)
    assert node.layer.dtype == "float16"


def test_compiled_chains_are_one_kernel_and_products_are_not_part_of_them() -> None:
    nodes = [
        ("Relu", "r", ["x"]),
        ("Mul", "s", ["r", "x"]),
        ("LayerNormalization", "n", ["s", "wg", "wg"]),
        ("MatMul", "m", ["n", "w"]),
        ("Relu", "y", ["m"]),
    ]
    shapes = {"x": (2, 5, 8), "r": (2, 5, 8), "s": (2, 5, 8), "n": (2, 5, 8), "wg": (8,)}
    network = network_of(nodes, {**shapes, "w": (8, 8), "m": (2, 5, 8), "y": (2, 5, 8)})
    first, product, last = lowered(network, COMPILED)
    assert first.op == "fused"
    assert first.sources == ("r", "s", "n")
    assert first.layer is not None
    # A chain reads what its largest operator reads: here the product of two tensors.
    assert first.layer.moved_bytes >= 3 * 2 * 5 * 8 * 4
    assert (product.op, last.op) == ("mm", "relu")


def test_an_addition_does_not_join_a_chain_from_before_a_convolution() -> None:
    nodes = [
        ("Relu", "r", ["x"]),
        ("Conv", "c", ["r", "w"]),
        ("Add", "y", ["r", "c"]),
    ]
    shapes = {"x": (2, 4, 8, 8), "r": (2, 4, 8, 8), "w": (4, 4, 1, 1), "c": (2, 4, 8, 8)}
    network = network_of(nodes, {**shapes, "y": (2, 4, 8, 8)})
    assert ops(network, COMPILED) == ["relu", "convolution", "add"]


def test_the_shortcut_of_a_block_is_part_of_the_addition_that_reads_it() -> None:
    nodes = [
        ("Conv", "c", ["x", "w"]),
        ("Relu", "r", ["c"]),
        ("Conv", "d", ["x", "w"]),
        ("Sigmoid", "s", ["d"]),
        ("Add", "y", ["s", "r"]),
    ]
    names = ("x", "c", "r", "d", "s", "y")
    shapes = {**dict.fromkeys(names, (2, 4, 8, 8)), "w": (4, 4, 1, 1)}
    found = lowered(network_of(nodes, shapes), COMPILED)
    assert [node.op for node in found] == ["convolution", "convolution", "fused"]
    assert found[-1].sources == ("r", "s", "y")
    # What a convolution reads as well is computed before it.
    nodes[2] = ("Conv", "d", ["r", "w"])
    assert ops(network_of(nodes, shapes), COMPILED) == [
        "convolution", "relu", "convolution", "fused",
    ]  # fmt: skip


def test_an_unknown_operator_is_listed() -> None:
    (node,) = lowered(network_of([("Det", "y", ["x"])], {"x": (2, 8, 8), "y": (2,)}))
    assert node.role == "unknown"
    assert "Det" in node.reason


def test_a_reciprocal_root_is_one_kernel() -> None:
    nodes = [("Sqrt", "r", ["x"]), ("Reciprocal", "y", ["r"])]
    shapes = dict.fromkeys(("x", "r", "y"), (2, 8))
    (node,) = lowered(network_of(nodes, shapes))
    assert (node.op, node.sources) == ("rsqrt", ("r", "y"))
    assert node.layer == Elementwise(batch=2, inner=8, function="reciprocal", second="none")


def test_a_root_that_is_read_elsewhere_stays() -> None:
    nodes = [("Sqrt", "r", ["x"]), ("Reciprocal", "y", ["r"]), ("Mul", "z", ["r", "y"])]
    shapes = dict.fromkeys(("x", "r", "y", "z"), (2, 8))
    assert ops(network_of(nodes, shapes)) == ["sqrt", "reciprocal", "mul"]


def test_blocks_that_overlap_are_summed() -> None:
    # 3 x 3 blocks at each second place of 28 x 28: 9 x 14 x 14 values for 784, 2.25 for each.
    shapes = {"x": (2, 5 * 9, 196), "y": (2, 5, 28, 28)}
    values = {"w0": [28, 28], "w1": [3, 3]}
    (node,) = lowered(network_of([("Col2Im", "y", ["x", "w0", "w1"])], shapes, values=values))
    assert node.op == "col2im"
    assert node.layer == Reduce(batch=2, values=2, inner=5 * 9 * 196 // 2, function="sum")
    assert node.layer.input_bytes == 2 * 5 * 9 * 196 * 4


def test_blocks_side_by_side_are_copied() -> None:
    shapes = {"x": (2, 5 * 4, 196), "y": (2, 5, 28, 28)}
    values = {"w0": [28, 28], "w1": [2, 2]}
    (node,) = lowered(network_of([("Col2Im", "y", ["x", "w0", "w1"])], shapes, values=values))
    assert isinstance(node.layer, Move)
    assert node.layer.output_bytes == 2 * 5 * 28 * 28 * 4


def test_unlike_types_are_promoted_before_they_are_combined() -> None:
    # A mask in single precision, added to scores in half precision: the result is single.
    nodes = [("MatMul", "m", ["x", "w"]), ("Add", "y", ["m", "a"])]
    shapes = {"x": (2, 5, 8), "w": (8, 8), "m": (2, 5, 8), "a": (2, 5, 8), "y": (2, 5, 8)}
    found = lowered(network_of(nodes, shapes), AMP)
    (added,) = (node.layer for node in found if node.op == "add")
    assert added == Elementwise(batch=2, inner=40, function="add", dtype="float32")


def test_a_choice_between_values_in_half_precision_is_in_half_precision() -> None:
    nodes = [("MatMul", "m", ["x", "w"]), ("Where", "y", ["c", "low", "m"])]
    shapes = {"x": (2, 5, 8), "w": (8, 8), "m": (2, 5, 8), "y": (2, 5, 8)}
    values = {"c": np.ones((5, 8), bool), "low": np.float32(-1e9)}
    found = lowered(network_of(nodes, shapes, values=values), AMP)
    (chosen,) = (node.layer for node in found if node.op == "where")
    assert chosen == Select(batch=2, inner=40, second="inner", dtype="float16")


def test_an_unknown_shape_is_listed() -> None:
    (node,) = lowered(network_of([("Relu", "y", ["x"])], {"x": (2, 8)}))
    assert node.role == "unknown"
    assert "not known" in node.reason


def test_layers_stay_as_they_are() -> None:
    layer = Dense(batch=1, features_in=2, features_out=3)
    assert lower_layers([layer], EAGER, PLATFORM) == [layer]


def test_a_contraction_is_a_product_in_batches() -> None:
    nodes = [("Einsum", "e", ["x", "w"]), ("Relu", "y", ["e"])]
    shapes = {"x": (2, 3, 4, 8), "w": (3, 5, 8), "e": (2, 3, 4, 5), "y": (2, 3, 4, 5)}
    network = network_of(nodes, shapes, {"e": {"equation": "bhwc,hkc->bhwk"}})
    copy, product, relu = lowered(network)
    # h is of both, b and w of the first, k of the second; c is summed: (2, 3, 4, 8) is turned to
    # (3, 2 x 4, 8), which needs a copy, and (3, 5, 8) to (3, 8, 5), which does not.
    assert (copy.op, product.op, relu.op) == ("clone", "bmm", "relu")
    assert isinstance(product.layer, MatMul)
    sizes = product.layer
    assert (sizes.batch * sizes.outer, sizes.rows, sizes.depth, sizes.columns) == (3, 8, 8, 5)


def test_a_weight_added_to_a_weight_times_a_tensor_is_one_kernel() -> None:
    nodes = [("Mul", "m", ["w", "x"]), ("Add", "y", ["wb", "m"])]
    shapes = {"x": (2, 5, 8), "w": (8,), "wb": (8,), "m": (2, 5, 8), "y": (2, 5, 8)}
    assert ops(network_of(nodes, shapes)) == ["addcmul"]
    nodes = [("Mul", "m", ["x", "w"]), ("Add", "y", ["m", "wb"])]
    assert ops(network_of(nodes, shapes)) == ["mul", "add"]


def test_what_computes_with_weights_runs_each_time() -> None:
    whole = network_of(
        [("Mul", "s", ["w", "wb"]), ("Add", "y", ["x", "s"])],
        dict.fromkeys(("x", "w", "wb", "s", "y"), (4, 8)),
    )
    network = replace(
        whole,
        nodes=whole.nodes[1:],
        weight_nodes=whole.nodes[:1],
        weight_tensors={name: whole.tensors[name] for name in ("w", "wb", "s")},
    )
    assert ops(network) == ["mul", "add"]


def test_a_normalisation_of_groups_is_one_kernel() -> None:
    nodes = [
        ("Reshape", "r", ["x", "w0"]),
        ("InstanceNormalization", "i", ["r", "w1", "w2"]),
        ("Reshape", "b", ["i", "w3"]),
        ("Mul", "m", ["b", "wg"]),
        ("Add", "y", ["m", "wb"]),
    ]
    image, grouped = (2, 8, 4, 4), (2, 2, 64)
    shapes = {"x": image, "r": grouped, "i": grouped, "b": image, "m": image, "y": image}
    shapes |= {"wg": (8, 1, 1), "wb": (8, 1, 1)}
    values = {"w0": [0, 2, -1], "w1": [1.0, 1.0], "w2": [0.0, 0.0], "w3": list(image)}
    (node,) = lowered(network_of(nodes, shapes, values=values))
    assert node.op == "native_group_norm"
    assert isinstance(node.layer, Norm)
    # Two images of two groups of 4 channels and 4 x 4 pixels.
    assert (node.layer.batch, node.layer.channels, node.layer.pixels) == (2, 2, 64)


def test_a_network_without_normalisations_may_have_been_folded() -> None:
    shapes = {"x": (2, 4, 8, 8), "w": (4, 4, 1, 1), "c": (2, 4, 8, 8), "y": (2, 4, 8, 8)}
    shapes |= {"wg": (4,)}
    convolution = ("Conv", "c", ["x", "w"])
    bare = network_of([convolution, ("Relu", "y", ["c"])], shapes)
    (note,) = lower(bare, EAGER, PLATFORM).notes
    assert "the module takes longer" in note
    norm = ("BatchNormalization", "y", ["c", "wg", "wg", "wg", "wg"])
    assert not lower(network_of([convolution, norm], shapes), EAGER, PLATFORM).notes


@pytest.mark.parametrize("between", [[], [("Identity", "i", ["m"])]])
def test_normalisations_in_pieces_are_named(between: list[tuple[str, str, list[str]]]) -> None:
    """An affine step is a product with one weight and a sum with another; a residual is not."""
    shapes = dict.fromkeys("xmisy", (2, 8, 4, 4)) | {"wg": (8, 1, 1), "wb": (8, 1, 1)}
    behind = between[-1][1] if between else "m"
    nodes = [("Mul", "m", ["x", "wg"]), *between, ("Add", "s", ["wb", behind])]
    network = network_of([*nodes, ("Relu", "y", ["s"])], shapes)
    (note,) = lower(network, EAGER, PLATFORM).notes
    assert note.startswith("1 normalisations or affine steps are in pieces")
    assert not lower(network, COMPILED, PLATFORM).notes
    nodes[-1] = ("Add", "s", ["x", behind])
    assert not lower(network_of([*nodes, ("Relu", "y", ["s"])], shapes), EAGER, PLATFORM).notes


def evonorm(image: tuple[int, ...]) -> tuple[list[tuple[str, str, list[str]]], dict[str, Any]]:
    """A convolution, and x sigmoid(v x) / sqrt(variance of groups + epsilon) w + b in pieces."""
    batch, channels, *_ = image
    grouped, one = (batch, 2, channels // 2, *image[2:]), (batch, 2, 1, 1, 1)
    shapes = dict.fromkeys(("x", "c", "vx", "g", "n", "e", "d", "m", "s", "y"), image)
    shapes |= dict.fromkeys(("r", "o", "q", "p"), grouped)
    shapes |= dict.fromkeys(("mu", "a", "t", "u"), one)
    shapes |= dict.fromkeys(("wv", "wg", "wb"), (1, channels, 1, 1))
    shapes["w"] = (channels, channels, 3, 3)
    nodes = [
        ("Conv", "c", ["x", "w"]), ("Mul", "vx", ["c", "wv"]), ("Sigmoid", "g", ["vx"]),
        ("Mul", "n", ["c", "g"]), ("Reshape", "r", ["c", "w0"]), ("ReduceMean", "mu", ["r"]),
        ("Sub", "o", ["r", "mu"]), ("Mul", "q", ["o", "o"]), ("ReduceMean", "a", ["q"]),
        ("Add", "t", ["a", "w1"]), ("Sqrt", "u", ["t"]), ("Expand", "p", ["u", "w2"]),
        ("Reshape", "e", ["p", "w3"]), ("Div", "d", ["n", "e"]), ("Mul", "m", ["d", "wg"]),
        ("Add", "s", ["m", "wb"]), ("Relu", "y", ["s"]),
    ]  # fmt: skip
    values = {"w0": list(grouped), "w1": [1e-5], "w2": list(grouped), "w3": list(image)}
    return nodes, {"shapes": shapes, "values": values}


def test_a_normalisation_without_an_operator_is_named_with_its_share() -> None:
    nodes, given = evonorm((8, 32, 16, 16))
    network = network_of(nodes, **given)
    (note,) = lower(network, EAGER, Platform("v100")).notes
    # Without a data sheet 9 of 15 kernels: not the convolution, what gates, and a copy of a view.
    (unknown,) = lower(network, EAGER, PLATFORM).notes
    assert unknown.startswith("1 normalisations or affine steps are in pieces, about 60% of the")
    assert note.startswith("1 normalisations or affine steps are in pieces, about ")
    assert not lower(network, COMPILED, PLATFORM).notes
    # The gate alone has no root, and no weight is added.
    assert "in pieces" not in "".join(lower(network_of(nodes[:4], **given), EAGER, PLATFORM).notes)


def test_a_small_share_of_normalisations_in_pieces_is_not_named() -> None:
    nodes, given = evonorm((8, 32, 16, 16))
    given["shapes"] |= {f"c{n}": (8, 32, 16, 16) for n in range(200)} | {"c200": (8, 32, 16, 16)}
    more = [("Conv", f"c{n + 1}", [f"c{n}", "w"]) for n in range(200)]
    network = network_of([*nodes, ("Relu", "c0", ["y"]), *more], **given)
    assert not lower(network, EAGER, Platform("v100")).notes


def test_normalisations_that_are_joined_are_named_with_their_share() -> None:
    rows, one = (64, 256), (64, 1)
    shapes = dict.fromkeys(("x", "o", "q", "n", "m", "y"), rows)
    shapes |= dict.fromkeys(("mu", "a", "t", "u"), one) | {"wg": (256,), "wb": (256,)}
    nodes = [
        ("ReduceMean", "mu", ["x"]), ("Sub", "o", ["x", "mu"]), ("Mul", "q", ["o", "o"]),
        ("ReduceMean", "a", ["q"]), ("Add", "t", ["a", "w1"]), ("Sqrt", "u", ["t"]),
        ("Div", "n", ["o", "u"]), ("Mul", "m", ["n", "wg"]), ("Add", "y", ["m", "wb"]),
    ]  # fmt: skip
    attributes = {name: {"axes": (-1,)} for name in ("mu", "a")}
    for opset, words in (
        (16, "0 are predicted operator by operator, 1 as"),
        (17, "1 are predicted"),
    ):
        network = network_of(nodes, shapes, attributes, {"w1": [1e-5]}, opset)
        (note,) = lower(network, EAGER, PLATFORM).notes
        assert note.startswith("1 normalisations or affine steps are in pieces, about 100% of the")
        assert words in note


def test_a_layer_without_the_precisions_type_stays_as_it_is() -> None:
    half = replace(EAGER, precision="bf16")
    top_k = TopK(batch=1, outer=4, values=100, kept=5)
    assert lower_layers([top_k], half, PLATFORM) == [top_k]


def test_dropout_is_a_kernel_of_training_steps_alone() -> None:
    nodes = [("Relu", "r", ["x"]), ("Dropout", "d", ["r"]), ("Relu", "y", ["d"])]
    network = network_of(nodes, dict.fromkeys(("x", "r", "d", "y"), (2, 3, 8, 8)))
    assert ops(network) == ["relu", "relu"]
    training = EAGER.with_optimizer("sgd")
    relu, dropout, _ = lowered(network, training)
    assert dropout.op == "native_dropout"
    # Read and written like a product of the tensor with its mask.
    assert isinstance(dropout.layer, Elementwise)
    assert dropout.layer.fields()["function"] == "mul"
    assert dropout.layer.output_bytes == relu.layer.output_bytes
    assert ops(network, replace(training, compiled="dynamo")) == ["fused"]


def test_the_host_starts_autocasts_casts_in_a_quarter_of_the_time() -> None:
    nodes = [("MatMul", "y", ["x", "w"]), ("Relu", "z", ["y"]), ("Cast", "own", ["z"])]
    shapes = {"x": (8, 16), "w": (16, 4), "y": (8, 4), "z": (8, 4), "own": (8, 4)}
    network = network_of(nodes, shapes, {"own": {"to": 11}})
    amp, plain = (lower(network, setting, PLATFORM) for setting in (AMP, EAGER))
    assert [node.op for node in amp.nodes] == ["_to_copy", "_to_copy", "mm", "relu", "_to_copy"]
    assert (amp.by_autocast, plain.by_autocast) == (2, 0)  # the last is the network's own
    assert (amp.starts, plain.starts) == (3 + round(2 * 0.25), 2)
