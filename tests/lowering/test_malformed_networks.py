"""Networks whose attributes and shapes do not fit: one line, no traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resperf.errors import UnsupportedError
from resperf.lowering import lower
from resperf.network import Network, Node, Tensor
from resperf.platform import Platform
from resperf.settings import Setting

SHAPES: dict[str, tuple[int, ...]] = {
    "x": (2, 8, 4, 4), "a": (2, 8, 4, 4), "b": (2, 8, 4, 4), "c": (2, 8, 4, 4), "m": (2, 3),
    "none": (2, 0, 4),
}  # fmt: skip
VALUES = {
    "w": np.ones((5, 5, 3, 2)), "zero": np.int64([0]), "empty": np.int64([]), "index": np.int64(0),
    "one": np.int64(1), "text": np.array("abc"), "nan": np.array([np.nan] * 8),
    "huge": np.int64([9] * 10), "complex": np.array(1j),
    "kernel": np.ones((8, 8, 3, 3), np.float32),
}  # fmt: skip


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> Node:
    return Node(f"{op} {outputs}", op, domain, tuple(inputs.split()), tuple(outputs.split()),
                attributes)  # fmt: skip


def network(*nodes: Node, opset: int = 17) -> Network:
    tensors = {name: Tensor(name, shape, "float32") for name, shape in SHAPES.items()}
    tensors |= {
        name: Tensor(name, value.shape, str(value.dtype), value, is_weight=True)
        for name, value in VALUES.items()
    }
    last = nodes[-1].outputs[-1]
    return Network("malformed", nodes, tensors, ("x",), (last,), {"": opset}, 2)


TO_NHWC = node("Transpose", "x", "a", perm=(0, 2, 3, 1))
TO_NCHW = node("Transpose", "b", "c", perm=(0, 3, 1, 2))
MALFORMED: dict[str, tuple[Node, ...]] = {
    "no order": (node("Transpose", "x", "a"), node("Transpose", "a", "b")),
    "no order, then fewer axes": (
        node("Transpose", "x", "a"), node("ReduceMean", "a", "b", axes=(1,))),
    "order of the wrong type": (node("Transpose", "x", "a", perm=1), node("MatMul", "a x", "b")),
    "order that is no permutation": (node("Transpose", "x", "a", perm=(5, 6, 7, 8)), TO_NCHW),
    "orders of unlike lengths": (
        node("Transpose", "unknown", "hidden", perm=(1, 0)),
        node("Transpose", "hidden", "b", perm=(0, 2, 1))),
    "a weight of more axes": (
        node("Transpose", "m", "a", perm=(1, 0)), node("Add", "a w", "b"), TO_NCHW),
    "no axis": (TO_NHWC, node("ReduceSum", "a empty", "b", keepdims=0), TO_NCHW),
    "axis of the wrong type": (TO_NHWC, node("Split", "a", "b c", axis="z")),
    "axes of the wrong type": (TO_NHWC, node("Squeeze", "a", "b", axes=1)),
    "axis of a list": (TO_NHWC, node("Concat", "a x", "b", axis=[1]), TO_NCHW),
    "axis beyond": (TO_NHWC, node("Softmax", "a", "b", axis=9), TO_NCHW),
    "gather by text": (
        node("Gather", "x index", "a", axis="q"), node("Gather", "x one", "b", axis="q")),
    "slices of an empty tensor": (
        node("Gather", "none index", "a", axis=1), node("Gather", "none one", "b", axis=1)),
    "pads of the wrong type": (
        node("Pad", "x huge", "a"), node("Conv", "a kernel", "b", pads=1)),
    "pads of another rank": (
        node("Pad", "unknown huge", "hidden"), node("Conv", "hidden kernel", "b", pads=[1] * 4)),
    "pads that are no numbers": (node("Pad", "x nan", "a"), node("Conv", "a kernel", "b")),
    "padding with text": (node("Pad", "x zero text", "a"), node("Conv", "a kernel", "b")),
    "sum with text": (node("Add", "x text", "a"),),
    "product with a complex number": (node("Mul", "x complex", "a"),),
    "gelu by text": (node("Div", "x text", "a"), node("Erf", "a", "b"), node("Add", "b one", "c")),
    "foreign operator without inputs": (node("Transpose", "", "a", domain="foo"),),
    "foreign operators of known names": (
        node("Identity", "", "a", domain="foo"), node("Relu", "", "b", domain="foo"),
        node("Squeeze", "", "c", domain="foo")),
    "ONNX Runtime's operator without inputs": (node("Relu", "", "a", domain="com.microsoft"),),
    "a foreign image, transposed": (
        node("Conv", "x kernel", "hidden", domain="foo"),
        node("Transpose", "hidden", "a", perm=(0, 2, 3, 1))),
    "unknown shapes, concatenated": (
        node("Transpose", "unknown", "hidden", perm=(0, 2, 1)),
        node("Concat", "hidden hh", "b", axis=1), node("Transpose", "b", "c", perm=(0, 3, 1, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("block", ["0", "16"])
def test_malformed_networks_are_lowered_or_refused_in_one_line(name: str, block: str) -> None:
    setting = Setting("onnxruntime", threads=1, options={"nchwc_block": block})
    message = ""
    try:
        lower(network(*MALFORMED[name]), setting, Platform("cpu"))
    except UnsupportedError as error:
        message = str(error)
    assert "\n" not in message


TOO_FEW_INPUTS = {op: (node(op, "x", "y"),) for op in ("Mul", "ScatterND", "BatchNormalization")}


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("name", [*MALFORMED, *TOO_FEW_INPUTS])
def test_malformed_networks_are_lowered_for_pytorch(name: str, precision: str) -> None:
    nodes = (MALFORMED | TOO_FEW_INPUTS)[name]
    setting = Setting("torch", "2.9.1", precision=precision)
    lowered = lower(network(*nodes), setting, Platform("cuda")).nodes
    assert {source for each in lowered for source in each.sources} <= {each.name for each in nodes}
    if name in TOO_FEW_INPUTS:
        assert [each.role for each in lowered] == ["unknown"]


@pytest.mark.parametrize("name", [*MALFORMED, *TOO_FEW_INPUTS])
def test_malformed_networks_are_refused_by_tensorrt_in_one_line(
    name: str, tensorrt_rtx: None
) -> None:
    nodes = (MALFORMED | TOO_FEW_INPUTS)[name]
    message, sources = "", set[str]()
    try:
        lowered = lower(network(*nodes), Setting("tensorrt"), Platform("cuda")).nodes
        sources = {source for each in lowered for source in each.sources}
    except UnsupportedError as error:
        message = str(error)
    assert "\n" not in message
    assert sources <= {each.name for each in nodes}
