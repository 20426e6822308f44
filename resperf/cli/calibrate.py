"""`resperf calibrate`."""

from __future__ import annotations

import filecmp
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resperf.cli._options import (
    DEVICE,
    FRAMEWORK,
    JSON,
    BatchCommand,
    whole_numbers,
)
from resperf.errors import OutputError

if TYPE_CHECKING:
    from resperf.bundle import Bundle, Correction

_PATH = click.Path(path_type=Path)
BATCHES = ("1", "8")


@click.command(
    cls=BatchCommand,
    epilog="\b\nExamples:\n  resperf calibrate mine -o mine_calibrated --batch 1 8\n"
    "  resperf calibrate cpu-onnxruntime-xeon --adapt -o mine",
)
@click.argument("bundle", metavar="[BUNDLE]", required=False)
@DEVICE
@FRAMEWORK
@click.option(
    "--networks",
    multiple=True,
    type=_PATH,
    metavar="PATH",
    help="ONNX file or folder of them (repeatable); the shipped reference networks by default.",
)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Leave this network out, or all of this folder (repeatable), such as those that judge "
    "the bundle later.",
)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    default=BATCHES,
    show_default=True,
    callback=whole_numbers,
    metavar="N ...",
    help="First dimension of the networks' inputs.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="S",
    help="For each network and batch size.",
)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    metavar="BUNDLE",
    help="Folder to write; by default that of BUNDLE where it is a folder or one of your own "
    "bundles, else DEVICE-FRAMEWORK among these.",
)
@click.option(
    "--adapt",
    is_flag=True,
    help="Carry a bundle of another machine over to this one, without measuring layers.",
)
@JSON
def command(
    bundle: str | None,
    device: str | None,
    framework: str | None,
    networks: tuple[Path, ...],
    excluded: tuple[Path, ...],
    batches: tuple[int, ...],
    seconds: float,
    output: Path | None,
    adapt: bool,
    as_json: bool,
) -> None:
    """Measure whole networks and learn what layers cost inside them, beyond their time alone.

    Must run on the machine that BUNDLE (a folder, a name or a device) was measured on, which
    otherwise should be idle; or, with --adapt, on another machine, whose bundle it then becomes.
    """
    from resperf.campaign.harvest import shipped_networks
    from resperf.network.files import network_files
    from resperf.prediction.api import chosen_bundle
    from resperf.report.documents import json_text
    from resperf.workflows.calibrate import calibrate

    chosen = chosen_bundle(device, framework, bundle)
    paths = network_files(networks) if networks else shipped_networks(["*"])
    paths, left_out = _apart(paths, network_files(excluded))
    made, notes = calibrate(
        chosen, paths, output or _default_output(bundle or device, chosen),
        batches=batches, seconds=seconds, adapt=adapt, progress=True,
    )  # fmt: skip
    notes = [*left_out, *notes]
    assert made.correction is not None
    if as_json:
        origin = None if made.transferred is None else made.transferred.to_json()
        values = {**made.correction.to_json()}
        if origin is not None:
            values["transferred_calibration"] = origin
        print(json_text({"path": str(made.path), "notes": notes, **values}))
        return
    print(_text(made.correction))
    if made.transferred is not None:
        print(
            f"layers as measured on {made.transferred.origin.machine}, "
            f"{made.transferred.factor:.2f} times as long"
        )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{made.path}: predictions of networks contain this from now on")


def _default_output(word: str | None, bundle: Bundle) -> Path:
    """Return where a bundle is written: shipped ones stay as they are, unless told by folder.

    Raises
    ------
    OutputError
        If another bundle is there.
    """
    from resperf.bundle import default_folder, user_folder

    named_by_folder = word is not None and Path(word).is_dir()
    if named_by_folder or bundle.path.parent == user_folder().resolve():
        return bundle.path
    folder = default_folder(bundle.setting, bundle.platform)
    if folder.exists():
        raise OutputError(f"{folder} is another bundle than {bundle.path}; name a folder (-o)")
    return folder


def _apart(paths: Sequence[Path], excluded: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Leave out what is excluded; say so of files that only have its name or its content."""
    own = {path.resolve() for path in excluded}
    kept, notes = [], []
    for path in paths:
        if path.resolve() in own:
            continue
        twin = next((each for each in excluded if _is_same(path, each)), None)
        if twin is None:
            kept.append(path)
        else:
            notes.append(f"{path} is left out: {twin}, which is excluded, may be the same network")
    return kept, notes


def _is_same(one: Path, other: Path) -> bool:
    """Whether two files have the same name or the same content."""
    if one.stem == other.stem:
        return True
    return one.stat().st_size == other.stat().st_size and filecmp.cmp(one, other, shallow=False)


def _text(learnt: Correction) -> str:
    from resperf.report.tables import Column, percent_cell, table

    rows = [[kind, f"{factor:.2f}"] for kind, factor in learnt.factors.items()]
    errors = learnt.evidence["mape"]
    count = len(learnt.evidence["networks"])
    columns = (Column("kind"), Column("inside networks / alone", right=True))
    return (
        f"{table(columns, rows)}\n"
        f"{1e3 * learnt.node_ms:.2f} us for each layer, {learnt.handover_ms_per_mb:.4f} ms for "
        f"each MB handed over\n"
        f"{count} runs: mean error {percent_cell(errors['alone'])} with times alone, "
        f"{percent_cell(errors['left_out'])} for networks left out of the fit"
    )
