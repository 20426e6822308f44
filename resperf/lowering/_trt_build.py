"""Builds an engine with TensorRT for RTX and stores what TensorRT says.

    python _trt_build.py MODEL.onnx CAPABILITY FP16 ANSWER.json

Runs in a process of its own, without the package: malformed networks can end TensorRT's parser.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

AMPERE = 80


def nearest(capability: str, members: Any, *, fp16: bool) -> int:
    """Return the nearest compute capability that TensorRT builds for, such as 86.

    That is the highest up to the card's own, else the lowest. For Turing it builds float16 alone,
    where it also runs convolutions that a file quantises.
    """
    names = (name.removeprefix("SM") for name in members)
    numbers = sorted(int(name) for name in names if name.isdigit())
    usable = [number for number in numbers if fp16 or number >= AMPERE]
    digits = capability.replace(".", "")
    own = int(digits) if digits.isdigit() else AMPERE
    return max((number for number in usable if number <= own), default=usable[0])


def build(model: str, capability: str, *, fp16: bool) -> dict[str, Any]:
    """Return version, compute capability, and the list of layers or the refused node and why."""
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
        return {"refused": (error.node_name(), error.desc())}
    members = trt.ComputeCapability.__members__
    number = nearest(capability, members, fp16=fp16)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(members[f"SM{number}"], 0)
    if builder.build_serialized_network(network, config) is None:
        errors = (text for severity, text in messages if severity <= trt.ILogger.Severity.ERROR)
        return {"refused": ("", next(errors, ""))}
    return {
        "version": trt.__version__,
        "capability": f"{number // 10}.{number % 10}",
        "layers": next((text for _, text in messages if text.startswith("Layers:")), ""),
    }


if __name__ == "__main__":
    answer = build(sys.argv[1], sys.argv[2], fp16=sys.argv[3] == "fp16")
    Path(sys.argv[4]).write_text(json.dumps(answer), encoding="utf-8")
