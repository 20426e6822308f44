"""`resperf demo`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option
from resperf.report.tables import percent_cell

if TYPE_CHECKING:
    from resperf.workflows.measure import MeasuredNetwork


@click.command(cls=Command, epilog="Example: resperf demo --minutes 3 --keep demo")
@option(
    "--minutes",
    section=COMMON,
    type=options.POSITIVE,
    default=3.0,
    show_default=True,
    metavar="M",
    help="Time for the campaign; training and running the networks take a few minutes more.",
)
@option(
    "--keep",
    "folder",
    section=COMMON,
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for the dataset and the bundle; a later demo resumes there.",
)
@options.JSON
def command(minutes: float, folder: Path, as_json: bool) -> None:
    """Measure layers, train on them, and compare predictions of real networks with measurements.

    The networks are LeNet, AlexNet and VGG16 at batch 1 and 8, and those of the onnx package in
    which operators of kinds that the demo does not measure move less than 1% of the bytes. None of
    their layers is used for training.
    """
    from resperf.campaign import Campaign
    from resperf.cli.bench import campaign_file
    from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
    from resperf.report.methods import errors_table
    from resperf.workflows.demo import run_demo

    result = run_demo(
        Campaign.from_toml(campaign_file("demo")),
        folder,
        minutes=minutes,
        tell=lambda line: click.echo(line, err=as_json),
    )
    rows = [
        ComparisonRow(
            measured.subject.network,
            measured.subject.batch,
            prediction.total_ms,
            measured.total_ms,
            "; ".join(_remarks(len(prediction.skipped), measured)),
        )
        for prediction, measured in result.rows
    ]
    error = mean_error(rows)
    if as_json:
        networks = [
            {"predicted": prediction.to_json(), "measured": measured.to_json()}
            for prediction, measured in result.rows
        ]
        paths = {"dataset": str(result.dataset), "bundle": str(result.bundle)}
        methods = [method.to_json() for method in result.methods]
        options.show_json({**paths, "methods": methods, "mean_error": error, "networks": networks})
        return
    if result.methods:
        print(f"\n{errors_table(result.methods)}")
    print(f"\n{comparison_table(rows)}\n\nmean absolute error: {percent_cell(error)}\n")
    print(_next_commands(result.dataset, result.bundle))


def _remarks(skipped: int, measured: MeasuredNetwork) -> list[str]:
    remarks = [f"without {skipped} operators"] if skipped else []
    if not measured.is_steady:
        remarks.append("the machine's speed changed")
    return remarks


def _next_commands(dataset: Path, bundle: Path) -> str:
    from resperf.campaign.networks import shipped_networks

    network = str(shipped_networks(["resnet50"])[0])
    with suppress(ValueError):
        # A relative path is shorter, if the file is below the current folder.
        network = str(Path(network).relative_to(Path.cwd()))
    lines = (
        f"resperf predict {network} --bundle {bundle} --batch 1 8",
        f"resperf measure {network} --batch 8 --against {bundle}",
        f"resperf evaluate {dataset} --bundle {bundle}",
        "resperf bench cpu-overnight --hours 8",
    )
    return "next:\n" + "\n".join(f"  {line}" for line in lines)
