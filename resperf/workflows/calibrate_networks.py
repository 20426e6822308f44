"""Whole networks, measured on the bundle's machine, become part of the bundle."""

from __future__ import annotations

import glob
import itertools
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from resperf.backends import Backend, backend
from resperf.bundle import (
    Adaptation,
    Bundle,
    Correction,
    TransferredCalibration,
    group_of,
    replaced_folder,
    write_manifest,
)
from resperf.campaign import Bench, Campaign, run_campaign
from resperf.campaign.process import WorkerProcess, WorkerSettings
from resperf.devices import target_of
from resperf.errors import MeasurementError, ResperfError, UnsupportedError, require
from resperf.layers import inter_layer_bytes, layer_from_key
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.network import Network, graph_digest, read_network, weightless
from resperf.network.files import network_names
from resperf.platform import Platform, usable_cores
from resperf.prediction import Prediction, predict_network
from resperf.prediction.adapting import why_not_adaptable
from resperf.prediction.rules import RULE_OF_METHOD, layers_behind_each_other
from resperf.quantities import EXECUTION
from resperf.settings import Setting
from resperf.targets import Target
from resperf.training.correction import (
    Priors,
    TimedNetwork,
    fit_correction,
    priors_elsewhere,
    refuse_few,
    standard_errors,
)
from resperf.workflows.calibrate_layers import fitted, measure_layers, other_kernels

COST_READINGS = 5
"""Readings of the costs of calls, overhead between layers and weights; their medians count."""


def calibrate(
    bundle: Bundle,
    paths: Sequence[Path],
    output: Path,
    *,
    batches: Sequence[int],
    seconds: float = 3.0,
    progress: bool = False,
) -> tuple[Bundle, list[str]]:
    """Measure networks, learn how layers run inside them, and write the bundle with that.

    The networks are a campaign, whose dataset is ``NAME.networks.h5`` beside `output`: a call that
    was interrupted goes on by the same call. Once the bundle is written, a further call measures
    again, and medians over all measurements count.

    Parameters
    ----------
    bundle : Bundle
        For a framework that runs here, with the settings that it has here. That of another machine
        is transferred to this one: its layers are scaled by calibration layers first, where that is
        possible, and the networks teach the rest.
    paths : sequence of Path
        Networks; all that judge the bundle later must not be among them.
    output : Path
        Folder to write; may be the bundle's own.
    batches : sequence of int
    seconds : float
        For each network and batch size.
    progress : bool
        Show progress on stderr if it is a terminal.

    Returns
    -------
    bundle : Bundle
        As written.
    notes : list of str
        How the machine was disturbed during the layers; networks that were left out, and why.

    Raises
    ------
    MeasurementError
        If this is not the bundle's machine, or cannot take over its layers.
    CampaignError
        If the dataset beside `output` is of another machine.
    TrainingError
        If too few networks could be measured.
    KeyboardInterrupt
        If it was interrupted; what was measured is in the journal.
    """
    if bundle.setting.threads < 1:
        raise MeasurementError(
            f"{bundle.path} was learnt from measurements of {bundle.device} that others published; "
            "only a bundle of this machine can be calibrated here"
        )
    target = target_of(bundle.platform.device, bundle.framework)
    device = backend(target.framework, target.device_class, threads=bundle.setting.threads)
    here, platform = device.setting(), device.platform()
    differences = platform.hardware_differences(bundle.platform)
    differences += here.differences(bundle.setting)
    foreign = other_kernels(here, bundle.setting)
    if foreign:
        raise MeasurementError(
            f"{bundle.path} was measured with other settings ({'; '.join(foreign)}); calibrate it "
            "where it was measured"
        )
    if here.threads > usable_cores():
        raise MeasurementError(
            f"{bundle.path} is of {here.threads} threads, and this machine has "
            f"{usable_cores()} cores for them; only as many can be measured"
        )
    if bundle.method in RULE_OF_METHOD:
        raise MeasurementError(
            f"{bundle.path} adds layers up by the published rule of {bundle.method}, which knows "
            "nothing of what they cost behind each other; only other methods are calibrated"
        )
    # What would be refused after minutes of measuring is refused before.
    require("scipy.optimize", "train")
    require("h5py", "bench")
    from resperf.campaign.store import journal_path

    output = output.resolve()
    paths = list({path.resolve(): path for path in paths}.values())
    refuse_few({str(path) for path in paths})
    remarks: list[str] = []
    if differences:
        if output == bundle.path.resolve():
            raise MeasurementError(
                f"{bundle.path} is of another machine and stays as it is; name another folder (-o)"
            )
        bundle, remarks = _transferred(bundle, target, here, platform)
    dataset = output.with_name(f"{output.name}.networks.h5")
    with replaced_folder(output) as folder:
        placed, notes = measured_networks(
            bundle, device, paths, dataset, batches=batches, seconds=seconds, progress=progress,
        )  # fmt: skip
        refuse_few({each.network for each in placed}, notes)
        transferred = bundle.transferred
        priors = Priors()
        if transferred is not None:
            priors = priors_elsewhere(probed=transferred.adaptation is not None)
        learnt = fit_correction(placed, bundle.costs, priors)
        if differences and transferred is not None:
            transferred, learnt = _common_factor_of_layers(transferred, learnt)
        for name in bundle.manifest["files"]:
            shutil.copy(bundle.path / name, folder / name)
        networks = len({each.network for each in placed})
        made = bundle.changed(
            f"calibrated with {networks} networks that were measured as a whole",
            correction=learnt.to_json(),
            calibrations=None,
            transferred_calibration=None if transferred is None else transferred.to_json(),
        )
        write_manifest(folder, made.manifest)
    journal_path(dataset).unlink(missing_ok=True)
    return Bundle.load(output).parts[made.parts.index(made)], [*remarks, *notes]


def _measured_costs(target: Target, threads: int) -> dict[str, float]:
    """Measure what a campaign measures besides layers, in a process that does nothing else."""
    settings = WorkerSettings(target, {"threads": threads})
    with WorkerProcess(settings) as worker:
        readings = [worker.costs() for _ in range(COST_READINGS)]
    return {name: median(reading[name] for reading in readings) for name in readings[0]}


def _transferred(
    bundle: Bundle, target: Target, here: Setting, platform: Platform
) -> tuple[Bundle, list[str]]:
    """Make the same bundle one of this machine, its layers scaled by layers where possible.

    Returns remarks on these too.
    """
    alone = bundle.without_correction()
    alone.transferred = None
    adaptation, remarks = _probed(alone)
    if adaptation is None:
        costs = _measured_costs(target, here.threads)
    else:
        costs = dict(alone.adapted_to(adaptation).costs)
    origin = bundle.platform if bundle.transferred is None else bundle.transferred.origin
    made = bundle.changed(
        "transferred to another machine",
        correction=None,
        calibrations=None,
        probes=None,
        machines=None,
        settings=[here],
        platforms=[replace(platform.with_probes(costs), device=bundle.device)],
        costs=costs,
        transferred_calibration=TransferredCalibration(origin, adaptation=adaptation).to_json(),
    )
    return made, remarks


def _probed(bundle: Bundle) -> tuple[Adaptation | None, list[str]]:
    """Measure the calibration layers; None if they say nothing of this bundle."""
    if why_not_adaptable(bundle):
        return None, []
    try:
        found = fitted(bundle, measure_layers(bundle))
    except MeasurementError as error:
        return None, [f"layers get one common factor, from the networks: {error}"]
    return found, [f"calibration layers: {each}" for each in found.remarks]


def _common_factor_of_layers(
    there: TransferredCalibration, learnt: Correction
) -> tuple[TransferredCalibration, Correction]:
    """Take the factor common to all layers for one of layers in isolation, where no probe told."""
    if there.adaptation is not None:
        return there, learnt
    factors = {group: factor / learnt.others for group, factor in learnt.factors.items()}
    return replace(there, factor=learnt.others), replace(learnt, factors=factors, others=1.0)


def measured_networks(
    bundle: Bundle,
    device: Backend,
    paths: Sequence[Path],
    dataset: Path,
    *,
    batches: Sequence[int],
    seconds: float,
    progress: bool = False,
) -> tuple[list[TimedNetwork], list[str]]:
    """Predict networks layer by layer, alone, and measure them in a campaign.

    Networks with operators that the bundle does not know are left out, and so are those that the
    framework cannot run; both are named.

    Raises
    ------
    TrainingError
        If there are too few networks that the bundle knows.
    KeyboardInterrupt
        If the campaign was interrupted.
    """
    from resperf.dataset import read_networks

    here, platform = device.setting(), device.platform()
    names = network_names(paths)
    alone = bundle.without_correction()
    predicted: dict[tuple[Path, int], TimedNetwork] = {}
    reasons: dict[tuple[Path, int], str] = {}
    for path, batch in itertools.product(paths, batches):
        try:
            network = read_network(path, batch=batch)
            predicted[path, batch] = timed_network(alone, network, names[path], math.nan)
        except (ResperfError, MemoryError) as error:
            reasons[path, batch] = str(error)
    files = dict.fromkeys(path for path, _ in predicted)
    known = {path: graph_digest(weightless(path)) for path in files}
    refuse_few({names[path] for path in known}, _notes(names, reasons))
    campaign = Campaign.from_mapping(
        {
            "name": "networks",
            "networks": {
                "files": [glob.escape(str(path.resolve())) for path in known],
                "batches": list(dict.fromkeys(batches)),
                "seconds": seconds,
                "repeats": 0,
            },
        }
    )
    result = run_campaign(
        campaign,
        dataset,
        Bench(target_of(platform.device, device.name), {"threads": here.threads}),
        anew=True,
        usual_ms=bundle.costs,
        progress=progress,
    )
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    rows: dict[tuple[str, int | None], list[Measurement]] = {}
    for row in read_networks(dataset).measurements:
        if (
            isinstance(row.subject, NetworkRef)
            and not row.platform.differences(platform)
            and replace(row.setting, batch=None) == here
        ):
            rows.setdefault((row.subject.digest, row.setting.batch), []).append(row)
    measured_ms: dict[tuple[Path, int], list[float]] = {}
    for (path, batch), each in predicted.items():
        found = rows[known[path], each.batch]
        good = [row for row in found if row.status is Status.OK]
        steady_ms = [row.value("latency_ms") for row in good if not row.flags]
        if not good:
            reasons[path, batch] = found[-1].detail
        elif not steady_ms:
            reasons[path, batch] = "the machine was never at its speed"
        else:
            measured_ms[path, batch] = steady_ms
    in_order = {key: reasons[key] for key in itertools.product(paths, batches) if key in reasons}
    noises = standard_errors(list(measured_ms.values()))
    placed = [
        replace(predicted[key], measured_ms=median(each), noise=noise)
        for (key, each), noise in zip(measured_ms.items(), noises, strict=True)
    ]
    return placed, _notes(names, in_order)


def _notes(names: Mapping[Path, str], reasons: Mapping[tuple[Path, int], str]) -> list[str]:
    """Say which networks were left out, and why."""
    return [f"{names[path]} at batch {batch}: {why}" for (path, batch), why in reasons.items()]


def timed_network(alone: Bundle, network: Network, name: str, measured_ms: float) -> TimedNetwork:
    """Say what a network that took so long consists of, its layers as they are alone.

    Raises
    ------
    UnsupportedError
        If it has operators that the bundle does not know.
    """
    prediction = predict_network(network, alone, whole=False)
    return timed_prediction(prediction, name, measured_ms)


def timed_prediction(
    prediction: Prediction, name: str, measured_ms: float, quantity: str = "latency_ms"
) -> TimedNetwork:
    """Say what a predicted network that took so long consists of.

    `quantity` says what was measured: all phases, or ``execution_ms``. A network that takes longer
    than the host's dispatch of its kernels is taken to have waited for the device alone.

    Raises
    ------
    UnsupportedError
        If it has operators that the bundle does not know, or did not take longer than the dispatch.
    """
    if prediction.skipped:
        operators = ", ".join(sorted({each.op for each in prediction.skipped}))
        raise UnsupportedError(f"the bundle has no predictor for its {operators}")
    kinds_ms: dict[str, float] = {}
    for layer in prediction.layers:
        if layer.phase == "execution":
            # What no kind of layer describes is known by its operator.
            group = group_of(layer_from_key(layer.key)) if layer.key else layer.kind
            kinds_ms[group] = kinds_ms.get(group, 0.0) + layer.execution_ms
    layers = layers_behind_each_other(prediction.parts.nodes)
    costs, total_ms = prediction.overheads, prediction.total_ms
    # What the bundle does not know is not in the total either.
    overhead_ms = 0.0 if math.isnan(costs.overhead_ms) else costs.overhead_ms
    alone_ms = sum(kinds_ms.values()) + overhead_ms
    if quantity == EXECUTION:
        total_ms = prediction.phases.execution_ms
    if prediction.total.waiting_ms and measured_ms <= total_ms:
        raise UnsupportedError(
            f"it took {measured_ms:.3g} ms, and the host's dispatch of its {costs.kernels} "
            f"kernels alone {total_ms:.3g} ms, which says nothing of its layers"
        )
    return TimedNetwork(
        network=name,
        batch=prediction.subject.batch,
        measured_ms=measured_ms,
        kinds_ms=kinds_ms,
        layers=len(layers),
        inter_layer_mb=inter_layer_bytes(layers) / 1e6,
        rest_ms=total_ms - prediction.total.waiting_ms - alone_ms,
    )
