"""What TensorRT says of itself; its import loads libnvinfer, its builder wants a GPU."""

from __future__ import annotations

from typing import Any

import tensorrt

from resperf.backends._facts import FrameworkFacts
from resperf.errors import first_line, silent_stderr


def facts() -> FrameworkFacts:
    """Make a builder, which starts CUDA."""
    trt: Any = tensorrt
    try:
        with silent_stderr():
            builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    except Exception as error:
        # pybind11 raises TypeError where the library returns nothing.
        problem = f"the builder does not start: {first_line(error)}"
        return FrameworkFacts(version=trt.__version__, notes=(problem,))
    notes = [f"fast types: {', '.join(types)}" for types in [_fast_types(builder)] if types]
    return FrameworkFacts(version=trt.__version__, devices=("cuda:0",), notes=tuple(notes))


def _fast_types(builder: Any) -> list[str]:
    """Return the reduced types that the card computes fast, as far as this version says."""
    types = {"fp16": "platform_has_fast_fp16", "int8": "platform_has_fast_int8"}
    return [name for name, attribute in types.items() if getattr(builder, attribute, False)]
