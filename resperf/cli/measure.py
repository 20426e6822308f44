"""`resperf measure`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import OUTPUT, WHAT, Command, option
from resperf.errors import require

if TYPE_CHECKING:
    from resperf.workflows.measure import MeasuredNetwork


@click.command(
    cls=Command,
    epilog="Example: resperf measure vgg16 --device cpu --batch 1 8 --against cpu-onnxruntime",
)
@options.NETWORK
@options.DEVICE
@options.FRAMEWORK
@options.run_options
@options.BATCH
@options.SHAPE
@options.VALUE
@option(
    "--against",
    section=OUTPUT,
    metavar="B",
    help="Bundle (name, folder or device) whose prediction is shown beside the measurement.",
)
@options.seconds(6.0, "Time for whole runs; each distinct layer takes about 0.3 s more.")
@options.output("RUNS.h5", "Dataset to which the whole runs are added; created if missing.")
@option("--no-layers", section=WHAT, is_flag=True, help="Measure the whole network only.")
@options.ALL
@options.JSON
def command(
    network: Path,
    device: str | None,
    framework: str | None,
    batches: tuple[int, ...],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, tuple[float, ...]],
    against: str | None,
    seconds: float,
    output: Path | None,
    no_layers: bool,
    every: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Run a network on this machine and report it in the format of `predict`.

    The phases are medians over whole runs. A reference layer detects changes of the machine's
    speed. Each distinct layer is then measured in isolation. Missing weights are generated.
    """
    from resperf.backends import backend
    from resperf.network.files import network_file
    from resperf.prediction import layers_alone
    from resperf.prediction.calibrated import calibrated_here
    from resperf.prediction.choice import Query, choose, named_target
    from resperf.prediction.reading import read
    from resperf.report.network import batches_text, network_text
    from resperf.report.side_by_side import side_by_side_text
    from resperf.workflows.measure import (
        append_runs,
        measure_network,
        reference_monitor,
        with_speed_warning,
    )

    if output is not None:
        require("h5py", "bench")
        from resperf.dataset import refuse_to_append
    network = network_file(network)
    networks = read(network, list(batches) or None, shapes, values=values)
    target = named_target(device, framework)
    bundle = None
    if against is not None:
        bundle = calibrated_here(choose(Query(None, target.framework, against)).bundle)
    started = backend(target.framework, target.device_class, **options.run_settings(device, **how))
    # Refuse what cannot be compared or written before measuring for minutes.
    if output is not None:
        refuse_to_append(output, started.setting(), started.platform())
    predictions = [
        None if bundle is None else layers_alone(graph, bundle, threads=started.setting().threads)
        for graph in networks
    ]
    documents: list[dict[str, Any]] = []
    done: list[MeasuredNetwork] = []
    try:
        for graph, prediction in zip(networks, predictions, strict=True):
            with (
                options.bar_of_steps("layers") as progress,
                reference_monitor(started, bundle=bundle) as monitor,
            ):
                measured = measure_network(
                    network,
                    started,
                    batch=graph.batch if batches else None,
                    shapes=shapes,
                    values=values,
                    seconds=seconds,
                    layers=not no_layers,
                    monitor=monitor,
                    progress=progress,
                )
                if bundle is not None:
                    measured = with_speed_warning(measured, started, monitor, bundle)
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
            done.append(measured)
        if len(done) > 1 and not as_json:
            print(f"\n{batches_text(done)}")
    finally:
        # Batches that were measured are printed even if another one fails.
        if as_json and documents:
            options.show_json(documents)
