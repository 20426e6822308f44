"""TensorRT's fusions on small networks whose groups are plain to see."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from resperf.layers import Activation, Conv, Dense, Elementwise, Norm, Pool
from resperf.layers.cast import Cast
from resperf.layers.quantize import Quantize
from resperf.lowering import LoweredNetwork, lower_layers, tensorrt
from resperf.lowering import lower as lower_network
from resperf.lowering._base import in_precision
from resperf.lowering._trt_rules import lower
from resperf.network import read_network
from resperf.platform import Platform
from resperf.settings import Setting

GPU = Platform("cuda")
IMAGE = (2, 8, 6, 6)
CONV, POINT = "w[8,8,3,3] pads=1,1,1,1", "w[8,8,1,1]"
Lower = Callable[..., LoweredNetwork]


def node_of(line: str, weights: dict[str, Any]) -> Any:
    """Read ``c Conv x w[8,8,3,3] pads=1,1,1,1``: output and name, operator, inputs, attributes.

    ``w[8,8,3,3]`` is a new constant of this shape, ``0.5`` a number, ``i[2,3]`` these integers.
    """
    name, op, *words = line.split()
    inputs, attributes = [], {}
    for place, word in enumerate(words):
        key, _, value = word.partition("=")
        constant = re.fullmatch(r"([wi])\[([\d,-]*)\]|(-?\d+\.\d+)", word)
        if value:
            numbers = [int(each) for each in value.split(",")]
            attributes[key] = numbers if "," in value or key == "axes" else numbers[0]
            continue
        if constant:
            key = f"{name}.{place}"
            listed = [int(each) for each in (constant[2] or "").split(",") if each]
            weights[key] = (
                np.float32(constant[3]) if constant[3]
                else np.ones(listed, np.float32) if constant[1] == "w"
                else np.asarray(listed, np.int64)
            )  # fmt: skip
        inputs.append(key)
    outputs = name.split(",")
    return helper.make_node(op, inputs, outputs, name=outputs[0], **attributes)


@pytest.fixture
def lowered(network_file) -> Lower:
    """Lower a network, written as lines, whose last node makes the output ``y``."""

    def run(
        text: str, precision: str = "fp32", outputs: str = "y", file: str = "", **inputs: Any
    ) -> LoweredNetwork:
        weights: dict[str, Any] = {"scale": np.float32(0.1), "other": np.float32(0.2),
                                   "zero": np.int8(0)}  # fmt: skip
        nodes = [node_of(line.strip(), weights) for line in text.splitlines() if line.strip()]
        starts = {key: list(shape) for key, shape in (inputs or {"x": IMAGE}).items()}
        path = network_file("net.onnx", nodes, starts, dict.fromkeys(outputs.split(",")), weights)
        network = in_precision(read_network(path), file)
        return lower(network, Setting("tensorrt", precision=precision))

    return run


def groups(network: LoweredNetwork) -> list[str]:
    """Return the layers that run, with their nodes."""
    return [
        f"{node.op}: {' '.join(node.sources)}" for node in network.nodes if node.role == "execution"
    ]


NORM = "w[8] w[8] w[8] w[8]"


def test_norm_residual_and_activation_are_fused_into_a_convolution(lowered: Lower) -> None:
    (node,) = lowered(f"""
        c Conv x {CONV}
        n BatchNormalization c {NORM}
        a Add n x
        y Relu a
    """).nodes
    assert (node.op, node.sources) == ("Conv + Add + Relu", ("c", "n", "a", "y"))
    assert node.layer == Conv(
        batch=2, channels_in=8, channels_out=8, height=6, width=6, kernel_height=3, kernel_width=3,
        pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, bias=True, residual=True,
        activation="relu",
    )  # fmt: skip


def test_of_two_convolutions_the_later_one_takes_the_sum(lowered: Lower) -> None:
    """As torchvision's shortcuts (``Conv_16 + Add_17 + Relu_18``), in either order of operands."""
    for operands in ("c d", "d c"):
        assert groups(lowered(f"""
            c Conv x {CONV}
            d Conv x {POINT}
            a Add {operands}
            y Relu a
        """)) == ["Conv: c", "Conv + Add + Relu: d a y"]  # fmt: skip


def test_a_sum_waits_for_an_operand_that_comes_later(lowered: Lower) -> None:
    """As in engines of feature pyramids: ``Conv_155 + Add_160`` runs behind ``Conv_158 + Relu``."""
    assert groups(lowered(f"""
        c Conv x {CONV}
        d Conv x {POINT}
        r Relu d
        y Add c r
    """)) == ["Conv + Relu: d r", "Conv + Add: c y"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "outputs", "expected"),
    [
        # The sum is of a tensor with an activation: kernels apply it after the sum.
        (f"c Conv x {CONV}\nr Relu c\ny Add r x", "y", ["Conv + Relu: c r", "PWN(Add): y"]),
        # Two nodes read the convolution.
        (f"c Conv x {CONV}\nr Relu c\ny Add c r", "y", ["Conv: c", "PWN(Relu, Add): r y"]),
        # It is an output of the network.
        (f"c Conv x {CONV}\ny Relu c", "y,c", ["Conv: c", "PWN(Relu): y"]),
        # The same tensor twice.
        (f"c Conv x {CONV}\ny Add c c", "y", ["Conv: c", "PWN(Add): y"]),
        # A sum with broadcasting.
        (f"c Conv x {CONV}\np GlobalAveragePool x\ny Add c p", "y",
         ["Conv: c", "GlobalAveragePool: p", "PWN(Add): y"]),
        # An activation behind an activation.
        (f"c Conv x {CONV}\nr Relu c\ny Sigmoid r", "y", ["Conv + Relu: c r", "PWN(Sigmoid): y"]),
    ],
    ids=["activation first", "two readers", "output", "twice", "broadcast", "two activations"],
)  # fmt: skip
def test_what_is_not_fused_into_a_convolution(
    lowered: Lower, text: str, outputs: str, expected: list[str]
) -> None:
    assert groups(lowered(text, outputs=outputs)) == expected


def test_a_convolution_in_one_dimension_takes_no_sum(lowered: Lower) -> None:
    text = "c Conv x w[8,8,3] pads=1,1\na Add c x\ny Relu a"
    assert groups(lowered(text, x=(2, 8, 6))) == ["Conv: c", "PWN(Add, Relu): a y"]
    (node,) = lowered("c Conv x w[8,8,3]\ny Relu c", x=(2, 8, 6)).nodes
    assert (node.op, node.layer.kind) == ("Conv + Relu", "conv_nd")


def test_scales_and_biases_per_channel_are_folded(lowered: Lower) -> None:
    (node,) = lowered(f"""
        c Conv x {CONV}
        m Mul c w[8,1,1]
        a Add w[1,8,1,1] m
        n BatchNormalization a {NORM}
        y Clip n 0.0 6.0
    """).nodes
    assert (node.op, node.layer.bias, node.layer.activation) == ("Conv + Clip", True, "clip")
    # One value per column is none per channel.
    assert groups(lowered(f"c Conv x {CONV}\ny Mul c w[6]")) == ["Conv: c", "PWN(Mul): y"]


def test_nodes_without_effect_separate_nothing(lowered: Lower) -> None:
    (node,) = lowered(f"i Identity x\nc Conv i {CONV}\nd Dropout c\ny Relu d").nodes
    assert node.op == "Conv + Relu"
    assert {"c", "d", "y"} <= set(node.sources)


def test_a_norm_without_a_convolution_takes_the_activation_behind_it(lowered: Lower) -> None:
    network = lowered(f"c Concat x x axis=1\nn BatchNormalization c {' '.join(['w[16]'] * 4)}\n"
                      "m Mul n w[16,1,1]\ny Relu m")  # fmt: skip
    assert groups(network)[-1] == "BatchNormalization + Relu: n m y"
    assert isinstance(network.nodes[-1].layer, Norm)


def test_a_padding_is_fused_into_a_convolution_and_not_into_a_pooling(lowered: Lower) -> None:
    (node,) = lowered("p Pad x i[0,0,1,2,0,0,1,2]\ny Conv p w[8,8,3,3] pads=1,1,1,1").nodes
    assert node.op == "Pad + Conv"
    assert (node.layer.pad_top, node.layer.pad_left, node.layer.height) == (2, 3, 6)
    pooled = "p Pad x i[0,0,1,1,0,0,1,1]\ny MaxPool p kernel_shape=3,3 strides=2,2"
    assert groups(lowered(pooled)) == ["Pad: p", "MaxPool: y"]
    for pads in ("0,0,-1,0,0,0,0,0", "0,1,0,0,0,0,0,0"):
        channels = 9 if pads[2] == "1" else 8
        other = f"p Pad x i[{pads}]\ny Conv p w[8,{channels},3,3]"
        assert groups(lowered(other)) == ["Pad: p", "Conv: y"]


def test_a_mean_over_the_image_is_a_pooling(lowered: Lower) -> None:
    for text in ("y ReduceMean x axes=2,3", "y ReduceMean x axes=-1,-2 keepdims=0"):
        (node,) = lowered(text).nodes
        assert node.op == "ReduceMean"
        assert isinstance(node.layer, Pool)
        assert node.layer.whole_image
    (node,) = lowered("y ReduceMean x axes=1").nodes
    assert node.layer.kind == "reduce"


def test_a_product_takes_bias_and_activation(lowered: Lower) -> None:
    text = "m MatMul x w[6,5]\na Add m w[5]\ny Relu a"
    (node,) = lowered(text, x=(3, 6)).nodes
    assert node.op == "Gemm + Relu"
    assert node.layer == Dense(batch=3, features_in=6, features_out=5, activation="relu")
    # Of two computed matrices nothing is known.
    assert groups(lowered("m MatMul x z\ny Relu m", x=(4, 4), z=(4, 4))) == [
        "MatMul: m", "PWN(Relu): y",
    ]  # fmt: skip


# Pointwise layers


def test_pointwise_operators_that_follow_each_other_are_one_layer(lowered: Lower) -> None:
    """A gate, with its operand broadcast, is one layer; a tensor with two readers ends one."""
    assert groups(lowered("p GlobalAveragePool x\ns Sigmoid p\nm Mul x s\ny Tanh m")) == [
        "GlobalAveragePool: p", "PWN(Sigmoid, Mul, Tanh): s m y",
    ]  # fmt: skip
    assert groups(lowered("a Exp x\nb Sqrt a\nc Neg a\ny Add b c")) == [
        "PWN(Exp): a", "PWN(Neg, Sqrt, Add): b c y",
    ]  # fmt: skip
    assert groups(lowered("a Exp x\nb Softmax a axis=1\ny Sqrt b")) == [
        "PWN(Exp): a", "Softmax: b", "PWN(Sqrt): y",
    ]  # fmt: skip


def test_the_layer_of_a_chain_is_that_which_moves_most_bytes(lowered: Lower) -> None:
    (node,) = lowered("s Sigmoid z\ny Mul x s", x=IMAGE, z=IMAGE).nodes
    assert isinstance(node.layer, Elementwise)
    assert (node.layer.function, node.layer.second) == ("mul", "same")


SWISH = "s{0} Sigmoid c{0}\nr{0} Mul c{0} s{0}\n"


@pytest.mark.parametrize(("precision", "one"), [("fp32", False), ("tf32", False), ("fp16", True),
                                                ("bf16", True), ("int8", True)])  # fmt: skip
def test_other_activations_are_fused_in_half_precision(
    lowered: Lower, precision: str, one: bool
) -> None:
    """As builders of both precisions report the first block of YOLOX."""
    text = f"c Conv x {CONV}\ns Sigmoid c\ny Mul c s"
    found = lowered(text, precision)
    if one:
        (node,) = (each for each in found.nodes if each.role == "execution")
        assert (node.op, node.layer.activation) == ("Conv + PWN(Swish)", "silu")
        return
    assert groups(found) == ["Conv: c", "PWN(Swish): s y"]
    # A file may be in half precision itself.
    assert groups(lowered(text, "", file="fp16")) == ["Conv + PWN(Swish): c s y"]
    assert isinstance(found.nodes[-1].layer, Activation)


def test_an_activation_of_two_tensors_stays_a_layer(lowered: Lower) -> None:
    """As ``Conv_12``, ``PWN(PWN(PWN(Sigmoid_13), Mul_14), Add_15)`` of YOLOv5 in fp16."""
    text = f"c Conv x {CONV}\ns Sigmoid c\nm Mul c s\ny Add x m"
    assert groups(lowered(text, "fp16")) == ["Conv: c", "PWN(Swish, Add): s m y"]


def test_a_quantised_convolution_takes_an_activation_before_a_quantisation(lowered: Lower) -> None:
    start = QUANTIZED.replace("r Relu c", "r LeakyRelu c")
    behind = "q QuantizeLinear r scale zero\nd DequantizeLinear q scale zero\ny Conv d w[8,8,1,1]"
    assert groups(lowered(f"{start}\n{behind}", "int8"))[0].startswith("Conv + PWN(LeakyRelu):")
    assert groups(lowered(f"{start}\ny Conv r w[8,8,1,1]", "int8"))[1] == "PWN(LeakyRelu): r"


# Side by side


def test_convolutions_of_one_tensor_are_merged(lowered: Lower) -> None:
    """As ``inception_3a/1x1 + relu || 3x3_reduce + relu || 5x5_reduce + relu`` of GoogLeNet."""
    network = lowered("""
        a Conv x w[4,8,1,1] w[4]
        ra Relu a
        b Conv x w[6,8,1,1] w[6]
        rb Relu b
        c Conv rb w[5,6,3,3] pads=1,1,1,1
        rc Relu c
        y Concat ra rc axis=1
    """)
    assert groups(network) == [
        "Conv + Relu || Conv + Relu: a ra b rb", "Conv + Relu: c rc", "copy: y",
    ]  # fmt: skip
    merged, _, copy = network.nodes
    assert (merged.layer.channels_out, merged.layer.bias) == (10, True)
    # The other input is written in place.
    assert copy.layer.output_bytes == 4 * 2 * 4 * 36


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("w[8,8,1,1]", "w[8,8,3,3] pads=1,1,1,1"), ("w[8,8,1,1] strides=2,2", "w[8,8,1,1]"),
        ("w[8,1,1,1] group=8", "w[8,1,1,1] group=8"),
    ],
    ids=["kernel", "stride", "groups"],
)  # fmt: skip
def test_unlike_geometry_is_not_merged(lowered: Lower, first: str, second: str) -> None:
    network = lowered(f"y Conv x {first}\nz Conv x {second}", outputs="y,z")
    assert groups(network) == ["Conv: y", "Conv: z"]


def test_what_is_not_merged(lowered: Lower) -> None:
    unlike = f"a Conv x {POINT}\ny Relu a\nz Conv x {POINT}"
    assert groups(lowered(unlike, outputs="y,z")) == ["Conv + Relu: a y", "Conv: z"]
    # The second one has a residual sum.
    residual = f"y Conv x {POINT}\nb Conv x {POINT}\nz Add b x"
    assert groups(lowered(residual, outputs="y,z")) == ["Conv: y", "Conv + Add: b z"]
    two = f"y Conv x {POINT}\nz Conv x {POINT}"
    assert groups(lowered(two, "int8", outputs="y,z")) == ["Conv: y", "Conv: z"]
    assert groups(lowered(two, "fp16", outputs="y,z")) == ["Conv || Conv: y z"]


def test_what_is_merged_keeps_its_activations_apart(lowered: Lower) -> None:
    """As in YOLOv5 in fp16: ``Conv_6 || Conv_16``, then a pointwise layer for each."""
    text = f"c1 Conv x {POINT}\n{SWISH.format(1)}c2 Conv x {POINT}\n{SWISH.format(2)}y Concat r1 r2"
    assert groups(lowered(f"{text} axis=1", "fp16")) == [
        "Conv || Conv: c1 c2", "PWN(Swish): s1 r1", "PWN(Swish): s2 r2",
    ]  # fmt: skip


# Views, shuffles, concatenations


def test_views_run_nothing_and_shuffles_are_joined(lowered: Lower) -> None:
    network = lowered("a Reshape x i[2,4,2,6,6]\nb Transpose a perm=0,2,1,3,4\n"
                      "y Reshape b i[2,8,6,6]")  # fmt: skip
    # A layer transposes, reshapes and transposes: a second reshape behind is another one.
    assert [(node.op, node.role) for node in network.nodes] == [
        ("Reshape + Transpose", "execution"), ("Reshape", "view"),
    ]  # fmt: skip
    (node,) = lowered("a Transpose x perm=0,2,3,1\ny Reshape a i[2,288]").nodes
    assert (node.op, node.layer.kind) == ("Transpose + Reshape", "transpose")
    (node,) = lowered("a Flatten x\ny Unsqueeze a i[0]").nodes
    assert (node.op, node.role) == ("Flatten + Unsqueeze", "view")
    (node,) = lowered("y Transpose x perm=0,2,3,1", x=(2, 8, 1, 1)).nodes
    assert node.role == "view"
    # A tensor with two readers is between two layers.
    network = lowered("a Flatten x\ny Unsqueeze a i[0]\nz Exp a", outputs="y,z")
    assert [node.op for node in network.nodes] == ["Flatten", "Unsqueeze", "PWN(Exp)"]


def test_a_concatenation_copies_what_cannot_be_written_in_place(lowered: Lower) -> None:
    network = lowered(f"""
        c Conv x {CONV}
        d Conv c {CONV}
        m MaxPool d kernel_shape=3,3 pads=1,1,1,1
        y Concat c m d x axis=1
    """)
    # The pooling reads d, which is copied, and so is the input; c is read by a convolution.
    names = [node.name for node in network.nodes if node.op == "copy"]
    assert names == ["y", "y: x copy"]
    (view,) = lowered(f"c Conv x {CONV}\nd Conv c {CONV}\ny Concat c d axis=1").nodes[2:]
    assert (view.op, view.role, view.sources) == ("Concat", "view", ("y",))


# Types and quantisation


def test_inputs_and_outputs_change_their_type(lowered: Lower) -> None:
    network = lowered(f"y Conv x {CONV}", "fp16")
    before, node, after = network.nodes
    assert (before.role, before.op, after.role) == ("preprocess", "Reformat", "postprocess")
    assert isinstance(before.layer, Cast)
    assert (before.layer.dtype, before.layer.dtype_out) == ("float32", "float16")
    assert (after.layer.dtype, after.layer.dtype_out) == ("float16", "float32")
    assert node.layer.dtype == "float16"
    values = 2 * 8 * 6 * 6
    assert before.layer.moved_bytes == after.layer.moved_bytes == values * (4 + 2)
    assert network.inputs[0].dtype == "float32"
    for precision in ("fp32", "tf32", ""):
        assert len(lowered(f"y Conv x {CONV}", precision).nodes) == 1


QUANTIZED = """
    q1 QuantizeLinear x scale zero
    d1 DequantizeLinear q1 scale zero
    qv QuantizeLinear w[8,8,1,1] scale zero
    dv DequantizeLinear qv scale zero
    c Conv d1 dv
    r Relu c
"""
SECOND = "c2 Conv d2 w[8,8,1,1]\n"


def test_a_quantised_convolution_reads_and_writes_int8(lowered: Lower) -> None:
    network = lowered(f"""{QUANTIZED}
        q2 QuantizeLinear r scale zero
        d2 DequantizeLinear q2 scale zero
        y Conv d2 w[8,8,1,1]
    """, "int8")  # fmt: skip
    first, conv, last = network.nodes
    assert (first.op, first.role, first.sources) == ("Reformat", "preprocess", ("q1", "d1"))
    assert isinstance(first.layer, Quantize)
    # The quantisation of the result is part of the convolution, its dequantisation of the next.
    assert (conv.op, conv.role) == ("Conv + Relu", "execution")
    assert {"c", "r", "q2"} <= set(conv.sources)
    assert (last.op, last.layer.kind) == ("Conv", "conv")
    assert network.notes == ()
    assert "precision int8" in lowered(QUANTIZED + "y Neg r").notes[0]


def test_a_quantisation_beside_another_reader_is_a_layer(lowered: Lower) -> None:
    """As ``QuantizeLinear_15``, behind a tensor that a residual sum reads unquantised."""
    network = lowered(f"""{QUANTIZED}
        q2 QuantizeLinear r scale zero
        d2 DequantizeLinear q2 scale zero
        c2 Conv d2 w[8,8,1,1]
        y Add c2 r
    """, "int8")  # fmt: skip
    assert [node.op for node in network.nodes] == ["Reformat", "Conv + Relu", "Reformat",
                                                   "Conv + Add"]  # fmt: skip
    # A convolution that computes in float does not quantise.
    plain = f"c Conv x {POINT}\nq QuantizeLinear c scale zero\nd DequantizeLinear q scale zero\n"
    network = lowered(f"{plain}y Conv d w[8,8,1,1]", "int8")
    assert [node.op for node in network.nodes] == ["Conv", "Reformat", "Conv"]


def test_equal_quantisations_are_one(lowered: Lower) -> None:
    def text(scale: str) -> str:
        return (f"q1 QuantizeLinear x scale zero\nd1 DequantizeLinear q1 scale zero\n"
                f"q2 QuantizeLinear x {scale} zero\nd2 DequantizeLinear q2 {scale} zero\n"
                "y Conv d1 w[8,8,1,1]\nz Conv d2 w[8,8,3,3]")  # fmt: skip

    for scale, count in (("scale", 1), ("other", 2)):
        network = lowered(text(scale), "int8", outputs="y,z")
        assert [node.op for node in network.nodes].count("Reformat") == count


def test_quantisation_moves_through_a_pooling(lowered: Lower) -> None:
    behind = (
        "q2 QuantizeLinear m scale zero\nd2 DequantizeLinear q2 scale zero\ny Conv d2 w[8,8,1,1]"
    )
    network = lowered(f"{QUANTIZED}\nm MaxPool r kernel_shape=2,2 strides=2,2\n{behind}", "int8")
    assert [node.op for node in network.nodes][1:] == ["Conv + Relu", "MaxPool", "Conv"]
    # A ResNet begins with one layer (ConvActPool).
    first = QUANTIZED.replace("w[8,8,1,1]", "w[8,3,7,7]")
    network = lowered(f"{first}\nm MaxPool r kernel_shape=3,3\n{behind}", "int8", x=(2, 3, 14, 14))
    assert [node.op for node in network.nodes][1:] == ["Conv + Relu + MaxPool", "Conv"]


def test_int8_values_go_on_through_a_pooling(lowered: Lower) -> None:
    """A convolution behind it reads int8, and so it takes the quantisation of its result."""
    network = lowered(
        """
        q QuantizeLinear x scale zero
        d DequantizeLinear q scale zero
        m MaxPool d kernel_shape=2,2
        c Conv m w[8,8,1,1]
        q2 QuantizeLinear c scale zero
        d2 DequantizeLinear q2 scale zero
        y Conv d2 w[8,8,1,1]
        """,
        "int8",
    )
    assert [node.op for node in network.nodes] == ["Reformat", "MaxPool", "Conv", "Conv"]


def test_the_first_pooling_of_an_int8_resnet_is_fused(lowered: Lower) -> None:
    """As ``Conv_0 + Relu_1 + MaxPool_2`` of ResNet-50, built without Q/DQ."""
    text, image = "c Conv x w[8,3,7,7]\nr Relu c\ny MaxPool r kernel_shape=3,3", (2, 3, 14, 14)
    assert groups(lowered(text, "int8", x=image)) == ["Conv + Relu + MaxPool: c r y"]
    apart = ["Conv + Relu: c r", "MaxPool: y"]
    assert groups(lowered(text, "fp16", x=image)) == apart
    for other in (text.replace("7,7", "5,5"), text.replace("=3,3", "=2,2")):
        assert groups(lowered(other, "int8", x=image)) == apart


# Whole networks


def test_layers_are_lowered_as_they_are() -> None:
    layer = Dense(batch=1, features_in=2, features_out=3)
    assert lower_layers([layer], Setting("tensorrt"), GPU) == [layer]


def _reference(name: str) -> Path:
    return Path(__file__).parents[2] / "models" / "networks" / f"{name}.onnx"


def test_googlenet_has_as_many_layers_as_a_builder_reports() -> None:
    """141 layers, 84 after vertical fusions, 66 after tensor merging: nine merged of three each.

    That was BVLC's network, with two normalisations (LRN), bias and softmax of its own.
    """
    network = lower(read_network(_reference("googlenet")), Setting("tensorrt"))
    ops = [node.op for node in network.nodes]
    assert ops.count("Conv + Relu || Conv + Relu || Conv + Relu") == 9
    assert ops.count("copy") == 9
    # Without LRN and softmax.
    assert len([node for node in network.nodes if node.role == "execution"]) == 66 - 3
    assert {node.role for node in network.nodes} == {"execution", "view"}


@pytest.mark.parametrize("name", ["densenet121", "mobilenet_v2", "unet"])
def test_every_node_and_operation_is_in_one_layer(name: str) -> None:
    network = read_network(_reference(name))
    nodes = lower(network, Setting("tensorrt", precision="fp16")).nodes
    sources = [source for node in nodes for source in node.sources]
    assert sorted(sources) == sorted(node.name for node in network.nodes)
    assert all(node.role != "unknown" for node in nodes)


def test_without_the_package_rules_answer_and_the_pip_line_is_named(
    network_file, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "is_installed", lambda: False)
    path = network_file(
        "net.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": None}
    )
    network = lower_network(read_network(path), Setting("tensorrt"), GPU)
    assert network.method == "rules"
    assert "pip install 'resperf[tensorrt-rtx]'" in " ".join(network.notes)
