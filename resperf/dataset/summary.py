"""Summary of a dataset: rows, statuses, times, and the noise of its repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.dataset.hdf5 import groups_of, info_of, open_dataset, tables_of
from resperf.dataset.records import DatasetInfo, KindTable
from resperf.dataset.schema import NETWORKS, SCHEMA_VERSION
from resperf.platform import Platform
from resperf.records import Record
from resperf.settings import Setting
from resperf.units import json_values

PROGRESS_PARTS = 60
"""Of a campaign's time: a bar each on the page, 10 pixels wide."""
NOISY_SHARE = 0.2
"""Share of noisy rows above which a dataset gets a warning."""


def noise_warning(tables: Iterable[KindTable]) -> str:
    """Return a warning with advice if many measured rows are noisy; else an empty text."""
    rows = [table.noisy[table.ok] for table in tables]
    measured, noisy = sum(map(len, rows)), sum(int(mask.sum()) for mask in rows)
    if noisy <= NOISY_SHARE * measured:
        return ""
    return (
        f"{noisy} of {measured} measured rows ({noisy / measured:.0%}) are noisy: they carry a "
        "flag, or the machine was off its usual speed; close other programs, run the campaign "
        "again into another file (resperf bench -o) and merge both (resperf dataset merge): noisy "
        "rows are not used for layers and networks that have others"
    )


@dataclass(frozen=True)
class NoiseFloor(Record):
    """Differences between two measurements of the same layer or network.

    Attributes
    ----------
    pairs : int
        Number of pairs of measurements; without any, the other figures are NaN.
    median_difference, mean_difference : float
        ``|a - b| / ((a + b) / 2)`` over the pairs, as fractions.
    mape : float
        What a perfect predictor would score: ``mean_difference / sqrt(2)``.
    """

    pairs: int
    median_difference: float
    mean_difference: float
    mape: float


def floor_of_medians(single: float, measured: npt.NDArray[np.int64]) -> float:
    """Return the floor if each layer's time is the median of several measurements.

    The variance of the median of n normal values is about ``pi / (2n + pi - 2)`` of one value's
    for odd n, and one half for two, whose median is their mean.

    Parameters
    ----------
    single : float
        The floor of single measurements (`NoiseFloor.mape`), which may be NaN.
    measured : array (layers,)
        Measurements of each layer.
    """
    variance = np.where(measured == 2, 0.5, math.pi / (2 * measured + math.pi - 2))
    return float(single * np.sqrt(variance).mean())


def noise_floor(table: KindTable, phase: str) -> NoiseFloor:
    """Estimate the least error of any predictor, from layers that were measured repeatedly.

    Let a layer's true time be t and two measurements of it a = t(1 + e1) and b = t(1 + e2), with
    independent errors of mean zero. A perfect predictor gives t, and scores E|e| against a single
    measurement; a pair gives E|a - b| / t = E|e1 - e2|. For normal errors of deviation s,
    E|e| = s sqrt(2/pi), and e1 - e2 is normal with deviation s sqrt(2), so that
    E|e| = E|e1 - e2| / sqrt(2). For any distribution, E|e1 - e2| is between E|e| (Jensen)
    and 2 E|e| (triangle inequality): the true floor is 0.70 to 1.42 times the returned one.

    Parameters
    ----------
    table : KindTable
        Rows that are not ok, or noisy, are left out.
    phase : str
        One that the table has.

    Returns
    -------
    NoiseFloor
        Of neighbouring repeats: a layer that was measured k times gives k - 1 pairs.
    """
    usable = table.select(table.ok & ~table.noisy & (table.times_ms[phase] > 0))
    # Measurements under unlike settings, such as published sessions, or on unlike platforms are not
    # repeats of each other.
    _, layer = np.unique(usable.key.astype(str), return_inverse=True)
    for indices in (usable.setting, usable.machine):
        layer = layer * (1 + int(indices.max(initial=0))) + indices
    order = np.lexsort((usable.repeat, layer))
    layer, times_ms = layer[order], usable.times_ms[phase][order]
    again = layer[1:] == layer[:-1]
    first, second = times_ms[:-1][again], times_ms[1:][again]
    if not len(first):
        return NoiseFloor(0, math.nan, math.nan, math.nan)
    difference = np.abs(first - second) / ((first + second) / 2)
    mean = float(difference.mean())
    return NoiseFloor(len(first), float(np.median(difference)), mean, mean / math.sqrt(2))


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
    progress : mapping of str to list
        ``edges``, which part the time from the first row to the last equally, in seconds since
        1970, and the rows of each part: ``ok``; ``noisy``, which carry a flag or were measured
        while the machine was off its usual speed; ``failed``, without a time.
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
    progress: Mapping[str, list[float]]

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
        return {name: json_values(value) for name, value in values.items()}


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
        progress=_progress(tables),
    )


def _progress(tables: Sequence[KindTable]) -> dict[str, list[float]]:
    none: Any = ([], np.zeros(0, bool), np.zeros(0, bool))
    rows = zip(none, *((table.started_at, table.ok, table.noisy) for table in tables), strict=True)
    started, ok, noisy = map(np.concatenate, rows)
    edges = np.histogram_bin_edges(started[np.isfinite(started)], PROGRESS_PARTS)
    kinds = {"ok": ok & ~noisy, "noisy": ok & noisy, "failed": ~ok}
    counts = {name: np.histogram(started[kind], edges)[0].tolist() for name, kind in kinds.items()}
    return {"edges": edges.tolist(), **counts}


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
