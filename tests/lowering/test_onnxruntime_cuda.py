"""The CUDA provider's lowering: ONNX Runtime's graph without what only CPUs fuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from resperf.errors import UnsupportedError
from resperf.lowering import lower
from resperf.lowering.onnxruntime import installed
from resperf.lowering.onnxruntime_cuda import CPU_ONLY
from resperf.network import Network, read_network
from resperf.platform import Platform
from resperf.settings import Setting

NetworkFile = Callable[..., Path]
SETTING = Setting("onnxruntime", onnxruntime.__version__, provider="CUDAExecutionProvider")
PLATFORM = Platform("cuda:0", "any", cores=2, memory_bytes=1, system="Linux")


@pytest.fixture
def block(network_file: NetworkFile) -> Network:
    """A residual block with a normalisation, and a small head."""
    weights: dict[str, Any] = {
        "w": np.ones((16, 16, 3, 3), np.float32),
        **{name: np.ones(16, np.float32) for name in ("gamma", "beta", "mean", "variance")},
        "m": np.ones((16, 8), np.float32),
        "b": np.ones(8, np.float32),
    }
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w"], ["c"], "c", pads=[1, 1, 1, 1]),
        n("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["n"], "n"),
        n("Relu", ["n"], ["r"], "r"),
        n("Conv", ["r", "w"], ["d"], "d", pads=[1, 1, 1, 1]),
        n("Add", ["d", "x"], ["a"], "a"),
        n("Relu", ["a"], ["s"], "s"),
        n("GlobalAveragePool", ["s"], ["g"], "g"),
        n("Flatten", ["g"], ["f"], "f"),
        n("MatMul", ["f", "m"], ["p"], "p"),
        n("Add", ["p", "b"], ["q"], "q"),
        n("Relu", ["q"], ["y"], "y"),
    ]
    path = network_file("block.onnx", nodes, {"x": [1, 16, 8, 8]}, {"y": [1, 8]}, weights)
    return read_network(path)


def test_what_only_cpus_fuse_is_apart(block: Network) -> None:
    nodes = lower(block, SETTING, PLATFORM).nodes
    # The normalisation is folded and the bias fused; activations and the residual are not.
    assert [sorted(node.sources) for node in nodes] == [
        ["c", "n"], ["r"], ["d"], ["a"], ["s"], ["g"], ["f"], ["p", "q"], ["y"]
    ]  # fmt: skip
    assert [node.layer.kind if node.layer else node.role for node in nodes] == [
        "conv", "activation", "conv", "elementwise", "activation", "pool", "view", "dense",
        "activation",
    ]  # fmt: skip
    assert not any("nchwc" in node.layer.key for node in nodes if node.layer)


def test_the_names_of_optimisers_are_onnx_runtime_s() -> None:
    library = Path(onnxruntime.__file__).parent / "capi"
    (binary,) = library.glob("onnxruntime_pybind11_state*")
    code = binary.read_bytes()
    assert [name for name in CPU_ONLY if name.encode() not in code] == []


def test_half_precision_has_the_layers_of_float32_without_casts(block: Network) -> None:
    half = [
        {
            name: replace(each, dtype="float16") if each.dtype == "float32" else each
            for name, each in tensors.items()
        }
        for tensors in (block.tensors, block.weight_tensors)
    ]
    lowered = lower(replace(block, tensors=half[0], weight_tensors=half[1]), SETTING, PLATFORM)
    assert (lowered.method, lowered.notes) == (installed(), ())
    expected = [
        node.layer and node.layer.replace(dtype="float16")
        for node in lower(block, SETTING, PLATFORM).nodes
    ]
    assert [node.layer for node in lowered.nodes] == expected


def test_a_cast_between_the_precisions_is_no_layer(network_file: NetworkFile) -> None:
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w"], ["c"], "c"),
        n("Cast", ["c"], ["f"], "f", to=TensorProto.FLOAT),
        n("Softmax", ["f"], ["s"], "s"),
        n("Cast", ["s"], ["h"], "h", to=TensorProto.FLOAT16),
        n("Sigmoid", ["h"], ["y"], "y"),
    ]
    ends = {"x": [1, 8, 4, 4]}, {"y": [1, 8, 4, 4]}
    weights = {"w": np.ones((8, 8, 1, 1), np.float16)}
    path = network_file("half.onnx", nodes, *ends, weights, TensorProto.FLOAT16)
    lowered = lower(read_network(path), SETTING, PLATFORM).nodes
    assert [(node.layer.kind, node.layer.fields()["dtype"]) for node in lowered if node.layer] == [
        ("conv", "float16"), ("softmax", "float32"), ("activation", "float16"),
    ]  # fmt: skip


def test_what_is_known_of_cpus_only_is_noted(network_file: NetworkFile) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], "q")
    weights = {"scale": np.float32(0.1), "zero": np.uint8(0)}
    path = network_file(
        "q.onnx", [node], {"x": [2, 3]}, {"y": (TensorProto.UINT8, [2, 3])}, weights
    )
    [note] = lower(read_network(path), SETTING, PLATFORM).notes
    assert note == "what the CUDA provider makes of quantised operators is not known"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"provider": "TensorrtExecutionProvider"}, "lower it for tensorrt/cuda"),
        ({"layout": "nhwc"}, "measure whole networks"),
    ],
)
def test_what_is_not_known_is_refused(block: Network, change: dict[str, str], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        lower(block, replace(SETTING, **change), PLATFORM)
