"""`resperf train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option
from resperf.predictors import DEFAULT_METHOD, METHODS
from resperf.quantities import QUANTITIES
from resperf.report.tables import percent_cell, table
from resperf.units import format_bytes

if TYPE_CHECKING:
    from resperf.bundle import Bundle


@click.command(
    cls=Command,
    epilog="Example: resperf train datasets/demo.h5 -o cpu-onnxruntime --exclude vgg16.onnx",
)
@options.DATASET
@options.output(
    "BUNDLE",
    "Folder to write. By default DEVICE-FRAMEWORK (and the threads, if fewer than all cores) "
    "among the bundles that `resperf predict` finds; needed for several devices.",
)
@option(
    "--method",
    section=COMMON,
    default=DEFAULT_METHOD,
    show_default=True,
    metavar="M",
    help=f"{', '.join(METHODS)}.",
)
@options.SEED
@options.paths(
    "--exclude",
    "networks",
    text="Exclude the layers of this network, or of all in this folder, from training, at any "
    "batch size",
)
@options.JSON
def command(
    file: Path,
    output: Path | None,
    method: str,
    seed: int,
    networks: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Train predictors on the measured layers of FILE.h5 and write them as a bundle.

    Rows are split by layer: 80% for training, 10% for validation (choosing the best epoch), 10% for
    testing (read by evaluation only). The same seed gives the same bundle.

    A merged FILE.h5 may have rows of several devices, which roofline learns together; other methods
    learn the device of most rows.
    """
    from resperf.network.files import network_files
    from resperf.training import keys_of_networks, progress_bar, train

    started = time.monotonic()
    target = output or _default_output(file)
    excluded = keys_of_networks([file], network_files(networks))
    with progress_bar() as progress:
        bundle = train(
            file, target, method=method, seed=seed, exclude_keys=excluded,
            excluded=[path.name for path in networks], progress=progress,
        )  # fmt: skip
    seconds = time.monotonic() - started
    training = bundle.part["training"]
    document = {
        "path": str(bundle.path),
        "device": bundle.device,
        "framework": bundle.framework,
        "method": bundle.method,
        "created": bundle.created,
        "seed": training["seed"],
        "rows": training["rows"],
        "errors": bundle.errors,
        "notes": training["notes"],
        "size_bytes": bundle.size_bytes,
        "seconds": round(seconds, 3),
    }
    text = (
        f"{_table(bundle)}\n"
        f"{bundle.path}: {bundle.device}, {bundle.framework}, {bundle.method}, "
        f"{format_bytes(bundle.size_bytes)}, trained in {seconds:.0f} s\n"
        f"next: resperf evaluate {file} --bundle {bundle.path}"
    )
    options.show(as_json, document, text, training["notes"])


def _default_output(file: Path) -> Path:
    from resperf.bundle import default_folder
    from resperf.dataset import read_info, read_platforms
    from resperf.errors import TrainingError

    info = read_info(file)
    devices = dict.fromkeys(platform.device for platform in read_platforms(file))
    if len(devices) > 1:
        raise TrainingError(
            f"{file} has rows of {', '.join(devices)}: name the folder of their bundle with -o"
        )
    return default_folder(info.setting, info.platform)


def _table(bundle: Bundle) -> str:
    from resperf.bundle import NETWORK

    rows_of = bundle.part["training"]["rows"]
    lines = []
    for kind in (*bundle.kinds, NETWORK):
        for quantity in QUANTITIES:
            validation = bundle.errors["validation"].get(kind, {}).get(quantity)
            test = bundle.errors["test"].get(kind, {}).get(quantity)
            if validation is None and test is None:
                continue
            errors = [
                percent_cell(scores["mape"]) if scores else "-" for scores in (validation, test)
            ]
            method = bundle.method_of(kind, quantity)
            rows = rows_of[kind][quantity] if kind == NETWORK else rows_of[kind]
            lines.append([kind, quantity, method, str(rows["train"]), *errors])
    names = ("kind", "quantity", "method")
    return table((*names, "training rows", "validation MAPE", "test MAPE"), lines, text=names)
