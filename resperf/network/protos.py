"""ONNX messages as Python values: element types, attributes, tensors with or without bytes.

External data are bytes of weights that are in another file of the model's folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.errors import NetworkError, ShapeError
from resperf.network._base import SMALL_ELEMENTS, Tensor
from resperf.network.wire import COPIED_BYTES, COPIED_INTEGER_BYTES, INTEGER_TYPES
from resperf.units import LOW_BITS

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

MAX_ELEMENTS = 1 << 40
"""Larger tensors are refused: their dimensions are damaged or mistyped."""

EXTERNAL = 1
"""TensorProto.EXTERNAL: a tensor's bytes are in another file."""

_DTYPES = {1: "float32", 11: "float64"}
_PAYLOADS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "string_data",
)  # fmt: skip

_SHAPE_TYPE, _MOST_IN_SHAPE = 7, 64
"""Constants of int64 with at most so many elements are taken to be shapes."""


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
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        kind = attribute.type
        if kind in _PLAIN:
            value = _PLAIN[kind](attribute)
        elif kind in (4, 9):
            protos = (attribute.t,) if kind == 4 else attribute.tensors
            tensors = [weight(path, proto) for proto in protos]
            arrays = tuple(t if t.value is None else t.value for t in tensors)
            value = arrays[0] if kind == 4 else arrays
        elif kind == 11:
            value = sparse_weight(path, attribute.sparse_tensor)
        else:
            value = attribute.SerializeToString(deterministic=True)
        values[attribute.name] = value
    return values


def with_shapes(path: Path, content: bytes) -> bytes:
    """Put small constants into a model whose converter wrote all of them into another file.

    They are those that stay where they are inside the file (`resperf.network.wire.strip`).

    Parameters
    ----------
    path : Path
        The model's file.
    content : bytes
        The model without its weights.

    Raises
    ------
    NetworkError
        If that file is there, but too short.
    """
    # Scanned, not parsed: most files need not be changed, and their readers no ONNX.
    places = re.finditer(rb"\x0a\x08location\x12([\x01-\x7f])", content)
    names = {content[at.end() : at.end() + at[1][0]].decode(errors="replace") for at in places}
    if not any(_inside(path.parent, name) for name in names):
        return content
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto, numpy_helper

    with suppress(DecodeError):  # Parsing it again says what is wrong.
        model = ModelProto.FromString(content)
        for proto in model.graph.initializer:
            limit = COPIED_INTEGER_BYTES if proto.data_type in INTEGER_TYPES else COPIED_BYTES
            is_small = proto.data_location == EXTERNAL and 8 * math.prod(proto.dims) <= limit
            if is_small and (value := external_data(path, proto)) is not None:
                proto.CopyFrom(numpy_helper.from_array(value, proto.name))
        return bytes(model.SerializeToString())
    return content


def weights_of(path: Path, graph: GraphProto) -> dict[str, Tensor]:
    """Return a graph's weights by name.

    Raises
    ------
    NetworkError
        If shapes are in a file that is missing, or two weights or inputs have the same name.
    """
    outside = [
        entry.value
        for proto in graph.initializer
        if proto.data_type == _SHAPE_TYPE and math.prod(proto.dims) <= _MOST_IN_SHAPE
        for entry in proto.external_data
        if entry.key == "location"
    ]
    if outside:
        raise NetworkError(
            f"{path}: {len(outside)} shape constants are in {outside[0]}, which is missing; put it "
            "beside the file and give the file's path, or export with these inside"
        )
    weights = [weight(path, proto) for proto in graph.initializer]
    weights += [sparse_weight(path, proto) for proto in graph.sparse_initializer]
    by_name = {tensor.name: tensor for tensor in weights}
    if len(by_name) < len(weights) or len({info.name for info in graph.input}) < len(graph.input):
        raise NetworkError(f"{path} is damaged: two inputs or weights have the same name")
    return by_name


def external_data(path: Path, proto: TensorProto) -> npt.NDArray[Any] | None:
    """Map external data that is stored in the model's folder; None where there is none.

    Raises
    ------
    NetworkError
        If the file is too short, or the element type is unknown.
    """
    entries = {entry.key: entry.value for entry in proto.external_data}
    file = _inside(path.parent, entries.get("location", ""))
    # Values of less than a byte are packed, and take the same time whatever they are.
    if file is None or LOW_BITS.get(dtype_name(proto.data_type), 8) < 8:
        return None
    dtype, shape = numpy_dtype(proto), tuple(proto.dims)
    check_size(path, proto.name, shape)
    try:
        offset = int(entries.get("offset", 0))
        if offset < 0 or offset + math.prod(shape) * dtype.itemsize > file.stat().st_size:
            raise ValueError("too short")
        return np.memmap(file, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise NetworkError(
            f"{file} does not hold weight {proto.name!r} of {path.name}: {error}; "
            "export or download both files again"
        ) from error


def _inside(folder: Path, location: str) -> Path | None:
    """Return the file at a location, if it exists and is inside the folder."""
    try:
        root = folder.resolve()
        file = (root / location).resolve()
        return file if file.is_relative_to(root) and file.is_file() else None
    except (OSError, RuntimeError, TypeError, ValueError):
        return None  # a cycle of links, or text that is not a path


def numpy_dtype(proto: TensorProto) -> np.dtype[Any]:
    """Return a tensor's element type.

    Raises
    ------
    NetworkError
        If it is unknown.
    """
    from onnx import helper

    try:
        dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(proto.data_type)
    except (KeyError, ValueError, TypeError) as error:
        raise NetworkError(
            f"weight {proto.name!r} has the unknown element type {proto.data_type}"
        ) from error
    return dtype


# AttributeProto.AttributeType -> Python value.
_PLAIN: Mapping[int, Callable[[Any], Any]] = {
    1: lambda a: float(a.f),
    2: lambda a: int(a.i),
    3: lambda a: a.s.decode("utf-8", errors="replace"),
    5: lambda a: a.g.SerializeToString(deterministic=True),
    6: lambda a: tuple(a.floats),
    7: lambda a: tuple(a.ints),
    8: lambda a: tuple(text.decode("utf-8", errors="replace") for text in a.strings),
    10: lambda a: tuple(graph.SerializeToString(deterministic=True) for graph in a.graphs),
}
