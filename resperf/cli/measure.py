"""`resperf measure`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli._options import ALL, BATCH, JSON, NETWORK, SHAPE, BatchCommand, bar_of_steps
from resperf.errors import ResperfError, require

if TYPE_CHECKING:
    from resperf.bundle import Bundle


@click.command(
    cls=BatchCommand,
    epilog="Example: resperf measure models/networks/vgg16.onnx --batch 1 8 --against cpu",
)
@NETWORK
@click.option(
    "--framework", default="onnxruntime", show_default=True, metavar="F", help="Runs the network."
)
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="All cores by default.")
@BATCH
@SHAPE
@click.option(
    "--against",
    metavar="BUNDLE",
    help="Folder or device of a bundle: puts its prediction beside the measurement.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=6.0,
    show_default=True,
    metavar="S",
    help="Time for whole runs; layers come on top, about 0.3 s for each distinct one.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="RUNS.h5",
    help="Dataset to add the whole runs to; it is made where it is not there.",
)
@click.option("--no-layers", is_flag=True, help="Time the whole network only.")
@ALL
@JSON
def command(
    network: Path,
    framework: str,
    threads: int | None,
    batches: tuple[int, ...],
    shapes: Mapping[str, tuple[int, ...]],
    against: str | None,
    seconds: float,
    output: Path | None,
    no_layers: bool,
    every: bool,
    as_json: bool,
) -> None:
    """Run a network for real on this machine, and report it in the format of `predict`.

    The phases are medians over whole runs; a reference layer guards against a machine that changes
    its speed meanwhile. Each distinct layer is then measured alone. Absent weights are made up.
    """
    from resperf.backends import backend
    from resperf.prediction import layers_alone
    from resperf.prediction.api import read_batches
    from resperf.report.documents import json_text
    from resperf.report.network import network_text
    from resperf.report.side_by_side import side_by_side_text
    from resperf.workflows.guarded import reference_monitor
    from resperf.workflows.measure import append_runs, measure_network

    if output is not None:
        require("h5py", "bench")
    networks = read_batches(network, list(batches) or None, shapes)
    bundle = _bundle(against, framework) if against is not None else None
    device = backend(framework, **({} if threads is None else {"threads": threads}))
    # What cannot be compared is refused before minutes of measuring.
    predictions = [
        None if bundle is None else layers_alone(each, bundle, threads=device.setting().threads)
        for each in networks
    ]
    documents: list[dict[str, Any]] = []
    try:
        for each, prediction in zip(networks, predictions, strict=True):
            with (
                bar_of_steps("layers") as progress,
                reference_monitor(device, bundle=bundle) as monitor,
            ):
                measured = measure_network(
                    network,
                    device,
                    batch=each.batch if batches else None,
                    shapes=shapes,
                    seconds=seconds,
                    layers=not no_layers,
                    monitor=monitor,
                    progress=progress,
                )
            document = measured.to_json()
            if output is not None:
                append_runs(output, [(network, measured)])
            if prediction is None:
                text = network_text(measured, every=every)
            else:
                document["predicted"] = prediction.to_json()
                text = side_by_side_text(prediction, measured, every=every)
            if not as_json:
                print("\n" * bool(documents) + text, flush=True)
            documents.append(document)
    finally:
        # A batch that cannot be measured takes nothing from those that were.
        if as_json and documents:
            print(json_text(documents if len(batches) > 1 else documents[0]))


def _bundle(against: str, framework: str) -> Bundle:
    """Find a bundle by its folder or its device's name."""
    from resperf.bundle import Bundle, find_bundle

    path = Path(against)
    bundle = Bundle.load(path) if path.exists() else find_bundle(against, framework)
    if bundle.framework != framework:
        raise ResperfError(
            f"{against} is a bundle for {bundle.framework}, not for {framework}; "
            f"measure with --framework {bundle.framework}"
        )
    return bundle
