"""Backends: one file per framework; the table holds import strings: none is loaded early."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from resperf.backends._base import Backend, Built, Phase
from resperf.errors import MissingExtraError, ResperfError, silent_stderr

__all__ = ["BACKENDS", "Backend", "Built", "Phase", "backend"]

BACKENDS: Mapping[str, tuple[str, str]] = {
    "onnxruntime": ("resperf.backends.onnxruntime:OnnxRuntimeBackend", "bench"),
    "tensorflow": ("resperf.backends.tensorflow:TensorFlowBackend", "tensorflow"),
    "synthetic": ("resperf.backends.synthetic:SyntheticBackend", "bench"),
}
"""Framework -> (module:class, the extra of resperf that it needs)."""


def backend(framework: str, **settings: object) -> Backend:
    """Start a backend.

    Parameters
    ----------
    framework : str
        A name of `BACKENDS`.
    **settings
        Passed on, such as ``threads=2``.

    Raises
    ------
    ResperfError
        If there is no such framework, or a setting that it does not have.
    MissingExtraError
        If its package is not installed.
    """
    try:
        target, extra = BACKENDS[framework]
    except KeyError as error:
        raise ResperfError(
            f"no framework {framework!r}; known frameworks: {', '.join(BACKENDS)}"
        ) from error
    module_name, class_name = target.split(":")
    try:
        with silent_stderr():  # TensorFlow greets while it is imported
            factory = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; install it with: pip install 'resperf[{extra}]'"
        ) from error
    try:
        started: Backend = factory(**settings)
    except TypeError as error:
        raise ResperfError(f"framework {framework}: {error}") from error
    return started
