"""`resperf measure`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import WHAT, Command, option
from resperf.errors import require

if TYPE_CHECKING:
    from resperf.workflows.measure import MeasuredNetwork


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf measure vgg16 --device cpu --batch 1 8\n"
    "  resperf measure vgg16 --json > run.json  "
    "(beside a prediction: resperf compare run.json vgg16 --device cpu)",
)
@options.NETWORK
@options.DEVICE
@options.FRAMEWORK
@options.run_options
@options.BATCH
@options.SHAPE
@options.VALUE
@options.seconds(6.0, "Time for whole runs; each distinct layer takes about 0.3 s more.")
@options.output("RUNS.h5|html", "Dataset to add the whole runs to, or a page for a browser.")
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
    from resperf.prediction.choice import named_target
    from resperf.prediction.reading import read
    from resperf.report.network import batches_text, network_text
    from resperf.workflows.measure import append_runs, measure_network, reference_monitor

    is_page = output is not None and output.suffix == ".html"
    page, output = (output, None) if is_page else (None, output)
    if output is not None:
        require("h5py", "bench")
        from resperf.dataset import refuse_to_append
    network = network_file(network)
    networks = read(network, list(batches) or None, shapes, values=values)
    target = named_target(device, framework)
    started = backend(target.framework, target.device_class, **options.run_settings(device, **how))
    # Refuse what cannot be written before measuring for minutes.
    if output is not None:
        refuse_to_append(output, started.setting(), started.platform())
    done: list[MeasuredNetwork] = []
    try:
        for graph in networks:
            with options.bar_of_steps("layers") as progress, reference_monitor(started) as monitor:
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
            if output is not None:
                append_runs(output, [(network, measured)])
            if not as_json:
                print("\n" * bool(done) + network_text(measured, every=every), flush=True)
            done.append(measured)
        if len(done) > 1 and not as_json:
            print(f"\n{batches_text(done)}")
    finally:
        # Batches that were measured are printed even if another one fails.
        if as_json and done:
            print(options.json_of([measured.to_json() for measured in done]))
        if page and done:
            options.write_page(page, [measured.to_json() for measured in done])
