"""ONNX nodes read as layers; expected fields worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from resperf.errors import Message, UnsupportedError
from resperf.layers import Activation, Conv, Dense, Pool, PoolNd
from resperf.lowering._read import layer_from_node, layer_of
from resperf.network import Network, Node, Tensor

Shape = tuple[int, ...]


def network_of(
    op: str, *inputs: Shape, weights: int = 0, **attributes: Any
) -> tuple[Network, Node]:
    """One node; the last `weights` of its inputs are constants."""
    names = tuple(f"t{index}" for index in range(len(inputs)))
    tensors = {
        name: Tensor(name, shape, "float32", is_weight=index >= len(inputs) - weights)
        for index, (name, shape) in enumerate(zip(names, inputs, strict=True))
    }
    node = Node("node", op, "", names, ("y",), attributes)
    return Network("net", (node,), tensors, names[:1], ("y",), {"": 17}, 1), node


def test_conv_reads_every_attribute() -> None:
    network, node = network_of(
        "Conv", (2, 6, 20, 30), (4, 3, 3, 5), (4,), weights=2,
        group=2, strides=(2, 1), dilations=(1, 2), pads=(1, 0, 2, 3),
    )  # fmt: skip
    layer = layer_from_node(network, node, 8)
    assert layer.fields() == {
        "batch": 2, "channels_in": 6, "height": 20, "width": 30,
        "kernel_height": 3, "kernel_width": 5, "stride_height": 2, "stride_width": 1,
        "dilation_height": 1, "dilation_width": 2,
        "pad_top": 1, "pad_left": 0, "pad_bottom": 2, "pad_right": 3,
        "layout": "nchwc8", "dtype": "float32", "channels_out": 4, "groups": 2,
        "bias": True, "residual": False, "activation": "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("auto_pad", "pads"),
    [
        # 28 rows in steps of 2 need 27 + 3 - 1 = 29 rows: 1 more; 27 columns need 29: 2 more.
        ("SAME_UPPER", (0, 1, 1, 1)),
        ("SAME_LOWER", (1, 1, 0, 1)),
        ("VALID", (0, 0, 0, 0)),
        ("NOTSET", (3, 0, 0, 2)),
    ],
)
def test_auto_pad(auto_pad: str, pads: Shape) -> None:
    network, node = network_of(
        "Conv", (1, 3, 28, 27), (8, 3, 3, 3), weights=1,
        auto_pad=auto_pad, strides=(2, 2), pads=(3, 0, 0, 2),
    )  # fmt: skip
    layer = layer_of(Conv, network, node)
    assert (layer.pad_top, layer.pad_left, layer.pad_bottom, layer.pad_right) == pads
    assert not layer.bias


def test_a_fused_node_names_its_activation_and_residual() -> None:
    network, node = network_of(
        "FusedConv", (1, 3, 8, 8), (8, 3, 1, 1), (8,), (1, 8, 8, 8), weights=0, activation="Tanh"
    )
    layer = layer_of(Conv, network, node)
    assert layer.residual
    assert layer.activation == "tanh"


def test_pool_reads_its_window_and_modes() -> None:
    network, node = network_of(
        "AveragePool", (1, 8, 9, 7), kernel_shape=(3, 2), strides=(2, 2), pads=(0, 1, 0, 0),
        ceil_mode=1, count_include_pad=1,
    )  # fmt: skip
    layer = layer_of(Pool, network, node)
    assert (layer.mode, layer.ceil_mode, layer.count_include_pad) == ("average", True, True)
    assert (layer.kernel_height, layer.kernel_width, layer.pad_left) == (3, 2, 1)
    assert not layer.whole_image


def test_global_pool_covers_the_image() -> None:
    layer = layer_of(Pool, *network_of("GlobalMaxPool", (2, 8, 9, 7)))
    assert (layer.kernel_height, layer.kernel_width) == (9, 7)
    assert layer.whole_image
    assert layer.output_shape == (2, 8, 1, 1)


def test_count_include_pad_does_not_apply_to_max_pooling() -> None:
    network, node = network_of("MaxPool", (1, 8, 9, 7), kernel_shape=(3, 3), count_include_pad=1)
    assert not layer_of(Pool, network, node).count_include_pad


@pytest.mark.parametrize(
    ("op", "x", "weight", "attributes", "expected"),
    [
        ("Gemm", (4, 10), (10, 3), {}, (4, 10, 3)),
        ("Gemm", (4, 10), (3, 10), {"transB": 1}, (4, 10, 3)),
        ("Gemm", (10, 4), (10, 3), {"transA": 1}, (4, 10, 3)),
        ("MatMul", (2, 7, 10), (10, 3), {}, (14, 10, 3)),
    ],
)
def test_dense(
    op: str, x: Shape, weight: Shape, attributes: dict[str, int], expected: Shape
) -> None:
    layer = layer_of(Dense, *network_of(op, x, weight, weights=1, **attributes))
    assert (layer.batch, layer.features_in, layer.features_out) == expected
    assert not layer.bias


def test_a_fused_product_names_its_activation_and_bias() -> None:
    network, node = network_of("FusedGemm", (2, 10), (10, 3), (3,), weights=2, activation="Sigmoid")
    layer = layer_of(Dense, network, node)
    assert (layer.features_in, layer.features_out, layer.bias) == (10, 3, True)
    assert layer.activation == "sigmoid"
    network, node = network_of("FusedGemm", (2, 10), (10, 3), weights=1, activation="Mish")
    with pytest.raises(UnsupportedError, match="activation 'Mish' has no layer"):
        layer_from_node(network, node)


@pytest.mark.parametrize(
    ("made", "case", "words"),
    [
        (Conv, network_of("Conv", (1, 3), (8, 3, 3, 3), weights=1), "2-D image"),
        (Conv, network_of("Conv", (1, 3, 8), (8, 3, 3), weights=1), "of kind conv_nd"),
        (Conv, network_of("Conv", (1, 3, 8, 8), (8, 3, 3), weights=1), "not 4-D"),
        (
            Conv,
            network_of("Conv", (1, 3, 8, 8), (8, 3, 3, 3), weights=1, pads=(-1, 0, 0, 0)),
            "are negative",
        ),
        (
            Conv,
            network_of("Conv", (1, 3, 8, 8), (8, 3, 3, 3), weights=1, strides=(1,)),
            "not those of a 2-D window",
        ),
        (
            Conv,
            network_of("Conv", (1, 3, 2, 2), (8, 3, 3, 3), weights=1),
            "the output would be empty",
        ),
        (Dense, network_of("MatMul", (4, 10), (10, 3)), "the shape of its output is unknown"),
        (Dense, network_of("MatMul", (4, 10), (11, 3), weights=1), r"\(4, 10\) and \(11, 3\)"),
    ],
)
def test_operators_without_a_layer_are_refused(made: Any, case: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        layer_of(made, *case)


def test_an_unknown_shape_is_named() -> None:
    network, node = network_of("Conv", (1, 3, 8, 8), (8, 3, 3, 3), weights=1)
    broken = Network("net", (node,), {}, network.inputs, network.outputs, {}, 1)
    with pytest.raises(UnsupportedError, match="'t0' is not known") as refused:
        layer_from_node(broken, node)
    assert Message.of(refused.value).general == "the shape of its input is not known"


def test_an_operator_that_no_kind_reads_is_named() -> None:
    with pytest.raises(UnsupportedError, match="Sparkle 'node': no layer kind") as refused:
        layer_from_node(*network_of("Sparkle", (1, 3)))
    message = Message.of(refused.value)
    assert message.general == "no layer kind for operator Sparkle"
    assert message.unread == "Sparkle"


def test_positions_of_maxima_are_another_kind() -> None:
    network, node = network_of("MaxPool", (1, 8, 9, 7), kernel_shape=(3, 3))
    both = Node(node.name, node.op, "", node.inputs, ("y", "positions"), node.attributes)
    tensors = {**network.tensors, "y": Tensor("y", (1, 8, 7, 5), "float32")}
    known = Network("net", (both,), tensors, network.inputs, network.outputs, {"": 17}, 1)
    layer = layer_of(PoolNd, known, both)
    assert (layer.mode, layer.rank, layer.positions) == ("max_places", 2, (7, 5))
    with pytest.raises(UnsupportedError, match="of kind pool_nd"):
        layer_of(Pool, known, both)


@pytest.mark.parametrize(
    ("op", "function", "shape", "batch", "values"),
    [
        ("Relu", "relu", (2, 3, 4, 5), 2, 60),
        ("HardSwish", "hard_swish", (7,), 7, 1),
        ("Sigmoid", "sigmoid", (), 1, 1),
    ],
)
def test_an_unfused_activation(
    op: str, function: str, shape: Shape, batch: int, values: int
) -> None:
    layer = layer_from_node(*network_of(op, shape))
    assert layer == Activation(batch=batch, values=values, activation=function)


def test_an_activation_of_an_empty_tensor_is_no_layer() -> None:
    with pytest.raises(UnsupportedError, match="Relu 'node'"):
        layer_from_node(*network_of("Relu", (1, 0, 4)))
