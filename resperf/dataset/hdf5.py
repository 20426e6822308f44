"""Writing and reading dataset files: one group per kind, one HDF5 dataset per column."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from resperf.dataset.columns import decode, from_columns, to_columns
from resperf.dataset.files import write_whole
from resperf.dataset.records import Array, Dataset, DatasetInfo, KindTable
from resperf.dataset.schema import (
    SCHEMA_VERSION,
    TEXT,
    Column,
    field_columns,
    kind_columns,
)
from resperf.dataset.seal import SEAL_BYTES, is_intact, seal
from resperf.errors import DatasetError, LayerError
from resperf.layers import KINDS, kind_of
from resperf.measurement import PHASES, Measurement
from resperf.platform import from_fingerprint, to_fingerprint

FORMAT = "resperf dataset"
JSON_ATTRIBUTES = ("fingerprint", "campaign", "versions", "machine_costs", "merged")
_SINCE_2: Mapping[str, Any] = {"phases": list(PHASES), "source": {}}
"""JSON attributes that schema 1 did not have, and what they would have been."""
_COMPRESSED_FROM_BYTES = 4096
_CHUNK_BYTES = 1 << 20
# What h5py raises for a damaged file, depending on where the damage is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


def write_dataset(path: Path, dataset: Dataset) -> None:
    """Write a dataset as one whole file; an existing one is replaced in one step.

    The file is laid out in memory first: HDF5 itself does not survive a full disk.

    Parameters
    ----------
    path : Path
        Such as ``cpu.h5``. While writing, ``cpu.h5.tmp`` lies beside it.
    dataset : Dataset
        Rows are kept in their order, kind by kind.

    Raises
    ------
    OutputError
        If the file cannot be written; the old one is untouched.
    DatasetError
        If a phase has more samples than a row holds.
    """
    rows: dict[str, list[Measurement]] = {}
    for measurement in dataset.measurements:
        rows.setdefault(measurement.layer.kind, []).append(measurement)
    memory = {"driver": "core", "backing_store": False, "userblock_size": SEAL_BYTES}
    with h5py.File(path.name, "w", **memory) as file:
        for kind in (kind for kind in KINDS if kind in rows):
            group, phases = file.create_group(kind), dataset.info.phases
            _write_group(group, kind_columns(kind, phases), to_columns(rows[kind], phases))
            group.attrs["description"] = str(kind_of(kind).__doc__).splitlines()[0]
        file.attrs.update(_attributes(dataset.info))
        file.attrs["checksum"] = content_checksum(file)
        file.flush()
        image = file.id.get_file_image()
    write_whole(path, seal(image))


def _attributes(info: DatasetInfo) -> dict[str, Any]:
    values = {
        "fingerprint": to_fingerprint(info.setting, info.platform),
        "campaign": info.campaign,
        "versions": info.versions,
        "machine_costs": info.machine_costs,
        "merged": list(info.merged),
        "phases": list(info.phases),
        "source": info.source,
        **({"fusions": list(info.fusions)} if info.fusions else {}),
    }
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "created": info.created,
        "seed": info.seed,
        **{name: json.dumps(value, sort_keys=True) for name, value in values.items()},
    }


def _write_group(
    group: h5py.Group, columns: Mapping[str, Column], arrays: Mapping[str, Array]
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
        if column.dtype == TEXT:
            array = array.astype(h5py.string_dtype("utf-8", array.itemsize))
        dataset = group.create_dataset(name, data=array, **packing)
        dataset.attrs["unit"] = column.unit
        dataset.attrs["description"] = column.description


def content_checksum(file: h5py.File) -> str:
    """SHA-256 (hex) of all attributes and columns in order of name, `checksum` itself excepted."""
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
        If it is missing, not a dataset, of a newer schema, or proves damaged while it is read.
    """
    _check_readable(path)
    try:
        if not is_intact(path):
            raise ValueError("its content does not fit its seal")
        with h5py.File(path, "r") as file:
            _check_schema(path, file)
            yield file
    except _DAMAGE as error:
        raise DatasetError(
            f"{path} is damaged or truncated ({_first_line(error)}); restore a copy, or move it "
            f"away and run its campaign again with resperf bench -o {path}: rows come back from "
            "the journal beside it, if there is one"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip("'\"").partition("\n")[0] or type(error).__name__


def _check_readable(path: Path) -> None:
    if not path.exists():
        raise DatasetError(
            f"no dataset {path}; make one with: resperf bench CAMPAIGN.toml -o {path}"
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
    if int(version) < 1:
        raise ValueError(f"schema version {version}")
    if int(version) > SCHEMA_VERSION:
        raise DatasetError(
            f"{path} has schema version {version}, this resperf reads up to {SCHEMA_VERSION}; "
            "upgrade resperf"
        )
    unknown = sorted(set(file) - set(KINDS))
    if unknown:
        raise DatasetError(
            f"{path} has layers of kind {', '.join(unknown)}, which this resperf does not know; "
            "upgrade resperf"
        )


def info_of(file: h5py.File) -> DatasetInfo:
    """Read the identity of an open dataset file."""
    attributes = dict(file.attrs)
    names = (*JSON_ATTRIBUTES, *(_SINCE_2 if int(attributes["schema_version"]) > 1 else ()))
    values = {**_SINCE_2, **{name: json.loads(attributes[name]) for name in names}}
    setting, platform = from_fingerprint(values["fingerprint"])
    return DatasetInfo(
        setting=setting,
        platform=platform,
        campaign=values["campaign"],
        seed=int(attributes["seed"]),
        versions=values["versions"],
        created=str(attributes["created"]),
        machine_costs=values["machine_costs"],
        merged=tuple(values["merged"]),
        phases=tuple(values["phases"]),
        source=values["source"],
        fusions=tuple(json.loads(attributes.get("fusions", "[]"))),
    )


def read_info(path: Path) -> DatasetInfo:
    """Read a dataset's identity alone, without its rows.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of a newer schema.
    """
    with open_dataset(path) as file:
        return info_of(file)


def read_arrays(group: h5py.Group, columns: Mapping[str, Column]) -> dict[str, Array]:
    """Read some columns of one kind: numbers, and text as fixed-length bytes."""
    return {name: group[name][()] for name in columns}


def read_dataset(path: Path) -> Dataset:
    """Read a dataset as measurements, in the order in which they were started.

    Samples were stored as float32: medians agree with the measured ones to 1e-7.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, of a newer schema, or has an invalid layer.
    """
    measurements: list[Measurement] = []
    with open_dataset(path) as file:
        info = info_of(file)
        for kind in file:
            try:
                arrays = read_arrays(file[kind], kind_columns(kind, info.phases))
                measurements += from_columns(kind, arrays, info.phases)
            except LayerError as error:
                raise DatasetError(
                    f"{path}: {error}; see all problems with: resperf dataset check {path}"
                ) from error
    return Dataset(info, tuple(sorted(measurements, key=start_order)))


def start_order(measurement: Measurement) -> float:
    """Return what sorts rows by their start; those of unknown start come before all others."""
    return -math.inf if math.isnan(measurement.started_at) else measurement.started_at


def read_table(path: Path) -> dict[str, KindTable]:
    """Read a dataset as columns, for training: kind to its table. Samples are left in the file.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of a newer schema.
    """
    with open_dataset(path) as file:
        phases = info_of(file).phases
        return {kind: table_of(kind, file[kind], phases) for kind in file}


def table_of(kind: str, group: h5py.Group, phases: Sequence[str]) -> KindTable:
    """Read the group of one kind as columns with Python's types."""
    columns = kind_columns(kind, phases)
    names = ("key", "status", "repeat", "flags", "isolated_ms", "reference_ratio", "started_at")
    rest = {name: _values(group, name, columns[name]) for name in names}
    return KindTable(
        kind=kind,
        columns={name: _values(group, name, c) for name, c in field_columns(kind).items()},
        times_ms={phase: group[f"{phase}_ms"][()] for phase in phases},
        **{**rest, "repeat": rest["repeat"].astype(np.int64)},
    )


def _values(group: h5py.Group, name: str, column: Column) -> Array:
    """One column as Python would have it: bool for yes/no, str for text."""
    array: Array = group[name][()]
    if column.unit == "bool":
        return array.astype(np.bool_)
    if column.dtype != TEXT:
        return array
    # Keys are long and all different: as fixed-width UTF-32 they would take four times the memory.
    return np.array(decode(array), dtype=object if name == "key" else np.str_)


def checksum(path: Path) -> str:
    """Compute the SHA-256 (hex) of a dataset's content: equal where all columns and attributes are.

    Raises
    ------
    DatasetError
        If the file is missing, damaged or not a dataset.
    """
    with open_dataset(path) as file:
        return content_checksum(file)
