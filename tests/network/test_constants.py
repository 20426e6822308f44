"""Shape arithmetic, against values worked out by hand and against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from resperf.network.constants import evaluate


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("op", "values", "attributes", "expected"),
    [
        ("Div", [ints(-7, 7, 8), ints(2, 2, 4)], {}, [-3, 3, 2]),
        ("Slice", [ints(5, 6, 7, 8)], {"starts": (1,), "ends": (3,)}, [6, 7]),
        ("Slice", [ints(5, 6, 7), ints(-1), ints(-99), ints(0), ints(-1)], {}, [7, 6, 5]),
        ("Unsqueeze", [np.int64(4).reshape(()), ints(0)], {}, [4]),
        ("Unsqueeze", [np.int64(4).reshape(())], {"axes": (0,)}, [4]),
        ("Range", [np.int64(2), np.int64(9), np.int64(3)], {}, [2, 5, 8]),
        ("Reshape", [np.arange(6), ints(0, 1, -1)], {}, [[[0]], [[1]], [[2]], [[3]], [[4]], [[5]]]),
        ("ReduceProd", [ints(2, 3, 4)], {"keepdims": 0}, 24),
        ("Where", [np.array([True, False]), ints(1, 2), ints(3, 4)], {}, [1, 4]),
        ("Expand", [ints(7), ints(2, 2)], {}, [[7, 7], [7, 7]]),
        ("ConstantOfShape", [ints(3)], {"value": ints(9)}, [9, 9, 9]),
        ("Constant", [], {"value_ints": (1, 2)}, [1, 2]),
        ("Mod", [ints(-7), ints(3)], {}, [2]),
        ("Mod", [ints(-7), ints(3)], {"fmod": 1}, [-1]),
        ("QuantizeLinear", [np.float32([0.25, 0.75, 99]), np.float32(0.5)], {}, [0, 2, 198]),
        ("QuantizeLinear", [np.float32([-99, 9e9]), np.float32(0.5), np.int8(3)], {}, [-128, 127]),
        ("QuantizeLinear", [np.float16([3]), np.float32(1), np.uint16(32769)], {}, [32772]),
        ("DequantizeLinear", [np.uint8([3, 130]), np.float32(0.5), np.uint8(128)], {}, [-62.5, 1]),
    ],
)
def test_by_hand(op: str, values: Sequence[Any], attributes: dict[str, Any], expected: Any) -> None:
    result = evaluate(op, values, attributes, 1)
    assert result is not None
    assert result[0].tolist() == expected


def test_split_in_equal_and_given_parts() -> None:
    parts = evaluate("Split", [ints(1, 2, 3, 4, 5)], {}, 2)
    assert parts is not None
    assert [part.tolist() for part in parts] == [[1, 2, 3], [4, 5]]
    parts = evaluate("Split", [ints(1, 2, 3, 4, 5), ints(1, 4)], {}, 2)
    assert parts is not None
    assert [part.tolist() for part in parts] == [[1], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("op", "values", "attributes"),
    [
        ("Conv", [ints(1)], {}),
        ("Range", [np.int64(0), np.int64(1 << 60), np.int64(1)], {}),
        ("Expand", [ints(1), ints(1 << 30, 1 << 30)], {}),
        ("ConstantOfShape", [ints(1 << 40)], {}),
        ("Tile", [ints(1), ints(1 << 40)], {}),
        ("Gather", [ints(1, 2), ints(5)], {}),
        ("Slice", [ints(1, 2)], {}),
        ("Range", [np.int64(0), np.int64(5), np.int64(0)], {}),
        ("Reshape", [ints(1, 2), ints(3)], {}),
        ("ConstantOfShape", [ints(2)], {"value": b"not a tensor"}),
        ("Concat", [np.zeros(4096, np.int64)] * 300_000, {"axis": 0}),
        ("Mod", [np.ones((4096, 1), np.int64), np.ones((1, 4096), np.int64)], {}),
        ("Clip", [np.ones((4096, 1), np.int64), np.ones((1, 4096), np.int64)], {}),
        ("Split", [ints(1, 2, 3), ints(1, 1, 1)], {}),
        ("Split", [ints(1, 2, 3), ints(5)], {}),
        ("OneHot", [ints(1), np.array(1 << 40), ints(0, 1)], {}),
        ("GatherND", [ints(1, 2), ints(5)], {}),
        ("ScatterND", [ints(1, 2), np.array([[0]]), ints(5)], {"reduction": "add"}),
        ("ScatterND", [ints(1, 2, 3), np.array([[0]]), ints(5, 6)], {}),
        ("GatherElements", [np.eye(3), np.array([[0], [2]])], {}),
        ("GatherElements", [np.ones((4096, 1)), np.zeros((1, 4096), np.int64)], {"axis": 1}),
        ("ScatterElements", [np.eye(3), np.array([[1]]), np.array([[9.0]])], {"axis": 1}),
        ("ScatterElements", [ints(1, 2), ints(0, 1), ints(9)], {}),
        ("ArgMax", [ints(1, 1)], {"select_last_index": 1}),
        ("QuantizeLinear", [np.ones(2, np.float32), np.ones(2, np.float32)], {"axis": 0}),
        ("DequantizeLinear", [np.ones((2, 2), np.uint8), np.float32(1)], {}),
        ("DequantizeLinear", [np.ones(17, np.uint8), np.float32(1)], {}),
        ("QuantizeLinear", [np.float32([300]), np.float32(1)], {"output_dtype": TensorProto.INT8}),
    ],
)
def test_large_or_invalid_arithmetic_is_left_to_shape_inference(
    op: str, values: Sequence[Any], attributes: dict[str, Any]
) -> None:
    assert evaluate(op, values, attributes, 1) is None


A, B = np.array([[3, -4, 5], [6, 7, -8]]), np.array([[2, 3, -2], [4, 2, 3]])
ORT_CASES: list[tuple[str, list[np.ndarray | None], dict[str, Any]]] = [
    *((op, [A, B], {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")),
    *((op, [A, B], {}) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((op, [A], {}) for op in ("Abs", "Neg", "Identity", "NonZero")),
    ("Gather", [A, ints(2, 0)], {"axis": 1}),
    ("Concat", [A, B], {"axis": 1}),
    ("Transpose", [A], {"perm": [1, 0]}),
    ("Squeeze", [A[None], ints(0)], {}),
    ("Slice", [A, ints(0, 0), ints(2, 99), ints(0, 1), ints(1, 2)], {}),
    ("ReduceSum", [A, ints(1)], {"keepdims": 0}),
    ("ReduceMax", [A], {"axes": [0]}),
    ("ReduceMin", [A], {"axes": [0], "keepdims": 0}),
    ("Tile", [A, ints(2, 1)], {}),
    ("Cast", [A], {"to": TensorProto.FLOAT}),
    ("Clip", [A, np.array(-3), np.array(5)], {}),
    ("Clip", [A, np.array(0)], {}),
    ("Clip", [A, None, np.array(2)], {}),
    ("Slice", [A, ints(0, 0), ints(2, 99), None, ints(1, 2)], {}),
    ("CumSum", [A, np.array(1)], {}),
    ("Sign", [A], {}),
    ("Sum", [A / 2, B / 2, A / 4], {}),
    ("Trilu", [A], {"upper": 0}),
    ("Trilu", [A, np.array(1)], {}),
    ("Exp", [A / 2], {}),
    ("Log", [np.abs(A) / 2], {}),
    ("ReduceMean", [A / 2], {"axes": [1]}),
    ("Xor", [A > 0, B > 2], {}),
    *((op, [A / 2], {}) for op in ("Sin", "Cos", "Reciprocal")),
    *((op, [A], {"axis": 1, "keepdims": 0}) for op in ("ArgMax", "ArgMin")),
    ("OneHot", [ints(1), np.array(5), ints(1, 3)], {}),
    ("OneHot", [ints(1, -1), np.array(3), ints(0, 1)], {"axis": 0}),
    ("GatherElements", [A, np.array([[1, 0, 1]])], {"axis": 0}),
    ("GatherND", [A, np.array([[1, 2], [0, 0]])], {}),
    ("GatherND", [A, np.array([[1], [0]])], {}),
    ("ScatterElements", [A, np.array([[1], [0]]), np.array([[9], [8]])], {"axis": 1}),
    ("ScatterND", [A, np.array([[1, 2]]), ints(9)], {}),
    *(
        ("QuantizeLinear", [np.float32([-9, 0.3, 0.5, 1.5]), np.array(0.2, np.float32), zero], {})
        for zero in (np.array(7, np.uint8), np.array(-7, np.int8))
    ),
    ("QuantizeLinear", [np.array(0.7, np.float32), np.array(0.2, np.float32)], {}),
    (
        "DequantizeLinear",
        [np.array([1, 200], np.uint8), np.array(0.2, np.float32), np.array(7, np.uint8)],
        {},
    ),
]


@pytest.mark.parametrize(
    ("op", "values", "attributes"), ORT_CASES, ids=[case[0] for case in ORT_CASES]
)
def test_as_onnxruntime(
    op: str, values: list[np.ndarray | None], attributes: dict[str, Any]
) -> None:
    names = ["" if value is None else f"i{index}" for index, value in enumerate(values)]
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in zip(names, values, strict=True)
        if value is not None
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g", infos,
        [helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    given = {name: value for name, value in zip(names, values, strict=True) if name}
    (wanted,) = session.run(None, given)
    result = evaluate(op, values, attributes, 1)
    assert result is not None
    assert result[0].dtype == wanted.dtype
    np.testing.assert_allclose(result[0], wanted, rtol=1e-15)
