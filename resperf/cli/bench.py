"""``resperf bench``: run or resume a campaign."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, HOW, SEVERAL, WHAT, Command, option
from resperf.errors import CampaignError, did_you_mean, require
from resperf.files import shipped_files
from resperf.targets import device_number
from resperf.units import format_bytes, format_duration

if TYPE_CHECKING:
    from resperf.campaign import Campaign, CampaignResult, Plan
    from resperf.campaign.adaptive import Acquisition
    from resperf.platform import Platform
    from resperf.settings import Setting
    from resperf.targets import Target

EPILOG = """\b
Examples:
  resperf bench cpu-overnight --hours 6 -o datasets/mine.h5
  resperf bench quick --device cpu --framework tensorflow
  resperf bench networks-cpu --framework torch --training sgd
  resperf bench convmeter-torch-scaling --framework torch --training sgd --processes 2 -o two.h5
  resperf bench cpu-overnight --ray -o datasets/all-nodes
  resperf bench gpu-overnight --framework tensorrt --device cuda:0 --dry-run
"""
INTERRUPTED = 130
_COUNTED = ("threads", "processes")
"""Settings that a file's name names beside their number."""


@click.command("bench", cls=Command, epilog=EPILOG)
@click.argument("campaign", metavar="CAMPAIGN")
@options.output(
    "FILE.h5",
    "Dataset to write or resume.  [default: CAMPAIGN-DEVICE-FRAMEWORK[-SETTING...].h5, "
    "in datasets/ if that folder exists]",
)
@options.DEVICE
@options.FRAMEWORK
@options.run_options
@option(
    "--processes",
    section=HOW,
    type=options.COUNT,
    metavar="N",
    help="Processes of this host that share each training step of a network, of one thread each "
    "unless --threads says otherwise, and each with its own batch and GPU (torch only).",
)
@option(
    "--hours",
    section=COMMON,
    type=options.POSITIVE,
    help="Stop this many hours after the first measurement.  [default: the campaign's own limit, "
    "if any]",
)
@option(
    "--samples",
    section=WHAT,
    type=options.COUNT,
    help="Total number of distinct layers to measure.",
)
@options.ray(
    "Measure on all nodes of a cluster of Ray (by default of the one that runs here), or on all "
    "GPUs of this machine (local); -o is then a folder, with a dataset for each device.",
)
@options.numbers(
    "--hosts",
    section=SEVERAL,
    help="With --ray: numbers of hosts that share each training step of a network, one after the "
    "other, each with --processes processes (torch only).",
)
@options.paths(
    "--networks",
    "--network",
    "networks",
    text="Network file or folder: variations of its layers are measured as well",
)
@options.paths("--exclude", text="Network file or folder: none of its layers is measured")
@option(
    "--adaptive",
    section=WHAT,
    is_flag=True,
    help="After a first batch, choose the layers whose predictions are least certain.",
)
@option(
    "--dry-run",
    section=COMMON,
    is_flag=True,
    help="Print what would be measured and how long it takes, then stop.",
)
@options.JSON
def command(
    campaign: str,
    output: Path | None,
    device: str | None,
    framework: str | None,
    hours: float | None,
    samples: int | None,
    networks: tuple[Path, ...],
    exclude: tuple[Path, ...],
    adaptive: bool,
    ray: str | None,
    hosts: tuple[int, ...],
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure the layers and networks of a campaign on this machine.

    CAMPAIGN is a TOML file or the name of a shipped one (demo, convmeter-onnxruntime,
    convmeter-torch, convmeter-torch-scaling, convmeter-torch-training, cpu-45min, cpu-90min,
    cpu-overnight, dnnperf-gpu, dnnperf-hpo-cpu, dnnperf-nas-cpu, gpu-half-hour, gpu-overnight,
    gpu-quick, networks-cpu, resperfnet-table3, quick). Ctrl-C loses no finished row; the same
    command resumes the campaign.
    """
    from resperf.campaign import Bench, Campaign, plan_campaign, run_campaign
    from resperf.campaign.adaptive import first_batch
    from resperf.network.files import network_files
    from resperf.prediction.choice import named_target

    target = named_target(device, framework)
    defined = Campaign.from_toml(campaign_file(campaign))
    settings = options.run_settings(device, **how)
    varied, left_out = network_files(networks), network_files(exclude)
    if defined.kinds and settings.get("processes", 1) > 1:
        raise CampaignError(
            f"campaign {defined.name} has layers, which one process runs: several share training "
            "steps of whole networks; choose a campaign of [networks] alone, such as "
            "convmeter-torch-scaling"
        )
    bench = Bench(target, settings, samples, networks=varied, exclude=left_out, device=device or "")
    hours = defined.run.time_limit(hours)
    if dry_run:
        planned, setting, platform = plan_campaign(defined, bench, absent=True)
        first = first_batch(planned, hours) if adaptive else None
        show_plan(defined, planned, setting, platform, as_json=as_json, first=first, hours=hours)
        return
    if hosts and (ray is None or defined.kinds or not target.shares_steps):
        raise CampaignError(
            "--hosts is about training steps that hosts of a cluster share: add --ray, --framework "
            "torch and --training, and choose a campaign of [networks] alone"
        )
    default = default_output(defined.name, target, settings)
    if ray is not None:
        folder = output or default.with_suffix("")
        numbered, is_file = "device" in settings, folder.is_file()
        if wrong := ("--adaptive" * adaptive or "a numbered device" * numbered
                     or f"the file {folder}, but a folder" * is_file):  # fmt: skip
            raise CampaignError(f"--ray takes all devices of a class, not {wrong}; leave it out")
        from resperf.campaign import fleet

        run = partial(fleet.run_on_hosts, counts=hosts) if hosts else fleet.run_on_cluster
        results = run(defined, folder, bench, ray, hours=hours)
        show_results(results, as_json=as_json, several=True)
        return
    acquisition: Acquisition | None = None
    if adaptive:  # Only these campaigns import the learning libraries.
        require("lightgbm", "train")
        from resperf.workflows.adaptive import acquisition_scores as acquisition
    output = output or default
    result = run_campaign(defined, output, bench, hours=hours, acquisition=acquisition)
    show_results([result], as_json=as_json)


def campaign_file(name: str) -> Path:
    """Find a campaign's file by its path or by the name of a shipped one.

    Raises
    ------
    CampaignError
        If there is none; lists the shipped ones.
    """
    given = Path(name)
    if given.is_file():
        return given
    shipped = {path.stem: path for path in shipped_files("microbench", "*.toml")}
    if name in shipped:
        return shipped[name]
    names = ", ".join(sorted(shipped)) or "none"
    raise CampaignError(
        f"no campaign {name!r}{did_you_mean(name, shipped)}: neither a file nor one of {names}"
    )


def default_output(campaign: str, target: Target, settings: Mapping[str, Any]) -> Path:
    """Name the dataset of a campaign and of how it is run, in ``datasets/`` if that exists."""
    number = device_number(settings.get("device", ""))
    device = target.device_class + (str(number) if number else "")
    how = [
        f"{value}{name}" if name in _COUNTED else str(value)
        for name, value in settings.items()
        if name != "device"
    ]
    folder = Path("datasets")
    name = "-".join([campaign, device, target.framework, *how])
    return (folder if folder.is_dir() else Path()) / f"{name}.h5"


def show_plan(
    campaign: Campaign,
    planned: Plan,
    setting: Setting,
    platform: Platform,
    *,
    as_json: bool,
    first: int | None = None,
    hours: float | None = None,
) -> None:
    """Print what a campaign would measure; an adaptive one plans only its `first` layers."""
    values = {
        "campaign": campaign.name,
        "framework": setting.framework,
        "layers": dict(planned.counts),
        "networks": len(planned.networks),
        "repeats": planned.repeats,
        "hours": planned.hours,
        "time_limit_hours": hours,
        "layers_in_time": None if hours is None else planned.first_layers(hours),
        "disk_bytes": planned.disk_bytes,
        "too_large": planned.too_large,
        "first_batch": first,
        "notes": list(planned.notes),
    }
    width = max(map(len, (*planned.counts, "networks")))
    lines = [f"{campaign.name} on {platform.device} with {setting.framework}, not started:"]
    lines += [
        f"  {kind:<{width}} {count:>8} layers"
        for kind, count in sorted(planned.counts.items(), key=lambda pair: -pair[1])
    ]
    if planned.networks:
        lines.append(f"  {'networks':<{width}} {len(planned.networks):>8} runs")
    duration, size = format_duration(planned.hours * 3600), format_bytes(planned.disk_bytes)
    lines += [f"  {'repeats':<{width}} {planned.repeats:>8}", f"about {duration}, {size} of disk"]
    if planned.too_large:
        lines.append(f"{planned.too_large} layers do not fit into the card's memory")
    if hours is not None:
        lines.append(f"each run stops after {hours:g} hours")
    if hours is not None and planned.hours > hours:
        suffice = planned.first_layers(hours)
        lines.append(f"{hours:g} hours suffice for about the first {suffice} layers")
    if first is not None:
        lines.append(
            f"after the first {first} layers, the campaign chooses those it predicts worst"
        )
    options.show(as_json, values, "\n".join(lines), planned.notes)


def show_results(
    results: Sequence[CampaignResult], *, as_json: bool, several: bool = False
) -> None:
    """Print how a campaign ended on each device, and what to type next; `several` are a list."""
    options.show_notes([*dict.fromkeys(note for result in results for note in result.notes)])
    values, lines = zip(*map(_result, results), strict=True)
    options.show(as_json, [*values] if several else values[0], "\n".join(map("\n".join, lines)))
    if any(result.reason == "interrupted" for result in results):
        raise click.exceptions.Exit(INTERRUPTED)


def _result(result: CampaignResult) -> tuple[dict[str, Any], list[str]]:
    """Return how a campaign ended on a device, as a document and as lines."""
    from resperf.measurement import Status

    measuring_s = result.elapsed_s - result.choosing_s
    rate = result.measured / measuring_s if measuring_s > 0 else 0.0
    values = {
        "dataset": str(result.path),
        "reason": result.reason,
        "rows": result.rows,
        "networks": result.networks,
        "statuses": dict(result.statuses),
        "measured": result.measured,
        "again": result.again,
        "doubtful": result.noisy,
        "elapsed_s": result.elapsed_s,
        "layers_per_second": rate,
        "median_overhead_s": result.overhead_s,
        "choosing_s": result.choosing_s,
        "notes": list(result.notes),
        "failure": result.failure or None,
    }
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items()))
    lines = [
        f"{result.path}: {result.rows} rows ({statuses or 'none'})",
        f"measured {result.measured} in {format_duration(result.elapsed_s)} ({rate:.1f} rows/s), "
        f"{result.again} of them repeated; {result.noisy} rows remain noisy",
    ]
    if result.choosing_s:
        lines.append(f"of that time, choosing layers took {format_duration(result.choosing_s)}")
    has_times = result.statuses.get(Status.OK, 0) > 0
    if result.failure and not has_times:
        lines.append(f"every row failed; the most frequent message: {result.failure}")
    if result.reason != "complete":
        cause = "time limit reached" if result.reason == "hours" else "interrupted"
        lines.append(f"{cause}; resume with: resperf {shlex.join(sys.argv[1:])}")
    elif not has_times:
        lines.append(
            "next: mend the cause, then start again with another file (-o), since finished rows "
            "are not measured again"
        )
    else:
        command = "dataset info" if result.networks == result.rows else "train"
        lines.append(f"next: resperf {command} {result.path}")
    return values, lines
