"""Protobuf wire format: copies an ONNX model without the bytes of its weights.

Source: https://protobuf.dev/programming-guides/encoding and onnx.proto's field numbers. Only
messages that can hold a weight are parsed; all other fields are copied or dropped whole.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from resperf.errors import NetworkError

Buffer = bytes | mmap.mmap

COPIED_BYTES = 1024
"""A tensor of at most this many bytes is copied whole."""
COPIED_INTEGER_BYTES = 32768
"""The same for 32 and 64 bit integers, which may be shapes."""
_COPIED_LIST_BYTES = 1 << 20
_MAX_FIELDS = 5_000_000
_MAX_DEPTH = 40

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
INTEGER_TYPES = (6, 7)
"""ONNX's numbers of int32 and int64."""

# Message -> field -> message to enter.
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
# Message -> fields without use here: documentation, functions' shapes, training, weights' bytes.
_UNUSED: Mapping[str, frozenset[int]] = {
    "model": frozenset({6, 14, 20}),
    "graph": frozenset({10, 14, 16}),
    "function": frozenset({8, 14}),
    "node": frozenset({6, 9}),
    "attribute": frozenset({13}),
    "sparse": frozenset(),
    "tensor": frozenset({12, 16}),
}
_LISTS = frozenset({4, 7, 8, 9})
_PAYLOAD = frozenset({4, 5, 6, 7, 9, 10, 11})
_DATA_TYPE = 2


@dataclass
class Stripped:
    """A model without its weights' bytes.

    Attributes
    ----------
    model : bytes
        A ModelProto.
    weights : list of (int, int)
        Start and end, in the file, of the main graph's initializers whose bytes were dropped.
    """

    model: bytes = b""
    weights: list[tuple[int, int]] = field(default_factory=list)
    fields: int = 0
    keep_attributes: bool = False


def strip(buffer: Buffer, *, keep_attributes: bool = False) -> Stripped:
    """Copy a ModelProto without tensors' bytes above `COPIED_BYTES`.

    Attributes that are lists or text above a megabyte, such as a decision forest, are dropped.

    Parameters
    ----------
    buffer : bytes or mmap
        The file. Weights' bytes are skipped, not read.
    keep_attributes : bool
        Copy tensors in attributes and sparse tensors whole, as running the model needs them.

    Raises
    ------
    NetworkError
        If the bytes are not a complete ModelProto.
    """
    result = Stripped(keep_attributes=keep_attributes)
    result.model = _message(buffer, 0, len(buffer), "model", 0, result)
    return result


def _varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise NetworkError(f"byte {at} is not part of a varint")
    raise NetworkError(f"it ends within a varint at byte {end}")


def _fields(
    buffer: Buffer, start: int, end: int, state: Stripped
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start of the tag, start of the content, end."""
    at = start
    while at < end:
        state.fields += 1
        if state.fields > _MAX_FIELDS:
            raise NetworkError(f"it has more than {_MAX_FIELDS} fields")
        tag, content = _varint(buffer, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            length, content = _varint(buffer, content, end)
            stop = content + length
        elif wire == _VARINT:
            stop = _varint(buffer, content, end)[1]
        elif wire in (_FIXED32, _FIXED64):
            stop = content + (4 if wire == _FIXED32 else 8)
        else:
            raise NetworkError(f"byte {at} does not start a field")
        if number == 0:
            raise NetworkError(f"byte {at} does not start a field")
        if stop > end:
            raise NetworkError(f"the field at byte {at} needs {stop - end} more bytes")
        yield number, wire, at, content, stop
        at = stop


def _message(
    buffer: Buffer, start: int, end: int, message: str, depth: int, state: Stripped
) -> bytes:
    if depth > _MAX_DEPTH:
        raise NetworkError(f"its graphs are nested more than {_MAX_DEPTH} messages deep")
    children, unused = _CHILDREN[message], _UNUSED[message]
    pieces: list[bytes] = []
    copied = start  # bytes up to here are copied or dropped
    for number, wire, tag, content, stop in _fields(buffer, start, end, state):
        if wire != _LENGTH:
            continue
        child = children.get(number)
        is_list = message == "attribute" and number in _LISTS and not state.keep_attributes
        header = body = b""  # dropped
        if not (number in unused or (is_list and stop - content > _COPIED_LIST_BYTES)):
            initializer = child == "tensor" and message == "graph" and depth == 1
            whole = state.keep_attributes and child in ("tensor", "sparse") and not initializer
            if child is None or whole or stop - content <= COPIED_BYTES:
                continue
            if child == "tensor":
                stripped = _tensor(buffer, content, stop, state)
                if stripped is None:
                    continue
                body = stripped
            else:
                body = _message(buffer, content, stop, child, depth + 1, state)
            if initializer:
                state.weights.append((content, stop))
            header = encode_varint(number << 3 | _LENGTH) + encode_varint(len(body))
        pieces += (buffer[copied:tag], header, body)
        copied = stop
    pieces.append(buffer[copied:end])
    return b"".join(pieces)


def _tensor(buffer: Buffer, start: int, end: int, state: Stripped) -> bytes | None:
    """Copy a TensorProto without its payload; None if it is small enough to copy whole."""
    fields, payload_bytes, data_type = [], 0, 0
    unused = _UNUSED["tensor"]
    for number, wire, tag, content, stop in _fields(buffer, start, end, state):
        if number in _PAYLOAD:
            payload_bytes += stop - content
        elif number not in unused:
            fields.append(buffer[tag:stop])
        if number == _DATA_TYPE and wire == _VARINT:
            data_type = _varint(buffer, content, stop)[0]
    limit = COPIED_INTEGER_BYTES if data_type in INTEGER_TYPES else COPIED_BYTES
    return None if payload_bytes <= limit else b"".join(fields)


def encode_varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
