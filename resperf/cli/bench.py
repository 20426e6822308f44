"""``resperf bench``: run a campaign, or go on with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.errors import CampaignError

if TYPE_CHECKING:
    from resperf.campaign import Campaign, CampaignResult, Plan
    from resperf.machine import Fingerprint

EPILOG = "Example: resperf bench cpu-overnight --hours 8 -o datasets/mine.h5"
INTERRUPTED = 130
DEVICES = {"synthetic": "synthetic"}
"""Framework -> the device that it runs on, where that is not the CPU."""


@click.command("bench", epilog=EPILOG)
@click.argument("campaign", metavar="CAMPAIGN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="Dataset to write or go on with.  [default: datasets/CAMPAIGN-DEVICE-FRAMEWORK.h5]",
)  # fmt: skip
@click.option("--framework", default="onnxruntime", show_default=True, help="What runs the layers.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the framework.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Stop after this time.")
@click.option("--samples", type=click.IntRange(min=1), help="Distinct layers to measure in all.")
@click.option("--seed", type=int, help="Another seed than the campaign's own.")
@click.option(
    "--networks", "--network", "networks", multiple=True, metavar="PATH",
    type=click.Path(path_type=Path),
    help="A network, or a folder of them, whose layers are varied beside the campaign's own "
    "(repeatable).",
)  # fmt: skip
@click.option(
    "--exclude", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A network of which no layer is measured (repeatable).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be measured and how long it takes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    campaign: str,
    output: Path | None,
    framework: str,
    threads: int | None,
    hours: float | None,
    samples: int | None,
    seed: int | None,
    networks: tuple[Path, ...],
    exclude: tuple[Path, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure the layers of a campaign on this machine.

    CAMPAIGN is a TOML file or the name of a shipped one (demo, cpu-45min, cpu-overnight,
    resperfnet-table3, quick). Ctrl-C keeps every finished row; the same command goes on
    where it stopped.
    """
    from resperf.campaign import Bench, Campaign, plan_campaign, run_campaign
    from resperf.campaign.harvest import network_files

    varied = network_files(networks)
    defined = Campaign.from_toml(find_campaign(campaign))
    settings = {} if threads is None else {"threads": threads}
    if dry_run:
        bench = Bench(framework, settings, seed, samples, networks=varied, exclude=exclude)
        planned, machine = plan_campaign(defined, bench)
        show_plan(defined, planned, machine, as_json=as_json)
        return
    result = run_campaign(
        defined,
        default_output(defined.name, framework, threads) if output is None else output,
        framework=framework,
        settings=settings,
        hours=hours,
        samples=samples,
        seed=seed,
        networks=varied,
        exclude=exclude,
    )
    show_result(result, as_json=as_json)
    if result.reason == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)


def campaign_folders() -> list[Path]:
    """Folders that hold the shipped campaigns: of the repository, of the wheel."""
    package = Path(__file__).resolve().parent.parent
    return [package.parent / "microbench", package / "data" / "microbench"]


def find_campaign(name: str) -> Path:
    """Find a campaign's file by its path or by the name of a shipped one.

    Raises
    ------
    CampaignError
        If there is none; lists the shipped ones.
    """
    given = Path(name)
    if given.is_file():
        return given
    shipped = {p.stem: p for folder in campaign_folders() for p in sorted(folder.glob("*.toml"))}
    if name in shipped:
        return shipped[name]
    raise CampaignError(
        f"no campaign {name!r}: neither a file nor one of {', '.join(sorted(shipped)) or 'none'}"
    )


def default_output(campaign: str, framework: str, threads: int | None) -> Path:
    """Name the dataset of a campaign, in ``datasets/`` where there is such a folder."""
    name = f"{campaign}-{DEVICES.get(framework, 'cpu')}-{framework}"
    name += "" if threads is None else f"-{threads}threads"
    folder = Path("datasets")
    return (folder if folder.is_dir() else Path()) / f"{name}.h5"


def show_plan(campaign: Campaign, planned: Plan, machine: Fingerprint, *, as_json: bool) -> None:
    """Print what a campaign would measure."""
    from resperf.units import format_bytes

    if as_json:
        values: dict[str, Any] = {
            "campaign": campaign.name,
            "framework": machine.framework,
            "layers": dict(planned.counts),
            "repeats": planned.repeats,
            "hours": planned.hours,
            "disk_bytes": planned.disk_bytes,
            "notes": list(planned.notes),
        }
        click.echo(json.dumps(values, indent=2))
        return
    click.echo(f"{campaign.name} on {machine.device} with {machine.framework}, not started:")
    for kind, count in sorted(planned.counts.items(), key=lambda pair: -pair[1]):
        click.echo(f"  {kind:<8} {count:>8} layers")
    click.echo(f"  {'repeats':<8} {planned.repeats:>8}")
    click.echo(f"about {planned.hours:.2g} hours, {format_bytes(planned.disk_bytes)} of disk")
    for note in planned.notes:
        click.echo(f"note: {note}", err=True)


def show_result(result: CampaignResult, *, as_json: bool) -> None:
    """Print how a campaign ended, and what to type next."""
    from resperf.campaign import format_duration

    rate = result.measured / result.elapsed_s if result.elapsed_s > 0 else 0.0
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        values = {
            "dataset": str(result.path),
            "reason": result.reason,
            "rows": result.rows,
            "statuses": dict(result.statuses),
            "measured": result.measured,
            "again": result.again,
            "doubtful": result.doubtful,
            "elapsed_s": result.elapsed_s,
            "layers_per_second": rate,
            "median_overhead_s": result.overhead_s,
            "notes": list(result.notes),
        }
        click.echo(json.dumps(values, indent=2))
        return
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items()))
    click.echo(f"{result.path}: {result.rows} rows ({statuses or 'none'})")
    click.echo(
        f"measured {result.measured} in {format_duration(result.elapsed_s)} ({rate:.1f} layers/s), "
        f"{result.again} of them again; {result.doubtful} rows remain doubtful"
    )
    if result.reason == "complete":
        click.echo(f"next: resperf train {result.path}")
    else:
        cause = "the time is up" if result.reason == "hours" else "interrupted"
        click.echo(f"{cause}; the same command goes on: resperf {' '.join(sys.argv[1:])}")
