"""Whole networks, measured on the bundle's machine, become part of the bundle."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from resperf.backends import Backend, backend
from resperf.bundle import Bundle, replaced_folder, write_manifest
from resperf.errors import (
    MeasurementError,
    ResperfError,
    UnsupportedError,
    require,
)
from resperf.layers import handed_over_bytes
from resperf.network import Network, read_network
from resperf.prediction import predict_network
from resperf.prediction.rules import RULE_OF_METHOD, layers_behind_each_other
from resperf.training.in_place import Placed, fit_in_place, refuse_few
from resperf.workflows.guarded import reference_monitor
from resperf.workflows.measure import Progress, measure_network


def calibrate(
    bundle: Bundle,
    paths: Sequence[Path],
    output: Path,
    *,
    batches: Sequence[int],
    seconds: float = 3.0,
    progress: Progress | None = None,
) -> tuple[Bundle, list[str]]:
    """Measure networks, learn how layers run inside them, and write the bundle with that.

    Parameters
    ----------
    bundle : Bundle
        Made on this machine, for a framework that runs here.
    paths : sequence of Path
        Networks; all that judge the bundle later must not be among them.
    output : Path
        Folder to write; may be the bundle's own.
    batches : sequence of int
    seconds : float
        For each network and batch size.
    progress : callable, optional

    Returns
    -------
    bundle : Bundle
        As written.
    notes : list of str
        Networks that were left out, and why.

    Raises
    ------
    MeasurementError
        If this is not the bundle's machine.
    TrainingError
        If too few networks could be measured.
    """
    if bundle.fingerprint.threads < 1:
        raise MeasurementError(
            f"{bundle.path} was learnt from measurements of {bundle.device} that others published; "
            "only a bundle of this machine can be calibrated here"
        )
    device = backend(bundle.fingerprint.framework, threads=bundle.fingerprint.threads)
    differences = bundle.fingerprint.differences(device.fingerprint())
    if differences:
        raise MeasurementError(
            f"{bundle.path} was measured on another machine or with other settings "
            f"({'; '.join(differences)}); calibrate it there"
        )
    if bundle.method in RULE_OF_METHOD:
        raise MeasurementError(
            f"{bundle.path} adds layers up by the published rule of {bundle.method}, which knows "
            "nothing of what they cost behind each other; only other methods are calibrated"
        )
    # What would be refused after minutes of measuring is refused before.
    require("scipy.optimize", "train")
    refuse_few({path.stem for path in paths})
    values = {k: v for k, v in bundle.manifest.items() if k != "files"}
    with replaced_folder(output) as folder:
        placed, notes = measured_networks(
            bundle, device, paths, batches=batches, seconds=seconds, progress=progress
        )
        refuse_few({each.network for each in placed}, notes)
        learnt = fit_in_place(placed, bundle.costs)
        for name in bundle.manifest["files"]:
            shutil.copy(bundle.path / name, folder / name)
        write_manifest(folder, {**values, "in_place": learnt.to_json()})
    return Bundle.load(output), notes


def measured_networks(
    bundle: Bundle,
    device: Backend,
    paths: Sequence[Path],
    *,
    batches: Sequence[int],
    seconds: float,
    progress: Progress | None = None,
) -> tuple[list[Placed], list[str]]:
    """Measure networks and predict them layer by layer, alone.

    Networks with operators that the bundle does not know are left out, and so are those that the
    framework cannot run; both are named.
    """
    placed: list[Placed] = []
    notes: list[str] = []
    runs = [(path, batch) for path in paths for batch in batches]
    alone = bundle.without_in_place()
    with reference_monitor(device, costs=bundle.costs) as monitor:
        for done, (path, batch) in enumerate(runs):
            if progress is not None:
                progress(done, len(runs), path.stem)
            try:
                network = read_network(path, batch=batch)
                foretold = placed_network(alone, network, path.stem, math.nan)
                measured = measure_network(
                    path, device, batch=batch, seconds=seconds, layers=False, monitor=monitor
                )
            except (ResperfError, MemoryError) as error:
                notes.append(f"{path.stem} at batch {batch}: {error}")
                continue
            if not measured.steady_rounds:
                notes.append(f"{path.stem} at batch {batch}: the machine was never at its speed")
                continue
            placed.append(replace(foretold, measured_ms=measured.total_ms))
    if progress is not None:
        progress(len(runs), len(runs), "done")
    return placed, notes


def placed_network(alone: Bundle, network: Network, name: str, measured_ms: float) -> Placed:
    """Say what a network that took so long consists of, its layers as they are alone.

    Raises
    ------
    UnsupportedError
        If it has operators that the bundle does not know.
    """
    prediction = predict_network(network, alone)
    if prediction.skipped:
        operators = ", ".join(sorted({each.op for each in prediction.skipped}))
        raise UnsupportedError(f"the bundle has no predictor for its {operators}")
    kinds_ms: dict[str, float] = {}
    for layer in prediction.layers:
        if layer.phase == "execution":
            kinds_ms[layer.kind] = kinds_ms.get(layer.kind, 0.0) + layer.execution_ms
    layers = layers_behind_each_other(prediction.nodes)
    alone_ms = sum(kinds_ms.values()) + prediction.handover_ms
    return Placed(
        network=name,
        batch=network.batch,
        measured_ms=measured_ms,
        kinds_ms=kinds_ms,
        layers=len(layers),
        handed_over_mb=handed_over_bytes(layers) / 1e6,
        rest_ms=prediction.total_ms - alone_ms,
    )
