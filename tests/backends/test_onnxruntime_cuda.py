"""ONNX Runtime's CUDA backend. There is no GPU: real sessions on the CPU stand in for its own.

What a GPU build has more is listed as available, `InferenceSession` gets the CPU's provider instead
of the one that was asked for, and values "on the GPU" are the host's. Names and keywords are those
of the installed package, since its own classes are called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from resperf.backends import onnxruntime_cuda
from resperf.backends.onnxruntime_cuda import CUDA, OnnxRuntimeCudaBackend
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import Activation, Conv, Dense
from resperf.quantities import PHASES

DENSE = Dense(batch=2, features_in=8, features_out=4)
REAL_SESSION, REAL_VALUE = onnxruntime.InferenceSession, onnxruntime.OrtValue
LEVEL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
NetworkFile = Callable[..., Path]


@dataclass
class Gpu:
    """What the backend asked for, and which nodes the GPU does not take."""

    providers: list[Any] = field(default_factory=list)
    values: list[tuple[str, int]] = field(default_factory=list)
    updates: int = 0
    refused: frozenset[str] = frozenset()
    starts: bool = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    seen = Gpu()

    class Session(REAL_SESSION):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, options: Any, *, providers: Any, enable_fallback: int):
            assert enable_fallback == 0
            seen.providers = providers
            super().__init__(model, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return [seen.providers[0][0], *super().get_providers()][0 if seen.starts else 1 :]

        def get_provider_graph_assignment_info(self) -> Any:
            for part in super().get_provider_graph_assignment_info():
                nodes = part.get_nodes()
                elsewhere = any(node.op_type in seen.refused for node in nodes)
                name = part.ep_name if elsewhere else seen.providers[0][0]
                yield SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes)

    class Value(REAL_VALUE):  # type: ignore[misc, valid-type]
        @staticmethod
        def ortvalue_from_numpy(array: Any, /, device_type: str = "cpu", device_id: int = 0) -> Any:
            seen.values.append((device_type, device_id))
            return _updated(REAL_VALUE.ortvalue_from_numpy(array), seen)

        @staticmethod
        def ortvalue_from_shape_and_type(
            shape: Any, element_type: Any, device_type: str = "cpu", device_id: int = 0
        ) -> Any:
            seen.values.append((device_type, device_id))
            return REAL_VALUE.ortvalue_from_shape_and_type(shape, element_type)

    class Binding(onnxruntime.IOBinding):  # type: ignore[misc]
        def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
            seen.values.append((device_type, device_id))
            super().bind_output(name, "cpu", 0)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "OrtValue", Value)
    monkeypatch.setattr(REAL_SESSION, "io_binding", lambda self: Binding(self))
    names = [CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    return seen


def _updated(value: Any, seen: Gpu) -> Any:
    update = value.update_inplace

    def update_inplace(array: Any) -> None:
        seen.updates += 1
        update(array)

    value.update_inplace = update_inplace
    return value


def test_without_the_gpu_build_one_line_says_how_to_get_it() -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime is the GPU build")
    with pytest.raises(ResperfError, match=f"onnxruntime-gpu=={onnxruntime.__version__}"):
        OnnxRuntimeCudaBackend()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cpu"}, "device=cpu is no CUDA device"),
        ({"precision": "int8"}, "precision=int8 .* fp32, tf32, fp16"),
        ({"threads": -1}, "threads=-1"),
    ],
)
def test_settings_that_do_not_exist_are_refused(
    gpu: Gpu, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ResperfError, match=words):
        OnnxRuntimeCudaBackend(**settings)


def test_a_layer_has_three_phases_on_the_device(gpu: Gpu) -> None:
    backend = OnnxRuntimeCudaBackend(threads=1, device="cuda:1")
    backend.__dict__["_call_ms"] = 0.0
    with backend.layer(DENSE, budget_ms=1.0) as built:
        assert tuple(built.phases) == PHASES
        assert set(gpu.values) == {("cuda", 1)}  # what is bound
        before = gpu.updates
        built.phases["preprocess_ms"].sampler()
        assert gpu.updates == before + 1  # a copy into the bound value, not a new one
        (host,) = built.phases["postprocess_ms"].sampler.run()
        assert host.shape == (2, 4)
        assert built.phases["execution_ms"].sampler() > 0
    provider, options = gpu.providers[0]
    assert provider == CUDA
    assert options == {
        "device_id": "1", "use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE",
    }  # fmt: skip


def test_a_network_has_three_phases_on_the_device(gpu: Gpu, network_file: NetworkFile) -> None:
    from onnx import helper

    path = network_file(
        "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]}
    )
    backend = OnnxRuntimeCudaBackend(threads=1, precision="tf32")
    with backend.network(path, batch=None) as built:
        for phase in built.phases.values():
            assert phase.sampler() > 0
        assert gpu.updates == 1
        (y,) = built.phases["postprocess_ms"].sampler.run()
        assert (y >= 0).all()
    assert gpu.providers[0][1]["use_tf32"] == "1"
    setting = backend.setting()
    assert (setting.provider, setting.precision) == (CUDA, "tf32")
    assert setting.options["cudnn_conv_algo_search"] == "EXHAUSTIVE"


def test_a_silent_fall_back_to_the_cpu_names_the_nodes(gpu: Gpu, network_file: NetworkFile) -> None:
    from onnx import helper

    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "first"),
        helper.make_node("Exp", ["r"], ["y"], "second"),
    ]
    path = network_file("two.onnx", nodes, {"x": [2, 3]}, {"y": [2, 3]})
    gpu.refused = frozenset({"Exp"})
    with pytest.raises(UnsupportedError, match="Exp 'second' on CPUExecutionProvider; resperf"):
        OnnxRuntimeCudaBackend(threads=1).network(path, batch=None)
    gpu.starts = False
    with pytest.raises(ResperfError, match="CUDAExecutionProvider did not start"):
        OnnxRuntimeCudaBackend(threads=1).network(path, batch=None)


def test_a_provider_that_fails_to_load_says_what_to_install(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")

    backend = OnnxRuntimeCudaBackend(threads=1)
    assert backend.setting().precision == "fp32"
    monkeypatch.setattr(onnxruntime, "InferenceSession", fails)
    with pytest.raises(ResperfError, match=r"CUDAExecutionProvider did not start .*nvidia-smi"):
        backend._session(SimpleNamespace(SerializeToString=bytes), {}, LEVEL, "net")


def test_too_little_memory_is_a_memory_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise RuntimeError("CUDA failure 2: out of memory ; GPU=0")

    monkeypatch.setattr(onnxruntime_cuda, "_check_nodes", exhausted)
    backend = OnnxRuntimeCudaBackend(threads=1)
    with pytest.raises(MemoryError, match="out of memory"):
        backend.layer(DENSE, budget_ms=1.0)


def test_half_precision_is_the_type_of_layers(gpu: Gpu) -> None:
    backend = OnnxRuntimeCudaBackend(threads=1, precision="fp16")
    (dense,) = backend.lower([DENSE.replace(activation="relu")])
    assert dense == DENSE.replace(dtype="float16")
    conv = Conv(
        batch=1, channels_in=16, channels_out=16, height=8, width=8, kernel_height=1,
        kernel_width=1, residual=True, activation="relu",
    )  # fmt: skip
    (lowered,) = OnnxRuntimeCudaBackend(threads=1).lower([conv])
    assert lowered == conv.replace(residual=False, activation="none", layout="nchw")
    backend.__dict__["_call_ms"] = 0.0
    half = Activation(batch=1, values=8, activation="relu", dtype="float16")
    with backend.layer(half, budget_ms=1.0) as built:
        (host,) = built.phases["postprocess_ms"].sampler.run()
        assert host.dtype == np.float16
    assert backend.overheads_between_layers() == {}
