"""Check a dataset file: layout, units, values, layers, duplicates, checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from resperf.dataset import hdf5, schema
from resperf.dataset.columns import decode
from resperf.dataset.records import Array, DatasetInfo
from resperf.errors import LayerError
from resperf.measurement import Status, StopReason, layer_key, written_layer
from resperf.quantities import Estimator, layer_quantity, quantity

# Samples are float32, medians float64 of the original samples.
_MEDIAN_TOLERANCE = 1e-6


def check_dataset(path: Path) -> list[str]:
    """Look for everything that could be wrong with a dataset.

    Returns
    -------
    list of str
        One line per problem: where, what, how many rows and the first of them (counted from 0).
        Empty if there are none.

    Raises
    ------
    DatasetError
        If the file cannot be read at all: missing, truncated, not a dataset, of another schema.
    """
    with hdf5.open_dataset(path) as file:
        problems = [] if len(file) else ["the file has no rows"]
        if file.attrs.get("checksum") != hdf5.content_checksum(file):
            problems.append("the checksum differs: the content was changed after it was written")
        for name in file:
            lines = (
                _file_problems(file[name]) if name in hdf5.FILES else _group_problems(file, name)
            )
            problems += [f"{name}: {problem}" for problem in lines]
    return problems


def _group_problems(file: h5py.File, name: str) -> list[str]:
    group, columns, info = file[name], hdf5.columns_of_group(file, name), hdf5.info_of(file)
    problems, is_readable = _layout_problems(group, columns)
    if not is_readable:
        return problems
    arrays = hdf5.read_arrays(group, columns)
    of_subjects = (
        _network_problems(file, arrays)
        if name == schema.NETWORKS
        else [*_layer_problems(name, arrays), *_duplicates(arrays)]
    )
    return [
        *problems,
        *_row_problems(arrays, info),
        *(
            problem
            for quantity_name in hdf5.quantities_of_group(file, name)
            for problem in _sample_problems(
                quantity_name, arrays, hdf5.estimators_in(group, quantity_name)
            )
        ),
        *_reference_problems(file, arrays),
        *of_subjects,
    ]


def _reference_problems(file: h5py.File, arrays: Mapping[str, Array]) -> list[str]:
    settings, platforms = hdf5.references_of(file)
    return [
        line
        for name, count in {"setting": len(settings), "platform": len(platforms)}.items()
        for line in _problem_lines((arrays[name] < 0) | (arrays[name] >= count), f"no such {name}")
    ]


def _network_problems(file: h5py.File, arrays: Mapping[str, Array]) -> list[str]:
    """Find references to graphs and descriptions that are not there; empty ones are none."""
    problems = []
    for column, group in (("digest", schema.GRAPHS), ("description", schema.DESCRIPTIONS)):
        digests = {"", *file.get(group, ())}
        lacking = [digest not in digests for digest in decode(arrays.get(column, np.empty(0, "S")))]
        problems += _problem_lines(lacking, f"no {group.removesuffix('s')} with that digest")
    return problems


def _file_problems(group: h5py.Group) -> list[str]:
    """Find files whose content does not match their digest."""
    what = str(group.name).strip("/").removesuffix("s")
    return [
        f"the content of {what} {digest} does not match its digest"
        for digest, array in group.items()
        if hashlib.sha256(array[()].tobytes()).hexdigest() != digest
    ]


def _layout_problems(
    group: h5py.Group, columns: Mapping[str, schema.Column]
) -> tuple[list[str], bool]:
    """Find columns that are missing, unknown, or of a wrong shape, type or unit.

    Returns
    -------
    problems : list of str
    is_readable : bool
        Whether the values can be checked: those of a wrong shape or type cannot.
    """
    problems = [f"unknown column {name}" for name in sorted(set(group) - set(columns))]
    is_readable = True
    rows = len(group["status"]) if "status" in group else 0
    for name, column in columns.items():
        if name not in group:
            problems.append(f"column {name} is missing")
            is_readable = False
            continue
        dataset = group[name]
        shape = (rows,) if column.width == 1 else (rows, column.width)
        if dataset.shape != shape:
            problems.append(f"column {name} has shape {dataset.shape}, not {shape}")
            is_readable = False
        is_text = dataset.dtype.kind == "S"
        if not (
            is_text if column.dtype == schema.TEXT else dataset.dtype == np.dtype(column.dtype)
        ):
            problems.append(f"column {name} has type {dataset.dtype}, not {column.dtype}")
            is_readable = False
        if dataset.attrs.get("unit") != column.unit:
            problems.append(f"unit of {name} is {dataset.attrs.get('unit')}, not {column.unit}")
    return problems, is_readable


def _problem_lines(bad: npt.ArrayLike, what: str) -> list[str]:
    """Return one line if any row is bad."""
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
    ("ok but isolated_ms not above 0", lambda a: _ok(a) & ~(_of_layer(a, "isolated_ms") > 0)),
)

_MEASURED_HERE: Sequence[tuple[str, _Rule]] = (
    ("started_at is not a time", lambda a: ~(a["started_at"] >= 0)),
    ("duration_s below 0", lambda a: ~(a["duration_s"] >= 0)),
    ("overhead_s below 0", lambda a: ~(a["overhead_s"] >= 0)),
    ("ok but call_ms below 0", lambda a: _ok(a) & ~(_of_layer(a, "call_ms") >= 0)),
)

_IMPORTED: Sequence[tuple[str, _Rule]] = (
    ("ok but call_ms below 0", lambda a: _ok(a) & (_of_layer(a, "call_ms") < 0)),
)
"""Imported rows have no start; their cost of a call is NaN if unknown."""


def _of_layer(arrays: Mapping[str, Array], name: str) -> Array:
    """Return a time that only layers have; rows of networks get a valid one."""
    return arrays[name] if name in arrays else np.ones(len(arrays["status"]))


def _ok(arrays: Mapping[str, Array]) -> Array:
    return np.asarray(arrays["status"] == Status.OK.value.encode())


def _row_problems(arrays: Mapping[str, Array], info: DatasetInfo) -> list[str]:
    rules = (*_ROW_RULES, *(_IMPORTED if info.source else _MEASURED_HERE))
    return [line for what, rule in rules for line in _problem_lines(rule(arrays), what)]


_VALUES: Mapping[Estimator, Callable[[Array], Array]] = {
    Estimator.MEDIAN: lambda samples: np.nanmedian(samples, axis=1),
    Estimator.MEAN_OF_BEST_FIVE: lambda samples: np.nanmean(
        np.sort(samples, axis=1)[:, :5], axis=1
    ),
    Estimator.THROUGHPUT_MEAN: lambda samples: np.nanmean(samples, axis=1),
    Estimator.MAXIMUM: lambda samples: np.nanmax(samples, axis=1),
}
"""Value of each row's samples, padded with NaN, by estimator; an unknown one is the median."""


def _sample_problems(
    name: str, arrays: Mapping[str, Array], estimators: Sequence[Estimator]
) -> list[str]:
    """Compare samples, counts and value of one quantity with each other and with the status."""
    row = quantity(name)
    names = {label: schema.column_name(row, label) for label in schema.SAMPLE_COLUMNS}
    value, samples, count, taken, reason = (
        arrays[names[label]] for label in ("value", "samples", "n_samples", "taken", "stop_reason")
    )
    ok = _ok(arrays)
    stored = np.arange(schema.MAX_STORED_SAMPLES) < count[:, None]
    if "digest" in arrays:
        ok &= ~np.isnan(value)  # networks of one file may have different quantities
    # A phase may take no time (a view instead of a copy); a layer always takes some.
    too_short, bound = ~(value >= 0), "below 0"
    if name == layer_quantity((name,)):
        too_short, bound = ~(value > 0), "not above 0"
    sampled = np.where(stored, samples, np.nan).astype(np.float64)
    sampled[np.isnan(sampled).all(axis=1), 0] = 0.0  # NumPy warns about rows without samples
    per_row = np.array(
        [estimator if estimator in _VALUES else Estimator.MEDIAN for estimator in estimators]
    )
    deviation = np.zeros(len(value))
    for estimator in set(per_row.tolist()):
        rows = per_row == estimator
        deviation[rows] = np.abs(_VALUES[estimator](sampled[rows]) - value[rows])
    scale = np.nanmax(np.abs(sampled), axis=1)
    rules = (
        (f"ok but {name} {bound}", ok & too_short),
        (f"not ok but {name} has a value", ~_ok(arrays) & ~np.isnan(value)),
        (f"{names['n_samples']} not within 1..{schema.MAX_STORED_SAMPLES}",
         ok & ((count < 1) | (count > schema.MAX_STORED_SAMPLES))),
        (f"{names['taken']} below {names['n_samples']}", taken < count),
        (f"{names['samples']} not a number", (stored & ~np.isfinite(samples)).any(axis=1)),
        (f"{names['samples']} beyond {names['n_samples']}",
         (~stored & ~np.isnan(samples)).any(axis=1)),
        (f"{name} is not the {' or '.join(sorted(set(per_row.tolist())))} of its samples",
         ok & ~(deviation <= _MEDIAN_TOLERANCE * scale)),
        (f"unknown {names['stop_reason']}", ok & _not_in(reason, list(StopReason))),
    )  # fmt: skip
    return [line for what, bad in rules for line in _problem_lines(bad, what)]


def _layer_problems(group: str, arrays: Mapping[str, Array]) -> list[str]:
    """Find rows whose fields are not a valid layer, or whose key is not that layer's."""
    columns = {
        name: decode(arrays[name]) if column.dtype == schema.TEXT else arrays[name].tolist()
        for name, column in schema.field_columns(group).items()
    }
    invalid: list[tuple[int, str]] = []
    foreign = np.zeros(len(arrays["key"]), dtype=bool)
    for row, key in enumerate(decode(arrays["key"])):
        values = {name: column[row] for name, column in columns.items()}
        try:
            foreign[row] = layer_key(*written_layer(group, values)) != key
        except LayerError as error:
            invalid.append((row, str(error)))
    problems = _problem_lines(foreign, "key is not that of the fields")
    if invalid:
        row, message = invalid[0]
        layers = f"{len(invalid)} invalid layer{'s'[: len(invalid) != 1]}"
        problems.append(f"{layers} (first: row {row}, {message})")
    return problems


def _duplicates(arrays: Mapping[str, Array]) -> list[str]:
    _, layer = np.unique(arrays["key"], return_inverse=True)
    # Repeats are numbered on each platform.
    pairs = np.stack([layer, arrays["platform"], arrays["repeat"]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    again = np.ones(len(pairs), dtype=bool)
    again[first] = False
    return _problem_lines(again, "same key and repeat as an earlier row")
