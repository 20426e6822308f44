"""What ONNX Runtime says of itself: its execution providers, and which of them start here."""

from __future__ import annotations

import warnings
from typing import Any

import onnxruntime
from onnx import TensorProto, helper

from resperf.backends._facts import FrameworkFacts
from resperf.errors import silent_stderr

_PROVIDER, _CUDA = "ExecutionProvider", ("CUDA", "Tensorrt")


def facts() -> FrameworkFacts:
    """Start a session with each provider: one that is listed may still lack its libraries."""
    onnxruntime.set_default_logger_severity(4)
    listed = [name.removesuffix(_PROVIDER) for name in onnxruntime.get_available_providers()]
    started = [name for name in listed if name not in _CUDA or _starts(f"{name}{_PROVIDER}")]
    notes = [f"providers: {', '.join(listed)}"]
    notes += [
        f"provider {name} is there, but does not start (a GPU, CUDA, cuDNN or TensorRT is missing)"
        for name in listed
        if name not in started
    ]
    on_gpu = ["cuda:0"] * any(name in _CUDA for name in started)
    return FrameworkFacts(
        version=onnxruntime.__version__,
        devices=("cpu", *on_gpu),
        cuda=str(getattr(onnxruntime, "cuda_version", "") or ""),
        notes=tuple(notes),
    )


def _starts(provider: str) -> bool:
    """Whether a session gets this provider; ONNX Runtime falls back to the CPU silently."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    model: Any = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        with silent_stderr(), warnings.catch_warnings(action="ignore"):
            # Finds the CUDA libraries that pip installed, where there are any.
            onnxruntime.preload_dlls()
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[provider])
    except Exception:
        return False
    return provider in session.get_providers()
