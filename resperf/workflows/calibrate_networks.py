"""Whole networks, measured on the bundle's machine, become part of the bundle."""

from __future__ import annotations

import glob
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from resperf.backends import Backend, backend
from resperf.bundle import Bundle, Calibration, Source, group_of, replaced_folder, write_changed
from resperf.campaign import Bench, Campaign, run_campaign
from resperf.campaign.process import WorkerProcess, WorkerSettings
from resperf.devices import target_of
from resperf.errors import MeasurementError, ResperfError, TrainingError, UnsupportedError, require
from resperf.grouping import grouped
from resperf.layers import bytes_between_layers, layer_from_key
from resperf.measurement import NetworkRef, Status
from resperf.network import graph_digest, read_network, weightless
from resperf.network.files import network_names
from resperf.platform import Platform
from resperf.prediction import Prediction, predict_network
from resperf.prediction.calibrated import why_not_by_layers
from resperf.prediction.rules import RULE_OF_METHOD, layers_behind_each_other
from resperf.quantities import EXECUTION
from resperf.settings import Setting
from resperf.targets import Target
from resperf.training import correction
from resperf.workflows import calibrate_layers

COST_READINGS = 5
"""Readings of the costs of calls, overhead between layers and weights; their medians count."""


def calibrate(
    bundle: Bundle,
    paths: Sequence[Path],
    output: Path,
    *,
    batches: Sequence[int],
    seconds: float = 3.0,
) -> tuple[Bundle, list[str]]:
    """Measure networks, learn how layers run inside them, and write the bundle with that.

    The networks are a campaign, whose dataset is ``NAME.networks.h5`` beside `output`: a call that
    was interrupted goes on by the same call. Once the bundle is written, a further call measures
    again, and medians over all measurements count.

    Parameters
    ----------
    bundle : Bundle
        For a framework that runs here, with the settings that it has here. That of another machine
        becomes one of this: its layers are scaled by calibration layers first, where that is
        possible, and the networks teach the rest.
    paths : sequence of Path
        Networks; all that judge the bundle later must not be among them.
    output : Path
        Folder to write; may be the bundle's own.
    batches : sequence of int
    seconds : float
        For each network and batch size.

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
        If too few networks could be measured, or the bundle adds layers up by a published rule.
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
    foreign = calibrate_layers.other_kernels(here, bundle.setting)
    if foreign:
        raise MeasurementError(
            f"{bundle.path} was measured with other settings ({'; '.join(foreign)}); calibrate it "
            "where it was measured"
        )
    calibrate_layers.refuse_more_threads(bundle)
    refuse_published_rule(bundle)
    # What would be refused after minutes of measuring is refused before.
    require("scipy.optimize", "train")
    require("h5py", "bench")
    from resperf.campaign.store import journal_path

    output = output.resolve()
    paths = list({path.resolve(): path for path in paths}.values())
    correction.refuse_few({str(path) for path in paths})
    base, remarks = bundle, list[str]()
    if differences:
        if output == bundle.path.resolve():
            raise MeasurementError(
                f"{bundle.path} is of another machine and stays as it is; name another folder (-o)"
            )
        base, remarks = _scaled_to(bundle, target, here, replace(platform, device=bundle.device))
    dataset = output.with_name(f"{output.name}.networks.h5")
    with replaced_folder(output) as folder:
        placed, notes = measured_networks(
            base, device, paths, dataset, batches=batches, seconds=seconds,
        )  # fmt: skip
        correction.refuse_few({timed.network for timed in placed}, notes)
        layers = [
            calibration for calibration in base.calibrations if calibration.source is Source.LAYERS
        ]
        priors = correction.Priors()
        if base.layer_calibrations:
            scaled = base.layer_calibrations[-1].speeds is not None
            priors = correction.priors_elsewhere(scaled=scaled)
        about = Calibration(Source.NETWORKS, base.setting, base.platform)
        learnt = correction.fit_calibration(about, placed, base.costs, priors)
        if differences:
            layers, learnt = _common_factor_of_layers(base.layer_calibrations[-1], learnt)
        reason = f"calibrated with {learnt.count} networks that were measured as a whole"
        calibrated = bundle.with_calibrations([*layers, learnt], reason)
        write_changed(calibrated, folder)
    journal_path(dataset).unlink(missing_ok=True)
    return Bundle.load(output).parts[calibrated.parts.index(calibrated)], [*remarks, *notes]


def refuse_published_rule(bundle: Bundle) -> None:
    """Refuse a bundle whose rule has no place for what networks teach.

    Raises
    ------
    TrainingError
    """
    if bundle.method in RULE_OF_METHOD:
        raise TrainingError(
            f"{bundle.path} adds layers up by the published rule of {bundle.method}, which knows "
            "nothing of what they cost behind each other; only other methods are calibrated"
        )


def _measured_costs(target: Target, threads: int) -> dict[str, float]:
    """Measure what a campaign measures besides layers, in a process that does nothing else."""
    settings = WorkerSettings(target, {"threads": threads})
    with WorkerProcess(settings) as worker:
        readings = [worker.costs() for _ in range(COST_READINGS)]
    return {name: median(reading[name] for reading in readings) for name in readings[0]}


def _scaled_to(
    bundle: Bundle, target: Target, here: Setting, platform: Platform
) -> tuple[Bundle, list[str]]:
    """Return the bundle's layers as they are on this machine, scaled by layers where possible.

    Returns remarks on these too.
    """
    there = [
        calibration
        for calibration in bundle.calibrations
        if calibration.source is Source.LAYERS and calibration not in bundle.layer_calibrations
    ]
    alone = bundle.with_calibrations(there, "")
    calibration, remarks = _by_layers(alone)
    if calibration is None:
        costs = _measured_costs(target, here.threads)
        calibration = Calibration(
            Source.LAYERS, here, platform.with_machine_checks(costs), costs=costs
        )
    else:
        calibration = replace(
            calibration, setting=here, platform=replace(platform, machine_checks={})
        )
    return alone.for_machine(calibration), remarks


def _by_layers(bundle: Bundle) -> tuple[Calibration | None, list[str]]:
    """Measure the calibration layers; None if they say nothing of this bundle."""
    if why_not_by_layers(bundle):
        return None, []
    try:
        calibration = calibrate_layers.fitted(bundle, calibrate_layers.measure_layers(bundle))
    except MeasurementError as error:
        return None, [f"layers get one common factor, from the networks: {error}"]
    return calibration, [f"calibration layers: {remark}" for remark in calibration.remarks]


def _common_factor_of_layers(
    layers: Calibration, learnt: Calibration
) -> tuple[list[Calibration], Calibration]:
    """Take the factor common to all layers for one of layers in isolation, where none told."""
    if layers.speeds is not None:
        return [layers], learnt
    factors = {group: factor / learnt.others for group, factor in learnt.factors.items()}
    return [replace(layers, others=learnt.others)], replace(learnt, factors=factors, others=1.0)


def measured_networks(
    bundle: Bundle,
    device: Backend,
    paths: Sequence[Path],
    dataset: Path,
    *,
    batches: Sequence[int],
    seconds: float,
) -> tuple[list[correction.TimedNetwork], list[str]]:
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
    alone = bundle.isolated()
    predicted: dict[tuple[Path, int], correction.TimedNetwork] = {}
    reasons: dict[tuple[Path, int], str] = {}
    for path, batch in itertools.product(paths, batches):
        try:
            prediction = predict_network(read_network(path, batch=batch), alone, whole=False)
            predicted[path, batch] = timed_prediction(prediction, names[path], math.nan)
        except (ResperfError, MemoryError) as error:
            reasons[path, batch] = str(error)
    files = dict.fromkeys(path for path, _ in predicted)
    digests = {path: graph_digest(weightless(path)) for path in files}
    correction.refuse_few({names[path] for path in digests}, _notes(names, reasons))
    networks = {
        "files": [glob.escape(str(path.resolve())) for path in digests],
        "batches": list(dict.fromkeys(batches)),
        "seconds": seconds,
        "repeats": 0,
    }
    result = run_campaign(
        Campaign.from_mapping({"name": "networks", "networks": networks}),
        dataset,
        Bench(target_of(platform.device, device.name), {"threads": here.threads}),
        anew=True,
        usual_ms=bundle.costs,
    )
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    rows = grouped(
        ((row.subject.digest, row.setting.batch), row)
        for row in read_networks(dataset).measurements
        if isinstance(row.subject, NetworkRef)
        and not row.platform.differences(platform)
        and replace(row.setting, batch=None) == here
    )
    measured_ms: dict[tuple[Path, int], list[float]] = {}
    for (path, batch), timed in predicted.items():
        measurements = rows[digests[path], timed.batch]
        good = [row for row in measurements if row.status is Status.OK]
        steady_ms = [row.value("latency_ms") for row in good if not row.flags]
        if not good:
            reasons[path, batch] = measurements[-1].detail
        elif not steady_ms:
            reasons[path, batch] = "the machine was never at its speed"
        else:
            measured_ms[path, batch] = steady_ms
    in_order = {key: reasons[key] for key in itertools.product(paths, batches) if key in reasons}
    noises = correction.standard_errors(list(measured_ms.values()))
    placed = [
        replace(predicted[key], measured_ms=median(times_ms), noise=noise)
        for (key, times_ms), noise in zip(measured_ms.items(), noises, strict=True)
    ]
    return placed, _notes(names, in_order)


def _notes(names: Mapping[Path, str], reasons: Mapping[tuple[Path, int], str]) -> list[str]:
    """Say which networks were left out, and why."""
    return [f"{names[path]} at batch {batch}: {why}" for (path, batch), why in reasons.items()]


def timed_prediction(
    prediction: Prediction, name: str, measured_ms: float, quantity: str = "latency_ms"
) -> correction.TimedNetwork:
    """Say what a predicted network that took so long consists of.

    `quantity` says what was measured: all phases, or ``execution_ms``. A network that takes longer
    than the host's dispatch of its kernels is taken to have waited for the device alone.

    Raises
    ------
    UnsupportedError
        If it has operators that the bundle does not know, or did not take longer than the dispatch.
    """
    if prediction.skipped:
        operators = ", ".join(sorted({skipped.op for skipped in prediction.skipped}))
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
    return correction.TimedNetwork(
        network=name,
        batch=prediction.subject.batch,
        measured_ms=measured_ms,
        kinds_ms=kinds_ms,
        layers=len(layers),
        mb_between_layers=bytes_between_layers(layers) / 1e6,
        rest_ms=total_ms - prediction.total.waiting_ms - alone_ms,
    )
