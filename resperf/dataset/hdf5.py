"""Writing and reading dataset files: one group per kind, one HDF5 dataset per column.

A damaged HDF5 file can crash the whole process, so a seal is checked before HDF5 opens the file: a
line of text with the SHA-256 of the HDF5 part that follows, in the file's user block, which HDF5
libraries skip.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from resperf.dataset import schema
from resperf.dataset.columns import (
    References,
    as_text,
    decode,
    estimators_of,
    from_columns,
    to_columns,
)
from resperf.dataset.records import Array, Dataset, DatasetInfo, KindTable
from resperf.errors import DatasetError, LayerError, first_line
from resperf.files import write_whole
from resperf.grouping import grouped
from resperf.layers import KINDS, kind_of
from resperf.measurement import Measurement, NetworkRef, layer_kind, written_kind
from resperf.platform import Platform
from resperf.quantities import QUANTITIES, Estimator, quantity
from resperf.settings import Setting

SEAL_BYTES = 512
"""Size of the user block; HDF5 requires a power of two of at least 512."""

_TEXT = "resperf dataset: HDF5 from byte {offset} on, SHA-256 of that part: {digest}\n"
_PATTERN = re.compile(rb"resperf dataset: HDF5 from byte (\d+) on, SHA-256 [^:]*: ([0-9a-f]{64})\n")


def seal(image: bytes) -> bytes:
    """Prepend the seal to a file's image, which HDF5 returns without user block."""
    text = _TEXT.format(offset=SEAL_BYTES, digest=hashlib.sha256(image).hexdigest()).encode()
    return text.ljust(SEAL_BYTES, b"\0") + image


def is_intact(path: Path) -> bool:
    """Return whether a file matches its seal; a file without one (of other tools) passes."""
    with path.open("rb") as file:
        match = _PATTERN.match(file.read(SEAL_BYTES))
        if match is None:
            return True
        file.seek(int(match[1]))
        return hashlib.file_digest(file, "sha256").hexdigest() == match[2].decode()


FORMAT = "resperf dataset"
_INFO = ("campaign", "versions", "machine_costs", "merged", "quantities", "source")
"""Fields of `DatasetInfo` that are JSON attributes of a file."""
_TABLE_COLUMNS = schema.ROW_COLUMNS.keys() & {field.name for field in dataclasses.fields(KindTable)}
"""Columns of rows that a table has."""
FILES = (schema.GRAPHS, schema.DESCRIPTIONS)
"""Groups that hold files by digest."""
# Smaller columns save less than the index of their chunks takes.
_COMPRESSED_FROM_BYTES = 4096
_CHUNK_BYTES = 1 << 20
# Raised by h5py for damaged files, depending on the place of the damage.
_DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError)


def write_dataset(path: Path, dataset: Dataset) -> None:
    """Write a dataset as one file; an existing one is replaced in one step.

    The file is laid out in memory first, since HDF5 itself may crash on a full disk.

    Parameters
    ----------
    path : Path
        Such as ``cpu.h5``. While writing, ``cpu.h5.tmp`` is beside it.
    dataset : Dataset
        Rows are written in their order, kind by kind.

    Raises
    ------
    OutputError
        If the file cannot be written; the old one is unchanged.
    DatasetError
        If a phase has more samples than a row holds.
    """
    rows = grouped((group_of(row), row) for row in dataset.measurements)
    _refuse_lacking_graphs(rows.get(schema.NETWORKS, ()), dataset.graphs)
    settings = References(dataset.info.setting)
    platforms = References(dataset.info.platform)
    memory = {"driver": "core", "backing_store": False, "userblock_size": SEAL_BYTES}
    with h5py.File(path.name, "w", **memory) as file:
        groups = (written_kind(kind, is_step) for is_step in (False, True) for kind in KINDS)
        for name in (name for name in (*groups, schema.NETWORKS) if name in rows):
            quantities = quantities_of(rows[name])
            if name == schema.NETWORKS:
                columns = schema.network_columns(quantities, described=bool(dataset.descriptions))
                described = "rows of whole networks"
            else:
                quantities = quantities or dataset.info.quantities
                columns = schema.kind_columns(name, quantities)
                described = str(kind_of(layer_kind(name)).__doc__).splitlines()[0]
            arrays = to_columns(rows[name], columns, quantities, settings, platforms)
            group = file.create_group(name)
            _write_group(group, columns, arrays)
            for quantity_name in quantities:
                _write_estimators(group, quantity_name, estimators_of(rows[name], quantity_name))
            group.attrs["description"] = described
            if name == schema.NETWORKS or quantities != dataset.info.quantities:
                group.attrs["quantities"] = json.dumps(quantities)
            if name == schema.NETWORKS:
                _write_files(file.create_group(schema.GRAPHS), dataset.graphs, _GRAPHS)
                if dataset.descriptions:
                    described = file.create_group(schema.DESCRIPTIONS)
                    _write_files(described, dataset.descriptions, _DESCRIPTIONS)
        file.attrs.update(_attributes(dataset.info, settings.values, platforms.values))
        file.attrs["checksum"] = content_checksum(file)
        file.flush()
        image = file.id.get_file_image()
    write_whole(path, seal(image))


def _write_estimators(group: h5py.Group, name: str, estimators: Sequence[Estimator]) -> None:
    """Write how the values of a quantity follow from samples: once, or per row where rows differ.

    The one of most rows is written always.
    """
    usual = Counter(estimators).most_common(1)[0][0]
    group[name].attrs["estimator"] = usual.value
    if len(set(estimators)) > 1:
        columns = schema.estimator_column(quantity(name))
        _write_group(group, columns, dict.fromkeys(columns, as_text(estimators)))


def _refuse_lacking_graphs(rows: Iterable[Measurement], graphs: Mapping[str, bytes]) -> None:
    for row in rows:
        subject = row.subject
        if isinstance(subject, NetworkRef) and subject.digest and subject.digest not in graphs:
            raise DatasetError(
                f"the graph of a row of {subject.name} is missing: a dataset stores the graphs "
                "of its networks (resperf.network.weightless)"
            )


def group_of(row: Measurement) -> str:
    """Return the name of the group that a row is written to."""
    if isinstance(row.subject, NetworkRef):
        return schema.NETWORKS
    return written_kind(row.subject.kind, row.setting.optimizer)


def quantities_of(rows: Iterable[Measurement]) -> tuple[str, ...]:
    """Return the quantities of which rows have samples, in the order of their table."""
    names = {name for row in rows for name in row.samples}
    return tuple(name for name in QUANTITIES if name in names)


_GRAPHS = "graphs of networks without weights: ONNX files as bytes", "onnx"
_DESCRIPTIONS = "what is known of networks besides their graphs: JSON as bytes", "json"


def _write_files(group: h5py.Group, files: Mapping[str, bytes], form: tuple[str, str]) -> None:
    """Write files by their digests."""
    description, unit = form
    group.attrs["description"] = description
    columns = {digest: schema.Column(unit, f"a file of {unit.upper()}", "|u1") for digest in files}
    arrays = {digest: np.frombuffer(content, np.uint8) for digest, content in files.items()}
    _write_group(group, columns, arrays)


def _attributes(
    info: DatasetInfo, settings: Sequence[Setting], platforms: Sequence[Platform]
) -> dict[str, Any]:
    values = {
        **{name: getattr(info, name) for name in _INFO},
        "settings": [setting.to_json() for setting in settings],
        "platforms": [platform.to_json() for platform in platforms],
    }
    return {
        "format": FORMAT,
        "schema_version": schema.SCHEMA_VERSION,
        "created": info.created,
        "seed": info.seed,
        **{name: json.dumps(value, sort_keys=True) for name, value in values.items()},
    }


def _write_group(
    group: h5py.Group, columns: Mapping[str, schema.Column], arrays: Mapping[str, Array]
) -> None:
    for name, column in columns.items():
        array = arrays[name]
        packing: dict[str, Any] = {}
        if array.nbytes >= _COMPRESSED_FROM_BYTES:
            rows = max(1, min(len(array), _CHUNK_BYTES * len(array) // array.nbytes))
            packing = {
                "chunks": (rows, *array.shape[1:]),
                "compression": "gzip",
                "compression_opts": 1,
                "shuffle": True,
            }
        if column.dtype == schema.TEXT:
            array = array.astype(h5py.string_dtype("utf-8", array.itemsize))
        dataset = group.create_dataset(name, data=array, **packing)
        dataset.attrs["unit"] = column.unit
        dataset.attrs["description"] = column.description


def content_checksum(file: h5py.File) -> str:
    """Return the SHA-256 (hex) of all attributes and columns by name, except `checksum`."""
    digest = hashlib.sha256()
    for owner in (file, *(file[name] for name in sorted(file))):
        _digest_attributes(digest, owner)
        if isinstance(owner, h5py.Group) and owner.name != "/":
            for name in sorted(owner):
                _digest_attributes(digest, owner[name])
                array = owner[name][()]
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def _digest_attributes(digest: Any, owner: h5py.HLObject) -> None:
    digest.update(f"\n{owner.name}".encode())
    for name in sorted(set(owner.attrs) - {"checksum"}):
        digest.update(f"\n{name}={owner.attrs[name]}".encode())


@contextmanager
def open_dataset(path: Path) -> Iterator[h5py.File]:
    """Open a dataset file for reading and check that it is one.

    Raises
    ------
    DatasetError
        If it is missing, not a dataset, of another schema, or damaged.
    """
    _check_readable(path)
    try:
        if not is_intact(path):
            raise ValueError("its content does not match its seal")
        with h5py.File(path, "r") as file:
            _check_schema(path, file)
            yield file
    except _DAMAGE as error:
        raise DatasetError(
            f"{path} is damaged or truncated ({first_line(error)}); restore a copy, or move it "
            f"away and run its campaign again with resperf bench -o {path}: rows are restored from "
            "the journal beside it, if there is one"
        ) from error


def _check_readable(path: Path) -> None:
    if not path.exists():
        raise DatasetError(
            f"no dataset {path}; make one with: resperf bench CAMPAIGN -o {path}, or dataset import"
        )
    if path.is_dir():
        raise DatasetError(f"{path} is a folder; name a dataset file (.h5) in it")
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})") from error
    if not size_bytes:
        raise DatasetError(
            f"{path} is empty; move it away and run its campaign again with resperf bench"
        )
    if not h5py.is_hdf5(path):
        raise DatasetError(
            f"{path} is not an HDF5 file; give a dataset that resperf bench wrote (.h5)"
        )


def _check_schema(path: Path, file: h5py.File) -> None:
    version = file.attrs.get("schema_version")
    if file.attrs.get("format") != FORMAT or version is None:
        raise DatasetError(
            f"{path} is an HDF5 file but not a resperf dataset; give one that resperf bench wrote"
        )
    if version != schema.SCHEMA_VERSION:
        raise DatasetError(
            f"{path} has schema version {version}, this resperf reads {schema.SCHEMA_VERSION}; "
            "use the resperf that wrote it, or move it away and measure or import it again"
        )
    for name, group in file.items():
        is_group = isinstance(group, h5py.Group)
        if not is_group or not all(getattr(column, "shape", ()) for column in group.values()):
            raise ValueError(f"{name} is no group of columns")
    unknown = sorted({layer_kind(name) for name in file} - {*KINDS, schema.NETWORKS, *FILES})
    if unknown:
        raise DatasetError(
            f"{path} has layers of kind {', '.join(unknown)}, unknown to this version of resperf; "
            "upgrade resperf"
        )


def groups_of(file: h5py.File) -> list[str]:
    """Return the kinds of layers of which an open dataset file has rows, and of networks."""
    return sorted(set(file) - set(FILES), key=lambda name: (name == schema.NETWORKS, name))


def info_of(file: h5py.File) -> DatasetInfo:
    """Read the identity of an open dataset file."""
    (setting, *_), (platform, *_) = references_of(file)
    values = {name: json.loads(file.attrs[name]) for name in _INFO}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return DatasetInfo(
        setting=setting,
        platform=platform,
        seed=int(file.attrs["seed"]),
        created=str(file.attrs["created"]),
        **values | lists,
    )


def references_of(file: h5py.File) -> tuple[list[Setting], list[Platform]]:
    """Read the settings and platforms of an open dataset file; the first ones are its own."""
    return (
        [Setting.from_json(values) for values in json.loads(file.attrs["settings"])],
        [Platform.from_json(values) for values in json.loads(file.attrs["platforms"])],
    )


def columns_of_group(file: h5py.File, name: str) -> dict[str, schema.Column]:
    """Return the columns that a group of rows should have."""
    quantities = quantities_of_group(file, name)
    per_row = (schema.estimator_column(quantity(quantity_name)) for quantity_name in quantities)
    optional = {
        label: column for one in per_row for label, column in one.items() if label in file[name]
    }
    if name == schema.NETWORKS:
        return schema.network_columns(quantities, described=schema.DESCRIPTIONS in file) | optional
    return schema.kind_columns(name, quantities) | optional


def quantities_of_group(file: h5py.File, name: str) -> tuple[str, ...]:
    """Return the quantities of a group of rows."""
    return tuple(json.loads(file[name].attrs.get("quantities", file.attrs["quantities"])))


def estimators_in(group: h5py.Group, name: str) -> list[Estimator]:
    """Return how each row's value of a quantity in a group follows from its samples."""
    (column,) = schema.estimator_column(quantity(name))
    if column in group:
        return [Estimator(value) for value in decode(group[column][()])]
    return [Estimator(group[name].attrs["estimator"])] * len(group[name])


def read_info(path: Path) -> DatasetInfo:
    """Read a dataset's identity, without its rows.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of another schema.
    """
    with open_dataset(path) as file:
        return info_of(file)


def read_platforms(path: Path) -> tuple[Platform, ...]:
    """Read the platforms that a dataset has rows of; those of a campaign's file are one.

    Raises
    ------
    DatasetError
        As `read_info`.
    """
    with open_dataset(path) as file:
        return tuple(references_of(file)[1])


def read_arrays(group: h5py.Group, columns: Mapping[str, schema.Column]) -> dict[str, Array]:
    """Read some columns of one kind: numbers, and text as fixed-length bytes."""
    return {name: group[name][()] for name in columns}


def read_dataset(path: Path) -> Dataset:
    """Read a dataset as measurements, in the order in which they were started.

    Samples are stored as float32: medians agree with the measured ones to 1e-7.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, of another schema, or has an invalid layer.
    """
    with open_dataset(path) as file:
        return _dataset(path, file, [name for name in file if name not in FILES])


def read_networks(path: Path) -> Dataset:
    """Read only the rows of whole networks, and the networks' graphs without weights.

    Raises
    ------
    DatasetError
        As `read_dataset`.
    """
    with open_dataset(path) as file:
        return _dataset(path, file, [schema.NETWORKS] if schema.NETWORKS in file else [])


def _dataset(path: Path, file: h5py.File, names: Sequence[str]) -> Dataset:
    """Read groups of rows, in the order in which they were started, and all files."""
    measurements: list[Measurement] = []
    references = references_of(file)
    for name in names:
        arrays = read_arrays(file[name], columns_of_group(file, name))
        quantities = {
            quantity_name: estimators_in(file[name], quantity_name)
            for quantity_name in quantities_of_group(file, name)
        }
        group = None if name == schema.NETWORKS else name
        _refuse_absent(arrays, *references)
        try:
            measurements += from_columns(group, arrays, quantities, *references)
        except LayerError as error:
            raise DatasetError(
                f"{path}: {error}; see all problems with: resperf dataset check {path}"
            ) from error
    rows = tuple(sorted(measurements, key=start_order))
    return Dataset(
        info_of(file), rows, files_in(file, schema.GRAPHS), files_in(file, schema.DESCRIPTIONS)
    )


def _refuse_absent(arrays: Mapping[str, Array], *references: Sequence[object]) -> None:
    """Refuse rows of settings and platforms that a file does not have."""
    for label, stored in zip(("setting", "platform"), references, strict=True):
        if not np.isin(arrays[label], np.arange(len(stored))).all():
            raise ValueError(f"rows of a {label} that is not there")


def files_in(file: h5py.File, group: str) -> dict[str, bytes]:
    """Return the files that a group of an open dataset file holds, by digest; none without it."""
    if group not in file:
        return {}
    return {digest: array[()].tobytes() for digest, array in file[group].items()}


def start_order(measurement: Measurement) -> float:
    """Return the start of a row as a sort key; rows of unknown start come first."""
    return -math.inf if math.isnan(measurement.started_at) else measurement.started_at


def read_table(path: Path, *, networks: bool = False) -> dict[str, KindTable]:
    """Read a dataset as columns, for training: group to its table, without samples.

    Groups are named by `resperf.measurement.written_kind`.

    Parameters
    ----------
    path : Path
    networks : bool
        Also read the rows of whole networks, as a table ``"networks"``.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of another schema.
    """
    with open_dataset(path) as file:
        names = [name for name in groups_of(file) if networks or name != schema.NETWORKS]
        return tables_of(file, names)


def tables_of(file: h5py.File, names: Iterable[str]) -> dict[str, KindTable]:
    """Read groups of an open dataset file as columns, by their names."""
    settings, platforms = references_of(file)
    return {name: _table_of(file, name, tuple(settings), tuple(platforms)) for name in names}


def _table_of(
    file: h5py.File, name: str, settings: tuple[Setting, ...], platforms: tuple[Platform, ...]
) -> KindTable:
    """Read the group of one kind, or that of networks, as columns with Python types."""
    columns, group = columns_of_group(file, name), file[name]
    values = {
        label: _values(group, label, column)
        for label, column in columns.items()
        if label in _TABLE_COLUMNS
    }
    if name == schema.NETWORKS:
        rows = zip(*(decode(group[label][()]) for label in ("name", "digest")), strict=True)
        subjects = [NetworkRef(*row).key for row in rows]
        fields = {"subject": np.array(subjects, dtype=object)}
        # Repeats are of one network under one setting.
        keys = [f"{key} {how}" for key, how in zip(subjects, group["setting"][()], strict=True)]
        values["key"] = np.array(keys, dtype=object)
        values["isolated_ms"] = np.full(len(keys), np.nan)
    else:
        fields = {
            label: _values(group, label, c) for label, c in schema.field_columns(name).items()
        }
    quantities = quantities_of_group(file, name)
    times_ms = {label: group[label][()] for label in quantities}
    if len({array.shape for array in (*values.values(), *fields.values(), *times_ms.values())}) > 1:
        raise ValueError(f"the columns of {name} differ in their numbers of rows")
    _refuse_absent(values, settings, platforms)
    return KindTable(
        kind=layer_kind(name),
        columns=fields,
        times_ms=_with_derived(times_ms) if name == schema.NETWORKS else times_ms,
        copies={
            label: group[schema.column_name(quantity(label), "copies")][()] for label in quantities
        },
        settings=settings,
        platforms=platforms,
        **{**values, "repeat": values["repeat"].astype(np.int64)},
    )


def _with_derived(times_ms: Mapping[str, Array]) -> dict[str, Array]:
    """Add the quantities that are sums of measured ones."""
    all_ms = dict(times_ms)
    for name, row in QUANTITIES.items():
        if name not in all_ms and row.parts and set(row.parts) <= all_ms.keys():
            all_ms[name] = np.sum([all_ms[part] for part in row.parts], axis=0)
    return all_ms


def _values(group: h5py.Group, name: str, column: schema.Column) -> Array:
    """Return one column, with bool for yes/no and str for text."""
    array: Array = group[name][()]
    if column.unit == "bool":
        return array.astype(np.bool_)
    if column.dtype != schema.TEXT:
        return array
    # Keys are long and distinct: as fixed-width UTF-32 they would take four times the memory.
    return np.array(decode(array), dtype=object if name == "key" else np.str_)


def checksum(path: Path) -> str:
    """Compute the SHA-256 (hex) of a dataset's content: all columns and attributes.

    Raises
    ------
    DatasetError
        If the file is missing, damaged or not a dataset.
    """
    with open_dataset(path) as file:
        return content_checksum(file)
