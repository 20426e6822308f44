"""External data: bytes of weights that are in another file of the model's folder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.errors import NetworkError
from resperf.network.protos import EXTERNAL, check_size, dtype_name
from resperf.network.wire import COPIED_BYTES, COPIED_INTEGER_BYTES, INTEGER_TYPES
from resperf.units import LOW_BITS

if TYPE_CHECKING:
    from onnx import TensorProto

_SHAPE_TYPE, _MOST_IN_SHAPE = 7, 64
"""Constants of int64 with at most so many elements are taken to be shapes."""


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


def check_shapes(path: Path, weights: Iterable[TensorProto]) -> None:
    """Refuse a model whose shapes are in a file that is missing.

    Raises
    ------
    NetworkError
        If it is one; names that file.
    """
    outside = [
        entry.value
        for proto in weights
        if proto.data_type == _SHAPE_TYPE and math.prod(proto.dims) <= _MOST_IN_SHAPE
        for entry in proto.external_data
        if entry.key == "location"
    ]
    if outside:
        raise NetworkError(
            f"{path}: {len(outside)} shape constants are in {outside[0]}, which is missing; put it "
            "beside the file and give the file's path, or export with these inside"
        )


def external_data(path: Path, proto: TensorProto) -> npt.NDArray[Any] | None:
    """Map external data that is stored in the model's folder; None where there is none.

    Raises
    ------
    NetworkError
        If the file is too short, or the element type is unknown.
    """
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    file = _inside(path.parent, location)
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
