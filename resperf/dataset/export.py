"""Export a dataset to formats that other tools read: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import h5py

from resperf.dataset.columns import decode
from resperf.dataset.hdf5 import FILES, columns_of_group, open_dataset, references_of
from resperf.dataset.records import Array
from resperf.dataset.schema import NETWORKS, TEXT, Column
from resperf.errors import DatasetError, require
from resperf.files import refuse_to_replace, write_whole
from resperf.settings import Setting

Columns = Mapping[str, tuple[Column, list[Any]]]
"""Name to the column's meaning and its values; a value that is missing is None."""


def export_dataset(path: Path, output: Path, *, replace: bool = False) -> list[Path]:
    """Write a dataset's rows as CSV or Parquet, by the output's extension.

    Columns have the same names as in the HDF5 file, which alone holds the samples. Rows of
    networks name their setting and device in columns of their own. A missing number is an empty
    cell (CSV) or a null (Parquet), never 0.

    Parameters
    ----------
    path : Path
        The dataset.
    output : Path
        ``.csv`` or ``.parquet``. Kinds have different columns: if there are several, each gets a
        file with its name before the extension, such as ``out.conv.csv``.
    replace : bool
        Replace existing outputs; they are refused otherwise.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    DatasetError
        If the dataset cannot be read or has no rows, or the extension is not known.
    OutputError
        If an output exists already or cannot be written.
    MissingExtraError
        If Parquet is asked for and pyarrow is not installed.
    """
    if output.suffix not in FORMATS:
        raise DatasetError(f"{output} must end in {' or '.join(FORMATS)}")
    encode = FORMATS[output.suffix]
    with open_dataset(path) as file:
        kinds = [name for name in file if name not in FILES]
        if not kinds:
            raise DatasetError(f"{path} has no rows to export; run its campaign with resperf bench")
        targets = [output] if len(kinds) == 1 else [_beside(output, name) for name in kinds]
        refuse_to_replace(*targets, unless=replace)
        # Everything is encoded before anything is written: a damaged file gives no partial export.
        contents = [encode(_columns(file, name)) for name in kinds]
    for target, content in zip(targets, contents, strict=True):
        write_whole(target, content)
    return targets


def _beside(output: Path, kind: str) -> Path:
    return output.with_name(f"{output.stem}.{kind}{output.suffix}")


def _columns(file: h5py.File, group: str) -> Columns:
    found: dict[str, tuple[Column, list[Any]]] = {
        name: (column, _values(file[group], name, column))
        for name, column in columns_of_group(file, group).items()
        if column.width == 1
    }
    if group != NETWORKS:
        return found
    # Unlike layers, each row has its own setting: indices would lose its batch size.
    settings, platforms = references_of(file)
    rows = [settings[place] for place in found.pop("setting")[1]]
    where = [platforms[place] for place in found.pop("platform")[1]]
    added = {
        name: (column, [get(setting) for setting in rows])
        for name, (column, get) in _SETTING_COLUMNS.items()
    }
    device = Column("name", "the device", TEXT), [platform.device for platform in where]
    return {**found, **added, "device": device}


def _shapes(setting: Setting) -> str:
    return ";".join(
        f"{name}={'x'.join(map(str, sizes))}" for name, sizes in sorted(setting.shapes.items())
    )


_SETTING_COLUMNS: Mapping[str, tuple[Column, Callable[[Setting], Any]]] = {
    "batch": (Column("1", "batch size of the network", "<i8"), attrgetter("batch")),
    "shapes": (Column("name", "shapes of its inputs: x=1x3x224x224;mask=1x128", TEXT), _shapes),
    "mode": (Column("name", "inference or training", TEXT), attrgetter("mode.value")),
    "precision": (Column("name", "fp32, fp16, ...", TEXT), attrgetter("precision")),
    "layout": (Column("name", "nchw or nhwc", TEXT), attrgetter("layout")),
    "compiled": (Column("name", "eager, dynamo, ...", TEXT), attrgetter("compiled")),
    "optimizer": (Column("name", "of a training step", TEXT), attrgetter("optimizer")),
    "threads": (Column("1", "compute threads", "<i8"), lambda setting: setting.threads or None),
    "framework": (Column("name", "the framework", TEXT), attrgetter("framework")),
}
"""Column of networks -> its meaning, and its value in a row's setting, as in lists to import."""


def _values(group: h5py.Group, name: str, column: Column) -> list[Any]:
    """Return one column as Python values."""
    array: Array = group[name][()]
    if column.dtype == TEXT:
        return decode(array)
    if column.unit == "bool":
        return list(array.astype(bool).tolist())
    # Only NaN differs from itself.
    return [None if value != value else value for value in array.tolist()]


def _csv(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(*column) for column in columns.values()), strict=True))
    return text.getvalue().encode()


def _cells(column: Column, values: list[Any]) -> list[Any]:
    return [int(value) for value in values] if column.unit == "bool" else values


def _parquet(columns: Columns) -> bytes:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    types = {TEXT: arrow.string(), "<i4": arrow.int32(), "<i8": arrow.int64(),
             "|u1": arrow.bool_(), "<f8": arrow.float64()}  # fmt: skip
    fields = [
        arrow.field(
            name,
            types[column.dtype],
            metadata={"unit": column.unit, "description": column.description},
        )
        for name, (column, _) in columns.items()
    ]
    arrays = [
        arrow.array(values, type=field.type)
        for field, (_, values) in zip(fields, columns.values(), strict=True)
    ]
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(arrays, schema=arrow.schema(fields)), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


FORMATS: Mapping[str, Callable[[Columns], bytes]] = {".csv": _csv, ".parquet": _parquet}
"""Extension -> encoder of one kind's columns."""
