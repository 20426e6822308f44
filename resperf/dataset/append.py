"""Add rows of whole networks to a dataset, which is created if missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from resperf._version import __version__
from resperf.dataset.hdf5 import read_dataset, write_dataset
from resperf.dataset.merge import renumbered
from resperf.dataset.records import Dataset, DatasetInfo
from resperf.measurement import Measurement


def append_networks(
    path: Path, rows: Sequence[Measurement], graphs: Mapping[str, bytes]
) -> Dataset:
    """Add rows of networks to a dataset file; those of one network and setting become repeats.

    Each row has its own setting and platform, which may differ from those in the file.

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
        If the file exists and is no dataset, or a graph is missing.
    OutputError
        If it cannot be written.
    """
    there = read_dataset(path) if path.exists() else Dataset(_new_info(rows[0]), ())
    measurements = renumbered([*there.measurements, *rows])
    dataset = Dataset(there.info, measurements, {**there.graphs, **graphs})
    write_dataset(path, dataset)
    return dataset


def _new_info(row: Measurement) -> DatasetInfo:
    setting = replace(row.setting, batch=None, shapes={})
    return DatasetInfo(
        setting=setting,
        platform=row.platform,
        campaign={"name": "networks"},
        seed=0,
        versions={"resperf": __version__, setting.framework: setting.framework_version},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_costs={},
        quantities=(),
    )
