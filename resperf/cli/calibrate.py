"""`resperf calibrate`: by calibration layers, by networks, or by a user's own runs."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resperf.cli import _options as options
from resperf.cli._sections import HOW, WHAT, Command, option
from resperf.errors import OutputError
from resperf.report.tables import counted, percent_cell, table

if TYPE_CHECKING:
    from resperf.bundle import Bundle, Calibration

BATCHES = ("1", "8")
LAYERS_S, NETWORK_S = 60.0, 3.0
"""Usual measuring time of all calibration layers, and of a network at a batch size."""
LONGER_S = 300
"""Time that is worth it on a shared host."""
REFERENCE = Path("reference")
"""Word for the shipped networks."""


@click.command(
    cls=Command,
    epilog="\b\nFrom nothing to a night:\n"
    "  predict                    as on the bundle's machine\n"
    "  calibrate                  a minute: how fast this machine is\n"
    f"  calibrate --seconds {LONGER_S}    five minutes: better on a shared host\n"
    "  calibrate --networks P     five to ten: whole networks, their costs and intervals\n"
    "  bench, train, calibrate    a night: a bundle of this machine\n\n"
    "\b\nExamples:\n"
    "  resperf calibrate\n"
    "  resperf calibrate cpu-onnxruntime-xeon --seconds 300\n"
    "  resperf calibrate mine --networks reference -o mine_calibrated --batch 1 8\n"
    "  resperf calibrate --device rtx4090 --runs runs.h5 -o my4090",
)
@click.argument("bundle", metavar="[BUNDLE]", required=False)
@options.DEVICE
@options.FRAMEWORK
@option(
    "--runs",
    section=WHAT,
    type=options.PATH,
    metavar="RUNS.h5",
    help="Measure nothing: learn from these runs of networks, of any machine (`resperf dataset "
    "import runs.csv --format list` makes the file). Of a device without a bundle, what else "
    "answers for it is calibrated.",
)
@options.paths(
    "--networks",
    text="Measure these networks here: ONNX file or folder of them, or `reference`, those that are "
    "shipped",
)
@options.paths(
    "--exclude",
    "excluded",
    text="Leave out this network, or all in this folder, such as networks that will test the "
    "bundle",
)
@options.numbers(
    "--batch",
    "batches",
    section=HOW,
    default=BATCHES,
    show_default=True,
    help="Batch sizes at which each network is run.",
)
@options.seconds(
    None,
    f"Time for the calibration layers, by default {LAYERS_S:.0f}: three rounds over them a minute, "
    f"medians count. With --networks: for each network and batch size, by default {NETWORK_S:.0f}.",
)
@option(
    "--forget", section=HOW, is_flag=True, help="Measure nothing: predict as before `calibrate`."
)
@options.output(
    "BUNDLE",
    "Write the bundle with what was learnt. Without networks and runs it is kept for predictions "
    "on this machine in any case. With them, BUNDLE itself is written by default if it is given as "
    "a folder or is one of your own; else DEVICE-FRAMEWORK among your own bundles, if there is "
    "none yet.",
)
@options.JSON
def command(
    bundle: str | None,
    device: str | None,
    framework: str | None,
    runs: Path | None,
    networks: tuple[Path, ...],
    excluded: tuple[Path, ...],
    batches: tuple[int, ...],
    seconds: float | None,
    forget: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Scale a bundle to this machine in a minute, or correct it by networks or your own runs.

    By default 64 calibration layers are timed here; what they take on the bundle's machine gives
    factors for computing, copies, memory, caches and what every layer costs, which `predict` uses
    from then on. Nothing else should run meanwhile. Up to six runs are joined, by medians: on a
    shared host, hours apart, they say more than one. Runs in which the machine changed its speed
    count only as long as there is no steady one.

    With --networks whole networks are measured as well: how much longer or shorter layers take
    inside networks. On another machine than the bundle's the new bundle predicts this one.

    With --runs nothing is measured: your own times of networks correct BUNDLE for their device.
    """
    if forget and (output is not None or networks or runs is not None):
        raise click.UsageError("--forget only deletes; leave out -o, --networks and --runs")
    if networks and runs is not None:
        raise click.UsageError("give --networks, to be measured here, or --runs, not both")
    if runs is not None:
        _by_runs(bundle, device, framework, runs, output, as_json)
        return
    from resperf.prediction.choice import Query, choose

    chosen = choose(Query(device, framework, bundle)).bundle
    if forget:
        _forget(chosen, as_json)
    elif networks:
        target = output or _default_output(bundle or device, chosen)
        _by_networks(chosen, networks, excluded, batches, seconds or NETWORK_S, target, as_json)
    else:
        _by_layers(chosen, seconds or LAYERS_S, output, as_json)


def _by_layers(bundle: Bundle, seconds: float, output: Path | None, as_json: bool) -> None:
    """Scale a bundle by calibration layers; on its own machine, -o stores their times in it."""
    from resperf.workflows.calibrate_layers import calibrate_by_layers

    with options.bar_of_steps("calibration layers") as progress:
        calibrated, calibration, path = calibrate_by_layers(
            bundle, output, seconds=seconds, progress=progress
        )
    if calibration.is_reference:
        times_ms = calibration.times[-1].times_ms
        text = f"{path}: holds the times of {len(times_ms)} calibration layers on its own machine"
        options.show(as_json, {"path": str(path), "reference_times_ms": times_ms}, text)
        return
    lines = [
        _text_of_layers(bundle, calibration),
        f"{path}: predictions by {bundle.path.name} on this machine now use this",
    ]
    if output is not None:
        lines.append(f"{calibrated.path}: its predictions on similar machines begin with this")
    notes = [*calibration.remarks]
    if notes and seconds < LONGER_S:
        notes.append(f"a longer time averages out what lasts minutes: --seconds {LONGER_S}")
    values = {"path": str(path), "bundle": str(bundle.path), **calibration.summary()}
    options.show(as_json, values, "\n".join(lines), notes)


def _by_networks(
    bundle: Bundle,
    networks: Sequence[Path],
    excluded: Sequence[Path],
    batches: Sequence[int],
    seconds: float,
    target: Path,
    as_json: bool,
) -> None:
    """Measure networks here, and write a bundle that is corrected by them."""
    from resperf.campaign.networks import shipped_networks
    from resperf.network.files import network_files
    from resperf.workflows.calibrate_networks import calibrate

    shipped = shipped_networks(["*"]) if REFERENCE in networks else []
    paths = [*shipped, *network_files([path for path in networks if path != REFERENCE])]
    paths, left_out = _without_excluded(paths, network_files(excluded))
    calibrated, notes = calibrate(bundle, paths, target, batches=batches, seconds=seconds)
    notes = [*left_out, *notes]
    learnt, scaled = calibrated.network_calibrations[-1], calibrated.layer_calibrations
    values = {"path": str(calibrated.path), "notes": notes, **learnt.to_json()}
    lines = [_text_of_networks(learnt)]
    for layers in scaled:
        values["layers"] = layers.to_json()
        how = f"scaled by {layers.count} calibration layers here"
        if layers.speeds is None:
            how = f"multiplied by {layers.others:.2f}"
        lines.append(f"layer times of {calibrated.origin.machine}, {how}")
    lines.append(f"{calibrated.path}: predictions of networks now include this correction")
    options.show(as_json, values, "\n".join(lines), notes)


def _by_runs(
    word: str | None,
    device: str | None,
    framework: str | None,
    runs: Path,
    output: Path | None,
    as_json: bool,
) -> None:
    """Calibrate a bundle, or what answers for a device, by a user's runs."""
    from resperf.prediction.choice import Query
    from resperf.prediction.offers import accelerator
    from resperf.workflows.calibrate_runs import calibrate_by_runs

    if device is None and accelerator(word) is not None:
        word, device = None, word

    def chosen_output(bundle: Bundle) -> Path:
        return output or _default_output(word or device, bundle)

    calibrated, calibration, notes = calibrate_by_runs(
        Query(device, framework, word), runs, chosen_output
    )
    values = {"path": str(calibrated.path), "networks": calibration.count, "notes": notes}
    text = (
        f"{_text_of_runs(calibration)}\n"
        f"{calibrated.path}: predictions for {calibrated.device} are now calibrated with "
        f"{counted(calibration.count, 'network')}"
    )
    options.show(as_json, {**values, **calibration.to_json()}, text, notes)


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
    """Return paths without the excluded ones and their copies, and one note for each copy.

    Of a copy, the name or the content is the same.
    """
    own = {path.resolve() for path in excluded}
    remaining, notes = [], []
    for path in paths:
        if path.resolve() in own:
            continue
        twin = next(
            (x for x in excluded if x.stem == path.stem or filecmp.cmp(x, path, shallow=False)),
            None,
        )
        if twin is None:
            remaining.append(path)
        else:
            notes.append(
                f"{path} is left out: it may be the same network as {twin}, which is excluded"
            )
    return remaining, notes


def _text_of_runs(calibration: Calibration) -> str:
    """Say how much longer the runs took than the bundle says, and how sure that is."""
    rows = [[group, f"{factor:.2f}"] for group, factor in calibration.factors.items()]
    rows.append(["all others", f"{calibration.others:.2f}"])
    errors = calibration.evidence["mape"]
    left_out = ""
    if calibration.count > 1:
        left_out = f", {percent_cell(errors['left_out'])} for networks left out of the fit"
    return (
        f"{table(('layers', 'in the runs / predicted before'), rows, text=('layers',))}\n"
        f"{counted(len(calibration.evidence['networks']), 'run')} of "
        f"{counted(calibration.count, 'network')} ({calibration.quantity}): mean error "
        f"{percent_cell(errors['alone'])} before{left_out}; "
        f"90% interval within a factor of {math.exp(calibration.log_width):.2f}"
    )


def _text_of_networks(learnt: Calibration) -> str:
    from resperf.bundle import OVERHEAD_PER_LAYER, OVERHEAD_PER_MB

    rows = [[kind, f"{factor:.2f}"] for kind, factor in learnt.factors.items()]
    errors = learnt.evidence["mape"]
    count = len(learnt.evidence["networks"])
    factors = table(("kind", "in networks / in isolation"), rows, text=("kind",))
    return (
        f"{factors}\n"
        f"overhead between layers: {1e3 * learnt.costs[OVERHEAD_PER_LAYER]:.2f} us per layer, "
        f"{learnt.costs[OVERHEAD_PER_MB]:.4f} ms per MB passed between layers\n"
        f"{count} runs: mean error {percent_cell(errors['alone'])} without the correction, "
        f"{percent_cell(errors['left_out'])} with it, for networks left out of the fit"
    )


def _forget(bundle: Bundle, as_json: bool) -> None:
    from resperf.bundle import calibration_file
    from resperf.platform import this_platform
    from resperf.prediction.calibrated import calibrated_here

    path = calibration_file(bundle, this_platform(bundle.platform.device))
    existed = path.exists()
    path.unlink(missing_ok=True)
    what = "was forgotten" if existed else "was not calibrated for this machine"
    where = calibrated_here(bundle).platform.machine
    text = f"{bundle.path.name}: {what}; its times are those of {where}"
    options.show(as_json, {"path": str(path), "forgotten": existed}, text)


def _text_of_layers(bundle: Bundle, calibration: Calibration) -> str:
    from resperf.bundle import counting

    rows = [
        [group, f"{calibration.factor(group):.2f}", f"{math.exp(ci):.2f}"]
        for group, ci in calibration.factor_ci.items()
    ]
    factors = table(("group", "here / there", "within a factor of"), rows, text=("group",))
    there = "measured there, as far as it holds them"
    if calibration.predicted_reference:
        there = "its own predictions (fallback)"
    single = math.exp(calibration.log_width)
    used = counting(calibration.times)
    joined = ""
    if len(calibration.times) > 1:
        named = ", ".join(run.at for run in used)
        joined = f"\nmedians of {len(used)} of {len(calibration.times)} runs count: {named}"
        if len(used) < len(calibration.times):
            joined += "; in the others the machine changed its speed"
        joined += " (start anew: --forget)"
    return (
        f"{calibration.platform.machine} here, {bundle.machine} there\n{factors}\n"
        f"{calibration.count} calibration layers, times on the bundle's machine: {there}; nine of "
        f"ten left out of the fit are within a factor of {single:.2f}; rounds over them differ by "
        f"{math.expm1(calibration.drift):z.0%}{joined}"
    )
