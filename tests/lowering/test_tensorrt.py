"""TensorRT for RTX, really asked about small networks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from resperf.errors import UnsupportedError
from resperf.layers import Conv
from resperf.layers.attention import Attention
from resperf.layers.recurrent import Recurrent
from resperf.lowering import LoweredNetwork, _trt_kernels, _trt_model, lower, skeleton, tensorrt
from resperf.lowering._trt_kernels import NO_KERNELS, _read, engine_of
from resperf.lowering._trt_layers import homes
from resperf.network import read_network
from resperf.platform import Accelerator, Platform
from resperf.settings import Setting

pytest.importorskip(_trt_kernels.BINDINGS, reason="pip install 'resperf[tensorrt-rtx]'")

IMAGE = [1, 16, 8, 8]
FILTERS = np.ones((16, 16, 3, 3), np.float32)
PADS = {"pads": [1, 1, 1, 1]}
Node = tuple[Any, ...]
Lower = Callable[..., LoweredNetwork]
Write = Callable[..., Path]


@pytest.fixture
def write(network_file) -> Write:
    """Write nodes ``(op, inputs, output, attributes)`` from ``x`` to ``y``, with weights."""

    def run(nodes: list[Node], x: list[Any] = IMAGE, **weights: Any) -> Path:
        protos = [
            helper.make_node(op, inputs.split(), output.split(), name=output.split()[0], **more)
            for op, inputs, output, *rest in nodes
            for more in [rest[0] if rest else {}]
        ]
        values = {name: np.asarray(value) for name, value in weights.items()}
        return network_file("net.onnx", protos, {"x": x}, {"y": None}, values)

    return run


def lowered(
    path: Path, precision: str = "fp32", capability: str = "8.0", batch: int | None = None
) -> LoweredNetwork:
    card = Accelerator("card", compute_capability=capability)
    network = read_network(path, batch=batch)
    setting = Setting("tensorrt", precision=precision)
    return lower(network, setting, Platform("card", accelerators=(card,)))


def layers(network: LoweredNetwork, kind: str) -> list[Any]:
    return [n.layer for n in network.nodes if n.layer is not None and n.layer.kind == kind]


RESIDUAL = [
    ("Conv", "x w", "c", PADS),
    ("Relu", "c", "r"),
    ("Conv", "r w2", "d", PADS),
    ("Add", "d x", "a"),
    ("Relu", "a", "y"),
]


def test_a_residual_block_is_two_convolutions_with_what_is_fused(write: Write) -> None:
    network = lowered(write(RESIDUAL, w=FILTERS, w2=2 * FILTERS))
    first, second = (node for node in network.nodes if isinstance(node.layer, Conv))
    assert (first.sources, second.sources) == (("c", "r"), ("d", "a", "y"))
    assert isinstance(first.layer, Conv)
    assert isinstance(second.layer, Conv)
    assert (first.layer.activation, first.layer.residual) == ("relu", False)
    assert (second.layer.activation, second.layer.residual) == ("relu", True)
    assert second.layer.macs == 16 * 16 * 9 * 64
    assert network.method.startswith("tensorrt-rtx 1.")
    # Layout changes of the input have no nodes.
    assert all(not node.sources for node in network.nodes if node.role == "preprocess")


def test_all_work_of_a_network_has_a_layer(write: Write) -> None:
    network = read_network(write(RESIDUAL, w=FILTERS, w2=FILTERS))
    engine = engine_of(network, "fp16")
    nodes = tensorrt.layers_of(network, engine.kernels)
    assert homes(network, engine.kernels, nodes) == (1.0, 1.0)
    without = [replace(node, layer=None if node.sources else node.layer) for node in nodes]
    macs, moved_bytes = homes(network, engine.kernels, without)
    assert (macs, 0 < moved_bytes < 0.5) == (0, True)


def test_half_precision_converts_the_input_and_the_output(write: Write) -> None:
    network = lowered(write(RESIDUAL, w=FILTERS, w2=FILTERS), "fp16", "7.5")
    first, last = network.nodes[0], network.nodes[-1]
    assert first.layer is not None
    assert (first.role, first.layer.kind, first.layer.dtype) == ("preprocess", "cast", "float32")
    assert last.role == "postprocess" or last.sources
    assert {layer.dtype for layer in layers(network, "conv")} == {"float16"}


@pytest.mark.parametrize("assume", [None, {"boxes": 5}])
def test_boxes_are_chosen_by_an_operator_without_a_layer(network_file, assume: Any) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["s"], ["p"], name="scores"),
        helper.make_node("NonMaxSuppression", ["b", "p", "n", "i", "t"], ["y"], name="nms"),
    ]
    weights = {"n": np.asarray([5]), "i": np.float32([0.5]), "t": np.float32([0.25])}
    results = {"p": [1, 3, 64], "y": (onnx.TensorProto.INT64, ["chosen", 3])}
    path = network_file("nms.onnx", nodes, {"b": [1, 64, 4], "s": [1, 3, 64]}, results, weights)
    setting = Setting("tensorrt", precision="fp16")
    network = lower(read_network(path, assume=assume), setting, Platform("a100"))
    unknown = [node.op for node in network.nodes if node.role == "unknown"]
    # Without a number of boxes its result has no size, which a prediction says, too.
    assert unknown == (["NonMaxSuppression"] if assume else [])
    assert network.unsized_outputs == (() if assume else ("y",))
    assert any("scores" in node.sources for node in network.nodes)


def test_depthwise_convolutions_keep_their_groups(write: Write) -> None:
    depthwise = [("Conv", "x w", "c", PADS | {"group": 16}), ("Relu", "c", "y")]
    (layer,) = layers(lowered(write(depthwise, w=np.ones((16, 1, 3, 3), np.float32))), "conv")
    assert (layer.groups, layer.activation) == (16, "relu")


def test_attention_in_half_precision_is_one_kernel(write: Write) -> None:
    tokens, heads, size = 64, 4, 32
    width = heads * size
    nodes: list[Node] = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            ("MatMul", f"x w{name}", f"{name}1"),
            ("Reshape", f"{name}1 shape", f"{name}2"),
            ("Transpose", f"{name}2", name, {"perm": perm}),
        ]
    nodes += [
        ("MatMul", "q k", "s"),
        ("Mul", "s scale", "m"),
        ("Softmax", "m", "p", {"axis": -1}),
        ("MatMul", "p v", "o"),
        ("Transpose", "o", "t", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "t flat", "y"),
    ]
    weights = {f"w{name}": np.ones((width, width), np.float32) * i for i, name in enumerate("qkv")}
    path = write(
        nodes, [1, tokens, width], **weights, scale=np.float32(size**-0.5),
        shape=np.asarray([1, tokens, heads, size]), flat=np.asarray([1, tokens, width]),
    )  # fmt: skip
    (layer,) = layers(lowered(path, "fp16"), "attention")
    assert layer == Attention(
        batch=1, queries=tokens, keys=tokens, heads=heads, head_size=size, value_size=size,
        features=0, dtype="float16",
    )  # fmt: skip


def test_a_recurrence_is_one_layer(write: Write) -> None:
    nodes = [("LSTM", "x w r", "y", {"hidden_size": 8})]
    path = write(
        nodes, [5, 1, 4], w=np.ones((1, 32, 4), np.float32), r=np.ones((1, 32, 8), np.float32)
    )
    (layer,) = layers(lowered(path), "recurrent")
    assert isinstance(layer, Recurrent)
    assert (layer.steps, layer.features, layer.hidden) == (5, 4, 8)


def quantised(zero: Any, biased: bool = False) -> tuple[list[Node], dict[str, Any]]:
    nodes = [
        ("QuantizeLinear", "x s z", "xq"),
        ("DequantizeLinear", "xq s z", "xd"),
        ("DequantizeLinear", "wq s zw", "wd"),
        *([("DequantizeLinear", "bq s", "bd")] if biased else []),
        ("Conv", "xd wd bd" if biased else "xd wd", "y", PADS),
    ]
    weights = {"s": np.float32(0.1), "z": zero, "zw": np.int8(0), "wq": FILTERS.astype(np.int8)}
    return nodes, weights | ({"bq": np.ones(16, np.int32)} if biased else {})


def test_int8_is_where_the_file_says_so(write: Write) -> None:
    nodes, weights = quantised(np.int8(0))
    network = read_network(write(nodes, **weights))
    kernels = engine_of(network, "int8").kernels
    (conv,) = (kernel for kernel in kernels if kernel.layer_type == "correlation")
    assert conv.inputs[0].dtype == "int8"
    assert not any(
        "quantises nothing" in note for note in lowered(write(nodes, **weights), "int8").notes
    )


def test_a_float_file_runs_in_int8_where_products_read_weights(write: Write) -> None:
    path = write(RESIDUAL, w=FILTERS, w2=FILTERS)
    kernels = engine_of(read_network(path), "int8").kernels
    convs = [kernel for kernel in kernels if kernel.layer_type == "correlation"]
    assert [kernel.inputs[0].dtype for kernel in convs] == ["int8", "int8"]
    assert "quantises nothing" in " ".join(lowered(path, "int8", "8.6").notes)


@pytest.mark.parametrize(("zero", "biased"), [(np.uint8(128), False), (np.int8(0), True)])
def test_refused_quantisation_says_what_to_change(write: Write, zero: Any, biased: bool) -> None:
    nodes, weights = quantised(zero, biased)
    with pytest.raises(UnsupportedError, match=r"^TensorRT refuses \w+ '\w+': .*QInt8") as caught:
        lowered(write(nodes, **weights), "int8")
    assert "\n" not in str(caught.value)


def test_operators_on_integers_are_refused_with_the_format_to_use(network_file) -> None:
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], name="product")
    image = {"x": (onnx.TensorProto.UINT8, IMAGE)}
    result = {"y": (onnx.TensorProto.INT32, None)}
    path = network_file("net.onnx", [node], image, result, {"w": FILTERS.astype(np.uint8)})
    with pytest.raises(UnsupportedError, match=r"refuses ConvInteger 'product': .* in QDQ format"):
        lowered(path, "int8")


def test_a_refused_operator_is_named_with_the_reason(write: Write) -> None:
    with pytest.raises(UnsupportedError, match=r"^TensorRT refuses Det 'y': .+") as caught:
        lowered(write([("Det", "x", "y")], [2, 3, 3]))
    assert "\n" not in str(caught.value)


def test_a_refused_operator_that_the_parser_does_not_name_is_found_by_its_type(
    write: Write,
) -> None:
    nodes = [
        ("Relu", "x", "r"),
        ("ScatterElements", "r i u", "y", {"axis": 0, "reduction": "add"}),
    ]
    weights = {"i": np.zeros((1, 4), np.int64), "u": np.ones((1, 4), np.float32)}
    with pytest.raises(UnsupportedError, match=r"^TensorRT refuses ScatterElements 'y': Unsupp"):
        lowered(write(nodes, [3, 4], **weights))


def with_branches(network_file: Any, op: str) -> Path:
    """Write a network that ends in an If or a Loop, whose bodies' nodes are named like others."""
    result = helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [8, 64])
    body = [helper.make_node("MatMul", ["h", "w"], ["b"], name="n7")]
    if op == "If":
        branches = {
            f"{name}_branch": helper.make_graph(body, name, [], [result])
            for name in ("then", "else")
        }
        last = helper.make_node("If", ["c"], ["y"], name="last", **branches)
    else:
        infos = [
            helper.make_tensor_value_info(*about)
            for about in (
                ("i", onnx.TensorProto.INT64, []), ("d", onnx.TensorProto.BOOL, []),
                ("h", onnx.TensorProto.FLOAT, [8, 64]), ("e", onnx.TensorProto.BOOL, []),
            )
        ]  # fmt: skip
        body.append(helper.make_node("Identity", ["d"], ["e"], name="n0"))
        graph = helper.make_graph(body, "body", infos[:3], [infos[3], result])
        last = helper.make_node("Loop", ["count", "c", "h"], ["y"], name="last", body=graph)
    nodes = [helper.make_node("Relu", ["x"], ["h"], name="first"), last]
    weights = {"w": np.ones((64, 64), np.float32), "count": np.asarray(10)}
    inputs = {"x": [8, 64], "c": (onnx.TensorProto.BOOL, [])}
    return network_file("net.onnx", nodes, inputs, {"y": [8, 64]}, weights)


@pytest.mark.parametrize(
    ("op", "reason"), [("If", "runs one of its branches"), ("Loop", "its body many times")]
)
def test_kernels_that_do_not_run_once_each_are_said(network_file, op: str, reason: str) -> None:
    network = lowered(with_branches(network_file, op))
    (unknown,) = (node for node in network.nodes if node.role == "unknown")
    assert (unknown.op, unknown.sources) == (op, ("last",))
    assert reason in unknown.reason
    assert any(node.op == "gemm" for node in network.nodes)


def test_operators_of_users_run_as_plugins_between_kernels(network_file) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="c", **PADS),
        helper.make_node("Warp", ["c"], ["p"], name="p", domain="my.ops"),
        helper.make_node("Conv", ["q", "w"], ["y"], name="y", **PADS),
    ]
    nodes.insert(2, helper.make_node("Relu", ["x"], ["q"], name="q"))
    path = network_file("net.onnx", nodes, {"x": IMAGE}, {"y": None, "p": IMAGE}, {"w": FILTERS})
    (plugin,) = (node for node in lowered(path).nodes if node.role == "unknown")
    assert (plugin.op, plugin.sources) == ("my.ops.Warp", ("p",))


def test_hostile_names_are_kept(network_file) -> None:
    name, tensor = "a, LayerType: kgen] [ONNX Layer: n1", "b, Dimensions: [1], }]"
    nodes = [
        helper.make_node("Conv", ["x", "w"], [tensor], name=name, **PADS),
        helper.make_node("Relu", [tensor], ["y"], name="n0"),
    ]
    network = lowered(network_file("net.onnx", nodes, {"x": IMAGE}, {"y": None}, {"w": FILTERS}))
    (conv,) = (node for node in network.nodes if isinstance(node.layer, Conv))
    assert conv.sources == (name, "n0")


def test_a_free_batch_is_the_one_that_is_given(write: Write) -> None:
    path = write(RESIDUAL, ["batch", *IMAGE[1:]], w=FILTERS, w2=FILTERS)
    for batch in (1, 8):
        assert {layer.batch for layer in layers(lowered(path, batch=batch), "conv")} == {batch}


@pytest.mark.parametrize(
    ("capability", "said"), [("8.6", ""), ("8.7", "8.7"), ("7.0", "7.0"), ("", "an unknown one")]
)
def test_cards_that_it_is_not_asked_for_are_named(write: Write, capability: str, said: str) -> None:
    (note,) = lowered(write([("Relu", "x", "y")]), "fp16", capability).notes or ("",)
    assert note.startswith("kernels are those of compute capability 8.0" if said else "")
    assert note.endswith(f"the card has {said}" if said else "")
    assert bool(note) == bool(said)


def test_a_card_without_facts_of_its_own_has_those_of_its_data_sheet(write: Write) -> None:
    network = read_network(write([("Relu", "x", "y")]))
    (note,) = lower(network, Setting("tensorrt", precision="fp16"), Platform("t4")).notes
    assert note.endswith("; the card has 7.5")


def test_a_card_older_than_tensorrt_supports_is_refused(write: Write) -> None:
    with pytest.raises(UnsupportedError, match=r"not run on card, of compute capability 3.7: it"):
        lowered(write([("Relu", "x", "y")]), capability="3.7")


def test_a_network_without_work_has_no_kernel_that_computes(write: Write) -> None:
    path = write([("Reshape", "x shape", "y")], shape=np.asarray([4, 256]))
    assert all(node.role != "unknown" for node in lowered(path).nodes)


def test_answers_are_kept(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(RESIDUAL, w=FILTERS, w2=FILTERS)
    engine = engine_of(read_network(path), "fp16")

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(_trt_kernels, "_ask", fail)
    assert engine_of(read_network(path), "fp16") == engine
    with pytest.raises(AssertionError):
        engine_of(read_network(path), "fp32")


def test_a_network_larger_than_memory_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_trt_model, "available_bytes", lambda: 1000)
    with pytest.raises(UnsupportedError, match=r"takes about 22.5 KiB of memory, and 1000 B are"):
        lowered(write(RESIDUAL, w=FILTERS, w2=FILTERS))


def test_a_breakdown_of_the_library_is_one_line(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / f"{_trt_kernels.BINDINGS}.py").write_text("import os; os.kill(os.getpid(), 11)")
    with pytest.raises(
        UnsupportedError, match=r"^TensorRT broke down on this network \(status -11"
    ):
        lowered(write([("Relu", "x", "y")]))


def test_without_the_package_one_line_says_how_to_install_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_trt_kernels, "BINDINGS", "not_there")
    with pytest.raises(UnsupportedError, match=r"pip install 'resperf\[tensorrt-rtx\]'$"):
        lowered(write([("Relu", "x", "y")]))


def test_another_version_is_asked_with_a_note(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "TRIED", ("0.9",))
    assert "only 0.9 was tried" in " ".join(lowered(write([("Relu", "x", "y")])).notes)


def test_kernels_of_several_streams_are_added_up_with_a_note() -> None:
    network = lowered(Path(__file__).parents[2] / "models" / "networks" / "resnet18.onnx", batch=1)
    assert "kernels in 2 streams" in " ".join(network.notes)
    assert len(layers(network, "conv")) == 20
    assert not {node.op for node in network.nodes} & NO_KERNELS


def test_lists_in_another_form_are_refused() -> None:
    line = (
        "Name: a_myl0_1, LayerType: kgen, Inputs: [ { Name: t0, Dimensions: [1,2], Strides: [2,1], "
        "StrideOrder: [1,0], Datatype: Half, Format: (Linear) Row major }], Constants: [], "
        "Outputs: [], TacticName: , StreamId: 0, Metadata: [ONNX Layer: n3]\x1f[ONNX Layer: n1]"
    )
    (kernel,) = _read(f"Layers:\n{line}\n\nI/O Tensors:\n Name: other")
    assert (kernel.nodes, kernel.inputs[0].shape, kernel.inputs[0].dtype) == (
        (1, 3),
        (1, 2),
        "float16",
    )
    for wrong in (line.replace("Strides", "Steps"), line.replace("StreamId", "Stream")):
        with pytest.raises(UnsupportedError, match="in another form"):
            list(_read(f"Layers:\n{wrong}"))


def test_large_matrices_stay_weights(write: Write) -> None:
    """ONNX Runtime is asked with large matrices as inputs; TensorRT chooses kernels by them."""
    path = write([("MatMul", "x w", "y")], [4, 1024], w=np.ones((1024, 512), np.float32))
    names = {
        keep: [tensor.name for tensor in skeleton(read_network(path), keep).model.graph.input]
        for keep in (False, True)
    }
    assert names == {False: ["x", "w"], True: ["x"]}
    assert lowered(path).nodes[-1].layer.kind == "dense"
