"""ONNX messages as Python values: element types, attributes, tensors with or without bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf.errors import NetworkError, ShapeError
from resperf.network._base import SMALL_ELEMENTS, Tensor

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto

MAX_ELEMENTS = 1 << 40
"""Larger tensors are refused: their dimensions are damaged or mistyped."""

EXTERNAL = 1
"""TensorProto.EXTERNAL: a tensor's bytes are in another file."""

_DTYPES = {1: "float32", 11: "float64"}
_PAYLOADS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "string_data",
)  # fmt: skip


@cache
def dtype_name(data_type: int) -> str:
    """Return numpy's name of an ONNX element type."""
    if data_type in _DTYPES:
        return _DTYPES[data_type]
    from onnx import TensorProto

    if data_type not in TensorProto.DataType.values():
        return f"type{data_type}"
    return str(TensorProto.DataType.Name(data_type)).lower()


@cache
def data_type_of(dtype: str) -> int:
    """Return the ONNX element type of a name from `dtype_name`; 0 if there is none."""
    from onnx import TensorProto

    return next(
        (number for number in TensorProto.DataType.values() if dtype_name(number) == dtype), 0
    )


def check_size(path: Path, name: str, shape: Sequence[int]) -> None:
    """Refuse an impossible shape.

    Raises
    ------
    ShapeError
        If a dimension is negative or the tensor has more than `MAX_ELEMENTS` elements.
    """
    if min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
        words = ",".join(map(str, shape))
        raise ShapeError(f"{path}: tensor {name!r} cannot have the shape {words}")


def weight(path: Path, proto: TensorProto) -> Tensor:
    """Return a constant, with its value if it is small and its bytes are in the file.

    Raises
    ------
    NetworkError
        If its shape is impossible or its bytes do not fit it.
    """
    shape = tuple(proto.dims)
    check_size(path, proto.name, shape)
    dtype = dtype_name(proto.data_type)
    value = None
    if math.prod(shape) <= SMALL_ELEMENTS and has_bytes(proto):
        from onnx import numpy_helper

        try:
            value = numpy_helper.to_array(proto)
        except Exception as error:  # onnx raises whatever numpy did
            raise NetworkError(
                f"{path} is damaged: the bytes of constant {proto.name!r} do not fit its shape"
            ) from error
    return Tensor(proto.name, shape, dtype, value, is_weight=True)


def sparse_weight(path: Path, proto: SparseTensorProto) -> Tensor:
    """Return a sparse constant with its dense shape."""
    shape = tuple(proto.dims)
    check_size(path, proto.values.name, shape)
    return Tensor(proto.values.name, shape, dtype_name(proto.values.data_type), is_weight=True)


def has_bytes(proto: TensorProto) -> bool:
    """Say whether the tensor's bytes are in the message."""
    if proto.data_location == EXTERNAL:
        return False
    return math.prod(proto.dims) == 0 or any(len(getattr(proto, name)) for name in _PAYLOADS)


def attributes_of(path: Path, node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values.

    Numbers, strings, tuples of these; a small tensor as an array, a large one as a `Tensor`
    without value; a subgraph as the bytes of its GraphProto.
    """
    return {attribute.name: _value(path, attribute) for attribute in node.attribute}


def _value(path: Path, attribute: AttributeProto) -> Any:
    kind = attribute.type
    if kind in _PLAIN:
        return _PLAIN[kind](attribute)
    if kind in (4, 9):
        protos = (attribute.t,) if kind == 4 else attribute.tensors
        tensors = [weight(path, proto) for proto in protos]
        values = tuple(t if t.value is None else t.value for t in tensors)
        return values[0] if kind == 4 else values
    if kind == 5:
        return attribute.g.SerializeToString(deterministic=True)
    if kind == 10:
        return tuple(graph.SerializeToString(deterministic=True) for graph in attribute.graphs)
    if kind == 11:
        return sparse_weight(path, attribute.sparse_tensor)
    return attribute.SerializeToString(deterministic=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


# AttributeProto.AttributeType -> Python value.
_PLAIN: Mapping[int, Callable[[Any], Any]] = {
    1: lambda a: float(a.f),
    2: lambda a: int(a.i),
    3: lambda a: _text(a.s),
    6: lambda a: tuple(a.floats),
    7: lambda a: tuple(a.ints),
    8: lambda a: tuple(_text(s) for s in a.strings),
}
