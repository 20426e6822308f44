"""DNNPerf's network on graphs as an ONNX file, whose inputs are a batch of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from resperf.predictors._graph_network import Architecture, Batch, Weights
from resperf.predictors._onnx import OnnxGraph

_SAME: Mapping[str, str] = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "matmul": "MatMul",
    "exp": "Exp", "max": "ReduceMax", "relu": "Relu", "sigmoid": "Sigmoid", "softmax": "Softmax",
    "take": "Gather",
}  # fmt: skip
"""Operations of `keras.ops` -> operators with the same inputs and attributes."""


class Writer(OnnxGraph):
    """Writes nodes by operations that are named as in `keras.ops`; arrays are names."""

    def __getattr__(self, name: str) -> Callable[..., str]:
        if name not in _SAME:
            raise AttributeError(name)
        return partial(self._write, _SAME[name])

    def _write(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op, list(inputs), f"{op.lower()}_{len(self._nodes)}", **attributes)

    def leaky_relu(self, x: str, slope: float) -> str:
        return self._write("LeakyRelu", x, alpha=slope)

    def concatenate(self, parts: Sequence[str], axis: int) -> str:
        return self._write("Concat", *parts, axis=axis)

    def shape(self, x: str) -> list[str]:
        """Return the two lengths of a matrix, each as an array of one number."""
        lengths = self._write("Shape", x)
        return [
            self.take(lengths, self.constant(f"axis_{axis}", np.array([axis])), axis=0)
            for axis in (0, 1)
        ]

    def segment_sum(self, x: str, rows: str, count: str) -> str:
        """Add rows up, (rows, width), by the row that they belong to: (count, width)."""
        _, width = self.shape(x)
        sums = self._write("ConstantOfShape", self.concatenate([count, width], 0))
        column = self._write("Unsqueeze", rows, self.constant("axes_1", np.array([1])))
        return self._write("ScatterND", sums, column, x, reduction="add")


def onnx_bytes(architecture: Architecture, weights: Weights) -> bytes:
    """Return an ONNX file whose inputs are those of `Batch`, with output ``y`` (graphs, 1).

    Parameters
    ----------
    architecture : Architecture
    weights : mapping of str to array
    """
    from onnx import TensorProto

    writer = Writer()
    names = {name: writer.constant(name, values) for name, values in weights.items()}
    writer.node("Identity", [architecture.answers(writer, names, Batch(*Batch._fields))], "y")
    number, index = TensorProto.FLOAT, TensorProto.INT64
    types: tuple[tuple[int, list[int | str]], ...] = (
        (number, ["nodes", architecture.nodes]), (number, ["edges", architecture.edges]),
        (index, ["edges"]), (index, ["edges"]), (index, ["nodes"]), (number, ["graphs", 1]),
    )  # fmt: skip
    return writer.file_of(dict(zip(Batch._fields, types, strict=True)), number)
