"""The CUDA provider's lowering: rules against ONNX Runtime's own, without what only CPUs fuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from resperf.errors import UnsupportedError
from resperf.lowering import lower
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


def described(network: Network, method: str) -> list[tuple[Any, ...]]:
    nodes = lower(network, SETTING, PLATFORM, method=method).nodes
    return [(node.role, node.layer and node.layer.key, sorted(node.sources)) for node in nodes]


def test_rules_agree_with_onnx_runtime_without_the_fusions_of_cpus(block: Network) -> None:
    asked = described(block, "framework")
    assert described(block, "rules") == asked
    sources = [part[2] for part in asked]
    # The normalisation is folded and the bias fused; activations and the residual are not.
    assert sources == [["c", "n"], ["r"], ["d"], ["a"], ["s"], ["g"], ["f"], ["p", "q"], ["y"]]
    assert not any("nchwc" in (part[1] or "") for part in asked)


def test_the_names_of_optimisers_are_onnx_runtime_s() -> None:
    library = Path(onnxruntime.__file__).parent / "capi"
    (binary,) = library.glob("onnxruntime_pybind11_state*")
    code = binary.read_bytes()
    assert [name for name in CPU_ONLY if name.encode() not in code] == []


def test_another_version_or_half_precision_is_lowered_by_rules(block: Network) -> None:
    other = replace(SETTING, framework_version="1.0.0")
    lowered = lower(block, other, PLATFORM)
    assert lowered.method == "rules"
    assert "1.0.0 there" in lowered.notes[0]
    tensors = {
        name: replace(each, dtype="float16") if each.dtype == "float32" else each
        for name, each in block.tensors.items()
    }
    half = lower(replace(block, tensors=tensors), SETTING, PLATFORM)
    assert "half precision" in half.notes[0]
    layers = [node.layer for node in half.nodes if node.layer is not None]
    # On a CPU there would be casts to float32.
    assert {layer.fields()["dtype"] for layer in layers} == {"float16"}


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
    with pytest.raises(UnsupportedError, match="use auto, framework or rules"):
        lower(block, SETTING, PLATFORM, method="ask")
