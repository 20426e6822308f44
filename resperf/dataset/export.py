"""Export a dataset as CSV, which other tools read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import h5py

from resperf.dataset.columns import decode
from resperf.dataset.hdf5 import FILES, columns_of_group, open_dataset, references_of
from resperf.dataset.records import Array
from resperf.dataset.schema import NETWORKS, TEXT, Column
from resperf.errors import DatasetError
from resperf.files import refuse_to_replace, write_whole
from resperf.records import csv_text
from resperf.settings import Setting


def export_dataset(path: Path, output: Path, *, replace: bool = False) -> list[Path]:
    """Write a dataset's rows as CSV.

    Columns have the same names as in the HDF5 file, which alone holds the samples. Rows of
    networks name their setting and device in columns of their own. A missing number is an empty
    cell, never 0.

    Parameters
    ----------
    path : Path
        The dataset.
    output : Path
        Ends in ``.csv``. Kinds have different columns: if there are several, each gets a file with
        its name before the extension, such as ``out.conv.csv``.
    replace : bool
        Replace existing outputs; they are refused otherwise.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    DatasetError
        If the dataset cannot be read or has no rows, or the output does not end in ``.csv``.
    OutputError
        If an output exists already or cannot be written.
    """
    if output.suffix != ".csv":
        raise DatasetError(f"{output} must end in .csv")
    with open_dataset(path) as file:
        kinds = [name for name in file if name not in FILES]
        if not kinds:
            raise DatasetError(f"{path} has no rows to export; run its campaign with resperf bench")
        names = [output.name] if len(kinds) == 1 else [f"{output.stem}.{k}.csv" for k in kinds]
        targets = [output.with_name(name) for name in names]
        refuse_to_replace(*targets, unless=replace)
        # Everything is encoded before anything is written: a damaged file gives no partial export.
        contents = [csv_text(_columns(file, name)).encode() for name in kinds]
    for target, content in zip(targets, contents, strict=True):
        write_whole(target, content)
    return targets


def _columns(file: h5py.File, group: str) -> dict[str, list[Any]]:
    """Return the cells of each column; that of a missing number is None."""
    columns = {
        name: _values(file[group], name, column)
        for name, column in columns_of_group(file, group).items()
        if column.width == 1
    }
    if group != NETWORKS:
        return columns
    # Unlike layers, each row has its own setting: indices would lose its batch size.
    settings, platforms = references_of(file)
    rows = [settings[index] for index in columns.pop("setting")]
    device = [platforms[index].device for index in columns.pop("platform")]
    added = {name: [get(setting) for setting in rows] for name, get in _SETTING_COLUMNS.items()}
    return {**columns, **added, "device": device}


def _shapes(setting: Setting) -> str:
    return ";".join(
        f"{name}={'x'.join(map(str, sizes))}" for name, sizes in sorted(setting.shapes.items())
    )


_SETTING_COLUMNS: Mapping[str, Callable[[Setting], Any]] = {
    "batch": attrgetter("batch"),
    "shapes": _shapes,
    "mode": attrgetter("mode.value"),
    "precision": attrgetter("precision"),
    "layout": attrgetter("layout"),
    "compiled": attrgetter("compiled"),
    "optimizer": attrgetter("optimizer"),
    "threads": lambda setting: setting.threads or None,
    "framework": attrgetter("framework"),
}
"""Column of networks -> its value in a row's setting, as in lists to import."""


def _values(group: h5py.Group, name: str, column: Column) -> list[Any]:
    """Return one column as Python values."""
    array: Array = group[name][()]
    if column.dtype == TEXT:
        return decode(array)
    # Only NaN differs from itself.
    return [None if value != value else value for value in array.tolist()]
