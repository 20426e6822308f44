"""ONNX Runtime's products whose first axis is the last but one of the matrices, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from resperf.layers import Operand, Operator
from resperf.network import Tensor, read_network
from resperf.network.shapes import partial_outputs
from resperf.network.weights import weights_of

CONTRIB = "com.microsoft"
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "first": ((7, 3, 4), (3, 4, 5), {"transBatchA": 1}),
    "both, turned": (
        (4, 3, 7), (5, 3, 4), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
    ),
    "two axes of batch": ((7, 2, 3, 4), (2, 3, 4, 5), {"transBatchA": 1}),
    "plain": ((3, 4), (4, 5), {}),
    "row vector": ((4,), (4, 5), {"transA": 1}),
    "column vector": ((3, 4), (4,), {"transB": 1}),
    "columns of a batch": ((2, 3, 4), (4,), {}),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Path, dict[str, int], np.ndarray[Any, Any], np.ndarray[Any, Any], Any]:
    """Return a file, the attributes of its product, both operands, and what ONNX Runtime says."""
    first, second, attributes = CASES[request.param]
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape, np.float32) for shape in (first, second))
    node = helper.make_node("FusedMatMul", ["x", "b"], ["y"], domain=CONTRIB, **attributes)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, first)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, attributes, a, b, session.run(None, {"x": a})[0]


def test_its_shape_is_that_of_onnx_runtime(case) -> None:
    _, attributes, a, b, y = case
    node = helper.make_node("FusedMatMul", ["x", "b"], ["y"], domain=CONTRIB, **attributes)
    tensors = {name: Tensor(name, op.shape, "float32") for name, op in (("x", a), ("b", b))}
    assert partial_outputs(node, tensors, {CONTRIB: 1}) == {"y": ("float32", y.shape)}


def test_pytorch_computes_the_same(case) -> None:
    torch = pytest.importorskip("torch")
    from resperf.backends._torch_functions import _fused_product

    _, attributes, a, b, y = case
    if min(a.ndim, b.ndim) < 2 and attributes:
        pytest.skip("PyTorch's backend has no vectors with transposes")
    operands = tuple(Operand(each.shape, "float32") for each in (a, b))
    product = _fused_product(Operator("FusedMatMul", attributes, operands, (y.shape,)))
    found = product(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_allclose(found.numpy(), y, rtol=1e-3, atol=1e-5)


def test_tensorflow_computes_the_same(case) -> None:
    tf = pytest.importorskip("tensorflow")
    from resperf.backends.tensorflow_builder import Builder
    from resperf.backends.tensorflow_operators import build

    path, _, a, b, y = case
    if min(a.ndim, b.ndim) < 2 or max(a.ndim, b.ndim) > 3:
        pytest.skip("TensorFlow's backend multiplies matrices and stores images last")
    builder = Builder(read_network(path), weights_of(path, batch=None))
    (found,) = builder.outputs(build, tf.constant(a))
    np.testing.assert_allclose(found.numpy(), y, rtol=1e-3, atol=1e-5)
