"""Summary of a dataset: rows, statuses, times, noise."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from resperf.dataset.hdf5 import (
    info_of,
    kinds_of,
    open_dataset,
    read_networks,
    table_of,
    version_of,
)
from resperf.dataset.noise import NoiseFloor, noise_floor
from resperf.dataset.records import DatasetInfo, KindTable
from resperf.measurement import Measurement
from resperf.quantities import QUANTITIES
from resperf.units import json_values


@dataclass(frozen=True)
class QuantitySummary:
    """Values of one quantity over the rows that are ok; NaN if there are none."""

    min: float
    median: float
    max: float
    noise: NoiseFloor


@dataclass(frozen=True)
class KindSummary:
    """Rows of one kind: numbers of rows, layers, statuses and flags, and their times."""

    rows: int
    layers: int
    statuses: Mapping[str, int]
    flagged: int
    quantities: Mapping[str, QuantitySummary]


@dataclass(frozen=True)
class NetworkSummary:
    """Rows of whole networks.

    Attributes
    ----------
    rows, networks : int
        Networks with equal graphs count once.
    statuses : mapping of str to int
    flagged : int
    quantities : mapping of str to (float, float, float)
        Quantity -> smallest value, median and largest of its rows.
    """

    rows: int
    networks: int
    statuses: Mapping[str, int]
    flagged: int
    quantities: Mapping[str, tuple[float, float, float]]


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
    kinds : mapping of str to KindSummary
    networks : NetworkSummary or None
        Summary of the rows of whole networks, if there are any.
    """

    path: Path
    size_bytes: int
    schema_version: int
    checksum: str
    info: DatasetInfo
    first_started_at: float
    last_started_at: float
    kinds: Mapping[str, KindSummary]
    networks: NetworkSummary | None = None

    @property
    def rows(self) -> int:
        """Number of rows of all kinds, and of networks."""
        of_networks = self.networks.rows if self.networks else 0
        return sum(kind.rows for kind in self.kinds.values()) + of_networks

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN becomes None."""
        values = {
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "schema_version": self.schema_version,
            "checksum": self.checksum,
            "created": self.info.created,
            "setting": self.info.setting.to_json(),
            "platform": self.info.platform.to_json(),
            "campaign": self.info.campaign,
            "seed": self.info.seed,
            "versions": self.info.versions,
            "machine_costs": self.info.machine_costs,
            "merged": list(self.info.merged),
            "quantities": list(self.info.quantities),
            "source": self.info.source,
            "fusions": list(self.info.fusions),
            "first_started_at": self.first_started_at,
            "last_started_at": self.last_started_at,
            "rows": self.rows,
            "kinds": {name: _kind_json(kind) for name, kind in self.kinds.items()},
            "networks": None if self.networks is None else dataclasses.asdict(self.networks),
        }
        plain: dict[str, Any] = json_values(values)
        return plain


def _kind_json(kind: KindSummary) -> dict[str, Any]:
    return {
        "rows": kind.rows,
        "layers": kind.layers,
        "statuses": dict(kind.statuses),
        "flagged": kind.flagged,
        "quantities": {
            name: {
                "min": each.min,
                "median": each.median,
                "max": each.max,
                "noise": each.noise._asdict(),
            }
            for name, each in kind.quantities.items()
        },
    }


def summarize(path: Path) -> Summary:
    """Summarize a dataset file.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, not a dataset, or of a newer schema.
    """
    with open_dataset(path) as file:
        info = info_of(file)
        tables = [table_of(file, kind) for kind in kinds_of(file)]
        version, digest = version_of(file), str(file.attrs["checksum"])
    networks = read_networks(path).measurements
    times = np.array([np.nan, *(row.started_at for row in networks)])
    started = np.concatenate([times, *(table.started_at for table in tables)])
    return Summary(
        path=path,
        size_bytes=path.stat().st_size,
        schema_version=version,
        checksum=digest,
        info=info,
        first_started_at=float(np.fmin.reduce(started)),
        last_started_at=float(np.fmax.reduce(started)),
        kinds={table.kind: _summarize_kind(table) for table in tables},
        networks=_summarize_networks(networks),
    )


def _summarize_networks(rows: Sequence[Measurement]) -> NetworkSummary | None:
    if not rows:
        return None
    values = {name: [row.value(name) for row in rows if name in row.samples] for name in QUANTITIES}
    return NetworkSummary(
        rows=len(rows),
        networks=len({row.subject.key for row in rows}),
        statuses=dict(Counter(str(row.status) for row in rows).most_common()),
        flagged=sum(bool(row.flags) for row in rows),
        quantities={
            name: (min(found), median(found), max(found)) for name, found in values.items() if found
        },
    )


def _summarize_kind(table: KindTable) -> KindSummary:
    return KindSummary(
        rows=len(table),
        layers=len(set(table.key)),
        statuses=dict(Counter(table.status.tolist()).most_common()),
        flagged=int((table.flags != "").sum()),
        quantities={name: _summarize_quantity(table, name) for name in table.quantities},
    )


def _summarize_quantity(table: KindTable, name: str) -> QuantitySummary:
    times_ms = table.times_ms[name][table.ok]
    if not len(times_ms):
        times_ms = np.array([np.nan])
    return QuantitySummary(
        min=float(times_ms.min()),
        median=float(np.median(times_ms)),
        max=float(times_ms.max()),
        noise=noise_floor(table, name),
    )
