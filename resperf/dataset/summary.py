"""A dataset at a glance: rows, statuses, times, noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resperf.dataset.hdf5 import info_of, open_dataset, table_of
from resperf.dataset.noise import NoiseFloor, noise_floor
from resperf.dataset.records import DatasetInfo, KindTable
from resperf.units import json_values


@dataclass(frozen=True)
class PhaseSummary:
    """Medians of one phase over the rows that are ok; NaN where there are none."""

    min_ms: float
    median_ms: float
    max_ms: float
    noise: NoiseFloor


@dataclass(frozen=True)
class KindSummary:
    """Rows of one kind: how many, of which status, measured again, flagged, and their times."""

    rows: int
    layers: int
    statuses: Mapping[str, int]
    flagged: int
    phases: Mapping[str, PhaseSummary]


@dataclass(frozen=True)
class Summary:
    """What `resperf dataset info` shows.

    Attributes
    ----------
    path : Path
    size_bytes, schema_version : int
        Of the file.
    checksum : str
        SHA-256 of the content, as the file says (`check_dataset` computes it again).
    info : DatasetInfo
    first_started_at, last_started_at : float
        Seconds since 1970 (UTC); NaN without rows.
    kinds : mapping of str to KindSummary
    """

    path: Path
    size_bytes: int
    schema_version: int
    checksum: str
    info: DatasetInfo
    first_started_at: float
    last_started_at: float
    kinds: Mapping[str, KindSummary]

    @property
    def rows(self) -> int:
        """Rows of all kinds."""
        return sum(kind.rows for kind in self.kinds.values())

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
            "phases": list(self.info.phases),
            "source": self.info.source,
            "fusions": list(self.info.fusions),
            "first_started_at": self.first_started_at,
            "last_started_at": self.last_started_at,
            "rows": self.rows,
            "kinds": {name: _kind_json(kind) for name, kind in self.kinds.items()},
        }
        plain: dict[str, Any] = json_values(values)
        return plain


def _kind_json(kind: KindSummary) -> dict[str, Any]:
    return {
        "rows": kind.rows,
        "layers": kind.layers,
        "statuses": dict(kind.statuses),
        "flagged": kind.flagged,
        "phases": {
            name: {
                "min_ms": phase.min_ms,
                "median_ms": phase.median_ms,
                "max_ms": phase.max_ms,
                "noise": phase.noise._asdict(),
            }
            for name, phase in kind.phases.items()
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
        tables = [table_of(kind, file[kind], info.phases) for kind in file]
        version, digest = int(file.attrs["schema_version"]), str(file.attrs["checksum"])
    started = np.concatenate([np.array([np.nan]), *(table.started_at for table in tables)])
    return Summary(
        path=path,
        size_bytes=path.stat().st_size,
        schema_version=version,
        checksum=digest,
        info=info,
        first_started_at=float(np.fmin.reduce(started)),
        last_started_at=float(np.fmax.reduce(started)),
        kinds={table.kind: _summarize_kind(table) for table in tables},
    )


def _summarize_kind(table: KindTable) -> KindSummary:
    return KindSummary(
        rows=len(table),
        layers=len(set(table.key)),
        statuses=dict(Counter(table.status.tolist()).most_common()),
        flagged=int((table.flags != "").sum()),
        phases={phase: _summarize_phase(table, phase) for phase in table.phases},
    )


def _summarize_phase(table: KindTable, phase: str) -> PhaseSummary:
    times_ms = table.times_ms[phase][table.ok]
    if not len(times_ms):
        times_ms = np.array([np.nan])
    return PhaseSummary(
        min_ms=float(times_ms.min()),
        median_ms=float(np.median(times_ms)),
        max_ms=float(times_ms.max()),
        noise=noise_floor(table, phase),
    )
