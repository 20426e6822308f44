"""Frozen dataclasses as plain JSON values, and back by the types of their fields."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from resperf.units import json_values


class Record:
    """Base of frozen dataclasses that files and documents hold."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN and infinities become None."""
        return {name: json_values(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; None becomes NaN, and unknown fields are ignored.

        Raises
        ------
        TypeError, ValueError, AttributeError, OverflowError
            If a field is missing or damaged.
        """
        return cls(**read_fields(cls, values))


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text; `options` are those of `json.loads`.

    Raises
    ------
    ValueError
        If it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass that JSON values have, by their types.

    Raises
    ------
    TypeError, ValueError, AttributeError, OverflowError
        If one is damaged.
    """
    types = _types(cls)
    return {k: _read(k, types[k], v) for k, v in values.items() if k in types}


def hash_of_fields(record: Any) -> int:
    """Hash all fields of a record; mappings by their items."""
    values = (getattr(record, f.name) for f in dataclasses.fields(record))
    return hash(tuple(tuple(sorted(v.items())) if isinstance(v, Mapping) else v for v in values))


@cache
def _types(cls: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with their types."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _read(name: str, kind: Any, value: Any) -> Any:
    """Return a JSON value as a field's type."""
    parts, kind = get_args(kind), get_origin(kind) or kind
    if NoneType in parts:
        return None if value is None else _read(name, parts[0], value)
    if kind is tuple and isinstance(value, list | tuple):
        # Journals hold millions of samples: those of the right type are not read one by one.
        if set(map(type, value)) - {parts[0]}:
            value = [_read(name, parts[0], item) for item in value]
        return tuple(value)
    if kind is Mapping and isinstance(value, Mapping):
        return {key: _read(name, parts[1], item) for key, item in value.items()}
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float | None) and not isinstance(value, bool):
        return math.nan if value is None else float(value)
    if issubclass(kind, Record):
        return kind.from_json(value)
    if issubclass(kind, Enum):
        return kind(value)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise TypeError(f"{name}={value!r}")
    return value


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Write columns of equal length under their names; the cell of None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def csv_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows, which need not have the same names, as CSV; words of a list are joined."""
    names = dict.fromkeys(name for row in rows for name in row)
    cells = {
        name: [" ".join(x) if isinstance(x := row.get(name), list) else x for row in rows]
        for name in names
    }
    return csv_text(cells)
