"""ONNX's own Attention and RotaryEmbedding, and decoders with a cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from resperf.backends.onnxruntime import OnnxRuntimeBackend
from resperf.errors import UnsupportedError
from resperf.layers import Concat, Elementwise, MatMul, Softmax
from resperf.lowering import lower, work_of
from resperf.network import Network, Node, Tensor, read_network
from resperf.platform import Platform
from resperf.settings import Setting

HEADS, SIZE = 4, 16
Target = tuple[Setting, Platform]


@pytest.fixture(scope="module")
def target() -> Target:
    device = OnnxRuntimeBackend(threads=1)
    return device.setting(), device.platform()


def written(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: list[str], opset: int = 23,
    weights: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, *(each if isinstance(each, tuple)
                                               else (TensorProto.FLOAT, each)))
         for name, each in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    onnx.save(model, path)
    return path


def layers(network: Network, target: Target) -> list[Any]:
    """Return the layers of a network that is lowered wholly."""
    lowered = lower(network, *target)
    assert [node for node in lowered.nodes if node.role == "unknown"] == []
    return [node.layer for node in lowered.nodes if node.layer is not None]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("joined", [False, True], ids=["by heads", "joined heads"])
def test_attention_is_two_products_and_a_softmax(
    tmp_path: Path, target: Target, opset: int, joined: bool
) -> None:
    words = {"q_num_heads": HEADS, "kv_num_heads": HEADS} if joined else {}
    shapes = {
        name: [2, length, HEADS * SIZE] if joined else [2, HEADS, length, SIZE]
        for name, length in {"q": 6, "k": 10, "v": 10}.items()
    }
    nodes = [make_node("Attention", ["q", "k", "v"], ["y"], "attention", **words)]
    network = read_network(written(tmp_path / "n.onnx", nodes, shapes, ["y"], opset))
    assert network.tensors["y"].shape == tuple(shapes["q"])
    assert layers(network, target) == [
        MatMul(batch=2, outer=HEADS, rows=6, depth=SIZE, columns=10, transposed=True),
        Softmax(batch=2, outer=HEADS * 6, values=10),
        MatMul(batch=2, outer=HEADS, rows=6, depth=10, columns=SIZE),
    ]
    # Scores and weighted values.
    assert work_of(network, ["attention"]).macs == 2 * (2 * HEADS * 6 * 10 * SIZE)


def test_a_cache_is_joined_and_a_mask_added(tmp_path: Path, target: Target) -> None:
    """One new token, 32 in the cache, two heads of keys and values for four of queries."""
    inputs = {
        "q": [1, HEADS, 1, SIZE], "k": [1, 2, 1, SIZE], "v": [1, 2, 1, SIZE], "mask": [1, 33],
        "pk": [1, 2, 32, SIZE], "pv": [1, 2, 32, SIZE],
    }  # fmt: skip
    outputs = ["y", "all_k", "all_v"]
    nodes = [make_node("Attention", list(inputs), outputs, "attention", softcap=30.0)]
    network = read_network(written(tmp_path / "n.onnx", nodes, inputs, outputs))
    assert network.tensors["all_k"].shape == (1, 2, 33, SIZE)
    found = layers(network, target)
    assert [layer.kind for layer in found] == [
        "concat", "concat", "matmul", "elementwise", "activation", "elementwise", "elementwise",
        "softmax", "matmul",
    ]  # fmt: skip
    assert found[0] == Concat(batch=1, outer=2, parts=2, inner=33 * SIZE)
    assert (found[2].columns, found[-1].depth) == (33, 33)
    assert work_of(network, ["attention"]).macs == 2 * (HEADS * 33 * SIZE)


def test_a_causal_prompt_without_a_cache_adds_a_mask(tmp_path: Path, target: Target) -> None:
    inputs = {name: [1, HEADS, 5, SIZE] for name in "qkv"}
    nodes = [make_node("Attention", list(inputs), ["y"], is_causal=1)]
    network = read_network(written(tmp_path / "n.onnx", nodes, inputs, ["y"]))
    found = layers(network, target)
    assert [layer.kind for layer in found] == ["matmul", "elementwise", "softmax", "matmul"]
    assert (found[1].function, found[1].outer * found[1].middle) == ("add", HEADS)


def test_a_rotation_is_a_product_with_rows(tmp_path: Path, target: Target) -> None:
    inputs = {"x": [1, HEADS, 5, SIZE], "places": (TensorProto.INT64, [1, 5])}
    table = np.ones((64, SIZE // 2), np.float32)
    nodes = [make_node("RotaryEmbedding", ["x", "c", "s", "places"], ["y"])]
    path = written(tmp_path / "n.onnx", nodes, inputs, ["y"], weights={"c": table, "s": table})
    (layer,) = layers(read_network(path), target)
    assert isinstance(layer, Elementwise)
    assert layer.function == "mul"
    assert layer.value_count == HEADS * 5 * SIZE


def test_a_cache_of_fixed_length_is_copied_with_its_new_rows(
    tmp_path: Path, target: Target
) -> None:
    inputs = {
        "q": [1, HEADS, 1, SIZE], "past": [1, HEADS, 64, SIZE], "new": [1, HEADS, 1, SIZE],
        "v": [1, HEADS, 64, SIZE], "place": (TensorProto.INT64, [1]),
    }  # fmt: skip
    nodes = [
        make_node("TensorScatter", ["past", "new", "place"], ["k"], axis=2),
        make_node("Attention", ["q", "k", "v", "", "", "", "place"], ["y"]),
    ]
    path = written(tmp_path / "n.onnx", nodes, inputs, ["y", "k"], 24)
    found = layers(read_network(path), target)
    assert found[0] == Concat(batch=1, outer=HEADS, parts=2, inner=64 * SIZE)
    assert [layer.kind for layer in found[1:]] == ["matmul", "softmax", "matmul"]


def test_an_attention_of_unknown_sizes_is_refused(target: Target) -> None:
    network = Network(
        name="n", nodes=(Node("a", "Attention", "", ("q", "q", "q"), ("y",), {}),),
        tensors={name: Tensor(name, (2, 6, 64), "float32") for name in "qy"},
        inputs=("q",), outputs=("y",), opsets={"": 23}, batch=2,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="ONNX Runtime cannot run this network"):
        lower(network, *target)


def grouped(tokens: int, past: int) -> tuple[Any, dict[str, Any]]:
    """ONNX Runtime's GroupQueryAttention with rotation, and its inputs."""
    names = ["q", "k", "v", "pk", "pv", "last", "total", "cos", "sin"]
    words = {"num_heads": HEADS, "kv_num_heads": 2, "do_rotary": 1}
    node = make_node(
        "GroupQueryAttention", names, ["y", "all_k", "all_v"], domain="com.microsoft", **words
    )
    feeds = {
        "q": np.ones((1, tokens, HEADS * SIZE), np.float32),
        **{name: np.ones((1, tokens, 2 * SIZE), np.float32) for name in "kv"},
        **{name: np.ones((1, 2, past, SIZE), np.float32) for name in ("pk", "pv")},
        "last": np.int32([past + tokens - 1]),
    }
    return node, feeds


def multi_head(tokens: int, past: int) -> tuple[Any, dict[str, Any]]:
    """ONNX Runtime's MultiHeadAttention with a cache and a term of scores, and its inputs."""
    names = ["q", "k", "v", "", "", "term", "pk", "pv"]
    node = make_node(
        "MultiHeadAttention", names, ["y", "all_k", "all_v"], domain="com.microsoft",
        num_heads=HEADS,
    )  # fmt: skip
    feeds = {
        **{name: np.ones((1, tokens, HEADS * SIZE), np.float32) for name in "qkv"},
        "term": np.ones((1, 1, tokens, past + tokens), np.float32),
        **{name: np.ones((1, HEADS, past, SIZE), np.float32) for name in ("pk", "pv")},
    }
    return node, feeds


@pytest.mark.parametrize(
    ("made", "kinds", "rows"),
    [
        (grouped(1, 32), "elementwise elementwise concat concat matmul softmax matmul", 33),
        (multi_head(1, 32), "transpose transpose transpose concat concat matmul elementwise "
         "softmax matmul", 33),
        (multi_head(5, 16), "transpose transpose transpose concat concat matmul elementwise "
         "softmax matmul", 21),
    ],
    ids=["grouped", "multi-head", "multi-head, several tokens"],
)  # fmt: skip
def test_onnx_runtimes_own_attention_with_a_cache(
    tmp_path: Path, target: Target, made: tuple[Any, Any], kinds: str, rows: int
) -> None:
    node, feeds = made
    integers = {"last": TensorProto.INT32}
    inputs = {
        name: (integers.get(name, TensorProto.FLOAT), list(each.shape))
        for name, each in feeds.items()
    }
    table = np.ones((64, SIZE // 2), np.float32)
    weights = {"total": np.int32([rows]), "cos": table, "sin": table}
    read = {name: each for name, each in weights.items() if name in node.input}
    path = written(tmp_path / "n.onnx", [node], inputs, list(node.output), 17, read)
    network = read_network(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = [network.tensors[name].shape for name in network.outputs]
    assert found == [each.shape for each in session.run(None, feeds)]
    assert found[1][2] == rows
    parts = layers(network, target)
    assert [layer.kind for layer in parts] == kinds.split()
    assert parts[-1].depth == rows


def decoder(path: Path, opset: int, heads_of_keys: int = HEADS) -> Path:
    """Write one layer of a decoder with a cache as exporters do: in parts, or with operators."""
    width, past = HEADS * SIZE, ["n", heads_of_keys, "past", SIZE]
    inputs = {
        "ids": (TensorProto.INT64, ["n", "new"]), "mask": ["n", 1, 1, "past + new"],
        "past.key": past, "past.value": past,
    }  # fmt: skip
    random = np.random.default_rng(1)
    sizes = {"table": (100, width), "wq": (width, width), "wk": (width, heads_of_keys * SIZE),
             "wv": (width, heads_of_keys * SIZE), "wo": (width, width)}  # fmt: skip
    weights: dict[str, Any] = {k: random.random(v, np.float32) for k, v in sizes.items()}
    weights |= {"heads": np.int64([0, 0, -1, SIZE]), "whole": np.int64([0, 0, width])}
    nodes = [make_node("Gather", ["table", "ids"], ["x"])]
    for name in "qkv":
        nodes += [
            make_node("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            make_node("Reshape", [f"{name}1", "heads"], [f"{name}2"]),
            make_node("Transpose", [f"{name}2"], [name], perm=[0, 2, 1, 3]),
        ]
    if opset >= 23:
        names = ["q", "k", "v", "mask", "past.key", "past.value"]
        nodes.append(make_node("Attention", names, ["a", "present.key", "present.value"]))
    else:
        nodes += [
            make_node("Concat", ["past.key", "k"], ["present.key"], axis=2),
            make_node("Concat", ["past.value", "v"], ["present.value"], axis=2),
            make_node("Transpose", ["present.key"], ["kt"], perm=[0, 1, 3, 2]),
            make_node("MatMul", ["q", "kt"], ["scores"]),
            make_node("Add", ["scores", "mask"], ["masked"]),
            make_node("Softmax", ["masked"], ["p"], axis=-1),
            make_node("MatMul", ["p", "present.value"], ["a"]),
        ]
    nodes += [
        make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        make_node("Reshape", ["b", "whole"], ["c"]),
        make_node("MatMul", ["c", "wo"], ["y"]),
    ]
    return written(path, nodes, inputs, ["y", "present.key", "present.value"], opset, weights)


@pytest.mark.parametrize(("new", "past"), [(1, 32), (24, 0), (8, 16)])
def test_a_decoder_is_lowered_wholly_with_and_without_a_cache(
    tmp_path: Path, target: Target, new: int, past: int
) -> None:
    shapes = {"ids": (1, new), "past.*": (1, HEADS, past, SIZE)}
    networks = [
        read_network(decoder(tmp_path / f"{opset}.onnx", opset), shapes=shapes)
        for opset in (17, 23)
    ]
    parts, fused = (Counter(layer.key for layer in layers(each, target)) for each in networks)
    assert networks[1].tensors["mask"].shape == (1, 1, 1, past + new)
    assert networks[1].tensors["present.key"].shape == (1, HEADS, past + new, SIZE)
    # The operator does the work of the parts that exporters wrote before it.
    assert fused == parts
