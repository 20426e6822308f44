"""`resperf compare`."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command
from resperf.settings import PRECISIONS


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf compare resnet50 mobilenet_v2 --device cpu\n"
    "  resperf compare resnet50 --device h100 a100 --batch 64\n"
    "  resperf compare resnet50 --device rtx4090 --precision fp32 amp --batch 256\n"
    "  resperf compare predicted.json measured.json",
)
@click.argument("networks", nargs=-1, required=True, metavar="NETWORK|RUN...", type=options.PATH)
@options.words(
    "--device", "devices", section=COMMON, help="Devices, such as h100 a100; see `resperf devices`."
)
@options.words(
    "--precision", "precisions", section=COMMON, type=click.Choice(PRECISIONS), help="Precisions."
)
@options.BATCH
@options.PAGE
@options.JSON
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
    options.show(as_json, documents, columns_text(documents))
