"""Backends that the tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resperf.backends import backend

if TYPE_CHECKING:
    from resperf.backends.tensorflow import TensorFlowBackend


@pytest.fixture(scope="session")
def tensorflow() -> TensorFlowBackend:
    return backend("tensorflow")  # type: ignore[return-value]
