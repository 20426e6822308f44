"""TensorFlow's rules on small networks whose layers are plain to see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from resperf.layers import Conv, Dense, Pool, Reorder, Transpose
from resperf.layers.reduce import Reduce
from resperf.layers.resize import Resize
from resperf.lowering import lower, lower_layers
from resperf.lowering._base import LoweredNode
from resperf.network import Network, Node, Tensor
from resperf.platform import Platform
from resperf.settings import Setting

Shape = tuple[int, ...]

SETTING = Setting(threads=2, framework="tensorflow", framework_version="2.21.0", provider="CPU")
PLATFORM = Platform("cpu", "any", instruction_set="avx2", cores=2, memory_bytes=1, system="Linux")


def network_of(
    nodes: list[tuple[str, str, list[str]]],
    shapes: dict[str, Shape],
    output: str,
    **attributes: Any,
) -> Network:
    """Nodes as (op, output and name, inputs); tensors whose names begin with w are constants."""
    tensors = {
        name: Tensor(name, shape, "float32", is_weight=name.startswith("w"))
        for name, shape in shapes.items()
    }
    return Network(
        name="net",
        nodes=tuple(
            Node(name, op, "", tuple(inputs), (name,), attributes.get(name, {}))
            for op, name, inputs in nodes
        ),
        tensors=tensors,
        inputs=("x",),
        outputs=(output,),
        opsets={"": 17},
        batch=1,
    )


def lowered(network: Network) -> tuple[LoweredNode, ...]:
    return lower(network, SETTING, PLATFORM).nodes


IMAGE = (1, 4, 8, 8)
NORM = {"wg": (4,), "wb": (4,), "wm": (4,), "wv": (4,)}


def test_norm_residual_and_activation_are_fused_into_a_convolution() -> None:
    network = network_of(
        [
            ("Conv", "c", ["x", "w"]),
            ("BatchNormalization", "n", ["c", "wg", "wb", "wm", "wv"]),
            ("Add", "a", ["n", "x"]),
            ("Relu", "r", ["a"]),
        ],
        {"x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "n": IMAGE, "a": IMAGE, "r": IMAGE, **NORM},
        "r",
    )
    (node,) = lowered(network)
    assert node.sources == ("c", "n", "a", "r")
    assert node.op == "_FusedConv2D"
    assert node.layer == Conv(
        batch=1, channels_in=4, channels_out=4, height=8, width=8, kernel_height=1, kernel_width=1,
        bias=True, residual=True, activation="relu", layout="nhwc",
    )  # fmt: skip


def test_a_sum_of_two_convolutions_is_fused_into_the_later_one() -> None:
    network = network_of(
        [
            ("Conv", "c1", ["x", "w"]),
            ("Conv", "c2", ["x", "w"]),
            ("Add", "a", ["c1", "c2"]),
        ],
        {"x": IMAGE, "w": (4, 4, 1, 1), "c1": IMAGE, "c2": IMAGE, "a": IMAGE},
        "a",
    )
    first, second = lowered(network)
    assert (first.sources, second.sources) == (("c1",), ("c2", "a"))
    assert not first.layer.residual  # type: ignore[union-attr]
    assert second.layer.residual  # type: ignore[union-attr]


def test_a_tensor_with_other_readers_prevents_fusion() -> None:
    network = network_of(
        [
            ("Conv", "c", ["x", "w"]),
            ("Relu", "r", ["c"]),
            ("Concat", "k", ["c", "r"]),
        ],
        {"x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "r": IMAGE, "k": (1, 8, 8, 8)},
        "k",
    )
    assert [(n.op, n.role) for n in lowered(network)] == [
        ("Conv2D", "execution"),
        ("Relu", "execution"),
        ("Concat", "execution"),
    ]


def test_a_network_output_prevents_fusion() -> None:
    network = network_of(
        [("Conv", "c", ["x", "w"]), ("Relu", "r", ["c"])],
        {"x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "r": IMAGE},
        "c",
    )
    assert [node.name for node in lowered(network)] == ["c", "r"]


def test_an_added_constant_is_a_bias_only_if_it_has_one_value_per_channel() -> None:
    for shape, absorbed in (((4, 1, 1), True), ((1, 4, 1, 1), True), ((8,), False), ((1,), False)):
        network = network_of(
            [("Conv", "c", ["x", "w"]), ("Add", "a", ["c", "wa"])],
            {"x": IMAGE, "w": (4, 4, 1, 1), "wa": shape, "c": IMAGE, "a": IMAGE},
            "a",
        )
        node = lowered(network)[0]
        assert (node.sources == ("c", "a")) is absorbed, shape
        assert node.layer.bias is absorbed  # type: ignore[union-attr]


def test_a_classifier_head() -> None:
    network = network_of(
        [
            ("GlobalAveragePool", "p", ["x"]),
            ("Flatten", "f", ["p"]),
            ("Dropout", "d", ["f"]),
            ("MatMul", "m", ["d", "wm"]),
            ("Add", "a", ["m", "wa"]),
            ("Identity", "i", ["a"]),
            ("Sigmoid", "s", ["i"]),
        ],
        {
            "x": IMAGE, "p": (1, 4, 1, 1), "f": (1, 4), "d": (1, 4), "wm": (4, 3), "wa": (3,),
            "m": (1, 3), "a": (1, 3), "i": (1, 3), "s": (1, 3),
        },
        "s",
    )  # fmt: skip
    pool, view, dense = lowered(network)
    assert pool.layer == Pool(
        batch=1, channels_in=4, height=8, width=8, kernel_height=8, kernel_width=8,
        mode="average", whole_image=True, layout="nhwc",
    )  # fmt: skip
    assert (view.op, view.role, view.layer) == ("Reshape", "view", None)
    assert dense.layer == Dense(batch=1, features_in=4, features_out=3, activation="sigmoid")
    assert dense.sources == ("m", "a", "i", "s")


def test_a_mean_over_rows_and_columns_is_a_global_pooling() -> None:
    shapes = {"x": IMAGE, "m": (1, 4)}
    nodes = [("ReduceMean", "m", ["x"])]
    (node,) = lowered(network_of(nodes, shapes, "m", m={"axes": (-1, 2)}))
    assert node.layer.whole_image  # type: ignore[union-attr]
    (node,) = lowered(network_of(nodes, shapes, "m", m={"axes": (1,)}))
    assert node.layer == Reduce(batch=1, outer=1, values=4, inner=64, function="mean")


def test_every_node_is_a_source_once() -> None:
    network = network_of(
        [
            ("BatchNormalization", "n", ["x", "wg", "wb", "wm", "wv"]),
            ("Conv", "c", ["n", "w"]),
            ("LRN", "l", ["c"]),
        ],
        {"x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "n": IMAGE, "l": IMAGE, **NORM},
        "l",
        l={"size": 5},
    )
    nodes = lowered(network)
    assert [source for node in nodes for source in node.sources] == ["n", "c", "l"]
    assert [node.layer.kind for node in nodes if node.layer] == ["norm", "conv", "norm"]


def test_layers_get_the_layout_and_nothing_else_changes() -> None:
    conv = Conv(
        batch=1, channels_in=4, channels_out=4, height=8, width=8, kernel_height=1, kernel_width=1
    )
    # 3 windows of 2 in steps of 2 fit into 6 rows exactly, but 7 columns leave half a window.
    even = Pool(
        batch=1, channels_in=4, height=6, width=6, kernel_height=2, kernel_width=2,
        stride_height=2, stride_width=2, ceil_mode=True,
    )  # fmt: skip
    odd = even.replace(width=7)
    dense = Dense(batch=1, features_in=4, features_out=3)
    reorder = Reorder(batch=1, channels_in=4, height=8, width=8)
    assert lower_layers([conv, even, odd, dense, reorder], SETTING, PLATFORM) == [
        conv.replace(layout="nhwc"),
        even.replace(layout="nhwc", ceil_mode=False),
        odd.replace(layout="nhwc"),
        dense,
        reorder,
    ]


def test_images_are_transposed_where_other_operators_read_them() -> None:
    """A product over the columns of an image reads it in the file's order of axes."""
    nodes = [("Conv", "c", ["x", "w"]), ("MatMul", "m", ["c", "c2"]), ("Relu", "c2", ["x2"])]
    shapes: dict[str, Shape] = {
        "x": IMAGE, "x2": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "c2": IMAGE, "m": IMAGE,
    }  # fmt: skip
    network = network_of([nodes[0], nodes[2], nodes[1]], shapes, "m")
    found = lowered(network)
    assert [node.op for node in found] == ["Conv2D", "Relu", "Transpose", "MatMul"]
    assert found[2].sources == ()
    assert found[2].layer == Transpose(batch=1, dim1=64, dim2=4, order="21")


def test_a_shuffle_of_channels_transposes_an_image_twice() -> None:
    nodes = [
        ("Conv", "c", ["x", "w"]),
        ("Reshape", "a", ["c"]),
        ("Transpose", "t", ["a"]),
        ("Reshape", "b", ["t"]),
        ("Conv", "d", ["b", "w"]),
    ]
    apart, turned = (1, 2, 2, 8, 8), (1, 2, 2, 8, 8)
    shapes: dict[str, Shape] = {
        "x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "a": apart, "t": turned, "b": IMAGE, "d": IMAGE,
    }  # fmt: skip
    network = network_of(nodes, shapes, "d", t={"perm": (0, 2, 1, 3, 4)})
    assert [(node.op, node.role) for node in lowered(network)] == [
        ("Conv2D", "execution"),
        ("Transpose", "execution"),
        ("Reshape", "view"),
        ("Transpose", "execution"),
        ("Reshape", "view"),
        ("Transpose", "execution"),
        ("Conv2D", "execution"),
    ]
    plain = lower(network, replace(SETTING, layout="nchw"), PLATFORM).nodes
    assert [node.op for node in plain] == ["Conv2D", "Reshape", "Transpose", "Reshape", "Conv2D"]
    assert plain[0].layer.layout == "nchw"  # type: ignore[union-attr]


def test_a_transposition_to_channels_last_moves_no_image() -> None:
    nodes = [("Conv", "c", ["x", "w"]), ("Transpose", "t", ["c"]), ("Softmax", "s", ["t"])]
    shapes: dict[str, Shape] = {
        "x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE, "t": (1, 8, 8, 4), "s": (1, 8, 8, 4),
    }  # fmt: skip
    network = network_of(nodes, shapes, "s", t={"perm": (0, 2, 3, 1)})
    assert [(node.op, node.role) for node in lowered(network)] == [
        ("Conv2D", "execution"),
        ("Identity", "view"),
        ("Softmax", "execution"),
    ]


def test_a_precision_is_the_type_of_the_layers() -> None:
    network = network_of(
        [("Conv", "c", ["x", "w"])], {"x": IMAGE, "w": (4, 4, 1, 1), "c": IMAGE}, "c"
    )
    half = replace(SETTING, precision="bf16")
    (node,) = lower(network, half, PLATFORM).nodes
    assert node.layer.dtype == "bfloat16"  # type: ignore[union-attr]
    (layer,) = lower_layers([Dense(batch=1, features_in=4, features_out=3)], half, PLATFORM)
    assert layer.dtype == "bfloat16"  # type: ignore[attr-defined]


def test_what_xla_fuses_is_said_to_be_unknown() -> None:
    network = network_of([("Relu", "r", ["x"])], {"x": IMAGE, "r": IMAGE}, "r")
    assert not lower(network, SETTING, PLATFORM).notes
    (note,) = lower(network, replace(SETTING, compiled="xla"), PLATFORM).notes
    assert "no prediction of the whole network" in note


def test_kinds_without_an_operator_say_why() -> None:
    network = network_of(
        [("GridSample", "g", ["x", "y"])],
        {"x": IMAGE, "y": (1, 8, 8, 2), "g": IMAGE},
        "g",
    )
    (node,) = lowered(network)
    assert (node.role, node.layer) == ("unknown", None)
    assert "samples at given places" in node.reason


def test_malformed_attributes_are_unknown_operators() -> None:
    nodes = [("Transpose", "t", ["x"])]
    for perm in (3, (0, 9, 1, 2)):
        network = network_of(nodes, {"x": IMAGE, "t": IMAGE}, "t", t={"perm": perm})
        (node,) = lowered(network)
        assert node.role == "unknown"
        assert "malformed" in node.reason


def test_a_resize_whose_kind_has_no_nhwc_at_its_factors_stays_as_it_is() -> None:
    resize = Resize(batch=1, channels=4, height=10, width=10, height_out=15, width_out=15)
    assert lower_layers([resize], SETTING, PLATFORM) == [resize]
