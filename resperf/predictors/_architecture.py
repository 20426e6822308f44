"""The papers' networks as plain values, and as ONNX graphs with their weights.

The ONNX graph is written here, node by node, instead of converted. The same weights then always
give the same bytes, and no converter has to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.predictors._onnx import OnnxGraph

Weights = Mapping[str, npt.NDArray[np.float32]]
"""Name such as ``"dense_1/kernel"`` -> values in Keras' order of axes, rounded as `as_stored`."""


def as_stored(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Round weights to half precision, in which files hold them: half as large as in float32."""
    return values.astype(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Stage:
    """A head convolution along the features, then residual blocks of two convolutions each."""

    filters: int
    kernel: int
    blocks: int


@dataclass(frozen=True)
class Architecture:
    """A network with one output per row: ReLU and no bias, as in the papers.

    Attributes
    ----------
    features : int
        Length of a row.
    stages : tuple of Stage
        Convolutions over the features as a sequence; none for a plain perceptron.
    dense : tuple of int
        Widths of the fully connected layers, ReLU after each.
    """

    features: int
    stages: tuple[Stage, ...]
    dense: tuple[int, ...]


class _Graph(OnnxGraph):
    """The ONNX graph of a network, with its weights."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights

    def conv(self, x: str, name: str) -> str:
        """Add a SAME convolution; Keras' kernel is (length, in, out), ONNX's (out, in, length)."""
        kernel = self.weights[f"{name}/kernel"].transpose(2, 1, 0)
        before = (kernel.shape[2] - 1) // 2
        pads = [before, kernel.shape[2] - 1 - before]
        inputs = [
            x,
            self.half(f"{name}/kernel", kernel),
            self.half(f"{name}/bias", self.weights[f"{name}/bias"]),
        ]
        return self.node("Conv", inputs, name, pads=pads)

    def dense(self, x: str, name: str) -> str:
        inputs = [x, self.half(f"{name}/kernel", self.weights[f"{name}/kernel"])]
        if f"{name}/bias" in self.weights:
            inputs.append(self.half(f"{name}/bias", self.weights[f"{name}/bias"]))
        return self.node("Gemm", inputs, name)

    def relu(self, x: str, name: str = "") -> str:
        return self.node("Relu", [x], name or f"{x}/relu")


def _write_trunk(graph: _Graph, architecture: Architecture) -> str:
    """Write the convolutions; returns the name of their flattened output."""
    shape = graph.constant("sequence", np.array([-1, 1, architecture.features]))
    x = graph.node("Reshape", ["x", shape], "as_sequence")
    for index, stage in enumerate(architecture.stages):
        x = graph.relu(graph.conv(x, f"head_{index}"))
        for block in range(stage.blocks):
            name = f"block_{index}_{block}"
            inner = graph.relu(graph.conv(x, f"{name}_0"))
            inner = graph.relu(graph.conv(inner, f"{name}_1"))
            x = graph.relu(graph.node("Add", [inner, x], f"{name}_sum"))
    # Keras flattens (sequence, filters), ONNX holds (filters, sequence).
    x = graph.node("Transpose", [x], "keras_order", perm=[0, 2, 1])
    width = architecture.features * architecture.stages[-1].filters
    return graph.node("Reshape", [x, graph.constant("flat", np.array([-1, width]))], "as_row")


def onnx_bytes(architecture: Architecture, weights: Weights) -> bytes:
    """Return an ONNX file with input ``x`` (rows, features) and output ``y`` (rows, 1).

    Parameters
    ----------
    architecture : Architecture
    weights : mapping of str to array
        As `resperf.predictors._fitting.fit_network` returns them.
    """
    graph = _Graph(weights)
    x = _write_trunk(graph, architecture) if architecture.stages else "x"
    for index in range(len(architecture.dense)):
        x = graph.relu(graph.dense(x, f"dense_{index}"))
    graph.relu(graph.dense(x, "output"), "y")
    return graph.file(architecture.features)
