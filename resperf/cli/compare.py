"""`resperf compare`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import click

from resperf.cli._options import BATCH, JSON, PATH, BatchCommand, Decorator, show_json
from resperf.cli._sections import COMMON, option
from resperf.settings import PRECISIONS


class CompareCommand(BatchCommand):
    """A command that takes several devices and precisions."""

    spread_words = ("--device", "--precision")


def several(*names: str, text: str, **settings: Any) -> Decorator:
    """Option of one or several words, after the networks."""
    how = {"multiple": True, "metavar": "WORD...", "help": text, **settings}
    return option(*names, section=COMMON, **how)


@click.command(
    cls=CompareCommand,
    epilog="\b\nExamples:\n  resperf compare resnet50 mobilenet_v2 --device cpu\n"
    "  resperf compare resnet50 --device h100 a100 --batch 64\n"
    "  resperf compare resnet50 --device rtx4090 --precision fp32 amp --batch 256\n"
    "  resperf compare predicted.json measured.json",
)
@click.argument("networks", nargs=-1, required=True, metavar="NETWORK|RUN...", type=PATH)
@several("--device", "devices", text="Devices, such as h100 a100; see `resperf devices`.")
@several("--precision", "precisions", text="Precisions.", type=click.Choice(PRECISIONS))
@BATCH
@JSON
def command(
    networks: tuple[Path, ...],
    devices: tuple[str, ...],
    precisions: tuple[str, ...],
    batches: tuple[int, ...],
    as_json: bool,
) -> None:
    """Show networks, devices, settings or runs side by side, and what differs by kind of layer.

    A RUN is what `predict -o FILE.json` wrote, with any options, or `measure --json > FILE.json`,
    or a dataset with runs of networks (FILE.h5).
    """
    from resperf.prediction import predict
    from resperf.report.columns import columns_text, saved_runs

    documents = [
        document
        for path in networks
        if path.suffix in (".json", ".h5")
        for document in saved_runs(path)
        if not batches or document["batch"] in batches
    ]
    asked = [path for path in networks if path.suffix not in (".json", ".h5")]
    for device, precision, batch in product(
        devices or (None,), precisions or (None,), batches or (None,)
    ):
        documents += [
            predict(path, device=device, precision=precision, batch=batch).to_json()
            for path in asked
        ]
    if len(documents) < 2:
        raise click.UsageError(
            "one answer alone: name a second network or run, or several of --device, --precision "
            "or --batch"
        )
    if as_json:
        show_json(documents)
    else:
        print(columns_text(documents))
