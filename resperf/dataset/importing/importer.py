"""From published CSV files to a dataset file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from resperf._version import __version__
from resperf.dataset.hdf5 import write_dataset
from resperf.dataset.importing.mapping import SourceMapping
from resperf.dataset.importing.rows import Counted, CountedRows, ForeignRow, read_files
from resperf.dataset.importing.session import session_costs
from resperf.dataset.records import Dataset, DatasetInfo
from resperf.devices import canonical_device, device_facts
from resperf.errors import DatasetError
from resperf.measurement import Measurement, Samples, Status, StopReason, layer_key, written_kind
from resperf.platform import Platform
from resperf.quantities import EXECUTION, QUANTITIES, STEP
from resperf.settings import Setting

_UNKNOWN = math.nan


@dataclass(frozen=True)
class Imported:
    """Result of an import.

    Attributes
    ----------
    info : DatasetInfo
    rows : mapping of str to int
        Kind, as `resperf.measurement.written_kind` returns it, to number of rows.
    quantities : tuple of str
        Quantities of the rows, in the order of their table.
    repeats : int
        Number of repeated measurements of a layer or a network.
    session_ms : mapping of str to float
        Kind to the session call that was subtracted from its times; empty if none was.
    left_out : tuple of Counted
        Invalid rows, by reason.
    marked : tuple of Counted
        Rows that were kept although something is wrong with them: flagged, without a time, ...
    networks, graphs : int
        Number of networks, and of those whose graph is known.
    """

    info: DatasetInfo
    rows: Mapping[str, int]
    quantities: tuple[str, ...]
    repeats: int
    session_ms: Mapping[str, float]
    left_out: tuple[Counted, ...]
    marked: tuple[Counted, ...] = ()
    networks: int = 0
    graphs: int = 0


def import_dataset(
    paths: Sequence[Path], output: Path, *, mapping: SourceMapping, device: str
) -> Imported:
    """Read CSV files of one source and device and write them as one dataset.

    Rows of equal layers become repeats of one key, numbered in the order of the files. A session
    call that the times contain is subtracted and stored as ``session_ms``; the time with it is
    ``isolated_ms``. If only the shortest, median and longest time are given, these are the samples.

    Parameters
    ----------
    paths : sequence of Path
        CSV files, compressed with gzip or not; a row is of the mapping's first kind that fits.
    output : Path
    mapping : SourceMapping
    device : str
        Any name of `resperf.devices`, or another.

    Raises
    ------
    DatasetError
        If a file cannot be read or does not fit the mapping, or no row is valid.
    OutputError
        If the output cannot be written.
    """
    left_out = CountedRows()
    files = read_files(paths)
    rows_of = [list(file.rows(mapping, left_out)) for file in files]
    rows = [row for each in rows_of for row in each]
    device = canonical_device(device)
    costs = session_costs(rows, mapping.session, device) if mapping.session else {}
    setting = Setting(
        framework=mapping.framework,
        framework_version=mapping.framework_version,
        provider=mapping.provider,
        options={"measured by": mapping.name},
    )
    platform = published_platform(device)
    measurements = _measurements(rows, mapping, costs, left_out, setting, platform)
    if not measurements:
        reasons = "; ".join(map(str, left_out.all())) or "the files hold no rows"
        raise DatasetError(f"nothing to import: {reasons}")
    found = {name for measurement in measurements for name in measurement.samples}
    quantities = tuple(name for name in QUANTITIES if name in found)
    info = DatasetInfo(
        setting=setting,
        platform=platform,
        campaign={"name": f"import of {mapping.name}"},
        seed=0,
        versions={"resperf": __version__, mapping.framework: mapping.framework_version},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_costs={"session_ms": min(costs.values())} if costs else {},
        quantities=quantities,
        source={
            "format": mapping.name,
            "description": mapping.description,
            "citation": mapping.citation,
            "files": [
                {"name": file.name, "sha256": file.sha256, "rows": len(each)}
                for file, each in zip(files, rows_of, strict=True)
            ],
            "session_ms": dict(costs),
            "left_out": {each.reason: each.rows for each in left_out.all()},
            "mapping": mapping.text,
        },
    )
    write_dataset(output, Dataset(info, tuple(measurements)))
    kinds = Counter(written_kind(m.layer.kind, m.setting.optimizer) for m in measurements)
    repeats = sum(measurement.repeat > 0 for measurement in measurements)
    return Imported(info, dict(kinds), quantities, repeats, costs, left_out.all())


def _measurements(
    rows: Sequence[ForeignRow],
    mapping: SourceMapping,
    costs: Mapping[str, float],
    left_out: CountedRows,
    setting: Setting,
    platform: Platform,
) -> list[Measurement]:
    measurements = []
    repeats: Counter[str] = Counter()
    settings = {each: setting.with_optimizer(each) for each in {row.optimizer for row in rows}}
    for row in rows:
        session_ms = costs.get(row.kind)
        if session_ms is not None and row.median_ms <= session_ms:
            left_out.add(
                "a time that is not longer than the session call", row.place,
                f"{row.median_ms:g} ms, the call {session_ms:g} ms",
            )  # fmt: skip
            continue
        key = layer_key(row.layer, row.optimizer)
        measurements.append(
            Measurement(
                subject=row.layer,
                setting=settings[row.optimizer],
                platform=platform,
                status=Status.OK,
                samples=_samples(row, mapping, session_ms or 0.0),
                isolated_ms=row.median_ms,
                # If no call was subtracted, its cost is not known.
                session_ms=_UNKNOWN if session_ms is None else session_ms,
                started_at=_UNKNOWN,
                duration_s=_UNKNOWN,
                overhead_s=_UNKNOWN,
                repeat=repeats[key],
            )
        )
        repeats[key] += 1
    return measurements


def published_platform(device: str) -> Platform:
    """Describe a machine by its device's name."""
    facts = device_facts(device)
    return Platform(
        device=device,
        processor=facts.name if facts else device,
        memory_bytes=facts.memory_bytes if facts else 0,
    )


def _samples(row: ForeignRow, mapping: SourceMapping, session_ms: float) -> dict[str, Samples]:
    """Turn the given times into samples: shortest, median and longest are quantiles."""
    subtracted = {EXECUTION: session_ms, STEP: session_ms}
    return {
        name: Samples(
            # The shortest run may take less than the subtracted call; times are not negative.
            tuple(max(time_ms - subtracted.get(name, 0.0), 0.0) for time_ms in times_ms),
            max(mapping.samples, len(times_ms)),
            mapping.warmups,
            StopReason.BUDGET,
        )
        for name, times_ms in row.times_ms.items()
    }
