"""Measurements to columns of numbers and text, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from resperf.dataset.records import Array
from resperf.dataset.schema import (
    MAX_STORED_SAMPLES,
    MAX_TEXT_BYTES,
    ROW_COLUMNS,
    TEXT,
    Column,
    field_columns,
    kind_columns,
)
from resperf.errors import DatasetError
from resperf.layers import kind_of
from resperf.measurement import PHASES, Measurement, PhaseSamples, Status, StopReason

_ABSENT = PhaseSamples((), 0, 0, StopReason.BUDGET)

_ROW_VALUES: Mapping[str, Callable[[Measurement], Any]] = {
    **{name: attrgetter(name) for name in ROW_COLUMNS},
    "key": attrgetter("layer.key"),
    "flags": lambda measurement: ",".join(measurement.flags),
}

_PHASE_VALUES: Mapping[str, Callable[[PhaseSamples], Any]] = {
    "ms": lambda phase: phase.median_ms if phase.samples_ms else math.nan,
    "n_samples": lambda phase: len(phase.samples_ms),
    "taken": attrgetter("taken"),
    "warmups": attrgetter("warmups"),
    "stop_reason": lambda phase: phase.stop_reason.value if phase.samples_ms else "",
    "drift": attrgetter("drift"),
}


def to_columns(
    measurements: Sequence[Measurement], phases: Sequence[str] = PHASES
) -> dict[str, Array]:
    """Columns of measurements of one kind, as `kind_columns` lays them out; text as bytes.

    Raises
    ------
    DatasetError
        If a phase has more samples than a row can hold.
    """
    columns = kind_columns(measurements[0].layer.kind, phases)
    values: dict[str, Iterable[Any]] = {
        name: [getattr(m.layer, name) for m in measurements]
        for name in field_columns(measurements[0].layer.kind)
    }
    values |= {name: [get(m) for m in measurements] for name, get in _ROW_VALUES.items()}
    for phase in phases:
        rows = [m.phases.get(phase, _ABSENT) for m in measurements]
        values |= {f"{phase}_{name}": [get(r) for r in rows] for name, get in _PHASE_VALUES.items()}
        values[f"{phase}_samples_ms"] = _padded(phase, rows, measurements)
    return {name: _as_array(values[name], column) for name, column in columns.items()}


def _padded(phase: str, rows: Sequence[PhaseSamples], measurements: Sequence[Measurement]) -> Array:
    """Lay samples out as a block (n, 64), NaN behind each row's last."""
    block = np.full((len(rows), MAX_STORED_SAMPLES), np.nan, dtype="<f4")
    for index, row in enumerate(rows):
        count = len(row.samples_ms)
        if count > MAX_STORED_SAMPLES:
            raise DatasetError(
                f"{measurements[index].layer.key} has {count} samples of {phase}; a row holds "
                f"{MAX_STORED_SAMPLES}: keep their quantiles"
            )
        block[index, :count] = row.samples_ms
    return block


def _as_array(values: Iterable[Any], column: Column) -> Array:
    if column.dtype != TEXT:
        return np.asarray(values, dtype=column.dtype)
    encoded = [_encode(str(value)) for value in values]
    return np.array(encoded, dtype=f"S{max(1, *map(len, encoded))}")


def _encode(text: str) -> bytes:
    """UTF-8 without NUL (which would end it), cut at a character's border where too long."""
    encoded = text.replace("\0", " ").encode("utf-8", "replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded
    return encoded[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + "…".encode()


def decode(values: Array) -> list[str]:
    """Text of a column of fixed-length bytes."""
    return [value.decode("utf-8", "replace") for value in values.tolist()]


def from_columns(
    kind: str, arrays: Mapping[str, Array], phases: Sequence[str] = PHASES
) -> list[Measurement]:
    """Measurements of one kind from its columns; the inverse of `to_columns`.

    Raises
    ------
    LayerError
        If a row is not a valid layer.
    ValueError
        If a status or a stop reason is not known.
    """
    lists: dict[str, list[Any]] = {
        name: decode(arrays[name]) if column.dtype == TEXT else arrays[name].tolist()
        for name, column in kind_columns(kind, phases).items()
    }
    cls, field_names = kind_of(kind), tuple(field_columns(kind))
    plain = [name for name in ROW_COLUMNS if name not in ("key", "status", "flags")]
    timed = {phase: _phases_of(phase, lists) for phase in phases}
    return [
        Measurement(
            layer=cls.from_fields({name: lists[name][row] for name in field_names}),
            status=Status(lists["status"][row]),
            flags=tuple(filter(None, lists["flags"][row].split(","))),
            phases={name: rows[row] for name, rows in timed.items() if rows[row].samples_ms},
            **{name: lists[name][row] for name in plain},
        )
        for row in range(len(lists["key"]))
    ]


def _phases_of(phase: str, lists: Mapping[str, list[Any]]) -> list[PhaseSamples]:
    """One phase of every row; without samples where it was not measured."""
    names = ("samples_ms", "n_samples", "taken", "warmups", "stop_reason", "drift")
    rows = zip(*(lists[f"{phase}_{name}"] for name in names), strict=True)
    return [
        PhaseSamples(tuple(samples[:n]), taken, warmups, StopReason(reason), bool(drift))
        if n
        else _ABSENT
        for samples, n, taken, warmups, reason, drift in rows
    ]
