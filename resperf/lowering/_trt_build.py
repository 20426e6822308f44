"""Builds an engine with TensorRT for RTX and stores what TensorRT says.

    python _trt_build.py MODEL.onnx ANSWER.json

Runs in a process of its own, without the package: malformed networks can end TensorRT's parser.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPABILITY = "SM80"
"""Compute capability that is asked for, on every card: later ones get the same kernels but one, and
earlier ones no float32."""


def build(model: str) -> dict[str, Any]:
    """Return the version, and the list of layers or the refused node and why.

    Of a node that is not named, the parser's function of its operator is: ``"importConv"``.
    """
    import tensorrt_rtx_bindings as trt

    messages: list[tuple[Any, str]] = []

    class Log(trt.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            messages.append((severity, message))

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(model):
        error = parser.get_error(0)
        return {"refused": (error.node_name() or error.func(), error.desc())}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, CAPABILITY), 0)
    if builder.build_serialized_network(network, config) is None:
        errors = (text for severity, text in messages if severity <= trt.ILogger.Severity.ERROR)
        return {"refused": ("", next(errors, ""))}
    return {
        "version": trt.__version__,
        "layers": next((text for _, text in messages if text.startswith("Layers:")), ""),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(build(sys.argv[1])), encoding="utf-8")
