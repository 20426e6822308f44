"""ONNX Runtime's optimised graph, read as layers, and blocks placed on it as it places them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from onnx import helper

from resperf.backends.onnxruntime import OnnxRuntimeBackend
from resperf.errors import Message, UnsupportedError
from resperf.layers import (
    FUNCTION_OF,
    Activation,
    Conv,
    Layer,
    Move,
    Pool,
    QuantizedConcat,
    QuantizedDense,
    Reorder,
    Resize,
)
from resperf.layers.quantize import Quantize
from resperf.lowering import (
    LoweredNode,
    lower,
    lower_layers,
    skeleton,
    work_of,
)
from resperf.lowering._ort_blocks import RESIDUAL, added_in_place
from resperf.lowering._read import NCHWC
from resperf.lowering.onnxruntime import ask, installed, optimised_model
from resperf.network import Network, Node, Tensor, read_network
from resperf.platform import Platform, instruction_set
from resperf.settings import Setting

LIGHT = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))
CONVS = ("Conv", "FusedConv")
RELAYOUTS = ("ReorderInput", "ReorderOutput")
EXPORTED = sorted((Path(__file__).parent / "exported").glob("*.onnx"))
REFERENCE = sorted((Path(__file__).parents[2] / "models" / "networks").glob("*.onnx"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "resperf" / "lowering"


Target = tuple[Setting, Platform]
NetworkFile = Callable[..., Path]


@pytest.fixture(scope="module")
def target() -> Target:
    device = OnnxRuntimeBackend(threads=1)
    return device.setting(), device.platform()


@pytest.fixture(scope="module")
def block(target: Target) -> int:
    """Channels per block of this machine's layout."""
    return int(target[0].options["nchwc_block"])


def contents(nodes: Sequence[LoweredNode]) -> Counter[tuple[str, str]]:
    return Counter((n.role, n.layer.key if n.layer else n.op) for n in nodes)


def written(path: Path, nodes: list[onnx.NodeProto], channels: int) -> Path:
    """Write a network from x to y with weights w of a 3x3 convolution."""
    weights = np.full((channels, channels, 3, 3), 0.5, np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, channels, 8, 8))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(np.float32(0), "low"),
            onnx.numpy_helper.from_array(np.float32(6), "high"),
            onnx.numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales"),
            onnx.numpy_helper.from_array(np.int64([2, channels, 64]), "tokens"),
            onnx.numpy_helper.from_array(np.int64([2, channels, 8, 8]), "grid"),
            onnx.numpy_helper.from_array(np.int64([0, 0, 1, 0, 0, 0, 2, 1]), "pads"),
            onnx.numpy_helper.from_array(np.ones(channels, np.float32), "bias"),
            onnx.numpy_helper.from_array(np.full((channels, 1, 1), 0.5, np.float32), "gamma"),
            onnx.numpy_helper.from_array(np.full((channels, 64), 0.1, np.float32), "wide"),
            onnx.numpy_helper.from_array(np.full((64, channels), 0.1, np.float32), "narrow"),
            onnx.numpy_helper.from_array(np.full((2, 1, channels), 0.1, np.float32), "class"),
            *(
                onnx.numpy_helper.from_array(np.float32(value), str(value))
                for value in (0.5, 1.0, 2.0, 3.0, 0.044715, 0.7978846, 1e-05)
            ),
            onnx.numpy_helper.from_array(np.int64([-1]), "last"),
        ],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def conv_node(name: str, x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, "w"], [y], name, pads=[1, 1, 1, 1])


def between(op: str, *bounds: str) -> list[onnx.NodeProto]:
    """An activation of a convolution whose output an addition reads as well."""
    return [
        conv_node("c1", "x", "a"),
        helper.make_node(op, ["a", *bounds], ["b"], "act"),
        helper.make_node("Add", ["a", "b"], ["c"], "add"),
        conv_node("c2", "c", "y"),
    ]


ACTIVATED: dict[str, list[onnx.NodeProto]] = {
    **{op: between(op) for op in ("Relu", "Tanh", "Sigmoid", "HardSigmoid", "Gelu", "LeakyRelu",
                                  "Elu", "Softplus", "HardSwish")},
    "Clip": between("Clip", "low", "high"),
    "before a conv": [helper.make_node("Relu", ["x"], ["a"], "act"), conv_node("c", "a", "y")],
    "silu": [
        conv_node("c1", "x", "a"),
        helper.make_node("Sigmoid", ["a"], ["s"], "sig"),
        helper.make_node("Mul", ["a", "s"], ["b"], "mul"),
        conv_node("c2", "b", "y"),
    ],
    "hard swish at the end": [
        conv_node("c1", "x", "a"),
        helper.make_node("HardSwish", ["a"], ["y"], "act"),
    ],
    "fused hard swish": [
        conv_node("c1", "x", "a"),
        helper.make_node("HardSwish", ["a"], ["b"], "act"),
        conv_node("c2", "b", "y"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("channels", [16, 20, 18])
@pytest.mark.parametrize("nodes", ACTIVATED.values(), ids=ACTIVATED)
def test_unfused_activations_leave_convolutions_as_they_are(
    nodes: list[onnx.NodeProto], channels: int, target: Target, tmp_path: Path
) -> None:
    asked = lower(read_network(written(tmp_path / "n.onnx", nodes, channels)), *target)
    convs = [node for node in asked.nodes if node.layer and node.layer.kind == "conv"]
    assert len(convs) == sum(node.op_type == "Conv" for node in nodes)


def resized(**attributes: str) -> list[onnx.NodeProto]:
    """Convolution, Resize, convolution, as in decoders."""
    return [
        conv_node("c1", "x", "a"),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], "grow", **attributes),
        conv_node("c2", "b", "y"),
    ]


def gelu_by_tanh(result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Pow", ["x", "3.0"], ["p"], "cube"),
        helper.make_node("Mul", ["p", "0.044715"], ["q"], "little"),
        helper.make_node("Add", ["x", "q"], ["r"], "sum"),
        helper.make_node("Mul", ["r", "0.7978846"], ["s"], "root"),
        helper.make_node("Tanh", ["s"], ["t"], "tanh"),
        helper.make_node("Add", ["t", "1.0"], ["u"], "one more"),
        helper.make_node("Mul", ["x", "0.5"], ["h"], "half"),
        helper.make_node("Mul", ["h", "u"], [result], "gelu"),
    ]


def normalised(x: str, result: str, *, shifted: bool) -> list[onnx.NodeProto]:
    """A normalisation of the last axis as exporters write it before operator set 17."""
    centred = f"{x}-d" if shifted else x
    before = [
        helper.make_node("ReduceMean", [x, "last"], [f"{x}-m"], f"{x} mean"),
        helper.make_node("Sub", [x, f"{x}-m"], [centred], f"{x} off"),
    ]
    scaled = f"{x}-g" if shifted else result
    return [
        *(before if shifted else []),
        helper.make_node("Pow", [centred, "2.0"], [f"{x}-p"], f"{x} square"),
        helper.make_node("ReduceMean", [f"{x}-p", "last"], [f"{x}-v"], f"{x} variance"),
        helper.make_node("Add", [f"{x}-v", "1e-05"], [f"{x}-e"], f"{x} little"),
        helper.make_node("Sqrt", [f"{x}-e"], [f"{x}-r"], f"{x} root"),
        helper.make_node("Div", [centred, f"{x}-r"], [f"{x}-n"], f"{x} norm"),
        helper.make_node("Mul", [f"{x}-n", "bias"], [scaled], f"{x} scale"),
        *([helper.make_node("Add", [scaled, "bias"], [result], f"{x} shift")] if shifted else []),
    ]


def of_tokens(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes from t, tokens of an image, to u; then an end that is not fused."""
    return [
        helper.make_node("Reshape", ["x", "tokens"], ["r"], "flat"),
        helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
        *nodes,
        helper.make_node("Softmax", ["u"], ["y"], "soft", axis=-1),
    ]


GRAPHS: dict[str, tuple[list[onnx.NodeProto], set[str]]] = {
    "decoder": (
        resized(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        {"conv", "resize", "reorder"},
    ),
    "decoder, rounded": (resized(mode="nearest"), {"conv", "resize", "reorder"}),
    "decoder, linear": (
        resized(mode="linear", coordinate_transformation_mode="asymmetric"),
        {"conv", "resize", "reorder"},
    ),
    # Tokens times their own transpose, a constant added as positional bias, and the product.
    "attention": (
        [
            helper.make_node("Reshape", ["x", "tokens"], ["t"], "flat"),
            helper.make_node("Transpose", ["t"], ["k"], "turn", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["t", "k"], ["s"], "scores"),
            helper.make_node("Add", ["s", "bias"], ["p"], "place"),
            helper.make_node("Softmax", ["p"], ["a"], "soft", axis=-1),
            helper.make_node("MatMul", ["a", "t"], ["o"], "mix"),
            helper.make_node("Sub", ["o", "t"], ["y"], "rest"),
        ],
        {"matmul", "elementwise", "softmax"},
    ),
    # NHWC between two convolutions; a factor per channel after the transposition back.
    "NHWC and back": (
        [
            conv_node("c1", "x", "a"),
            helper.make_node("Transpose", ["a"], ["t"], "last", perm=[0, 2, 3, 1]),
            helper.make_node("LayerNormalization", ["t", "bias", "bias"], ["n"], "norm"),
            helper.make_node("MatMul", ["n", "wide"], ["h"], "grow"),
            helper.make_node("MatMul", ["h", "narrow"], ["m"], "shrink"),
            helper.make_node("Transpose", ["m"], ["f"], "first", perm=[0, 3, 1, 2]),
            helper.make_node("Mul", ["f", "gamma"], ["g"], "scale"),
            conv_node("c2", "g", "y"),
        ],
        {"conv", "reorder", "dense", "norm"},
    ),
    # Factors and terms per feature, and a residual, between transpositions to NHWC and back.
    "perceptron over tokens": (
        [
            helper.make_node("Reshape", ["x", "tokens"], ["r"], "flat"),
            helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
            helper.make_node("Mul", ["bias", "t"], ["f"], "factor"),
            helper.make_node("Mul", ["f", "1.0"], ["o"], "nothing"),
            helper.make_node("Add", ["bias", "o"], ["a"], "term"),
            helper.make_node("Transpose", ["a"], ["k"], "turn back", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["k", "narrow"], ["m"], "mix"),
            helper.make_node("MatMul", ["m", "wide"], ["v"], "mix again"),
            helper.make_node("Transpose", ["v"], ["u"], "turn again", perm=[0, 2, 1]),
            helper.make_node("Mul", ["bias", "u"], ["g"], "scale"),
            helper.make_node("Add", ["t", "g"], ["s"], "sum"),
            helper.make_node("Transpose", ["s"], ["e"], "last", perm=[0, 2, 1]),
            helper.make_node("Softmax", ["e"], ["y"], "soft", axis=-1),
        ],
        {"dense", "elementwise", "softmax"},
    ),
    "class token": (
        [
            helper.make_node("Reshape", ["x", "tokens"], ["r"], "flat"),
            helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
            helper.make_node("Concat", ["class", "t"], ["c"], "join", axis=1),
            helper.make_node("Add", ["c", "bias"], ["p"], "place"),
            helper.make_node("Softmax", ["p"], ["s"], "soft", axis=-1),
            helper.make_node("Transpose", ["s"], ["e"], "turn back", perm=[0, 2, 1]),
            helper.make_node("Erf", ["e"], ["y"], "end"),
        ],
        {"concat", "elementwise", "softmax"},
    ),
    "tokens in rows and columns": (
        [
            helper.make_node("Reshape", ["x", "tokens"], ["r"], "flat"),
            helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
            helper.make_node("LayerNormalization", ["t", "bias", "bias"], ["n"], "norm"),
            helper.make_node("Transpose", ["n"], ["c"], "turn back", perm=[0, 2, 1]),
            helper.make_node("Reshape", ["c", "grid"], ["g"], "rows"),
            conv_node("c1", "g", "y"),
        ],
        {"norm", "reorder", "conv"},
    ),
    "equal poolings and a padded convolution": (
        [
            helper.make_node("MaxPool", ["x"], ["a"], "one", kernel_shape=[3, 3]),
            helper.make_node("MaxPool", ["x"], ["b"], "two", kernel_shape=[3, 3]),
            helper.make_node("Sub", ["a", "b"], ["c"], "sub"),
            helper.make_node("Pad", ["c", "pads"], ["d"], "pad"),
            helper.make_node("Conv", ["d", "w"], ["y"], "conv", strides=[2, 2]),
        ],
        {"pool", "elementwise", "conv"},
    ),
    "tanh gelu": (
        [*gelu_by_tanh("g"), helper.make_node("Softmax", ["g"], ["y"], "soft", axis=-1)],
        {"activation", "softmax"},
    ),
    "decomposed layer norm": (of_tokens(*normalised("t", "u", shifted=True)), {"norm"}),
    "decomposed RMS norm": (of_tokens(*normalised("t", "u", shifted=False)), {"norm"}),
    "sum before a decomposed layer norm": (
        of_tokens(
            helper.make_node("Erf", ["t"], ["e"], "other"),
            helper.make_node("Add", ["t", "e"], ["s"], "sum"),
            *normalised("s", "u", shifted=True),
        ),
        {"norm", "elementwise"},
    ),
    "Sum and Max of several": (
        of_tokens(
            helper.make_node("Erf", ["t"], ["e"], "one"),
            helper.make_node("Abs", ["t"], ["a"], "two"),
            helper.make_node("Sum", ["t", "e", "a"], ["s"], "sum"),
            helper.make_node("Max", ["s", "e", "a", "bias"], ["u"], "largest"),
        ),
        {"elementwise"},
    ),
    "sum of several convolutions": (
        [
            conv_node("c1", "x", "a"),
            conv_node("c2", "x", "b"),
            conv_node("c3", "x", "c"),
            helper.make_node("Sum", ["a", "b", "c"], ["s"], "sum"),
            conv_node("c4", "s", "y"),
        ],
        {"conv", "elementwise", "reorder"},
    ),
    "sum of convolutions and an image": (
        [
            conv_node("c1", "x", "a"),
            conv_node("c2", "x", "b"),
            helper.make_node("Sum", ["a", "b", "x"], ["s"], "sum"),
            conv_node("c4", "s", "y"),
        ],
        {"conv", "elementwise", "reorder"},
    ),
    "tanh gelu at the end": (gelu_by_tanh("y"), {"activation", "elementwise"}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_exporters_write_has_layers(name: str, target: Target, tmp_path: Path) -> None:
    nodes, kinds = GRAPHS[name]
    network = read_network(written(tmp_path / "g.onnx", nodes, 32))
    asked = lower(network, *target)
    assert kinds <= {node.layer.kind for node in asked.nodes if node.layer is not None}
    assert not [node for node in asked.nodes if node.role == "unknown"]


def residuals(nodes: Sequence[LoweredNode]) -> list[bool]:
    return [node.layer.residual for node in nodes if isinstance(node.layer, Conv)]


def test_a_residual_that_nothing_reads_later_is_added_in_place(block: int, tmp_path: Path) -> None:
    nodes = [
        conv_node("c1", "x", "a"),
        conv_node("c2", "a", "b"),
        helper.make_node("Add", ["b", "a"], ["s"], "sum"),
        conv_node("c3", "s", "t"),
        helper.make_node("Add", ["t", "a"], ["u"], "last sum"),
        conv_node("c4", "u", "y"),
    ]
    network = read_network(written(tmp_path / "g.onnx", nodes, 32))
    found = ask(network, block)
    # The first sum needs a copy of `a`, which the last one reads too.
    assert residuals(found) == [False, True, False, False]
    sources = [node.sources for node in found if isinstance(node.layer, Conv)]
    assert sources == [("c1",), ("c2", "sum"), ("c3", "last sum"), ("c4",)]


def test_what_a_network_is_given_or_returns_and_the_image_itself_are_not_written_over(
    block: int, tmp_path: Path
) -> None:
    """In NCHW; in blocks they are copies."""

    def fused(name: str, image: str, residual: str, result: str) -> onnx.NodeProto:
        return helper.make_node(
            "FusedConv", [image, "w", "", residual], [result], name, domain="com.microsoft",
            pads=[1, 1, 1, 1],
        )  # fmt: skip

    nodes = [
        conv_node("c1", "x", "a"),
        fused("c2", "a", "x", "b"),
        fused("c3", "a", "b", "c"),
        fused("c4", "c", "c", "d"),
        conv_node("c5", "d", "e"),
        fused("c6", "e", "d", "y"),
    ]
    path = written(tmp_path / "g.onnx", nodes, 30)
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, None))
    onnx.save(model, path)
    found = ask(read_network(path), block)
    assert residuals(found) == [False, True, True, True, False, False]


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    values: dict[str, np.ndarray],
    dtype: int = onnx.TensorProto.FLOAT,
    opset: int = 17,
) -> Path:
    """Write a network from x, of that shape, to y with these weights."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def signal_network(path: Path, rank: int) -> Path:
    """A 1-D or 3-D convolution with fused operators, a pooling, a masked sum, and back."""
    cube, sizes = (3,) * rank, (8,) * rank
    one, two = [1] * rank, [2] * rank
    values = {
        "w": np.full((8, 4, *cube), 0.5, np.float32),
        "back": np.full((8, 6, *(2,) * rank), 0.5, np.float32),
        "larger": np.float32([1, 1, *two]),
        **{name: np.ones(8, np.float32) for name in ("scale", "shift", "mean", "variance")},
        "limit": np.float32(0.3), "low": np.float32(-9.0),
        **{name: np.full((8, *one), 0.5, np.float32) for name in ("factor", "term")},
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[*one, *one]),
        helper.make_node(
            "BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"], "norm"
        ),
        helper.make_node("Mul", ["b", "factor"], ["f"], "mul"),
        helper.make_node("Add", ["f", "term"], ["g"], "add"),
        helper.make_node("Relu", ["g"], ["c"], "act"),
        helper.make_node("MaxPool", ["c"], ["d"], "pool", kernel_shape=two, strides=two),
        helper.make_node("Greater", ["d", "limit"], ["m"], "mask"),
        helper.make_node("Where", ["m", "d", "low"], ["e"], "choose"),
        helper.make_node("Cast", ["m"], ["n"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["e", "n"], ["o"], "sum"),
        helper.make_node("ConvTranspose", ["o", "back"], ["p"], "up", strides=two),
        helper.make_node("Resize", ["p", "", "larger"], ["y"], "grow", mode="linear"),
    ]
    return saved(path, nodes, (2, 4, *sizes), values)


@pytest.mark.parametrize("rank", [1, 3])
def test_signals_volumes_and_masks_have_layers(rank: int, target: Target, tmp_path: Path) -> None:
    network = read_network(signal_network(tmp_path / "g.onnx", rank))
    asked = lower(network, *target)
    kinds = [node.layer.kind for node in asked.nodes if node.layer is not None]
    # Normalisation, factor, term and activation are fused into the convolution.
    assert kinds[:2] == ["conv_nd", "pool_nd"]
    assert sorted(kinds[2:-2]) == ["cast", "elementwise", "elementwise", "select"]
    shapes = [node.layer.output_shape for node in asked.nodes[-2:] if node.layer is not None]
    if rank == 1:
        # 1-D signals are images of one row; resized linearly, they are rows of one volume.
        assert kinds[-2:] == ["conv_transpose", "resize_nd"]
        assert shapes == [(2, 6, 1, 8), (1, 1, 2, 6, 16)]
    else:
        assert kinds[-2:] == ["conv_transpose_nd", "resize_nd"]
        assert shapes == [(2, 6, 8, 8, 8), (2, 6, 16, 16, 16)]


def transformer_block(path: Path) -> Path:
    """Attention and a perceptron over 32 tokens of 64 features, as PyTorch exports them."""
    values = {
        "tokens": np.int64([2, 32, 64]), "three": np.int64([2, 32, 3, 4, 16]),
        "first": np.int64([0]), "half": np.int64([32]), "end": np.int64([2**63 - 1]),
        "axis": np.int64([2]), "root": np.float32(np.sqrt(2)), "one": np.float32(1),
        "a half": np.float32(0.5), "scale": np.float32(0.25),
        **{f"w{n}": np.full((64, n), 0.01, np.float32) for n in (192, 64)},
        **{f"b{n}": np.full(n, 0.1, np.float32) for n in (192, 64)},
        "gamma": np.full(64, 0.7, np.float32),
    }  # fmt: skip

    def node(op: str, inputs: str, outputs: str, **more: object) -> onnx.NodeProto:
        read = [name.strip() for name in inputs.split(",")]
        return helper.make_node(op, read, outputs.split(), f"{op} {outputs}", **more)

    nodes = [
        node("Reshape", "x, tokens", "t"),
        node("MatMul", "t, w192", "qkv0"),
        node("Add", "b192, qkv0", "qkv1"),
        node("Reshape", "qkv1, three", "qkv2"),
        node("Transpose", "qkv2", "qkv3", perm=[2, 0, 3, 1, 4]),
        node("Split", "qkv3", "q0 k0 v0", axis=0),
        *(node("Squeeze", f"{each}0, first", f"{each}1") for each in "qkv"),
        node("Transpose", "k1", "k2", perm=[0, 1, 3, 2]),
        node("MatMul", "q1, k2", "s0"),
        node("Mul", "s0, scale", "s1"),
        node("Softmax", "s1", "s2", axis=-1),
        node("MatMul", "s2, v1", "o0"),
        node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1, tokens", "o2"),
        node("MatMul", "o2, w64", "o3"),
        node("Add", "o3, b64", "o4"),
        node("Add", "t, o4", "r"),
        node("LayerNormalization", "r, gamma, b64", "n"),
        node("MatMul", "n, w64", "h0"),
        node("Add", "h0, b64", "h1"),
        node("Div", "h1, root", "g0"),
        node("Erf", "g0", "g1"),
        node("Add", "g1, one", "g2"),
        node("Mul", "h1, g2", "g3"),
        node("Mul", "g3, a half", "g4"),
        node("Slice", "g4, first, half, axis", "p0"),
        node("Slice", "g4, half, end, axis", "p1"),
        node("Sub", "p0, p1", "y"),
    ]
    return saved(path, nodes, (2, 32, 8, 8), values)


def test_a_transformer_block_is_fused(target: Target, tmp_path: Path) -> None:
    network = read_network(transformer_block(tmp_path / "g.onnx"))
    nodes = lower(network, *target).nodes
    layers = Counter(node.layer.kind for node in nodes if node.layer is not None)
    # Products with bias; scores with their factor; both splits; q, k, v and o transposed.
    assert layers == {
        "dense": 3, "matmul": 2, "move": 2, "transpose": 4, "softmax": 1, "norm": 1,
        "activation": 1, "elementwise": 1,
    }  # fmt: skip
    norm = next(n.layer for n in nodes if n.layer is not None and n.layer.kind == "norm")
    assert norm.fields()["function"] == "skip_layer"
    every = sorted(name for node in nodes for name in node.sources)
    assert every == sorted(node.name for node in network.nodes)


def quantised_network(path: Path, zero: np.generic) -> Path:
    """Convolutions, a sum, concatenations, poolings, a product and a softmax, all in int8.

    Activations are of the type of their zero point.
    """
    values = {
        "scale": np.float32(0.02), "zero": zero, "own": np.int8(0),
        "w": np.full((16, 16, 3, 3), 3, np.int8), "b": np.full(16, 5, np.int32),
        "bias scale": np.float32(0.0004), "no zero": np.int32(0),
        "m": np.full((16, 10), 2, np.int8), "c": np.full(10, 4, np.int32),
        "other scale": np.float32(0.05), "of shares": np.float32(1 / 256),
        "none": zero.dtype.type(np.iinfo(zero.dtype).min),
    }  # fmt: skip
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: list[str], output: str, **more: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], f"{op} {output}", **more))
        return output

    def through(name: str, scale: str = "scale", zero: str = "zero") -> str:
        """Quantise an operator's output, and dequantise it for the next one."""
        narrow = node("QuantizeLinear", [name, scale, zero], f"{name} q")
        return node("DequantizeLinear", [narrow, scale, zero], f"{name} f")

    def weight(name: str, scale: str, zero: str) -> str:
        return node("DequantizeLinear", [name, scale, zero], f"{name} f")

    filters, bias = weight("w", "scale", "own"), weight("b", "bias scale", "no zero")
    matrix, more = weight("m", "scale", "own"), weight("c", "bias scale", "no zero")
    a = through("x")
    b = through(node("Conv", [a, filters, bias], "b1", pads=[1, 1, 1, 1]))
    c = through(node("Conv", [b, filters, bias], "c1", pads=[1, 1, 1, 1]))
    sums = through(node("Add", [b, c], "sums"), "other scale")
    mixed = through(node("Concat", [sums, c], "mixed", axis=2))
    d = through(node("Concat", [mixed, b], "d", axis=2))
    e = through(node("MaxPool", [d], "e", kernel_shape=[2, 2], strides=[2, 2]))
    g = through(node("GlobalAveragePool", [e], "g"))
    h = through(node("Flatten", [g], "h"))
    logits = through(node("Gemm", [h, matrix, more], "logits"))
    through(node("Softmax", [logits], "y1"), "of shares", "none")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 16, 12, 12))],
        [helper.make_tensor_value_info("y1 f", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in values.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_int8_networks_are_lowered_as_ort_fuses_them(target: Target, tmp_path: Path) -> None:
    network = read_network(quantised_network(tmp_path / "q.onnx", np.uint8(128)))
    asked = lower(network, *target)
    assert [(n.op, n.reason) for n in asked.nodes if n.role == "unknown"] == []
    kinds = Counter(node.layer.kind for node in asked.nodes if node.layer is not None)
    assert kinds["quantized_conv"] == 2
    assert kinds["quantized_elementwise"] == 1
    assert kinds["quantized_pool"] == 2
    assert kinds["quantized_dense"] == 1
    assert kinds["quantized_softmax"] == 1
    joined = [n.layer for n in asked.nodes if isinstance(n.layer, QuantizedConcat)]
    assert [(each.parts, each.rescaled) for each in joined] == [(2, True), (2, False)]
    assert kinds["quantize"] == 2
    assert not kinds["conv"] + kinds["dense"] + kinds["pool"] + kinds["elementwise"]


def test_a_blocked_activation_includes_padding_channels(block: int, tmp_path: Path) -> None:
    if block != 16:
        pytest.skip("counted by hand for blocks of 16 channels")
    network = read_network(written(tmp_path / "n.onnx", ACTIVATED["silu"], 20))
    layers = [node.layer for node in ask(network, block)]
    assert Activation(batch=2, values=32 * 64, activation="silu") in layers


def test_there_are_networks_to_compare() -> None:
    assert (len(LIGHT), len(EXPORTED)) == (9, 2)
    assert len(REFERENCE) >= 15


def test_lenet_lowers_to_hand_counted_nodes(target: Target, block: int) -> None:
    if block != 16:
        pytest.skip("counted by hand for blocks of 16 channels")
    network = read_network(next(p for p in REFERENCE if p.stem == "lenet5"), batch=4)
    lowered = lower(network, *target)
    # 6 channels are no full block: the layout is NCHW again before the first pooling.
    assert [n.layer.kind if n.layer else n.role for n in lowered.nodes] == [
        "conv", "reorder", "pool", "conv", "pool", "reorder", "view", "dense", "dense", "dense",
    ]  # fmt: skip
    first = lowered.nodes[0].layer
    assert isinstance(first, Conv)
    assert (first.batch, first.channels_in, first.channels_out) == (4, 1, 6)
    assert (first.activation, first.bias, first.layout) == ("relu", True, "nchwc16")
    assert lowered.nodes[0].sources
    assert [tensor.shape for tensor in lowered.inputs] == [(4, 1, 28, 28)]
    assert [tensor.shape for tensor in lowered.outputs] == [(4, 10)]


def test_every_original_node_is_a_source(target: Target) -> None:
    network = read_network(next(p for p in REFERENCE if p.stem == "resnet18"), batch=1)
    lowered = lower(network, *target)
    named = [name for node in lowered.nodes for name in node.sources]
    assert len(named) == len(set(named))
    assert {node.name for node in network.nodes} == set(named)


def test_slices_without_values_are_no_layers(target: Target, tmp_path: Path) -> None:
    """Slices of length 0, as in video networks with unshifted windows."""
    values = {"start": np.int64([0]), "end": np.int64([0]), "axis": np.int64([1])}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "act"),
        helper.make_node("Slice", ["a", "start", "end", "axis"], ["none"], "piece"),
        helper.make_node("Concat", ["none", "a"], ["y"], "join", axis=1),
    ]
    network = read_network(saved(tmp_path / "g.onnx", nodes, (4, 6), values))
    lowered = lower(network, *target)
    assert {node.op: node.role for node in lowered.nodes} == {
        "Relu": "execution", "Slice": "view", "Concat": "execution",
    }  # fmt: skip


@pytest.mark.parametrize("inverse", ["Reciprocal", "Div", ""])
def test_rms_norms_are_fused_unless_they_multiply_by_a_reciprocal(
    inverse: str, target: Target, tmp_path: Path
) -> None:
    """As language models write them, with casts to the same type; some forms are not fused."""
    values = {
        "two": np.float32(2), "tiny": np.float32(1e-6), "one": np.float32(1),
        "scale": np.full(16, 0.7, np.float32), "w": np.full((16, 16), 0.1, np.float32),
    }  # fmt: skip
    if inverse:
        root = ["one", "root"] if inverse == "Div" else ["root"]
        dividing = [
            helper.make_node(inverse, root, ["r"], "inverse"),
            helper.make_node("Mul", ["f", "r"], ["n"], "times"),
        ]
    else:
        dividing = [helper.make_node("Div", ["f", "root"], ["n"], "divide")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Cast", ["m"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Pow", ["f", "two"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["mean"], "mean", axes=[-1]),
        helper.make_node("Add", ["mean", "tiny"], ["more"], "more"),
        helper.make_node("Sqrt", ["more"], ["root"], "root"),
        *dividing,
        helper.make_node("Cast", ["n"], ["o"], "back", to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "o"], ["s"], "scale"),
        helper.make_node("Relu", ["s"], ["y"], "last"),
    ]
    network = read_network(saved(tmp_path / "g.onnx", nodes, (2, 8, 16), values))
    nodes = lower(network, *target).nodes
    kinds = Counter(node.layer.kind for node in nodes if node.layer is not None)
    assert kinds["norm"] == (inverse != "Reciprocal")
    assert sorted(n for node in nodes for n in node.sources) == sorted(
        node.name for node in network.nodes
    )


def test_a_removed_node_is_a_source_of_its_neighbour(target: Target, tmp_path: Path) -> None:
    values = {
        "w": np.full((6, 6), 0.5, np.float32), "one": np.float32(1),
        "three": np.full(6, 3, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "product"),
        helper.make_node("Dropout", ["b"], ["c"], "dropout"),
        helper.make_node("Mul", ["c", "one"], ["d"], "neutral"),
        helper.make_node("Identity", ["a"], ["handed"], "on"),
        helper.make_node("Max", ["d", "three"], ["e"], "larger"),
        helper.make_node("Min", ["e", "handed"], ["y"], "last"),
    ]
    network = read_network(saved(tmp_path / "g.onnx", nodes, (4, 6), values))
    lowered = lower(network, *target)
    owners = {n: node.layer.kind for node in lowered.nodes if node.layer for n in node.sources}
    assert owners["first"] == owners["product"] == "dense"
    assert owners["dropout"] == owners["last"] == owners["larger"] == "elementwise"
    assert set(owners) == {node.name for node in network.nodes}
    assert sum(len(node.sources) for node in lowered.nodes) == len(network.nodes)


@pytest.mark.parametrize("stem", ["densenet121", "googlenet", "mobilenet_v2"])
def test_another_machine_has_its_own_blocks(stem: str, target: Target, block: int) -> None:
    network = read_network(next(p for p in REFERENCE if p.stem == stem), batch=1)
    setting, platform = target
    own = lower(network, *target)
    others = 16 if block == 8 else 8
    setting = replace(setting, options={**setting.options, "nchwc_block": str(others)})
    lowered = lower(network, setting, replace(platform, instruction_set="avx2"))
    assert (lowered.method, lowered.notes) == (installed(), ())
    layouts = {node.layer.fields().get("layout") for node in lowered.nodes if node.layer}
    assert f"nchwc{others}" in layouts
    assert f"nchwc{block}" not in layouts
    # The cache of this machine's own layers is not theirs.
    assert contents(lower(replace(network), *target).nodes) == contents(own.nodes)


def test_hard_swish_is_fused_in_blocks_of_another_machine(target: Target, tmp_path: Path) -> None:
    nodes = [
        conv_node("c1", "x", "a"),
        helper.make_node("HardSwish", ["a"], ["b"], "act"),
        conv_node("c2", "b", "y"),
    ]
    network = read_network(written(tmp_path / "g.onnx", nodes, 32))
    first, second = (n for n in ask(network, 8) if n.op in CONVS)
    assert first.layer is not None
    assert first.layer.fields()["activation"] == "hard_swish"
    assert (first.sources, second.sources) == (("c1", "act"), ("c2",))


def test_other_instruction_sets_and_versions_are_asked_and_noted(target: Target) -> None:
    network = read_network(next(p for p in REFERENCE if p.stem == "lenet5"), batch=1)
    setting, platform = target
    here = lower(network, *target)
    assert (here.method, here.notes) == (installed(), ())
    changed = [
        (setting, replace(platform, instruction_set=each)) for each in ("avx2+more", "asimd")
    ]
    changed.append((replace(setting, framework_version="1.0.0"), platform))
    notes = []
    for way in changed:
        lowered = lower(network, *way)
        assert (lowered.method, lowered.nodes) == (here.method, here.nodes)
        notes.append(lowered.notes)
    may = "it may fuse other operators there"
    # Additions to an instruction set, and one of the same architecture, make no other layers.
    assert notes == [
        (),
        (f"lowered by ONNX Runtime, instruction set {instruction_set()} here, asimd there: {may}",),
        (f"lowered by ONNX Runtime, version {onnxruntime.__version__} here, 1.0.0 there: {may}",),
    ]


def test_a_small_tensor_attribute_is_written(target: Target, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], "places"),
        helper.make_node("Shape", ["n"], ["s"], "shape"),
        helper.make_node("ConstantOfShape", ["s"], ["y"], "fill",
                         value=onnx.numpy_helper.from_array(np.float32([2.0]))),
    ]  # fmt: skip
    network = read_network(written(tmp_path / "g.onnx", nodes, 32))
    lowered = lower(network, *target)
    assert lowered.method.startswith("onnxruntime ")


def half_network(path: Path) -> Path:
    """A convolution, casts to float32 and back, a product, in half precision."""
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "act"),
        helper.make_node("Cast", ["b"], ["c"], "up", to=single),
        helper.make_node("Softmax", ["c"], ["s"], "soft", axis=-1),
        helper.make_node("Cast", ["s"], ["d"], "down", to=half),
        helper.make_node("MatMul", ["d", "v"], ["y"], "mul"),
    ]
    values = {"w": np.full((32, 32, 3, 3), 0.5, np.float16), "v": np.full((8, 16), 0.5, np.float16)}
    return saved(path, nodes, (2, 32, 8, 8), values, half)


def test_half_precision_is_computed_in_float32_between_casts(
    target: Target, tmp_path: Path
) -> None:
    network = read_network(half_network(tmp_path / "half.onnx"))
    nodes = lower(network, *target).nodes
    assert next(node.layer.kind for node in nodes if node.layer) == "cast"
    named = {source for node in nodes for source in node.sources}
    assert named == {node.name for node in network.nodes}


def test_consecutive_convolutions_in_half_precision_are_layers(
    target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "act"),
        helper.make_node("Conv", ["b", "v"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"], "pool"),
    ]
    values = {name: np.full((32, 32, 3, 3), 0.5, np.float16) for name in "wv"}
    half = onnx.TensorProto.FLOAT16
    network = read_network(saved(tmp_path / "half.onnx", nodes, (2, 32, 8, 8), values, half))
    asked = lower(network, *target)
    assert [node.reason for node in asked.nodes if node.layer is None] == []
    kinds = Counter(node.layer.kind for node in asked.nodes if node.layer)
    assert (kinds["conv"], kinds["pool"]) == (2, 1)
    # The pooling is between the casts.
    assert {node.layer.dtype for node in asked.nodes if isinstance(node.layer, Conv | Pool)} == {
        "float32"
    }


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_constant_that_ort_folds_for_a_batch_size_has_as_many_values(
    dtype: str, target: Target, tmp_path: Path
) -> None:
    """Positions that are looked up for each image become one constant, in half precision a cast."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Slice", ["s", "none", "two"], ["batch_tokens"], "lengths"),
        helper.make_node("Expand", ["places", "batch_tokens"], ["ids"], "for_each"),
        helper.make_node("Gather", ["table", "ids"], ["positions"], "look_up"),
        helper.make_node("Add", ["x", "positions"], ["a"], "add"),
        helper.make_node("Relu", ["a"], ["y"], "last"),
    ]
    values = {
        "none": np.int64([0]), "two": np.int64([2]), "places": np.int64([[0, 1, 2, 3]]),
        "table": np.full((4, 2048), 0.5, dtype),
    }  # fmt: skip
    kind = onnx.TensorProto.FLOAT16 if dtype == "float16" else onnx.TensorProto.FLOAT
    path = saved(tmp_path / "g.onnx", nodes, ("n", 4, 2048), values, kind)
    nodes = lower(read_network(path, batch=8), *target).nodes
    assert any("second=same" in node.layer.key for node in nodes if node.layer is not None)


@pytest.mark.parametrize("read_twice", [False, True])
def test_an_image_that_ort_transposes_itself_has_its_axes(
    read_twice: bool, target: Target, tmp_path: Path
) -> None:
    """Tokens that become an image: ONNX Runtime moves their transposition behind the Reshape."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["n"], "first"),
        helper.make_node("Transpose", ["n"], ["t"], "move", perm=[0, 2, 1]),
        helper.make_node("Reshape", ["t", "image"], ["i"], "image"),
        conv_node("c1", "i", "a"),
        helper.make_node("Add", ["a", "i" if read_twice else "a"], ["sum"], "add"),
        helper.make_node("Reshape", ["sum", "tokens"], ["b"], "tokens"),
        helper.make_node("Transpose", ["b"], ["c"], "back", perm=[0, 2, 1]),
        helper.make_node("Softmax", ["c"], ["y"], "last"),
    ]
    values = {
        "image": np.int64([0, 32, 8, 8]), "tokens": np.int64([0, 32, 64]),
        "w": np.full((32, 32, 3, 3), 0.5, np.float32),
    }  # fmt: skip
    path = saved(tmp_path / "g.onnx", nodes, ("n", 64, 32), values)
    lowered = lower(read_network(path, batch=8), *target)
    assert [node.reason for node in lowered.nodes if node.role == "unknown"] == []
    [image] = [node.layer for node in lowered.nodes if isinstance(node.layer, Conv)]
    assert image.input_shape == image.output_shape == (8, 32, 8, 8)


def test_a_lowering_is_cached_across_names_and_damage(target: Target, cache: Path) -> None:
    network = read_network(next(p for p in REFERENCE if p.stem == "lenet5"), batch=1)
    asked = lower(network, *target)
    (kept,) = cache.iterdir()
    assert lower(network, *target) == asked
    renamed = replace(network, nodes=tuple(replace(n, name=f"my_{n.name}") for n in network.nodes))
    again = lower(renamed, *target)
    assert [n.layer for n in again.nodes] == [n.layer for n in asked.nodes]
    assert again.nodes[0].name == f"my_{asked.nodes[0].name}"
    assert len(list(cache.iterdir())) == 1
    kept.write_text("{", encoding="utf-8")
    assert lower(network, *target) == asked


def test_a_network_that_ort_refuses_is_an_error_with_its_reason(target: Target) -> None:
    network = network_of(conv(channels_in=17, channels_out=8))
    [node] = network.nodes
    strange = replace(network, nodes=(replace(node, attributes={**node.attributes, "odd": 1}),))
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime cannot run this network.*odd"):
        lower(strange, *target)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_what_ort_refuses_when_it_runs_is_an_error_too(
    network_file: NetworkFile, target: Target, op: str
) -> None:
    rows = {"GRU": 24, "LSTM": 32}[op]
    weights = {"w": np.ones((1, rows, 4)), "r": np.ones((1, rows, 8))}
    node = helper.make_node(op, ["x", "w", "r"], ["y"], "one", hidden_size=8)
    doubles = onnx.TensorProto.DOUBLE
    path = network_file("n.onnx", [node], {"x": [5, 1, 4]}, {"y": None}, weights, dtype=doubles)
    with pytest.raises(UnsupportedError, match=rf"{op} does not support float64 \(one"):
        lower(read_network(path), *target)
    session = onnxruntime.InferenceSession(path)
    with pytest.raises(Exception, match="does not support double yet"):
        session.run(None, {"x": np.ones((5, 1, 4))})


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_reductions_without_a_kernel_are_refused(
    network_file: NetworkFile, target: Target, op: str
) -> None:
    half, places = onnx.TensorProto.FLOAT16, [2] if op == "ScatterElements" else [2, 1]
    for reduction, dtype, runs in (("add", half, False), ("none", half, True), ("add", 1, True)):
        node = helper.make_node(op, ["x", "i", "u"], ["y"], "one", reduction=reduction)
        inputs = {"x": (dtype, [4]), "u": (dtype, [2]), "i": (onnx.TensorProto.INT64, places)}
        path = network_file("n.onnx", [node], inputs, {"y": None}, {}, dtype=dtype)
        session = onnxruntime.InferenceSession(path)
        kind = np.float16 if dtype == half else np.float32
        given = {"x": np.ones(4, kind), "u": np.ones(2, kind), "i": np.zeros(places, np.int64)}
        if runs:
            session.run(None, given)
            lower(read_network(path), *target)
        else:
            with pytest.raises(Exception, match="not supported with"):
                session.run(None, given)
            with pytest.raises(UnsupportedError, match=r"float16 with reduction 'add' \(one\)"):
                lower(read_network(path), *target)


def test_a_filter_that_no_memory_holds_is_named(target: Target) -> None:
    shapes = {"x": (1, 2, 9, 9), "w": (1 << 38, 2, 1, 1), "y": (1, 1 << 38, 9, 9)}
    network = Network(
        name="huge",
        nodes=(Node("conv", "Conv", "", ("x", "w"), ("y",), {"kernel_shape": (1, 1)}),),
        tensors={n: Tensor(n, shape, "float32", None, n == "w") for n, shape in shapes.items()},
        inputs=("x",),
        outputs=("y",),
        opsets={"": 17},
        batch=1,
    )
    with pytest.raises(UnsupportedError, match=r"weight 'w' of shape 274877906944x2x1x1 has 2"):
        lower(network, *target)


def conv(**fields: object) -> Conv:
    base = {"batch": 1, "height": 14, "width": 14, "kernel_height": 3, "kernel_width": 3}
    return Conv.from_fields({**base, **fields})


DRAWN = [
    conv(channels_in=cin, channels_out=cout, groups=groups)
    for cin, cout, groups in [
        (1, 6, 1), (3, 5, 1), (8, 8, 1), (12, 8, 1), (16, 8, 1), (17, 8, 1), (20, 8, 1),
        (24, 24, 1), (32, 30, 1), (32, 32, 32), (32, 64, 32), (24, 24, 24), (18, 18, 18),
        (32, 32, 2), (64, 64, 4), (64, 32, 4), (48, 48, 2), (40, 40, 5),
    ]
]  # fmt: skip
DRAWN += [conv(channels_in=32, channels_out=32, activation=a) for a in ("relu", "tanh", "sigmoid")]
POOLS = [
    Pool(batch=1, channels_in=c, height=9, width=9, kernel_height=3, kernel_width=3)
    for c in (6, 16, 24, 64)
]


def network_of(layer: Conv | Pool) -> Network:
    """A network of one operator (and its activation)."""
    tensors = [
        Tensor("x", layer.input_shape, "float32"),
        Tensor("c", layer.output_shape, "float32"),
        Tensor("y", layer.output_shape, "float32"),
    ]
    window = {"kernel_shape": (layer.kernel_height, layer.kernel_width)}
    if isinstance(layer, Pool):
        nodes = [Node("pool", "MaxPool", "", ("x",), ("c",), window)]
    else:
        taps = layer.channels_in // layer.groups
        shape = (layer.channels_out, taps, layer.kernel_height, layer.kernel_width)
        tensors += [
            Tensor("w", shape, "float32", is_weight=True),
            Tensor("b", shape[:1], "float32", np.full(shape[:1], 0.5, np.float32), True),
        ]
        attributes = {**window, "group": layer.groups}
        nodes = [Node("conv", "Conv", "", ("x", "w", "b"), ("c",), attributes)]
        if layer.activation != "none":
            op = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}[layer.activation]
            nodes.append(Node("act", op, "", ("c",), ("y",), {}))
    return Network(
        name="one",
        nodes=tuple(nodes),
        tensors={t.name: t for t in tensors},
        inputs=("x",),
        outputs=nodes[-1].outputs,
        opsets={"": 17},
        batch=1,
    )


@pytest.mark.parametrize("layer", [*DRAWN, *POOLS], ids=lambda layer: layer.key[:90])
def test_drawn_layers_get_the_layout_that_ort_chooses(layer: Layer, target: Target) -> None:
    asked = lower(network_of(layer), *target)
    ran = [n.layer for n in asked.nodes if n.layer is not None and n.layer.kind == layer.kind]
    assert lower_layers([layer], *target) == ran


def test_blocked_layers_get_the_blocks_of_the_machine(target: Target) -> None:
    drawn = Reorder(batch=1, channels_in=8, height=4, width=4)
    other = replace(target[0], options={"nchwc_block": "8"})
    (lowered,) = lower_layers([drawn], other, target[1])
    assert lowered == drawn.replace(layout_out="nchwc8")
    (back,) = lower_layers([drawn.replace(layout="nchwc16", layout_out="nchw")], other, target[1])
    assert back == drawn.replace(layout="nchwc8", layout_out="nchw")
    image = {"batch": 1, "channels": 16, "height": 4, "width": 4, "height_out": 8, "width_out": 8}
    blocked, plain = (Resize(**image, layout=layout) for layout in ("nchwc16", "nchw"))
    assert lower_layers([blocked, plain], other, target[1]) == [
        blocked.replace(layout="nchwc8"), plain
    ]  # fmt: skip


def test_nodes_around_a_loop_are_lowered_by_onnxruntime(target: Target, tmp_path: Path) -> None:
    def info(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "x"], ["sum"]),
            helper.make_node("MatMul", ["sum", "inner"], ["wide"]),
            helper.make_node("Slice", ["wide", "begin", "end"], ["next"]),
            helper.make_node("Identity", ["go"], ["goes"]),
        ],
        "body",
        [info("turn", 7, []), info("go", 9, []), info("state", 1, [2, 8])],
        [info("goes", 9, []), info("next", 1, [2, 8])],
        # The first one is too large to be read with its values.
        [
            onnx.numpy_helper.from_array(np.ones((8, 4096), np.float32), "inner"),
            onnx.numpy_helper.from_array(np.int64([0, 0]), "begin"),
            onnx.numpy_helper.from_array(np.int64([2, 8]), "end"),
        ],
    )
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "gemm"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Loop", ["count", "", "b"], ["c"], "loop", body=body),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"),
        onnx.numpy_helper.from_array(np.float32([[1.5, 2.5]]), "anchors"),
    ]
    # A network may return constants, such as a detector's anchors.
    outputs = [info("c", 1, [2, 8]), info("anchors", 1, [1, 2])]
    inputs = [info("x", 1, ["batch", 8]), info("count", 7, [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    lowered = lower(read_network(tmp_path / "n.onnx", shapes={"x": [2, 8]}), *target)
    assert lowered.method.startswith("onnxruntime"), lowered.notes
    assert [(node.op, node.role) for node in lowered.nodes] == [
        ("FusedGemm", "execution"), ("Loop", "unknown"),
    ]  # fmt: skip


@pytest.mark.parametrize("width", [64, 640])
def test_a_normalisation_of_rows_is_folded_into_the_product_before_it(
    width: int, target: Target, tmp_path: Path
) -> None:
    # With 640 columns the weights exceed what ONNX Runtime gets for other products.
    names = ("scale", "shift", "mean", "variance")
    weights = [onnx.numpy_helper.from_array(np.full(width, 0.5, np.float32), n) for n in names]
    weights.append(onnx.numpy_helper.from_array(np.full((width, width), 0.1, np.float32), "w"))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("BatchNormalization", ["a", *names], ["b"], "norm"),
        helper.make_node("Relu", ["b"], ["y"], "relu"),
    ]
    ends = [
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("x", [4, width]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    network = read_network(tmp_path / "n.onnx")
    [node] = lower(network, *target).nodes
    assert node.layer is not None
    assert (node.layer.kind, node.layer.fields()["activation"]) == ("dense", "relu")


def test_a_change_of_shape_is_a_copy_at_an_output(target: Target, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Erf", ["x"], ["a"], "erf"),
        helper.make_node("Flatten", ["a"], ["b"], "flat"),
        helper.make_node("Softmax", ["b"], ["c"], "soft"),
        helper.make_node("Reshape", ["c", "tokens"], ["y"], "back"),
    ]
    network = read_network(written(tmp_path / "n.onnx", nodes, 16))
    asked = lower(network, *target)
    assert [(node.op, node.role) for node in asked.nodes] == [
        ("Erf", "execution"), ("Flatten", "view"), ("Softmax", "execution"),
        ("Reshape", "execution"),
    ]  # fmt: skip
    last = asked.nodes[-1].layer
    assert isinstance(last, Move)
    assert (last.function, last.batch, last.inner) == ("copy", 2, 16 * 64)


def lowered_wholly(path: Path, target: Target) -> tuple[LoweredNode, ...]:
    """Lower a network; nothing may be unknown, and every operator is a source."""
    network = read_network(path)
    nodes = lower(network, *target).nodes
    assert not [node for node in nodes if node.role == "unknown"]
    every = sorted(name for node in nodes for name in node.sources)
    assert every == sorted(node.name for node in network.nodes)
    return nodes


SQUARE = {"w": np.full((16, 16), 0.5, np.float32), "b": np.ones(16, np.float32)}


@pytest.mark.parametrize("opset", [17, 22])
@pytest.mark.parametrize(
    "op",
    ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Selu", "Softplus", "Softsign",
     "ThresholdedRelu", "Celu"],
)  # fmt: skip
def test_a_product_keeps_its_layer_whatever_activation_it_ends_with(
    op: str, opset: int, target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], "product"),
        helper.make_node(op, ["g"], ["y"], "act"),
    ]
    path = saved(tmp_path / "n.onnx", nodes, (4, 16), SQUARE, opset=opset)
    nodes = lowered_wholly(path, target)
    function = {"LeakyRelu": "leaky_relu", "HardSigmoid": "hard_sigmoid",
                "ThresholdedRelu": "thresholded_relu"}.get(op, op.lower())  # fmt: skip
    layers = [node.layer for node in nodes if node.layer is not None]
    absorbed = op != "Celu"
    assert [layer.kind for layer in layers] == ["dense", "activation"][: 2 - absorbed]
    assert layers[-1].fields()["activation"] == function


def test_a_product_of_two_computed_matrices_is_split_completely(
    target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], "one"),
        helper.make_node("Exp", ["x"], ["e"], "two"),
        helper.make_node("Gemm", ["a", "e", "b"], ["g"], "product"),
        helper.make_node("Relu", ["g"], ["y"], "act"),
    ]
    path = saved(tmp_path / "n.onnx", nodes, (16, 16), SQUARE)
    nodes = lowered_wholly(path, target)
    kinds = Counter(node.layer.kind for node in nodes if node.layer is not None)
    # The function before it and the addition after it are both elementwise.
    assert kinds == {"softmax": 1, "elementwise": 2, "matmul": 1, "activation": 1}


PADS = np.int64([0, 0, 1, 1, 0, 0, 1, 1])
IMAGE = (2, 16, 10, 10)
FILTERS = np.full((16, 16, 3, 3), 0.5, np.float32)


def padded(op: str, *more: str, **attributes: object) -> list[onnx.NodeProto]:
    size = {"kernel_shape": [3, 3]} | attributes
    return [
        helper.make_node("Pad", ["x", "pads", *more], ["p"], "pad"),
        helper.make_node(op, ["p"], ["y"], "window", **size),
    ]


EDGES: dict[str, tuple[int, tuple[int, ...], list[onnx.NodeProto]]] = {
    "zero padding of MaxPool": (17, IMAGE, padded("MaxPool")),
    "other padding of MaxPool": (17, IMAGE, padded("MaxPool", "low")),
    "zero padding of AveragePool": (17, IMAGE, padded("AveragePool")),
    "zero padding of AveragePool with pads": (
        17, IMAGE, padded("AveragePool", pads=[1, 1, 1, 1]),
    ),
    "zero padding of AveragePool that counts its pads": (
        17, IMAGE, padded("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1),
    ),
    "padding before operator set 11": (
        10,
        IMAGE,
        [
            helper.make_node("Pad", ["x"], ["p"], "pad", pads=PADS.tolist()),
            helper.make_node("Conv", ["p", "filters"], ["y"], "conv"),
        ],
    ),
    "padding with ones before operator set 11": (
        10,
        IMAGE,
        [
            helper.make_node("Pad", ["x"], ["p"], "pad", pads=PADS.tolist(), value=1.0),
            helper.make_node("Conv", ["p", "filters"], ["y"], "conv"),
        ],
    ),
    "computed bounds": (
        17,
        IMAGE,
        [
            helper.make_node("ReduceMax", ["x"], ["high"], "most", keepdims=0),
            helper.make_node("Conv", ["x", "filters"], ["c"], "conv"),
            helper.make_node("Clip", ["c", "", "high"], ["y"], "clip"),
        ],
    ),
    "computed statistics": (
        17,
        IMAGE,
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], "mean", axes=[0, 2, 3], keepdims=0),
            helper.make_node("Conv", ["x", "filters"], ["c"], "conv"),
            helper.make_node("BatchNormalization", ["c", "b", "b", "mean", "b"], ["y"], "norm"),
        ],
    ),
    "a product of a transposed image": (
        17,
        (16, 4),
        [
            helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
            helper.make_node("Gemm", ["t", "w", "b"], ["y"], "product"),
        ],
    ),
    "a product whose transposed image is read elsewhere": (
        17,
        (16, 16),
        [
            helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
            helper.make_node("Gemm", ["t", "w", "b"], ["g"], "product"),
            helper.make_node("Sub", ["g", "t"], ["y"], "rest"),
        ],
    ),
    "a product of a transposed image with two readers": (
        17,
        (16, 4),
        [
            helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
            helper.make_node("Gemm", ["t", "w", "b"], ["g"], "product"),
            helper.make_node("Erf", ["g"], ["e"], "one"),
            helper.make_node("Sub", ["g", "e"], ["y"], "two"),
        ],
    ),
    "a product that transposes its image back": (
        17,
        (4, 16),
        [
            helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
            helper.make_node("Gemm", ["t", "w", "b"], ["y"], "product", transA=1),
        ],
    ),
    "softplus times": (
        18, IMAGE,
        [
            helper.make_node("Conv", ["x", "filters"], ["c"], "conv"),
            helper.make_node("Mish", ["c"], ["m"], "mish"),
            helper.make_node("Conv", ["m", "filters"], ["y"], "conv2"),
        ],
    ),
}  # fmt: skip


def edge_network(path: Path, name: str) -> Path:
    opset, shape, nodes = EDGES[name]
    values = {**SQUARE, "pads": PADS, "low": np.float32(-1.0), "filters": FILTERS}
    return saved(path, nodes, shape, values, opset=opset)


@pytest.mark.parametrize("name", EDGES)
def test_what_is_at_the_limits_of_fusion_has_layers(
    name: str, target: Target, tmp_path: Path
) -> None:
    assert lowered_wholly(edge_network(tmp_path / "n.onnx", name), target)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalisation_is_lowered_to_its_definition(
    opset: int, target: Target, tmp_path: Path
) -> None:
    each = 2 if opset == 18 else 16
    values = {"scale": np.ones(each, np.float32), "bias": np.zeros(each, np.float32)}
    nodes = [
        helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["n"], "norm", num_groups=2),
        helper.make_node("Relu", ["n"], ["y"], "act"),
    ]
    path = saved(tmp_path / "n.onnx", nodes, IMAGE, values, opset=opset)
    nodes = lowered_wholly(path, target)
    large = [node.layer for node in nodes if node.layer and node.layer.input_bytes > 10_000]
    # Two means; the square, the subtraction, the division by the root, scale and bias.
    expected = Counter({"reduce": 2, "elementwise": 5, "activation": 1})
    if opset == 21:
        # Tensors that are cast to the type of the means are copied.
        expected["move"] = 2
    assert Counter(layer.kind for layer in large) == expected


def test_an_operator_with_an_unused_first_output_has_its_name(
    target: Target, tmp_path: Path
) -> None:
    values = {
        "w": np.full((1, 32, 8), 0.1, np.float32), "r": np.full((1, 32, 8), 0.1, np.float32),
        "axis": np.int64([0]),
    }  # fmt: skip
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], "cells", hidden_size=8),
        helper.make_node("Squeeze", ["h", "axis"], ["s"], "flat"),
        helper.make_node("Softmax", ["s"], ["y"], "soft"),
    ]
    path = saved(tmp_path / "n.onnx", nodes, (5, 2, 8), values)
    sources = {node.op: node.sources for node in lowered_wholly(path, target)}
    assert sources["LSTM"] == ("cells",)
    assert sources["Softmax"][-1] == "soft"
    assert "cells" not in sources["Softmax"]


def test_max_pooling_with_indices_and_lp_poolings_are_layers(
    target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], "conv"),
        # Padding is not fused into a MaxPool with indices: it is a separate layer.
        helper.make_node("Pad", ["c", "pads"], ["p"], "pad"),
        helper.make_node("MaxPool", ["p"], ["m", "places"], "pool", kernel_shape=[3, 3]),
        helper.make_node("LpPool", ["m"], ["l"], "roots", kernel_shape=[2, 2]),
        helper.make_node("GlobalLpPool", ["l"], ["y"], "root"),
    ]
    values = {"pads": PADS, "filters": FILTERS}
    lowered = lowered_wholly(saved(tmp_path / "n.onnx", nodes, IMAGE, values), target)
    layers = [node.layer for node in lowered if node.layer is not None]
    modes = [layer.fields()["mode"] for layer in layers if layer.kind == "pool_nd"]
    assert modes == ["max_places", "lp", "global_lp"]
    assert "move" in {layer.kind for layer in layers}


def operators(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)


def own_operators(path: Path, folder: Path) -> Counter[str]:
    """Count the operators that ONNX Runtime makes of a file itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / "own.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return operators(onnx.load(folder / "own.onnx").graph)


def padded_network(path: Path, kind: int, *, quantised: bool = False) -> Path:
    """Two convolutions whose rows are padded to an even number, computed in an element type."""
    number = helper.tensor_dtype_to_np_dtype(kind)
    values = {
        "w": np.full((32, 32, 3, 3), 0.5, number), "two": np.array(2), "axis": np.int64([0]),
        "zeros": np.int64([0] * 6), "half": np.array(2, number), "scale": np.float32(1),
        "zero": np.uint8(0),
    }  # fmt: skip
    nodes, x = [], "x"
    for place in "ab":
        nodes += [
            helper.make_node("Shape", [x], [f"{place} shape"], f"{place} shape"),
            helper.make_node("Gather", [f"{place} shape", "two"], [f"{place} side"], f"{place} 2"),
            helper.make_node("Cast", [f"{place} side"], [f"{place} n"], f"{place} n", to=kind),
        ]
        side = f"{place} n"
        if quantised:
            side = f"{place} back"
            nodes += [
                helper.make_node("QuantizeLinear", [f"{place} n", "scale", "zero"],
                                 [f"{place} q"], f"{place} quantise"),
                helper.make_node("DequantizeLinear", [f"{place} q", "scale", "zero"], [side],
                                 f"{place} dequantise"),
            ]  # fmt: skip
        for op, reads, makes in (
            ("Div", [side, "half"], "pairs"), ("Ceil", [f"{place} pairs"], "up"),
            ("Mul", [f"{place} up", "half"], "even"), ("Sub", [f"{place} even", side], "more"),
        ):  # fmt: skip
            nodes.append(helper.make_node(op, reads, [f"{place} {makes}"], f"{place} {op}"))
        nodes += [
            helper.make_node("Cast", [f"{place} more"], [f"{place} count"], f"{place} count", to=7),
            helper.make_node("Unsqueeze", [f"{place} count", "axis"], [f"{place} row"],
                             f"{place} v"),
            helper.make_node("Concat", ["zeros", f"{place} row", "axis"], [f"{place} pads"],
                             f"{place} pads", axis=0),
            helper.make_node("Pad", [x, f"{place} pads"], [f"{place} padded"], f"{place} pad"),
            helper.make_node("Conv", [f"{place} padded", "w"], [f"{place} y"], f"{place} conv"),
        ]  # fmt: skip
        x = f"{place} y"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], "pool"))
    return saved(path, nodes, (2, 32, 15, 16), values, kind)


@pytest.mark.parametrize("way", ["half precision", "quantised"])
def test_arithmetic_that_is_not_folded_has_layers(way: str, target: Target, tmp_path: Path) -> None:
    quantised = way == "quantised"
    kind = onnx.TensorProto.FLOAT if quantised else onnx.TensorProto.FLOAT16
    path = padded_network(tmp_path / "n.onnx", kind, quantised=quantised)
    network = read_network(path)
    asked = lower(network, *target)
    own = own_operators(path, tmp_path)
    run = Counter(node.op for node in asked.nodes)
    for op in ("Pad", "Div", "Ceil", "Concat", "Shape", "QuantizeLinear", "DequantizeLinear"):
        assert run[op] == own[op]
    assert own["Ceil"]
    assert [node.reason for node in asked.nodes if node.role == "unknown"] == []
    pads = [node.layer for node in asked.nodes if node.op == "Pad" and node.layer]
    # The first from 15 to 16 rows, the second none: it has 14.
    assert [(each.fields()["length"], each.fields()["length_out"]) for each in pads[:1]] == [
        (15, 16)
    ]
    named = {source for node in asked.nodes for source in node.sources}
    assert named == {node.name for node in network.with_unfolded_nodes().nodes}
    assert work_of(network, ["a Ceil"]).moved_bytes == 2 * (4 if quantised else 2)


def half_network_with_shared_bias(path: Path) -> Path:
    """Convolutions in half precision whose equal biases PyTorch's exporter writes once."""
    nodes = [
        helper.make_node("Identity", ["b"], ["b again"], "same"),
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "act"),
        helper.make_node("Conv", ["r", "v", "b again"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"], "pool"),
    ]
    values = {name: np.full((32, 32, 3, 3), 0.5, np.float16) for name in "wv"}
    values["b"] = np.zeros(32, np.float16)
    return saved(path, nodes, (2, 32, 8, 8), values, onnx.TensorProto.FLOAT16)


def test_shared_biases_in_half_precision_are_cast_in_every_run(
    target: Target, block: int, tmp_path: Path
) -> None:
    path = half_network_with_shared_bias(tmp_path / "half.onnx")
    network = read_network(path)
    # Without a constant bias, there is no blocked layout.
    found = ask(network, block)
    assert [n.layer.layout for n in found if isinstance(n.layer, Conv)] == ["nchw", "nchw"]
    # Biases of their own are cast beforehand. The structure is the same, not the lowering.
    lower(network, *target)
    apart = lower(replace(network, weight_nodes=()), *target).nodes
    layouts = [node.layer.layout for node in apart if isinstance(node.layer, Conv)]
    assert layouts == [f"nchwc{block}" if block else "nchw"] * 2


def test_large_matrices_in_half_precision_are_not_cast_in_every_run(
    target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["y"], "act"),
    ]
    values = {"w": np.full((640, 512), 0.1, np.float16), "b": np.full(512, 0.1, np.float16)}
    path = saved(tmp_path / "g.onnx", nodes, (4, 640), values, onnx.TensorProto.FLOAT16)
    lowered = lower(read_network(path), *target)
    assert own_operators(path, tmp_path)["Cast"] == 2
    assert Counter(n.layer.kind for n in lowered.nodes if n.layer) == {"cast": 2, "dense": 1}


def test_biases_of_unknown_scale_are_fused_as_in_the_file(target: Target, tmp_path: Path) -> None:
    channels, scale = 300, np.float32(0.02)
    of_filters = np.linspace(0.001, 0.01, channels, dtype=np.float32)
    values = {
        "scale": scale, "zero": np.uint8(128), "w": np.full((channels, 8, 1, 1), 3, np.int8),
        "of w": of_filters, "own": np.zeros(channels, np.int8), "b": np.full(channels, 5, np.int32),
        "of b": scale * of_filters, "none": np.zeros(channels, np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["a"], "back"),
        helper.make_node("DequantizeLinear", ["w", "of w", "own"], ["f"], "filters", axis=0),
        helper.make_node("DequantizeLinear", ["b", "of b", "none"], ["d"], "bias", axis=0),
        helper.make_node("Conv", ["a", "f", "d"], ["c"], "conv"),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["r"], "quantise again"),
        helper.make_node("DequantizeLinear", ["r", "scale", "zero"], ["y"], "back again"),
    ]
    path = saved(tmp_path / "q.onnx", nodes, (1, 8, 6, 6), values)
    network = read_network(path)
    assert network.tensors["of b"].value is None
    graph = optimised_model(skeleton(network)).graph
    assert operators(graph) == own_operators(path, tmp_path)
    assert operators(graph)["QLinearConv"] == 1


def test_signed_values_have_layers_under_new_names_and_types(
    target: Target, tmp_path: Path
) -> None:
    path = quantised_network(tmp_path / "q.onnx", np.int8(0))
    network = read_network(path)
    asked = lower(network, *target)
    assert [(n.op, n.reason) for n in asked.nodes if n.role == "unknown"] == []
    # ONNX Runtime makes some of them unsigned, and then fuses nothing around tensors that several
    # operators read: other convolutions dequantise their filters in every run.
    layers = [node.layer for node in asked.nodes if node.layer is not None]
    assert {str(each.fields()["dtype"]) for each in layers} >= {"uint8", "int8", "int32"}
    assert {each.kind for each in layers} >= {"conv", "quantized_dense", "quantized_pool"}


def test_an_unfused_int8_convolution_dequantises_its_bias(target: Target, tmp_path: Path) -> None:
    values = {
        "scale": np.float32(0.02), "zero": np.uint8(128), "own": np.int8(0),
        "w": np.full((16, 8, 3, 3), 3, np.int8), "b": np.full(16, 5, np.int32),
        "of b": np.float32(0.0004), "none": np.int32(0), "m": np.full((16, 10), 2, np.int8),
        "c": np.full(10, 4, np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["a"], "back"),
        helper.make_node("DequantizeLinear", ["w", "scale", "own"], ["f"], "filters"),
        helper.make_node("DequantizeLinear", ["b", "of b", "none"], ["d"], "bias"),
        # Its output stays in floats.
        helper.make_node("Conv", ["a", "f", "d"], ["r"], "conv"),
        helper.make_node("GlobalMaxPool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["flat"], "flat"),
        helper.make_node("QuantizeLinear", ["flat", "scale", "zero"], ["s"], "quantise rows"),
        helper.make_node("DequantizeLinear", ["s", "scale", "zero"], ["t"], "rows"),
        helper.make_node("DequantizeLinear", ["m", "scale", "own"], ["n"], "matrix"),
        helper.make_node("DequantizeLinear", ["c", "of b", "none"], ["e"], "bias of rows"),
        helper.make_node("Gemm", ["t", "n", "e"], ["y"], "product"),
    ]
    network = read_network(saved(tmp_path / "q.onnx", nodes, (1, 8, 6, 6), values))
    asked = lower(network, *target)
    assert [(n.op, n.reason) for n in asked.nodes if n.role == "unknown"] == []
    layers = [node.layer for node in asked.nodes if node.layer is not None]
    assert Quantize(batch=16, values=1, function="dequantize", dtype="int32") in layers
    # A product of int8 that returns floats.
    assert [each.fields()["function"] for each in layers if each.kind == "quantized_dense"] == [
        "to_float"
    ]


def test_what_transformers_are_fused_to_has_layers(target: Target, tmp_path: Path) -> None:
    """A BERT as onnxruntime.transformers fuses it, before and after dynamic quantisation."""
    own = "com.microsoft"
    values = {
        "words": np.full((30, 16), 0.1, np.float32), "places": np.full((8, 16), 0.2, np.float32),
        "gamma": np.ones(16, np.float32), "beta": np.zeros(16, np.float32),
        "w": np.full((16, 48), 0.1, np.float32), "b": np.zeros(48, np.float32),
        "v": np.full((16, 48), 3, np.int8), "scale": np.float32(0.02), "zero": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("EmbedLayerNormalization",
                         ["x", "", "words", "places", "", "gamma", "beta"],
                         ["e", "counts"], "embed", domain=own),
        helper.make_node("Attention", ["e", "w", "b"], ["a"], "attend", domain=own, num_heads=2),
        helper.make_node("SkipLayerNormalization", ["a", "e", "gamma", "beta"], ["s"], "skip",
                         domain=own),
        helper.make_node("DynamicQuantizeLinear", ["s"], ["q", "q scale", "q zero"], "quantise"),
        helper.make_node("QAttention", ["q", "v", "b", "q scale", "scale", "", "q zero", "zero"],
                         ["c"], "attend in int8", domain=own, num_heads=2),
        helper.make_node("Softmax", ["c"], ["y"], "soft"),
    ]  # fmt: skip
    path = saved(tmp_path / "g.onnx", nodes, (2, 8), values, onnx.TensorProto.INT32)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid(own, 1))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(model, path)
    network = read_network(path)
    assert network.tensors["e"].shape == network.tensors["y"].shape == (2, 8, 16)
    assert network.notes == ()
    asked = lower(network, *target)
    assert [(n.op, n.reason) for n in asked.nodes if n.role == "unknown"] == []
    kinds = [node.layer.kind for node in asked.nodes if node.layer is not None]
    assert kinds == [
        "norm", "attention", "norm", "quantize", "quantized_dense", "attention", "softmax"
    ]  # fmt: skip
    product, attention = (node.layer for node in asked.nodes[4:6])
    assert product == QuantizedDense(
        batch=16, features_in=16, features_out=48, function="to_float", dtype="uint8"
    )
    assert attention is not None
    assert attention.output_shape == (2, 8, 16)
    assert attention.fields()["heads"] == 2


def test_a_custom_operator_with_declared_shapes_cuts_off_nothing(
    block: int, tmp_path: Path
) -> None:
    sizes = {"x": (2, 32, 8, 8), "b": (2, 32, 8, 8), "y": (2, 32, 8, 8)}
    infos = {n: helper.make_tensor_value_info(n, 1, shape) for n, shape in sizes.items()}
    nodes = [
        conv_node("first", "x", "a"),
        helper.make_node("Sparkle", ["a"], ["b"], "sparkle", domain="com.example"),
        conv_node("second", "b", "c"),
        helper.make_node("Relu", ["c"], ["y"], "act"),
    ]
    weights = [onnx.numpy_helper.from_array(np.full((32, 32, 3, 3), 0.5, np.float32), "w")]
    graph = helper.make_graph(
        nodes, "g", [infos["x"]], [infos["y"]], weights, value_info=[infos["b"]]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    network = read_network(tmp_path / "n.onnx", batch=4)
    assert network.tensors["b"].shape == network.tensors["y"].shape == (4, 32, 8, 8)
    lowered = ask(network, block)
    [custom] = [node for node in lowered if node.role == "unknown"]
    assert (custom.op, custom.sources) == ("com.example.Sparkle", ("sparkle",))
    assert "no layer kind for operator com.example.Sparkle" in custom.reason
    names = [name for node in lowered for name in node.sources]
    assert sorted({*names}) == ["act", "first", "second", "sparkle"]
    assert names.index("first") < names.index("sparkle") < names.index("second")
    # Nothing is fused across it, and its ends are in plain layout.
    layers = [node.layer for node in lowered if isinstance(node.layer, Conv)]
    assert [each.activation for each in layers] == ["none", "relu"]
    relayouts = Counter(node.op for node in lowered if node.op in RELAYOUTS)
    assert relayouts == (dict.fromkeys(RELAYOUTS, 2) if block else {})


def test_a_cached_reason_has_its_parts(
    target: Target, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        conv_node("first", "x", "a"),
        helper.make_node("Det", ["a"], ["b"], "det"),
        helper.make_node("Relu", ["b"], ["y"], "act"),
    ]
    path = saved(tmp_path / "g.onnx", nodes, (2, 32, 8, 8), {"w": np.ones((32, 32, 3, 3), "f4")})
    network = read_network(path, batch=2)
    asked = lower(network, *target)
    monkeypatch.setattr("resperf.lowering.onnxruntime.ask", None)
    again = lower(replace(network), *target)
    assert len(list(cache.iterdir())) == 1
    for lowered in (asked, again):
        [reason] = [Message.of(n.reason) for n in lowered.nodes if n.role == "unknown"]
        assert reason == "Det 'det': no layer kind for operator Det"
        assert (reason.general, reason.unread) == ("no layer kind for operator Det", "Det")


def test_a_cast_behind_a_custom_operator_is_a_layer(target: Target, tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    half = onnx.TensorProto.FLOAT16
    nodes = [
        helper.make_node("Sparkle", ["x"], ["a"], "sparkle", domain="com.example"),
        helper.make_node("Cast", ["a"], ["b"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Softmax", ["b"], ["y"], "soft"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, (2, 8))], [info("y", 1, (2, 8))],
        value_info=[info("a", half, (2, 8))],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    asked = lower(read_network(tmp_path / "n.onnx"), *target)
    assert [(node.op, node.role) for node in asked.nodes] == [
        ("com.example.Sparkle", "unknown"), ("Cast", "execution"), ("Softmax", "execution"),
    ]  # fmt: skip


def test_attention_with_the_tokens_first_is_products_of_its_heads(
    target: Target, tmp_path: Path
) -> None:
    """PyTorch's MultiheadAttention: ONNX Runtime fuses the transposes of heads and tokens."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "before"),
        helper.make_node("Transpose", ["r"], ["q"], "heads_first", perm=[1, 0, 2]),
        helper.make_node("Transpose", ["r"], ["k"], "turned", perm=[1, 2, 0]),
        helper.make_node("MatMul", ["q", "k"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["p"], "shares", axis=-1),
        helper.make_node("Transpose", ["r"], ["v"], "values", perm=[1, 0, 2]),
        helper.make_node("MatMul", ["p", "v"], ["y"], "weighted"),
    ]
    network = read_network(saved(tmp_path / "n.onnx", nodes, (400, 8, 32), {}))
    lowered = lower(network, *target)
    assert [(node.op, node.role) for node in lowered.nodes if node.role != "execution"] == []
    products = [node for node in lowered.nodes if node.op == "FusedMatMul"]
    assert [(p.layer.rows, p.layer.depth, p.layer.columns) for p in products] == [
        (400, 32, 400), (400, 400, 32),
    ]  # fmt: skip
    assert all(p.layer.batch * p.layer.outer == 8 for p in products)
    assert not any(node.op == "Transpose" for node in lowered.nodes)


def custom_network(path: Path, output: list[int] | None, domain: str) -> Network:
    """Two products, and between them an operator that ONNX Runtime does not have."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "first"),
        helper.make_node("Sparkle", ["a"], ["b"], "sparkle", domain=domain),
        helper.make_node("Gemm", ["b", "w"], ["c"], "second"),
        helper.make_node("Softmax", ["x"], ["s"], "soft"),
        helper.make_node("Add", ["c", "s"], ["y"], "sum"),
    ]
    infos = [] if output is None else [helper.make_tensor_value_info("b", 1, output)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 8])],
        [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w")], value_info=infos,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return read_network(path)


@pytest.mark.parametrize("domain", ["", "com.example"])
def test_what_is_behind_an_operator_of_unknown_output_is_named(
    domain: str, target: Target, tmp_path: Path
) -> None:
    nodes = lower(custom_network(tmp_path / "n.onnx", None, domain), *target).nodes
    assert {node.sources: node.role for node in nodes} == {
        ("first",): "execution", ("sparkle",): "unknown", ("second",): "unknown",
        ("soft",): "execution", ("sum",): "unknown",
    }  # fmt: skip
    reasons = {node.sources[0]: node.reason for node in nodes}
    assert "no layer kind for operator" in reasons["sparkle"]
    assert reasons["second"] == "Gemm 'second': the shape of its input 'b' is not known"
    assert reasons["sum"] == "Add 'sum': the shape of its input 'c' is not known"


def test_an_operator_without_a_domain_that_ort_lacks_is_unknown(
    target: Target, tmp_path: Path
) -> None:
    nodes = lower(custom_network(tmp_path / "n.onnx", [4, 8], ""), *target).nodes
    assert [(node.sources, node.role) for node in nodes if node.role != "execution"] == [
        (("sparkle",), "unknown")
    ]


def test_a_network_of_custom_operators_alone_needs_no_ort(target: Target) -> None:
    tensors = {name: Tensor(name, (2, 3), "float32") for name in "xy"}
    node = Node("sparkle", "Sparkle", "com.example", ("x",), ("y",), {})
    network = Network("n", (node,), tensors, ("x",), ("y",), {"": 17, "com.example": 1}, 2)
    assert [each.role for each in lower(network, *target).nodes] == ["unknown"]


def test_texts_are_passed_on(target: Target, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LabelEncoder", ["x"], ["n"], "encode", domain="ai.onnx.ml",
                         keys_strings=["a", "b"], values_int64s=[0, 1]),
        helper.make_node("Cast", ["n"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
    ]  # fmt: skip
    path = saved(tmp_path / "n.onnx", nodes, (4, 8), {}, onnx.TensorProto.STRING)
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, path)
    assert [(node.op, node.role) for node in lower(read_network(path), *target).nodes] == [
        ("LabelEncoder", "unknown"), ("Cast", "execution"),
    ]  # fmt: skip


def test_weights_of_types_without_placeholders_are_read(target: Target, tmp_path: Path) -> None:
    eighth = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT8E4M3FN)
    values = {"w": np.ones((80, 80), np.float32).astype(eighth), "scale": np.float32(1)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["d"], "back"),
        helper.make_node("MatMul", ["x", "d"], ["y"], "product"),
    ]
    path = saved(tmp_path / "n.onnx", nodes, (4, 80), values, opset=19)
    assert [(node.op, node.role) for node in lower(read_network(path), *target).nodes] == [
        ("DequantizeLinear", "unknown"), ("MatMul", "execution"),
    ]  # fmt: skip
    node = helper.make_node("Gather", ["table", "x"], ["y"], "look up")
    texts = {"table": np.full(5000, "a", object)}
    path = saved(tmp_path / "t.onnx", [node], (4,), texts, onnx.TensorProto.INT64)
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    onnx.save(model, path)
    assert [node.op for node in lower(read_network(path), *target).nodes] == ["Gather"]


def residual_network(path: Path, op: str, channels: int) -> Path:
    """A sum of an image and a convolution with a bias, and a function of it."""
    bounds = ["low", "high"] if op == "Clip" else []
    return written(
        path,
        [
            conv_node("c1", "x", "a"),
            helper.make_node("Conv", ["a", "w", "bias"], ["b"], "c2", pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["b", "a"], ["s"], "sum"),
            helper.make_node(op, ["s", *bounds], ["t"], "act"),
            conv_node("c3", "t", "y"),
        ],
        channels,
    )


def scaled_network(path: Path, op: str) -> Path:
    """A factor per channel behind a function of a convolution, and a function of the product."""
    nodes = [
        conv_node("c1", "x", "a"),
        helper.make_node("Relu", ["a"], ["b"], "first"),
        helper.make_node("Mul", ["b", "gamma"], ["s"], "scale"),
        helper.make_node(op, ["s"], ["t"], "second"),
        conv_node("c2", "t", "y"),
    ]
    return written(path, nodes, 16)


WRITTEN: dict[str, Callable[[Path], Path]] = {
    **{
        f"{name}, {channels} channels": partial(written, nodes=nodes, channels=channels)
        for channels in (16, 20, 18)
        for name, nodes in ACTIVATED.items()
    },
    **{name: partial(written, nodes=nodes, channels=32) for name, (nodes, _) in GRAPHS.items()},
    **{
        f"{op} of a sum, {channels} channels": partial(residual_network, op=op, channels=channels)
        for channels in (16, 18)
        for op in ("Relu", "Sigmoid", "HardSigmoid", "LeakyRelu", "Clip", "Elu", "HardSwish")
    },
    **{
        f"{op} of a product": partial(scaled_network, op=op)
        for op in ("Relu", "HardSigmoid", "HardSwish", "Gelu")
    },
    "sum without a bias, 18 channels": partial(
        written,
        nodes=[
            conv_node("c1", "x", "a"),
            conv_node("c2", "a", "b"),
            helper.make_node("Add", ["b", "a"], ["y"], "sum"),
        ],
        channels=18,
    ),
    **{name: partial(edge_network, name=name) for name in EDGES},
    **{f"signals of {rank} axes": partial(signal_network, rank=rank) for rank in (1, 3)},
    "transformer block": transformer_block,
    "half precision": half_network,
    "shared bias in half precision": half_network_with_shared_bias,
    "uint8": partial(quantised_network, zero=np.uint8(128)),
    "int8": partial(quantised_network, zero=np.int8(0)),
}
COMPARED = {path.stem: partial(shutil.copy, path) for path in (*LIGHT, *EXPORTED, *REFERENCE)}


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_ort_makes_the_same_of_what_it_is_asked_about_as_of_the_file(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path / "n.onnx")
    network = read_network(path).with_unfolded_nodes()
    graph = optimised_model(skeleton(network)).graph
    assert operators(graph) == own_operators(path, tmp_path)


def own_blocks(graph: onnx.GraphProto) -> Counter[tuple[object, ...]]:
    """Count convolutions, re-layouts, and what else is blocked in ONNX Runtime's own graph."""
    residuals = [
        node.input[RESIDUAL] if len(node.input) > RESIDUAL else None for node in graph.node
    ]
    lasting = {each.name for each in (*graph.input, *graph.output, *graph.initializer)}
    in_place = added_in_place([node.input for node in graph.node], residuals, lasting)
    counts: Counter[tuple[object, ...]] = Counter()
    for node, added in zip(graph.node, in_place, strict=True):
        is_blocked = node.domain == NCHWC
        if node.op_type in CONVS:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            function = FUNCTION_OF.get(attributes.get("activation", b"").decode(), "none")
            adds = len(node.input) > RESIDUAL and not added
            counts["Conv", is_blocked, function, adds] += 1
        elif is_blocked:
            counts[(node.op_type,)] += 1
    return counts


def placed_blocks(nodes: Sequence[LoweredNode]) -> Counter[tuple[object, ...]]:
    """Count the same of lowered nodes."""
    counts: Counter[tuple[object, ...]] = Counter()
    for node in nodes:
        fields = node.layer.fields() if node.layer else {}
        is_blocked = str(fields.get("layout")).startswith("nchwc")
        if node.op in CONVS:
            counts["Conv", is_blocked, fields.get("activation"), fields.get("residual", False)] += 1
        elif is_blocked or node.op in RELAYOUTS:
            counts[("Upsample" if node.op == "Resize" else node.op,)] += 1
    return counts


@pytest.mark.parametrize("make", (COMPARED | WRITTEN).values(), ids=COMPARED | WRITTEN)
def test_blocks_are_placed_as_ort_places_them(
    make: Callable[[Path], Path], block: int, tmp_path: Path
) -> None:
    if not block:
        pytest.skip("ONNX Runtime has no blocked layouts on this machine")
    network = read_network(make(tmp_path / "n.onnx")).with_unfolded_nodes()
    own = own_blocks(optimised_model(skeleton(network)).graph)
    assert placed_blocks(ask(network, block)) == own


@pytest.mark.parametrize(
    ("dtype", "bits", "block", "kernels"),
    [
        (onnx.TensorProto.INT4, 4, 32, ["MatMulNBits"]),
        (onnx.TensorProto.UINT4, 4, 0, ["MatMulNBits"]),
        (onnx.TensorProto.FLOAT8E5M2, 8, 0, ["DequantizeLinear", "MatMul"]),
    ],
)
def test_weights_of_few_bits_keep_their_type(
    dtype: int, bits: int, block: int, kernels: list[str], target: Target, tmp_path: Path
) -> None:
    rows, columns = 128, 64
    weight = helper.make_tensor(
        "q", dtype, [rows, columns], bytes(rows * columns * bits // 8), raw=True
    )
    scales = np.ones((rows // block, columns) if block else (), np.float32)
    path = tmp_path / "packed.onnx"
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"],
                         **({"axis": 0, "block_size": block} if block else {})),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, rows])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, columns])],
        [weight, onnx.numpy_helper.from_array(scales, "s")],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    network = read_network(path)
    nodes = lower(network, *target).nodes
    assert [node.op for node in nodes] == kernels
    packed = rows * columns * bits // 8 + scales.nbytes
    work = work_of(network, [source for node in nodes for source in node.sources])
    assert work == (4 * rows * columns, packed + 4 * (4 * rows + 4 * columns))
    backend = OnnxRuntimeBackend(threads=1)
    assert backend.network(path, batch=None)
