"""Measurements to columns of numbers and text, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from resperf.dataset import schema
from resperf.dataset.records import Array
from resperf.errors import DatasetError
from resperf.measurement import (
    Measurement,
    NetworkRef,
    Samples,
    Status,
    StopReason,
    Subject,
    written_layer,
)
from resperf.platform import Platform
from resperf.quantities import Estimator, quantity
from resperf.settings import OPTIMIZER, Setting

T = TypeVar("T", Setting, Platform)

_ABSENT = Samples((), 0, 0, StopReason.BUDGET)

_ROW_VALUES: Mapping[str, Callable[[Measurement], Any]] = {
    **{name: attrgetter(name) for name in schema.ROW_COLUMNS},
    OPTIMIZER: attrgetter("setting.optimizer"),
    "name": attrgetter("subject.name"),
    "digest": attrgetter("subject.digest"),
    "description": attrgetter("subject.description"),
    "flags": lambda measurement: ",".join(measurement.flags),
}

_SAMPLE_VALUES: Mapping[str, Callable[[Samples], Any]] = {
    "value": lambda samples: samples.value if samples.values else math.nan,
    "n_samples": lambda samples: len(samples.values),
    "taken": attrgetter("taken"),
    "warmups": attrgetter("warmups"),
    "stop_reason": lambda samples: samples.stop_reason.value if samples.values else "",
    "drift": attrgetter("drift"),
    "copies": lambda samples: samples.copies or 0,
    "divisor": attrgetter("divisor"),
    "offset": attrgetter("offset"),
}


class References(Generic[T]):
    """Settings or platforms of rows, each of which a file stores once.

    Parameters
    ----------
    first : Setting or Platform
        That of the file.
    """

    def __init__(self, first: T) -> None:
        self.values: list[T] = [first]
        self._indices: dict[T, int] = {first: 0}
        # Comparing identities is faster than comparing values, but the objects must stay alive.
        self._by_identity: dict[int, tuple[T, int]] = {id(first): (first, 0)}

    def index(self, value: T) -> int:
        """Return the index of a value in `values`, to which it is added."""
        if id(value) not in self._by_identity:
            index = self._indices.setdefault(value, len(self.values))
            if index == len(self.values):
                self.values.append(value)
            self._by_identity[id(value)] = value, index
        return self._by_identity[id(value)][1]


def to_columns(
    measurements: Sequence[Measurement],
    columns: Mapping[str, schema.Column],
    quantities: Sequence[str],
    settings: References[Setting],
    platforms: References[Platform],
) -> dict[str, Array]:
    """Return columns of measurements of one kind or of networks, text as bytes.

    Parameters
    ----------
    measurements : sequence of Measurement
    columns : mapping of str to Column
        From `kind_columns` or `network_columns`.
    quantities : sequence of str
    settings, platforms : References
        Those of the rows are added.

    Raises
    ------
    DatasetError
        If a quantity has more samples than a row can hold.
    """
    values: dict[str, Iterable[Any]] = {
        "setting": [settings.index(m.setting) for m in measurements],
        "platform": [platforms.index(m.platform) for m in measurements],
    }
    for name in quantities:
        rows = [m.samples.get(name, _ABSENT) for m in measurements]
        values |= {
            schema.column_name(quantity(name), label): [get(row) for row in rows]
            for label, get in _SAMPLE_VALUES.items()
        }
        values[schema.column_name(quantity(name), "samples")] = _padded(name, rows, measurements)
    return {
        name: as_text(cells)
        if column.dtype == schema.TEXT
        else np.asarray(cells, dtype=column.dtype)
        for name, column in columns.items()
        for get in [_ROW_VALUES.get(name, attrgetter(f"subject.{name}"))]
        for cells in [values[name] if name in values else [get(m) for m in measurements]]
    }


def estimators_of(measurements: Iterable[Measurement], name: str) -> list[Estimator]:
    """Return how each row's value of a quantity follows from its samples.

    Rows without samples have the estimator of the first row that has some.
    """
    estimators = [m.samples[name].estimator if name in m.samples else None for m in measurements]
    usual = next((estimator for estimator in estimators if estimator is not None), Estimator.MEDIAN)
    return [estimator or usual for estimator in estimators]


def _padded(name: str, rows: Sequence[Samples], measurements: Sequence[Measurement]) -> Array:
    """Lay samples out as a block (n, 64), padded with NaN."""
    block = np.full((len(rows), schema.MAX_STORED_SAMPLES), np.nan, dtype="<f4")
    for index, row in enumerate(rows):
        count = len(row.values)
        if count > schema.MAX_STORED_SAMPLES:
            raise DatasetError(
                f"{measurements[index].key} has {count} samples of {name}; a row holds "
                f"{schema.MAX_STORED_SAMPLES}: store their quantiles"
            )
        block[index, :count] = row.values
    return block


def as_text(values: Iterable[Any]) -> Array:
    """Return a column of text as bytes of fixed length."""
    encoded = [_encode(str(value)) for value in values]
    return np.array(encoded, dtype=f"S{max(1, *map(len, encoded))}")


def _encode(text: str) -> bytes:
    """Encode as UTF-8 without NUL (which would end it), cut between characters if too long."""
    encoded = text.replace("\0", " ").encode("utf-8", "replace")
    if len(encoded) <= schema.MAX_TEXT_BYTES:
        return encoded
    return encoded[: schema.MAX_TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + "…".encode()


def decode(values: Array) -> list[str]:
    """Return the text of a column of fixed-length bytes."""
    return [value.decode("utf-8", "replace") for value in values.tolist()]


def from_columns(
    group: str | None,
    arrays: Mapping[str, Array],
    quantities: Mapping[str, Sequence[Estimator]],
    settings: Sequence[Setting],
    platforms: Sequence[Platform],
) -> list[Measurement]:
    """Return measurements of one kind, or of networks, from columns; inverse of `to_columns`.

    Parameters
    ----------
    group : str or None
        As `resperf.measurement.written_kind` returns it; None for networks.
    arrays : mapping of str to array
    quantities : mapping of str to sequence of Estimator
        One per row.
    settings, platforms : sequence
        Referenced by rows.

    Raises
    ------
    LayerError
        If a row is not a valid layer.
    ValueError, IndexError
        If a status or a stop reason is not known, or a reference is too large.
    """
    lists: dict[str, list[Any]] = {
        name: decode(array) if array.dtype.kind == schema.TEXT else array.tolist()
        for name, array in arrays.items()
    }
    by_reference = zip(lists["setting"], lists["platform"], strict=True)
    left_out = ("key", "status", "flags", "setting", "platform")
    plain = [name for name in schema.ROW_COLUMNS if name in lists and name not in left_out]
    sampled = {
        name: _samples_of(name, estimators, lists) for name, estimators in quantities.items()
    }
    return [
        Measurement(
            subject=subject,
            status=Status(lists["status"][row]),
            flags=tuple(filter(None, lists["flags"][row].split(","))),
            samples={name: rows[row] for name, rows in sampled.items() if rows[row].values},
            setting=settings[setting],
            platform=platforms[platform],
            **{name: lists[name][row] for name in plain},
        )
        for row, (subject, (setting, platform)) in enumerate(
            zip(_subjects(group, lists), by_reference, strict=True)
        )
    ]


def _subjects(group: str | None, lists: Mapping[str, list[Any]]) -> Iterator[Subject]:
    """Yield the subject of each row."""
    if group is None:
        columns = [lists[name] for name in ("name", "digest", "description") if name in lists]
        for row in zip(*columns, strict=True):
            yield NetworkRef(*row)
        return
    names = tuple(schema.field_columns(group))
    for values in zip(*(lists[name] for name in names), strict=True):
        layer, _ = written_layer(group, dict(zip(names, values, strict=True)))
        yield layer


def _samples_of(
    name: str, estimators: Sequence[Estimator], lists: Mapping[str, list[Any]]
) -> list[Samples]:
    """Return one quantity of every row, without samples if it was not measured."""
    rows = zip(
        *(
            lists[schema.column_name(quantity(name), label)]
            for label in schema.SAMPLE_COLUMNS
            if label != "value"
        ),
        strict=True,
    )
    return [
        Samples(
            tuple(values[:n]), taken, warmups, StopReason(reason), bool(drift), copies or None,
            divisor, offset, estimator,
        )
        if n
        else _ABSENT
        for estimator, (values, n, taken, warmups, reason, drift, copies, divisor, offset) in zip(
            estimators, rows, strict=True
        )
    ]  # fmt: skip
