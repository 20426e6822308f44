"""`resperf adapt`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resperf.cli._options import (
    DEVICE,
    FRAMEWORK,
    JSON,
    bar_of_steps,
    output,
    seconds,
    show_json,
    show_notes,
)
from resperf.cli._sections import HOW, Command, option

if TYPE_CHECKING:
    from resperf.bundle import Adaptation, Bundle

LONGER_S = 300
"""Time that is worth it on a shared host."""


@click.command(
    cls=Command,
    epilog="\b\nFrom nothing to a night:\n"
    "  predict                  as on the bundle's machine\n"
    "  adapt                    a minute: how fast this machine is\n"
    f"  adapt --seconds {LONGER_S}      five minutes: better where other programs share the host\n"
    "  calibrate --adapt        five to ten: whole networks, their costs and intervals\n"
    "  bench, train, calibrate  a night: a bundle of this machine\n\n"
    "\b\nExamples:\n  resperf adapt\n  resperf adapt cpu-onnxruntime-xeon --seconds 300\n"
    "  resperf adapt mine --probe-times -o mine",
)
@click.argument("bundle", metavar="[BUNDLE]", required=False)
@DEVICE
@FRAMEWORK
@seconds(60.0, "Time for all of it; three turns over the layers a minute, medians count.")
@option(
    "--forget", section=HOW, is_flag=True, help="Measure nothing: predict as before this command."
)
@option(
    "--probe-times",
    section=HOW,
    is_flag=True,
    help="On the bundle's own machine: write the probes' times into it (-o), to be compared with "
    "on others.",
)
@output(
    "BUNDLE",
    "Write the bundle with this machine's factors added; predictions on similar machines use "
    "them until `adapt` is run there. With --probe-times: with the probes' times instead.",
)
@JSON
def command(
    bundle: str | None,
    device: str | None,
    framework: str | None,
    seconds: float,
    forget: bool,
    probe_times: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Scale what a bundle of another machine says to this one, by a minute of measuring.

    Times 51 layers here; what they take on the bundle's machine gives factors for
    computing, copies, memory, caches and what every node costs. `predict` uses them from then on,
    and says so. Nothing else should run meanwhile. Up to six runs are joined, by medians: on a
    shared host, hours apart, they say more than one.
    """
    if probe_times and output is None:
        raise click.UsageError("--probe-times needs -o BUNDLE, the folder to write")
    if forget and output is not None:
        raise click.UsageError("--forget writes nothing; leave out -o")
    from resperf.bundle import find_bundle

    chosen = find_bundle(device, framework, bundle)
    if forget:
        _forget(chosen, as_json)
        return
    from resperf.workflows.adapt import adapt, with_probe_times, with_this_machine

    with bar_of_steps("probes") as progress:
        if output is not None and probe_times:
            made = with_probe_times(chosen, output, seconds=seconds, progress=progress)
            path, probes = made.path, made.part["probes"]
        elif output is not None:
            made, adaptation, path = with_this_machine(
                chosen, output, seconds=seconds, progress=progress
            )
        else:
            adaptation, path = adapt(chosen, seconds=seconds, progress=progress)
    if probe_times:
        if as_json:
            show_json({"path": str(path), "probes": probes})
        else:
            print(f"{path}: holds the times of {len(probes)} probes")
        return
    if as_json:
        show_json({"path": str(path), "bundle": str(chosen.path), **adaptation.summary()})
        return
    print(_text(chosen, adaptation))
    show_notes(adaptation.remarks)
    if adaptation.remarks and seconds < LONGER_S:
        show_notes([f"a longer time averages out what lasts minutes: --seconds {LONGER_S}"])
    print(f"{path}: predictions by {chosen.path.name} on this machine now use this")
    if output is not None:
        print(f"{made.path}: its predictions on similar machines begin with this")


def _forget(bundle: Bundle, as_json: bool) -> None:
    from resperf.bundle import adaptation_file
    from resperf.platform import this_platform
    from resperf.prediction.adapting import as_adapted

    path = adaptation_file(bundle, this_platform(bundle.platform.device))
    known = path.exists()
    path.unlink(missing_ok=True)
    if as_json:
        show_json({"path": str(path), "forgotten": known})
        return
    what = "was forgotten" if known else "was not adapted to this machine"
    where = as_adapted(bundle).platform.machine
    print(f"{bundle.path.name}: {what}; its times are those of {where}")


def _text(bundle: Bundle, found: Adaptation) -> str:
    from resperf.report.tables import table

    rows = [
        [group, f"{found.correction.factor(group):.2f}", f"{math.exp(doubt):.2f}"]
        for group, doubt in found.doubts.items()
    ]
    factors = table(("group", "here / there", "within a factor of"), rows, text=("group",))
    there = (
        "its own predictions stand in"
        if found.stood_in
        else "measured there, as far as it holds them"
    )
    single = math.exp(found.correction.log_width)
    runs = [each.at for each in found.runs]
    joined = (
        f"; medians of {len(runs)} runs, the first of {runs[0]} (start anew: --forget)"
        if len(runs) > 1
        else ""
    )
    return (
        f"{found.platform.machine} here, {bundle.machine} there\n{factors}\n"
        f"{found.probes} probes, times on the bundle's machine: {there}; nine of ten probes that "
        f"were left out of the fit are within a factor of {single:.2f}; turns over them differ by "
        f"{math.expm1(found.drift):.0%}{joined}"
    )
