"""Check a dataset file: layout, units, values, layers, duplicates, checksum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from resperf.dataset.columns import decode
from resperf.dataset.hdf5 import content_checksum, info_of, open_dataset, read_arrays
from resperf.dataset.records import Array, DatasetInfo
from resperf.dataset.schema import (
    MAX_STORED_SAMPLES,
    TEXT,
    Column,
    field_columns,
    kind_columns,
)
from resperf.errors import LayerError
from resperf.layers import kind_of
from resperf.measurement import Status, StopReason, layer_phase

# Samples are float32, medians float64 of the original samples.
_MEDIAN_TOLERANCE = 1e-6


def check_dataset(path: Path) -> list[str]:
    """Look for everything that could be wrong with a dataset.

    Returns
    -------
    list of str
        One line per problem: where, what, how many rows and the first of them (counted from 0).
        Empty for a sound file.

    Raises
    ------
    DatasetError
        If the file cannot be read at all: missing, truncated, not a dataset, of a newer schema.
    """
    with open_dataset(path) as file:
        info = info_of(file)
        problems = [] if len(file) else ["the file has no rows"]
        if file.attrs.get("checksum") != content_checksum(file):
            problems.append("the checksum differs: the content was changed after it was written")
        for kind in file:
            problems += [
                f"{kind}: {problem}" for problem in _group_problems(kind, file[kind], info)
            ]
    return problems


def _group_problems(kind: str, group: h5py.Group, info: DatasetInfo) -> list[str]:
    columns = kind_columns(kind, info.phases)
    problems = _layout_problems(group, columns)
    if any(problem.startswith("column") for problem in problems):
        return problems  # values cannot be judged in columns of the wrong shape or type
    arrays = read_arrays(group, columns)
    return [
        *problems,
        *_row_problems(arrays, info),
        *(problem for phase in info.phases for problem in _phase_problems(phase, arrays)),
        *_layer_problems(kind, arrays),
        *_duplicates(arrays),
    ]


def _layout_problems(group: h5py.Group, columns: Mapping[str, Column]) -> list[str]:
    """Columns that are missing, unknown, or of another shape, type or unit than the schema's."""
    problems = [f"unknown column {name}" for name in sorted(set(group) - set(columns))]
    rows = len(group["key"]) if "key" in group else 0
    for name, column in columns.items():
        if name not in group:
            problems.append(f"column {name} is missing")
            continue
        dataset = group[name]
        shape = (rows,) if column.width == 1 else (rows, column.width)
        if dataset.shape != shape:
            problems.append(f"column {name} has shape {dataset.shape}, not {shape}")
        if not _has_type(dataset.dtype, column):
            problems.append(f"column {name} has type {dataset.dtype}, not {column.dtype}")
        if dataset.attrs.get("unit") != column.unit:
            problems.append(f"unit of {name} is {dataset.attrs.get('unit')}, not {column.unit}")
    return problems


def _has_type(dtype: np.dtype[Any], column: Column) -> bool:
    return dtype.kind == "S" if column.dtype == TEXT else dtype == np.dtype(column.dtype)


def _found(bad: npt.ArrayLike, what: str) -> list[str]:
    """One line if any row is bad."""
    rows = np.flatnonzero(bad)
    if not len(rows):
        return []
    return [f"{what} in {len(rows)} row{'s'[: len(rows) != 1]} (first: row {rows[0]})"]


def _not_in(values: Array, allowed: Sequence[str]) -> Array:
    return ~np.isin(values, np.array([choice.encode() for choice in allowed]))


_Rule = Callable[[Mapping[str, Array]], Array]

_ROW_RULES: Sequence[tuple[str, _Rule]] = (
    ("unknown status", lambda a: _not_in(a["status"], list(Status))),
    ("negative repeat", lambda a: a["repeat"] < 0),
    ("overhead_s above duration_s", lambda a: a["overhead_s"] > a["duration_s"] + 1e-9),
    ("reference_ratio not above 0", lambda a: a["reference_ratio"] <= 0),
    ("ok but isolated_ms not above 0", lambda a: _ok(a) & ~(a["isolated_ms"] > 0)),
)

_MEASURED_HERE: Sequence[tuple[str, _Rule]] = (
    ("started_at is not a time", lambda a: ~(a["started_at"] >= 0)),
    ("duration_s below 0", lambda a: ~(a["duration_s"] >= 0)),
    ("overhead_s below 0", lambda a: ~(a["overhead_s"] >= 0)),
    ("ok but session_ms below 0", lambda a: _ok(a) & ~(a["session_ms"] >= 0)),
)

_IMPORTED: Sequence[tuple[str, _Rule]] = (
    ("ok but session_ms below 0", lambda a: _ok(a) & (a["session_ms"] < 0)),
)
"""Others do not say when they measured; what a session call costs is NaN where nobody knows."""


def _ok(arrays: Mapping[str, Array]) -> Array:
    return np.asarray(arrays["status"] == Status.OK.value.encode())


def _row_problems(arrays: Mapping[str, Array], info: DatasetInfo) -> list[str]:
    rules = (*_ROW_RULES, *(_IMPORTED if info.source else _MEASURED_HERE))
    return [line for what, rule in rules for line in _found(rule(arrays), what)]


def _phase_problems(phase: str, arrays: Mapping[str, Array]) -> list[str]:
    """Compare samples, counts and median of one phase with each other and with the status."""
    median_ms, samples_ms, count, taken, reason = (
        arrays[f"{phase}_{name}"]
        for name in ("ms", "samples_ms", "n_samples", "taken", "stop_reason")
    )
    ok = _ok(arrays)
    stored = np.arange(MAX_STORED_SAMPLES) < count[:, None]
    # A phase may be nothing at all (a view instead of a copy); a layer always takes time.
    too_short, bound = ~(median_ms >= 0), "below 0"
    if phase == layer_phase((phase,)):
        too_short, bound = ~(median_ms > 0), "not above 0"
    sampled = np.where(stored, samples_ms, np.nan).astype(np.float64)
    sampled[np.isnan(sampled).all(axis=1), 0] = 0.0  # nanmedian warns about rows without samples
    apart = np.abs(np.nanmedian(sampled, axis=1) - median_ms)
    scale = np.nanmax(np.abs(sampled), axis=1)
    rules = (
        (f"ok but {phase}_ms {bound}", ok & too_short),
        (f"not ok but {phase}_ms has a value", ~ok & ~np.isnan(median_ms)),
        (f"{phase}_n_samples not within 1..{MAX_STORED_SAMPLES}",
         ok & ((count < 1) | (count > MAX_STORED_SAMPLES))),
        (f"{phase}_taken below {phase}_n_samples", taken < count),
        (f"{phase}_samples_ms not a number", (stored & ~np.isfinite(samples_ms)).any(axis=1)),
        (f"{phase}_samples_ms beyond {phase}_n_samples",
         (~stored & ~np.isnan(samples_ms)).any(axis=1)),
        (f"{phase}_ms is not the median of its samples",
         ok & ~(apart <= _MEDIAN_TOLERANCE * scale)),
        (f"unknown {phase}_stop_reason", ok & _not_in(reason, list(StopReason))),
    )  # fmt: skip
    return [line for what, bad in rules for line in _found(bad, what)]


def _layer_problems(kind: str, arrays: Mapping[str, Array]) -> list[str]:
    """Fields must make a valid layer, and the key must be that layer's."""
    cls = kind_of(kind)
    fields = {
        name: decode(arrays[name]) if column.dtype == TEXT else arrays[name].tolist()
        for name, column in field_columns(kind).items()
    }
    invalid: list[tuple[int, str]] = []
    foreign = np.zeros(len(arrays["key"]), dtype=bool)
    for row, key in enumerate(decode(arrays["key"])):
        try:
            foreign[row] = cls(**{name: values[row] for name, values in fields.items()}).key != key
        except LayerError as error:
            invalid.append((row, str(error)))
    problems = _found(foreign, "key is not that of the fields")
    if invalid:
        row, message = invalid[0]
        layers = f"{len(invalid)} invalid layer{'s'[: len(invalid) != 1]}"
        problems.append(f"{layers} (first: row {row}, {message})")
    return problems


def _duplicates(arrays: Mapping[str, Array]) -> list[str]:
    _, layer = np.unique(arrays["key"], return_inverse=True)
    pairs = np.stack([layer, arrays["repeat"]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    again = np.ones(len(pairs), dtype=bool)
    again[first] = False
    return _found(again, "same key and repeat as an earlier row")
