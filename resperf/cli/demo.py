"""`resperf demo`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option
from resperf.quantities import EXECUTION
from resperf.report.tables import counted, ms_cell, percent_cell, table

if TYPE_CHECKING:
    from resperf.bundle import Bundle
    from resperf.workflows.demo import DemoRow


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
    from resperf.workflows.demo import run_demo

    result = run_demo(
        Campaign.from_toml(campaign_file("demo")),
        folder,
        minutes=minutes,
        tell=lambda line: click.echo(line, err=as_json),
    )
    default, bundle = next(iter(result.bundles.items()))
    steady = [row for row in result.rows if not row.is_spoilt]
    spoilt = len(result.rows) - len(steady)
    errors = {
        method: fmean(abs(row.error(method)) for row in steady) if steady else math.nan
        for method in result.bundles
    }
    document = {
        "dataset": str(result.dataset),
        "bundle": str(bundle.path),
        "layers": {method: one.errors["test"] for method, one in result.bundles.items()},
        "mean_error": errors[default],
        "mean_errors": errors,
        "mean_of": len(steady),
        "spoilt": spoilt,
        "networks": [_document(row) for row in result.rows],
    }
    means = ", ".join(f"{method} {percent_cell(error)}" for method, error in errors.items())
    text = (
        f"\n{_layers_table(result.bundles)}\n\n{_networks_table(result.rows)}\n\n"
        f"mean absolute error of {counted(len(steady), 'network')}: {means}\n"
        f"left out, as the machine's speed changed: {counted(spoilt, 'network')}\n\n"
        f"{_next_commands(result.dataset, bundle.path)}"
    )
    options.show(as_json, document, text)


def _document(row: DemoRow) -> dict[str, Any]:
    predictions = {method: one.to_json() for method, one in row.predictions.items()}
    return {
        "predicted": next(iter(predictions.values())),
        "predictions": predictions,
        "measured": row.measured.to_json(),
        "spoilt": row.is_spoilt,
    }


def _layers_table(bundles: Mapping[str, Bundle]) -> str:
    """Show the errors of methods on layers that none of them learnt from."""
    cells = []
    for kind in next(iter(bundles.values())).kinds:
        errors = [one.errors["test"].get(kind, {}).get(EXECUTION, {}) for one in bundles.values()]
        shown = [percent_cell(error.get("mape", math.nan)) for error in errors]
        cells.append([kind, str(errors[0].get("rows", 0)), *shown])
    headings = ("layers", "tested", *(f"{method} error" for method in bundles))
    return table(headings, cells, text=("layers",))


def _networks_table(rows: Sequence[DemoRow]) -> str:
    """Show the predictions of all methods beside what was measured."""
    headings, cells = ["network", "batch", "measured ms"], []
    for method in rows[0].predictions:
        headings += [f"{method} ms", "error"]
    for row in rows:
        subject = row.measured.subject
        cells.append([subject.network, str(subject.batch), ms_cell(row.measured.total_ms)])
        for method, prediction in row.predictions.items():
            cells[-1] += [
                ms_cell(prediction.total_ms),
                percent_cell(row.error(method), signed=True),
            ]
        remarks = [
            f"{method} without {len(prediction.skipped)} operators"
            for method, prediction in row.predictions.items()
            if prediction.skipped
        ]
        remarks += ["the machine's speed changed"] if row.is_spoilt else []
        cells[-1].append("; ".join(remarks))
    return table((*headings, "remark"), cells, text=("network", "remark"))


def _next_commands(dataset: Path, bundle: Path) -> str:
    from resperf.campaign.networks import shipped_networks

    network = str(shipped_networks(["resnet50"])[0])
    with suppress(ValueError):
        # A relative path is shorter, if the file is below the current folder.
        network = str(Path(network).relative_to(Path.cwd()))
    lines = (
        f"resperf predict {network} --bundle {bundle} --batch 1 8",
        f"resperf measure {network} --batch 8 --json > measured.json",
        f"resperf compare measured.json {network} --batch 8 --device {bundle}",
        f"resperf evaluate {dataset} --bundle {bundle}",
        "resperf bench cpu-overnight --hours 8",
    )
    return "next:\n" + "\n".join(f"  {line}" for line in lines)
