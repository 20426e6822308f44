"""Merge datasets into one file, or add rows of networks to one."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from resperf._version import __version__
from resperf.dataset.columns import References, T
from resperf.dataset.hdf5 import read_dataset, read_info, start_order, write_dataset
from resperf.dataset.records import Dataset, DatasetInfo
from resperf.errors import DatasetError
from resperf.measurement import Measurement
from resperf.platform import Platform, alike
from resperf.quantities import QUANTITIES, STEP
from resperf.settings import Setting


def merge_datasets(paths: Sequence[Path], output: Path) -> Dataset:
    """Merge datasets and write the result.

    Campaigns must be of the same settings and machine, or of machines with the same parts, whose
    costs, such as that of a call, are those of all rows. Published measurements without such costs
    may be of several devices and settings, which each row keeps.

    A layer that several parts measured on one platform becomes repeats of one key, numbered by the
    time of measuring. A row that two parts share (same layer, same start) is written once.

    Parameters
    ----------
    paths : sequence of Path
        At least two datasets.
    output : Path
        May be one of them: everything is read before anything is written.

    Raises
    ------
    DatasetError
        If a part cannot be read, if phases or frameworks differ, or if machines or settings do and
        a part was measured by resperf or has costs of its machine; the message lists the
        differences.
    OutputError
        If the output cannot be written.
    """
    if len(paths) < 2:
        raise DatasetError(f"merging needs at least two datasets, not {len(paths)}; name another")
    parts = [read_dataset(path) for path in paths]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        _refuse_unlike(paths[0], parts[0].info, path, part.info)
    _refuse_unlike_quantities(paths, parts)
    merged = Dataset(
        _merged_info(parts),
        renumbered(m for part in parts for m in part.measurements),
        {digest: graph for part in parts for digest, graph in part.graphs.items()},
        {
            digest: description
            for part in parts
            for digest, description in part.descriptions.items()
        },
    )
    write_dataset(output, merged)
    return merged


def _refuse_unlike(path: Path, info: DatasetInfo, other_path: Path, other: DatasetInfo) -> None:
    """Refuse files of unlike machines or settings, unless rows say everything by themselves.

    How many processes of a machine shared a run is said by each row.
    """
    shared = dataclasses.replace(
        other.platform, devices=info.platform.devices, interconnect=info.platform.interconnect
    )
    differences = info.platform.kind.differences(shared)
    differences += info.setting.without_batch().differences(other.setting.without_batch())
    if not differences:
        return
    names = info.setting.framework, other.setting.framework
    if names[0] != names[1]:
        raise DatasetError(
            f"{path} is of {names[0]}, {other_path} of {names[1]}: layers of one framework are not "
            "those of another; train a separate bundle from each"
        )
    for own_path, one in ((path, info), (other_path, other)):
        if one.machine_costs or not one.source:
            costs = ", ".join(one.machine_costs)
            why = f"has costs of its machine ({costs})" if costs else "was measured on one machine"
            raise DatasetError(
                f"{path} (here) and {other_path} (there) are of different machines or settings: "
                f"{'; '.join(differences)}; {own_path} {why}, and only published measurements "
                "without such costs may be of several: train a separate bundle from each"
            )


def _refuse_unlike_quantities(paths: Sequence[Path], parts: Sequence[Dataset]) -> None:
    """Refuse to mix layers with different quantities."""
    # Training steps have groups of their own.
    of_layers = ([name for name in part.info.quantities if name != STEP] for part in parts)
    with_layers = [pair for pair in zip(paths, of_layers, strict=True) if pair[1]]
    for path, quantities in with_layers[1:]:
        first_path, first = with_layers[0]
        if quantities != first:
            raise DatasetError(
                f"{first_path} holds times of {', '.join(first)}, {path} of "
                f"{', '.join(quantities)}; train a separate bundle from each"
            )


def renumbered(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return rows in order of start, without duplicates, with distinct repeats of each subject.

    Repeats are numbered on each machine. Rows of unknown start are duplicates if their settings
    and values are equal.
    """
    rows: list[Measurement] = []
    seen: set[tuple[Any, ...]] = set()
    taken: dict[Any, set[int]] = defaultdict(set)
    in_order = sorted(measurements, key=lambda m: (start_order(m), m.repeat))
    settings, _ = _indexed(m.setting for m in in_order)
    platforms, distinct = _indexed(m.platform for m in in_order)
    machines = alike(distinct)
    for measurement, setting, platform in zip(in_order, settings, platforms, strict=True):
        key = (*measurement.identity, machines[platform])
        start: tuple[float, ...] = (measurement.started_at,)
        if math.isnan(measurement.started_at):
            start = (-1.0, _own_value(measurement), setting)
        if (key, *start) in seen:
            continue
        seen.add((key, *start))
        repeat = measurement.repeat
        if repeat in taken[key]:
            repeat = max(taken[key]) + 1
        taken[key].add(repeat)
        rows.append(dataclasses.replace(measurement, repeat=repeat))
    return tuple(rows)


def _indexed(values: Iterable[T]) -> tuple[list[int], list[T]]:
    """Return the indices of settings or platforms in a list of distinct ones, and that list."""
    given = list(values)
    if not given:
        return [], []
    references = References(given[0])
    return [references.index(value) for value in given], references.values


def _own_value(measurement: Measurement) -> float:
    """Return a value that is equal for duplicates of a row."""
    if not math.isnan(measurement.isolated_ms):
        return measurement.isolated_ms
    return next((samples.value for samples in measurement.samples.values()), 0.0)


def _merged_info(parts: Sequence[Dataset]) -> DatasetInfo:
    """Return the identity of a merged file: the oldest part's campaign, and the history of all."""
    histories = sorted(
        (history for part in parts for history in _history(part)), key=itemgetter("created")
    )
    weights = [max(1, len(part.measurements)) for part in parts]
    imported = any(part.info.source for part in parts)
    costs: dict[str, float] = {}
    for name in sorted({name for part in parts for name in part.info.machine_costs}):
        pairs = [
            (part.info.machine_costs[name], weight)
            for part, weight in zip(parts, weights, strict=True)
            if name in part.info.machine_costs
        ]
        if name.endswith("_check_ms") or (name == "call_ms" and imported):
            # Larger values are from slow states of the machine, or kinds with longer calls.
            costs[name] = min(cost for cost, _ in pairs)
        else:
            costs[name] = sum(cost * weight for cost, weight in pairs) / sum(w for _, w in pairs)
    return dataclasses.replace(
        parts[0].info,  # setting and platform of all parts, or those of the first row
        quantities=tuple(
            name for name in QUANTITIES if any(name in part.info.quantities for part in parts)
        ),
        campaign=histories[0]["campaign"],
        seed=histories[0]["seed"],
        versions=_joined([history["versions"] for history in histories]),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_costs=costs,
        merged=tuple(histories),
        source=_joined_sources([part.info.source for part in parts if part.info.source]),
    )


def _joined_sources(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge files, counts, calls and the words on formats; the rest is the first one's."""
    if not sources:
        return {}
    left_out: Counter[str] = sum((Counter(source["left_out"]) for source in sources), Counter())
    files = [file for source in sources for file in source["files"]]
    calls_ms: dict[str, float] = {}
    for source in sources:
        for kind, call_ms in source.get("call_ms", {}).items():
            calls_ms[kind] = min(call_ms, calls_ms.get(kind, call_ms))
    marked: Counter[str] = sum((Counter(source.get("marked", {})) for source in sources), Counter())
    engines = [engine for source in sources for engine in source.get("engines", ())]
    return {
        **sources[0], **_joined_words(sources),
        "files": files, "left_out": dict(left_out), "call_ms": calls_ms,
        **({"marked": dict(marked)} if marked else {}),
        **({"engines": engines} if engines else {}),
    }  # fmt: skip


def _joined_words(sources: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return formats, descriptions and citations of several sources, each once."""
    joined = {}
    for name, comma in (("format", ", "), ("description", "; "), ("citation", "; ")):
        words: list[str] = []
        for text in (source[name] for source in sources if name in source):
            # What was merged before may have several.
            words += [part for part in text.split(comma) if part not in words]
        if words:
            joined[name] = comma.join(words)
    return joined


def _history(part: Dataset) -> tuple[Mapping[str, Any], ...]:
    info = part.info
    if info.merged:
        return info.merged
    own = {"campaign": info.campaign, "seed": info.seed, "versions": info.versions}
    return ({**own, "created": info.created, "rows": len(part.measurements)},)


def _joined(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return versions by name; if parts differ, all of them, joined by commas."""
    names = sorted({name for mapping in versions for name in mapping})
    return {
        name: ", ".join(dict.fromkeys(mapping[name] for mapping in versions if name in mapping))
        for name in names
    }


def append_networks(path: Path, rows: Sequence[Measurement], graphs: Mapping[str, bytes]) -> None:
    """Add rows of networks to a dataset file; those of one network and setting become repeats.

    All rows of a file are of one machine and setting, except for batch sizes and shapes.

    Parameters
    ----------
    path : Path
    rows : sequence of Measurement
        At least one.
    graphs : mapping of str to bytes
        Graphs of all networks in `rows`, by digest.

    Raises
    ------
    DatasetError
        If the file exists and is no dataset or that of another machine or setting, or a graph is
        missing.
    OutputError
        If it cannot be written.
    """
    if path.exists():
        there = read_dataset(path)
    else:
        setting = rows[0].setting.without_batch()
        info = DatasetInfo(
            setting=setting,
            platform=rows[0].platform,
            campaign={"name": "networks"},
            seed=0,
            versions={"resperf": __version__, setting.framework: setting.framework_version},
            quantities=(),
        )
        there = Dataset(info, ())
    for row in rows:
        _refuse_other_machine(path, there.info, row.setting, row.platform)
    measurements = renumbered([*there.measurements, *rows])
    write_dataset(path, Dataset(there.info, measurements, {**there.graphs, **graphs}))


def refuse_to_append(path: Path, setting: Setting, platform: Platform) -> None:
    """Check, before measuring, that rows of a setting and platform may be added to a file.

    Raises
    ------
    DatasetError
        If the file exists and `append_networks` would refuse them.
    """
    if path.exists():
        _refuse_other_machine(path, read_info(path), setting, platform)


def _refuse_other_machine(
    path: Path, info: DatasetInfo, setting: Setting, platform: Platform
) -> None:
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
