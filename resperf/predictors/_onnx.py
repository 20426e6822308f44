"""ONNX files of predictors: from features to numbers, equal bytes for equal values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError
from resperf.features import Array

_OPSETS, _IR_VERSION = {"": 17, "ai.onnx.ml": 5}, 8
"""Version 5 of ai.onnx.ml is the first with TreeEnsemble, which needs a third of the bytes of the
operator before it; ONNX Runtime 1.21, the oldest that resperf runs with, reads it."""


class OnnxGraph:
    """Nodes and constants of an ONNX graph, from input ``x`` to output ``y``."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, npt.NDArray[Any]] = {}

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node named like its output; returns that name."""
        from onnx import helper

        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add a constant array; returns its name."""
        self._constants[name] = values
        return name

    def half(self, name: str, values: npt.NDArray[np.float32]) -> str:
        """Add a float32 constant that is stored in half precision; returns its name."""
        from onnx import TensorProto

        stored = self.constant(f"{name}/half", values.astype(np.float16))
        return self.node("Cast", [stored], name, to=TensorProto.FLOAT)

    def file(self, features: int, *, double: bool = False) -> bytes:
        """Return a file with input ``x`` (rows, features) and output ``y`` (rows, 1).

        The input is float32. The output is too, or float64 with `double`.
        """
        from onnx import TensorProto, helper, numpy_helper

        answer = TensorProto.DOUBLE if double else TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "predictor",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", features])],
            [helper.make_tensor_value_info("y", answer, ["rows", 1])],
            [numpy_helper.from_array(values, name) for name, values in self._constants.items()],
        )
        domains = {node.domain for node in self._nodes}
        opsets = [helper.make_opsetid(domain, _OPSETS[domain]) for domain in sorted({"", *domains})]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="resperf")
        model.ir_version = _IR_VERSION
        content: bytes = model.SerializeToString(deterministic=True)
        return content


class OnnxNetwork:
    """A stored network, run with one thread; its session is created on first use.

    Parameters
    ----------
    path : Path
        The ONNX file.
    rows_at_once : int
        Most rows per run, which bounds its memory.
    """

    def __init__(self, path: Path, rows_at_once: int = 8192) -> None:
        self._path = path
        self._rows_at_once = rows_at_once
        self._session: Any = None

    def __call__(self, rows: npt.NDArray[np.floating[Any]]) -> Array:
        """Run rows of shape (rows, features); returns (rows, 1)."""
        session, step = self._session or self._start(), self._rows_at_once
        try:
            parts = [
                session.run(["y"], {"x": rows[at : at + step].astype(np.float32)})[0]
                for at in range(0, max(len(rows), 1), step)
            ]
        except Exception as error:  # onnxruntime raises classes of its own
            raise BundleError(f"{self._path} does not fit its bundle; train it again") from error
        return np.concatenate(parts).astype(np.float64)

    def _start(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                self._path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises classes of its own
            raise BundleError(f"{self._path} cannot be read; the bundle is damaged") from error
        return self._session
