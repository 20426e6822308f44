"""Summary of a dataset: rows, statuses, times, noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resperf.dataset.hdf5 import (
    groups_of,
    info_of,
    open_dataset,
    tables_of,
)
from resperf.dataset.noise import NoiseFloor, noise_floor
from resperf.dataset.records import DatasetInfo, KindTable
from resperf.dataset.schema import NETWORKS, SCHEMA_VERSION
from resperf.platform import Platform
from resperf.records import Record
from resperf.settings import Setting
from resperf.units import json_values


@dataclass(frozen=True)
class QuantitySummary(Record):
    """Values of one quantity over the rows that have it; NaN if there are none."""

    min: float
    median: float
    max: float
    noise: NoiseFloor


@dataclass(frozen=True)
class GroupSummary(Record):
    """Rows of one kind of layer, or of whole networks.

    Attributes
    ----------
    rows, subjects : int
        Equal layers, and networks with equal graphs, count once as subjects.
    statuses : mapping of str to int
    flagged : int
    quantities : mapping of str to QuantitySummary
        Networks also have those that follow from others, such as ``latency_ms``.
    """

    rows: int
    subjects: int
    statuses: Mapping[str, int]
    flagged: int
    quantities: Mapping[str, QuantitySummary]


@dataclass(frozen=True)
class Summary:
    """Content of `resperf dataset info`.

    Attributes
    ----------
    path : Path
    size_bytes, schema_version : int
        Of the file.
    checksum : str
        SHA-256 of the content, as stored in the file (`check_dataset` verifies it).
    info : DatasetInfo
    first_started_at, last_started_at : float
        Seconds since 1970 (UTC); NaN without rows.
    groups : mapping of str to GroupSummary
        By `resperf.measurement.written_kind`; ``"networks"`` are the rows of whole networks, if
        there are any.
    settings : mapping of Setting to int
        Setting without batch and shapes -> number of rows.
    platforms : mapping of Platform to int
        Platform -> number of rows, that of most rows first.
    """

    path: Path
    size_bytes: int
    schema_version: int
    checksum: str
    info: DatasetInfo
    first_started_at: float
    last_started_at: float
    groups: Mapping[str, GroupSummary]
    settings: Mapping[Setting, int]
    platforms: Mapping[Platform, int]

    @property
    def rows(self) -> int:
        """Number of rows of all kinds, and of networks."""
        return sum(group.rows for group in self.groups.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN becomes None."""
        groups = {name: _named(name, group.to_json()) for name, group in self.groups.items()}
        values = {
            **vars(self),
            **vars(self.info),
            "path": str(self.path),
            "rows": self.rows,
            "networks": groups.pop(NETWORKS, None),
            "kinds": groups,
            **{
                name: [{**key.to_json(), "rows": rows} for key, rows in getattr(self, name).items()]
                for name in ("settings", "platforms")
            },
        }
        del values["info"], values["groups"]
        plain: dict[str, Any] = json_values(values)
        return plain


def _named(group: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"networks" if group == NETWORKS else "layers": values.pop("subjects"), **values}


def summarize(path: Path) -> Summary:
    """Summarize a dataset file.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of another schema.
    """
    with open_dataset(path) as file:
        info = info_of(file)
        tables = list(tables_of(file, groups_of(file)).values())
        digest = str(file.attrs["checksum"])
    settings: Counter[Setting] = Counter()
    platforms: Counter[Platform] = Counter()
    for table in tables:
        for index, rows in Counter(table.setting.tolist()).items():
            settings[table.settings[index].without_batch()] += rows
        for index, rows in Counter(table.platform.tolist()).items():
            platforms[table.platforms[index]] += rows
    started = np.concatenate([[np.nan], *(table.started_at for table in tables)])
    return Summary(
        path=path,
        size_bytes=path.stat().st_size,
        schema_version=SCHEMA_VERSION,
        checksum=digest,
        info=info,
        first_started_at=float(np.fmin.reduce(started)),
        last_started_at=float(np.fmax.reduce(started)),
        groups={table.name: _summarize_group(table) for table in tables},
        settings=settings,
        platforms=dict(platforms.most_common()),
    )


def _summarize_group(table: KindTable) -> GroupSummary:
    return GroupSummary(
        rows=len(table),
        subjects=len(set(table.columns.get("subject", table.key))),
        statuses=dict(Counter(table.status.tolist()).most_common()),
        flagged=int((table.flags != "").sum()),
        quantities={name: _summarize_quantity(table, name) for name in table.quantities},
    )


def _summarize_quantity(table: KindTable, name: str) -> QuantitySummary:
    values = table.times_ms[name][table.ok]
    measured = values[~np.isnan(values)]
    if not len(measured):
        measured = np.array([np.nan])
    return QuantitySummary(
        float(measured.min()),
        float(np.median(measured)),
        float(measured.max()),
        noise_floor(table, name),
    )
