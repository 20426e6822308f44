"""`resperf calibrate`."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli._options import (
    DEVICE,
    FRAMEWORK,
    JSON,
    PATH,
    BatchCommand,
    output,
    paths,
    positive_integers,
    seconds,
    show_json,
    show_notes,
)
from resperf.cli._sections import HOW, WHAT, option
from resperf.errors import OutputError

if TYPE_CHECKING:
    from resperf.bundle import Bundle, Calibration, Correction

BATCHES = ("1", "8")


@click.command(
    cls=BatchCommand,
    epilog="\b\nExamples:\n  resperf calibrate mine -o mine_calibrated --batch 1 8\n"
    "  resperf calibrate cpu-onnxruntime-xeon --adapt -o mine\n"
    "  resperf calibrate --device rtx4090 --runs runs.h5 -o my4090",
)
@click.argument("bundle", metavar="[BUNDLE]", required=False)
@DEVICE
@FRAMEWORK
@option(
    "--runs",
    section=WHAT,
    type=PATH,
    metavar="RUNS.h5",
    help="Measure nothing: learn from these runs of networks, of any machine (`resperf dataset "
    "import runs.csv --format list` makes the file). Of a device without a bundle, what else "
    "answers for it is calibrated.",
)
@paths(
    "--networks",
    text="ONNX file or folder of them, by default the shipped reference networks",
)
@paths(
    "--exclude",
    "excluded",
    text="Leave out this network, or all in this folder, such as networks that will test the "
    "bundle",
)
@option(
    "--batch",
    "batches",
    section=WHAT,
    multiple=True,
    default=BATCHES,
    show_default=True,
    callback=positive_integers,
    metavar="N ...",
    help="Batch sizes at which each network is run.",
)
@seconds(3.0, "Measuring time for each network and batch size.")
@option(
    "--turns",
    section=HOW,
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Measure the networks in so many turns over all, which share the seconds; medians count. "
    "Three make intervals narrower on a host whose speed changes; slow networks take longer.",
)
@output(
    "BUNDLE",
    "Folder to write. By default BUNDLE itself, if it is given as a folder or is one of your "
    "own bundles; else, and with --runs, DEVICE-FRAMEWORK among your own bundles.",
)
@option(
    "--adapt",
    section=HOW,
    is_flag=True,
    help="Transfer the bundle of another machine to this one, without measuring layers.",
)
@JSON
def command(
    bundle: str | None,
    device: str | None,
    framework: str | None,
    runs: Path | None,
    networks: tuple[Path, ...],
    excluded: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure whole networks and fit in-network corrections to a bundle.

    They say how much longer or shorter layers take inside networks than in isolation. Run it on
    the machine that BUNDLE (a folder, a name or a device) was measured on; nothing else should run
    there. With --adapt, run it on another machine: the new bundle predicts that machine.
    With --runs nothing is measured: your own times of networks correct BUNDLE for their device.
    """
    if runs is not None:
        _by_runs(bundle, device, framework, runs, output, as_json)
        return
    from resperf.bundle import find_bundle
    from resperf.campaign.harvest import shipped_networks
    from resperf.network.files import network_files
    from resperf.workflows.calibrate import calibrate

    chosen = find_bundle(device, framework, bundle)
    paths = network_files(networks) if networks else shipped_networks(["*"])
    paths, left_out = _without_excluded(paths, network_files(excluded))
    target = output or _default_output(bundle or device, chosen)
    made, notes = calibrate(chosen, paths, target, progress=True, **how)
    notes = [*left_out, *notes]
    assert made.correction is not None
    if as_json:
        values = {"path": str(made.path), "notes": notes, **made.correction.to_json()}
        if made.transferred is not None:
            values["transferred_calibration"] = made.transferred.to_json()
        show_json(values)
        return
    print(_text(made.correction))
    if made.transferred is not None:
        probed = made.transferred.adaptation
        scaled = (
            f"multiplied by {made.transferred.factor:.2f}"
            if probed is None
            else f"scaled by {probed.probes} probe layers here"
        )
        print(f"layer times of {made.transferred.origin.machine}, {scaled}")
    show_notes(notes)
    print(f"{made.path}: predictions of networks now include this correction")


def _by_runs(
    word: str | None,
    device: str | None,
    framework: str | None,
    runs: Path,
    output: Path | None,
    as_json: bool,
) -> None:
    """Calibrate a bundle, or what answers for a device, by a user's runs."""
    from resperf.bundle import default_folder
    from resperf.prediction.choice import Query
    from resperf.prediction.offers import accelerator
    from resperf.report.tables import counted
    from resperf.workflows.calibrate_runs import calibrate_by_runs

    if device is None and accelerator(word) is not None:
        word, device = None, word

    def chosen_output(found: Bundle) -> Path:
        folder = output or default_folder(found.setting, found.platform)
        if output is None and folder.exists():
            raise OutputError(f"{folder} exists; choose a folder with -o")
        return folder

    made, calibration, notes = calibrate_by_runs(
        Query(device, framework, word), runs, chosen_output
    )
    if as_json:
        show_json({"path": str(made.path), "notes": notes, **calibration.to_json()})
        return
    print(_text_of_runs(calibration))
    show_notes(notes)
    print(
        f"{made.path}: predictions for {calibration.device} are now calibrated with "
        f"{counted(calibration.networks, 'network')}"
    )


def _default_output(word: str | None, bundle: Bundle) -> Path:
    """Return the folder to write; a shipped bundle is replaced only if its folder is named.

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
        raise OutputError(
            f"{folder} exists and is another bundle than {bundle.path}; choose a folder with -o"
        )
    return folder


def _without_excluded(
    paths: Sequence[Path], excluded: Sequence[Path]
) -> tuple[list[Path], list[str]]:
    """Return paths without the excluded ones and their copies, and one note for each copy."""
    own = {path.resolve() for path in excluded}
    remaining, notes = [], []
    for path in paths:
        if path.resolve() in own:
            continue
        twin = next((each for each in excluded if _is_same(path, each)), None)
        if twin is None:
            remaining.append(path)
        else:
            notes.append(
                f"{path} is left out: it may be the same network as {twin}, which is excluded"
            )
    return remaining, notes


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two files have the same name or the same content."""
    if one.stem == other.stem:
        return True
    return one.stat().st_size == other.stat().st_size and filecmp.cmp(one, other, shallow=False)


def _text_of_runs(calibration: Calibration) -> str:
    """Say how much longer the runs took than the bundle says, and how sure that is."""
    from resperf.report.tables import counted, percent_cell, table

    learnt = calibration.correction
    rows = [[group, f"{factor:.2f}"] for group, factor in learnt.factors.items()]
    rows.append(["all others", f"{learnt.others:.2f}"])
    errors = learnt.evidence["mape"]
    left_out = ""
    if calibration.networks > 1:
        left_out = f", {percent_cell(errors['left_out'])} for networks left out of the fit"
    return (
        f"{table(('layers', 'in the runs / predicted before'), rows, text=('layers',))}\n"
        f"{counted(len(learnt.evidence['networks']), 'run')} of "
        f"{counted(calibration.networks, 'network')} ({calibration.quantity}): mean error "
        f"{percent_cell(errors['alone'])} before{left_out}; "
        f"90% interval within a factor of {math.exp(learnt.log_width):.2f}"
    )


def _text(learnt: Correction) -> str:
    from resperf.report.tables import percent_cell, table

    rows = [[kind, f"{factor:.2f}"] for kind, factor in learnt.factors.items()]
    errors = learnt.evidence["mape"]
    count = len(learnt.evidence["networks"])
    factors = table(("kind", "in networks / in isolation"), rows, text=("kind",))
    return (
        f"{factors}\n"
        f"inter-layer overhead: {1e3 * learnt.node_ms:.2f} us per layer, "
        f"{learnt.handover_ms_per_mb:.4f} ms per MB passed between layers\n"
        f"{count} runs: mean error {percent_cell(errors['alone'])} without the correction, "
        f"{percent_cell(errors['left_out'])} with it, for networks left out of the fit"
    )
