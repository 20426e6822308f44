"""Networks read from ONNX files: structure, shapes and small constants, never weights."""

from __future__ import annotations

from resperf.network._base import Network, Node, Tensor

__all__ = ["Network", "Node", "Tensor"]
