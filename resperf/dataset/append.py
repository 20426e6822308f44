"""Add rows of whole networks to a dataset, which is created if missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from resperf._version import __version__
from resperf.dataset.hdf5 import read_dataset, read_info, write_dataset
from resperf.dataset.merge import renumbered
from resperf.dataset.records import Dataset, DatasetInfo
from resperf.errors import DatasetError
from resperf.measurement import Measurement
from resperf.platform import Platform
from resperf.settings import Setting


def append_networks(
    path: Path, rows: Sequence[Measurement], graphs: Mapping[str, bytes]
) -> Dataset:
    """Add rows of networks to a dataset file; those of one network and setting become repeats.

    All rows of a file are of one machine and setting, except for batch sizes and shapes.

    Parameters
    ----------
    path : Path
    rows : sequence of Measurement
        At least one.
    graphs : mapping of str to bytes
        Graphs of all networks in `rows`, by digest.

    Returns
    -------
    Dataset
        The new content of the file.

    Raises
    ------
    DatasetError
        If the file exists and is no dataset or that of another machine or setting, or a graph is
        missing.
    OutputError
        If it cannot be written.
    """
    there = read_dataset(path) if path.exists() else Dataset(_new_info(rows[0]), ())
    for row in rows:
        _refuse_unlike(path, there.info, row.setting, row.platform)
    measurements = renumbered([*there.measurements, *rows])
    dataset = Dataset(there.info, measurements, {**there.graphs, **graphs})
    write_dataset(path, dataset)
    return dataset


def refuse_to_append(path: Path, setting: Setting, platform: Platform) -> None:
    """Check, before measuring, that rows of a setting and platform may be added to a file.

    Raises
    ------
    DatasetError
        If the file exists and `append_networks` would refuse them.
    """
    if path.exists():
        _refuse_unlike(path, read_info(path), setting, platform)


def _refuse_unlike(path: Path, info: DatasetInfo, setting: Setting, platform: Platform) -> None:
    if info.source:
        raise DatasetError(
            f"{path} is an import of {info.source['format']}, not a file of measured networks; "
            "choose another file"
        )
    differences = info.platform.differences(platform)
    differences += info.setting.without_batch().differences(setting.without_batch())
    if differences:
        raise DatasetError(
            f"{path} (here) and the runs to add to it (there) are of different machines or "
            f"settings: {'; '.join(differences)}; choose another file"
        )


def _new_info(row: Measurement) -> DatasetInfo:
    setting = row.setting.without_batch()
    return DatasetInfo(
        setting=setting,
        platform=row.platform,
        campaign={"name": "networks"},
        seed=0,
        versions={"resperf": __version__, setting.framework: setting.framework_version},
        quantities=(),
    )
