"""Backends that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from resperf.backends import backend

if TYPE_CHECKING:
    from resperf.backends.tensorflow import TensorFlowBackend


@pytest.fixture(scope="session")
def tensorflow() -> TensorFlowBackend:
    return backend("tensorflow", threads=1)  # type: ignore[return-value]


@pytest.fixture
def optimised_ops() -> Callable[[Any, Any], list[str]]:
    """Return the kernels of a function after TensorFlow's optimiser, at its first call."""
    from tensorflow.python.eager import context

    def ops(function: Any, x: Any) -> list[str]:
        context.context().enable_run_metadata()
        try:
            context.context().export_run_metadata()  # of what ran since a function was asked before
            function(x)
            metadata = context.context().export_run_metadata()
        finally:
            context.context().disable_run_metadata()
        return [node.op for graph in metadata.partition_graphs for node in graph.node]

    return ops
