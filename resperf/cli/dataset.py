"""`resperf dataset`: inspect, import, check, export and merge datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, OUTPUT, WHAT, Group, option
from resperf.errors import DatasetError, printable
from resperf.files import refuse_to_replace
from resperf.quantities import quantity
from resperf.report.tables import percent_cell, setting_columns, table
from resperf.units import format_bytes, format_ms, json_values

if TYPE_CHECKING:
    from resperf.dataset import Summary
    from resperf.dataset.importing import Imported
    from resperf.dataset.importing.published import Untyped

FILES = click.argument("files", type=options.PATH, nargs=-1, required=True)
FORCE = option("--force", section=OUTPUT, is_flag=True, help="Replace an output that exists.")


@click.group(cls=Group, epilog="Example: resperf dataset info datasets/demo.h5")
def command() -> None:
    """Inspect, import, check, export or merge datasets."""


@command.command(epilog="Example: resperf dataset info datasets/demo.h5")
@options.DATASET
@options.PAGE
@options.JSON
def info(file: Path, as_json: bool) -> None:
    """Summarize FILE on one screen: machine, rows, times, noise."""
    from resperf.dataset import summarize

    summary = summarize(file)
    tables = [_identity(summary), _rows_table(summary), _times_table(summary)]
    if len(summary.settings) > 1:
        tables.insert(1, _settings_table(summary))
    if len(summary.platforms) > 1:
        tables.insert(1, _devices_table(summary))
    if summary.rows:
        tables.append(
            "Noise: the error that a perfect predictor would score, from layers and networks that "
            "were measured twice (pairs)."
        )
    options.show(as_json, summary.to_json(), "\n\n".join(tables))


def _identity(summary: Summary) -> str:
    info, setting = summary.info, summary.info.setting
    costs = ", ".join(f"{name} {value:.4g}" for name, value in info.machine_costs.items())
    options = ", ".join(f"{name}={value}" for name, value in sorted(setting.options.items()))
    lines = {
        "file": f"{summary.path}, {format_bytes(summary.size_bytes)}, "
        f"schema {summary.schema_version}, {summary.rows} rows",
        **(_source_lines(summary) if info.source else _campaign_lines(summary)),
        "framework": ", ".join(
            filter(None, (f"{setting.framework} {setting.framework_version}", setting.provider))
        )
        + (f" ({options})" if options else ""),
        "versions": ", ".join(f"{name} {value}" for name, value in info.versions.items()),
        "costs": costs,
    }
    return "\n".join(printable(f"{name:11}{line or 'none'}") for name, line in lines.items())


def _campaign_lines(summary: Summary) -> dict[str, str]:
    info, machine = summary.info, summary.info.platform
    shared = f", {machine.devices} sharing a run: {machine.interconnect}"
    return {
        "campaign": f"{info.campaign.get('name', 'unnamed')}, seed {info.seed}"
        + (f" (merged from {len(info.merged)})" if info.merged else ""),
        "measured": f"{_day(summary.first_started_at)} to {_day(summary.last_started_at)}",
        "device": f"{machine.device}: {machine.processor}, {info.setting.threads} threads of "
        f"{machine.cores} cores, {format_bytes(machine.memory_bytes)}, {machine.instruction_set}"
        + shared
        * (machine.devices > 1),
    }


def _source_lines(summary: Summary) -> dict[str, str]:
    """Describe the source of imported rows; their date and host are not known."""
    info = summary.info
    source, machine = info.source, info.platform
    contained = dict.fromkeys(
        name for group in summary.groups.values() for name in group.quantities
    )
    files = ", ".join(file["name"] for file in source["files"])
    left_out = ", ".join(f"{rows} ({reason})" for reason, rows in source["left_out"].items())
    marked = ", ".join(f"{rows} ({reason})" for reason, rows in source.get("marked", {}).items())
    return {
        "imported": f"{source['format']}: {files}",
        "contains": f"{', '.join(contained)}: {source['description']}",
        "left out": left_out,
        **({"marked": marked} if marked else {}),
        **{
            f"engine {number}"
            if number > 1
            else "engine": f"{engine['name']}: {_engine_text(engine)}"
            for number, engine in enumerate(source.get("engines", ()), 1)
        },
        "device": f"{machine.device}: {machine.processor}"
        if len(summary.platforms) < 2
        else f"{len(summary.platforms)}, below",
    }


def _day(started_at: float) -> str:
    if started_at != started_at:
        return "never"
    return f"{datetime.fromtimestamp(started_at, UTC):%Y-%m-%d %H:%M} UTC"


def _devices_table(summary: Summary) -> str:
    """Count rows per platform."""
    headings = ("device", "processor", "rows", "sharing a run", "interconnect")
    several = any(platform.devices > 1 for platform in summary.platforms)
    rows = [
        [where.device, where.processor, str(count),
         *([str(where.devices), where.interconnect or "-"] if several else ["", ""])]
        for where, count in summary.platforms.items()
    ]  # fmt: skip
    return table(headings, rows, text=("device", "processor", "interconnect"))


def _settings_table(summary: Summary) -> str:
    """Count rows per setting, naming only what differs."""
    columns = {
        **setting_columns(list(summary.settings)),
        "rows": map(str, summary.settings.values()),
    }
    rows = list(zip(*columns.values(), strict=True))
    return table(tuple(columns), rows, text=tuple(columns)[:-1])


def _rows_table(summary: Summary) -> str:
    """Count rows per kind and status."""
    statuses = sorted({status for group in summary.groups.values() for status in group.statuses})
    rows = []
    for name, group in summary.groups.items():
        counts = (group.statuses.get(status, 0) for status in statuses)
        rows.append([name, *map(str, (group.rows, group.subjects, *counts, group.flagged))])
    return table(("kind", "rows", "layers", *statuses, "flagged"), rows, text=("kind",))


def _times_table(summary: Summary) -> str:
    """Show values and noise per kind and quantity."""
    rows = []
    for name, group in summary.groups.items():
        for measured, stats in group.quantities.items():
            span = (_cell(measured, value) for value in (stats.min, stats.median, stats.max))
            noise = percent_cell(stats.noise.mape), str(stats.noise.pairs)
            rows.append([name, measured, *span, *noise])
    names = ("kind", "quantity")
    return table((*names, "min", "median", "max", "noise", "pairs"), rows, text=names)


def _cell(name: str, value: float) -> str:
    if value != value:
        return "-"
    return {"ms": format_ms, "bytes": format_bytes}.get(quantity(name).unit, "{:g}".format)(value)


@command.command(epilog="Example: resperf dataset check datasets/demo.h5")
@options.DATASET
@options.JSON
def check(file: Path, as_json: bool) -> None:
    """Check FILE: layout, units, keys, duplicates, checksum.

    Also warns if more than a fifth of its rows are noisy.
    """
    from resperf.dataset import check_dataset, noise_warning, read_table

    problems = check_dataset(file)
    noisy = "" if problems else noise_warning(read_table(file, networks=True).values())
    if noisy:
        click.echo(f"warning: {noisy}", err=True)
    warnings = [noisy] if noisy else []
    document = {"path": str(file), "problems": problems, "warnings": warnings}
    options.show(as_json, document, "\n".join(map(printable, problems)) or f"{file}: no problems")
    if problems:
        raise DatasetError(
            f"{file} has {len(problems)} problem{'s'[: len(problems) != 1]}; restore a copy, or "
            "run its campaign again with resperf bench"
        )


@command.command(epilog="Example: resperf dataset export datasets/demo.h5 -o demo.csv")
@options.DATASET
@options.output("OUT.csv", "The file to write.", required=True)
@FORCE
def export(file: Path, output: Path, force: bool) -> None:
    """Write FILE's rows as CSV: one file per kind of layer. Prints the files' names."""
    from resperf.dataset import export_dataset

    for path in export_dataset(file, output, replace=force):
        click.echo(path)


_WITH_GRAPHS = ("gpumemnet", "neusight", "timm", "trtexec", "tensorrt-latencies", "batchai",
                "gavel", "pollux")  # fmt: skip
"""Formats with networks whose graphs are elsewhere."""


@command.command(
    name="import",
    epilog="Example: resperf dataset import 1080ti_convolution.csv.gz 1080ti_dense.csv.gz "
    "--format justus --device 1080ti -o 1080ti.h5",
)
@FILES
@option(
    "--format",
    "source",
    section=COMMON,
    required=True,
    metavar="F|MAP.toml",
    help="Format of the files: justus, perfnet, neusight, timm, vidur, trtexec, "
    "tensorrt-latencies, pollux, batchai, gavel or list (your own). Or a mapping file, which says "
    "what the columns of other files mean.",
)
@option(
    "--device",
    section=COMMON,
    metavar="NAME",
    help="Where the times were measured; replaces what the files say (neusight, timm, vidur, "
    "trtexec, tensorrt-latencies).",
)
@option(
    "--graphs",
    section=WHAT,
    type=options.PATH,
    metavar="FOLDER",
    help="ONNX files of the networks of neusight, timm, trtexec or tensorrt-latencies, each with a "
    "network's name.",
)
@options.output("OUT", "The dataset.", required=True)
@FORCE
@options.JSON
def import_files(
    files: tuple[Path, ...],
    source: str,
    device: str | None,
    graphs: Path | None,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Make a dataset of published timings: CSV FILES, or what trtexec exported.

    All FILES are of one device. Those of neusight, timm and vidur say of which, and under which
    settings.

    With --format trtexec, FILES are the exports of one TensorRT engine in any order: those of
    --exportLayerInfo (built with --profilingVerbosity=detailed), --exportProfile, --exportTimes,
    and trtexec's log or metadata files, which name the device.

    With --format list, FILES are your own lists of networks and times: columns network (an ONNX
    file, or a shipped name), time_ms, batch, framework, threads and more. Invalid rows are left out
    and counted by reason. docs/importing.md describes lists and mapping files.
    """
    from resperf.dataset.importing import (
        FORMATS,
        LIST,
        PUBLISHED,
        import_dataset,
        import_list,
        read_mapping,
        shipped_mapping,
    )

    names = tuple(dict.fromkeys((*FORMATS, *PUBLISHED, LIST)))
    if source not in names and not source.endswith(".toml"):
        raise DatasetError(
            f"no format {source!r}; known: {', '.join(names)}; describe other files with "
            "--format MAP.toml"
        )
    if graphs is not None and source not in _WITH_GRAPHS:
        raise click.UsageError(f"--graphs is for --format {' or '.join(_WITH_GRAPHS)}")
    refuse_to_replace(output, unless=force)
    if source in PUBLISHED:
        attached = {} if graphs is None else {"graphs": graphs}
        imported = PUBLISHED[source](files, output, device=device, **attached)
    elif source == LIST:
        imported = import_list(files, output, device=device)
    elif device is None:
        raise click.UsageError("say where the times were measured: --device")
    else:
        mapping = shipped_mapping(source) if source in FORMATS else read_mapping(Path(source))
        imported = import_dataset(files, output, mapping=mapping, device=device)
    document, text = _import_document(output, imported), _import_text(output, imported)
    options.show(as_json, document, text)


def _import_document(output: Path, imported: Imported) -> dict[str, Any]:
    document = {
        "path": str(output),
        "device": imported.info.platform.device,
        "format": imported.info.source["format"],
        "contains": list(imported.quantities),
        "rows": dict(imported.rows),
        "repeats": imported.repeats,
        "call_ms": dict(imported.call_ms),
        "left_out": [
            {"reason": counted.reason, "rows": counted.rows, "first": counted.first}
            for counted in imported.left_out
        ],
        "marked": [dataclasses.asdict(counted) for counted in imported.marked],
        "networks": imported.networks,
        "graphs": imported.graphs,
    }
    if (engines := imported.info.source.get("engines")) is not None:
        untyped = [layer._asdict() for layer in imported.untyped]
        document |= {"engines": engines, "untyped": json_values(untyped)}
    return document


_SHOWN_UNTYPED = 10


def _engine_text(engine: Mapping[str, Any]) -> str:
    """Say what an engine's layers are, and what they add up to beside a whole run."""
    shapes = f"{engine['layers']} layers, {engine['views']} of them views"
    layers_ms, whole_ms = engine["layers_ms"], engine["whole_ms"]
    relayouts = f"{engine['relayouts']} change formats or types"
    if layers_ms is None:
        sums = "no time per layer: not profiled"
    else:
        relayouts += f" ({format_ms(engine['relayouts_ms'])} ms)"
        sums = f"layers add up to {format_ms(layers_ms)} ms"
    whole = "a whole run was not measured"
    if whole_ms is not None:
        whole = f"a whole run takes {format_ms(whole_ms)} ms"
        whole += "" if engine["copies"] else ", its copies were not measured"
        if layers_ms is not None and engine["facts"].get("Separate profiling") == "Disabled":
            whole += ", taken while profiling (run trtexec with --separateProfileRun)"
    if layers_ms is not None and whole_ms is not None:
        whole += f": {_sum_over_whole(layers_ms / whole_ms)}"
    return f"{shapes}, {relayouts}; {sums}; {whole}"


_POSSIBLE_SUMS = (0.7, 3.0)
"""Sum of profiled layers over a whole run, beyond which the times are hardly of one engine."""


def _sum_over_whole(ratio: float) -> str:
    text = f"the sum is {ratio:.2f} of it"
    if not _POSSIBLE_SUMS[0] < ratio < _POSSIBLE_SUMS[1]:
        return f"{text}; check that profile and times are of one engine"
    why = ", since profiled layers do not overlap and each carries its launch"
    return text + why * (ratio > 1)


def _untyped_lines(untyped: Sequence[Untyped]) -> list[str]:
    """Name the layers that have no row, the slowest first."""
    slowest = sorted(untyped, key=lambda layer: -layer.ms if layer.ms == layer.ms else 0.0)
    lines = [
        f"  {format_ms(layer.ms)} ms {layer.type or 'unknown'} {printable(layer.name)}: "
        f"{layer.reason}"
        for layer in slowest[:_SHOWN_UNTYPED]
    ]
    more = len(untyped) - len(lines)
    head = [f"layers without a row of their own: {len(untyped)}"] if untyped else []
    return [*head, *lines, *([f"  and {more} more: --json lists them"] if more else [])]


def _import_text(output: Path, imported: Imported) -> str:
    lines = [f"{output}: {sum(imported.rows.values())} rows of {', '.join(imported.quantities)}"]
    for kind, rows in imported.rows.items():
        taken_ms = imported.call_ms.get(kind)
        taken = "" if taken_ms is None else f", minus a call of {format_ms(taken_ms)} ms"
        lines.append(f"  {kind}: {rows} rows{taken}")
    if imported.repeats:
        plural = "s repeat" if imported.repeats > 1 else " repeats"
        lines.append(f"{imported.repeats} row{plural} a layer or network")
    if imported.networks:
        plural = "s"[: imported.networks != 1]
        lines.append(f"{imported.networks} network{plural}, {imported.graphs} with a graph")
    lines += map(_engine_text, imported.info.source.get("engines", ()))
    lines += _untyped_lines(imported.untyped)
    lines += map(str, (*imported.marked, *imported.left_out))
    return "\n".join(lines)


@command.command(epilog="Example: resperf dataset merge night1.h5 night2.h5 -o both.h5")
@FILES
@options.output("OUT", "The merged file.", required=True)
@FORCE
@options.JSON
def merge(files: tuple[Path, ...], output: Path, force: bool, as_json: bool) -> None:
    """Merge FILES of one machine, or published ones of several devices.

    Layers that were measured several times on one device become repeats. Files with costs of a
    machine, as campaigns have, must be of the same machine and settings.
    """
    from resperf.dataset import merge_datasets

    refuse_to_replace(output, unless=force)
    merged = merge_datasets(files, output)
    rows = len(merged.measurements)
    text = f"{output}: {rows} rows from {len(files)} files"
    options.show(as_json, {"path": str(output), "rows": rows}, text)
