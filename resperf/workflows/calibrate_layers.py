"""A minute of calibration layers: times of a bundle's machine become times of this one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.bundle import (
    GROUPS,
    OVERHEAD_PER_MB,
    Bundle,
    Calibration,
    LayerTimes,
    Source,
    Speeds,
    counting,
    load_calibration,
    machines_of,
    save_calibration,
    write_calibrated,
)
from resperf.campaign.process import Taken, WorkerDied, WorkerProcess, WorkerSettings
from resperf.devices import target_of
from resperf.errors import MeasurementError, require
from resperf.layers import Layer, layer_from_key
from resperf.lowering import lower_layers
from resperf.measurement import TOLERANCE, Measurement, Status
from resperf.platform import this_platform, usable_cores
from resperf.prediction.calibrated import why_not_by_layers
from resperf.predictors.intervals import half_width, joined_spread
from resperf.quantities import EXECUTION
from resperf.settings import NCHWC_BLOCK, Setting
from resperf.timing import KNOWN_READINGS, SamplingProtocol
from resperf.training.correction import (
    FEWEST_FOR_WIDTH,
    MACHINES_WIDTH,
    Priors,
    TimedNetwork,
    fit_calibration,
)
from resperf.workflows.calibration_layers import CALIBRATION_LAYERS

SECONDS = 60.0
FEWEST_LAYERS = FEWEST_FOR_WIDTH
LAYER_NOISE = 0.1
"""Relative spread of calibration layers around their groups' factors."""
GROUP_WIDTH = 0.3
"""Prior standard deviation of a group's factor around the one that all share."""
TURNS = 3
"""Of all layers in a minute, as many more in a longer time; a drift then shows. Costs beside layers
are measured after all but the last."""
FAR_APART, LEAST_FAR_APART_MS = 3.0, 0.05
"""Cost of a MB between layers over that on the bundle's machine, and in ms, that is worth a remark.
"""
LEAST_SPREAD = 0.01
"""Logarithm of the spread of calibration layers that no measurement is better than."""
COSTS_S = 8.0
"""Time kept for measuring the costs beside layers for the first time."""
STOP_S = 1.0
"""Time kept for ending the measuring process."""
GROUP_BOUNDS = (0.2, 5.0)
"""Of a group's factor around the common one: products of integers have instructions of their own on
some processors only."""
CLEAN = 2
"""Undisturbed measurements that each layer should have: as long as there is time, others are
measured again."""
REMEMBERED_DISTURBED = 0.25
"""More than this share of layers that were always disturbed, or of readings off their median, is
worth a remark."""
MOST_RUNS = 6
"""Of the command on this machine that are joined, the latest: states of a host last for minutes to
hours, and medians of some are nearer to the next than one is."""
BUSY = "busy"
MOST_BUSY = 0.5
"""Largest share of measurements under load of other programs by which a bundle is scaled."""
_QUICK = SamplingProtocol(
    min_time_s=0.05, budget_s=0.25, warmup_s=0.05, placements=2, placements_s=0.2
)
_HUNG_S = 30.0
"""A calibration layer takes a second; after this time more the measuring process hangs."""


Progress = Callable[[int, int, str], None]
"""Told (done, all, name) while the calibration layers are measured."""


def calibrate_by_layers(
    bundle: Bundle,
    output: Path | None = None,
    *,
    seconds: float = SECONDS,
    how: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Bundle, Calibration, Path]:
    """Measure the layers here, scale a bundle's times by them, and keep that for predictions.

    Earlier runs here are joined with this one: the median of each layer counts. Runs in which the
    machine changed its speed count only as long as there is no other.

    Parameters
    ----------
    bundle : Bundle
    output : Path, optional
        Where the bundle is written with this machine's factors added. On machines like this one,
        predictions by it use them until `calibrate` is run there. The runs joined are then those
        that the bundle holds of such a machine. On its own machine, the bundle is written with the
        times of the layers alone, to compare with on others.
    seconds : float
        All of it, measuring and starting; calibration layers that find no time are left out.
    how : mapping, optional
        Further keywords of the backend.
    progress : callable, optional

    Returns
    -------
    bundle : Bundle
        As written, if it was.
    calibration : Calibration
    path : Path
        Where it is kept; `resperf.prediction.predict` uses it from now on.

    Raises
    ------
    MeasurementError
        If the bundle is not one of processors, runs other layers than this machine, too few layers
        could be compared, other programs ran during most of it, or if the bundle was to be written
        and the machine was disturbed or runs its layers under other settings than its own.
    MissingExtraError
        If packages are missing.
    BundleError, OutputError
        If it cannot be kept.
    """
    refuse_other_layers(bundle)
    here = this_platform(bundle.platform.device)
    is_own = not bundle.layer_calibrations and not here.hardware_differences(bundle.platform)
    is_reference = output is not None and is_own
    measured = measure_layers(
        bundle, seconds=seconds, how=how, is_reference=is_reference, progress=progress
    )
    if output is not None and is_reference:
        reference = replace(measured, setting=bundle.setting, platform=bundle.platform)
        reason = "times of calibration layers on its own machine"
        bundle = _with_calibration(bundle, reference, output, reason)
        return bundle, reference, bundle.path
    if (busy := measured.times[-1].busy) > MOST_BUSY:
        raise MeasurementError(
            f"the CPU was busy with other programs during {busy:.0%} of the measurements; "
            "nothing saved. Stop them and run again"
        )
    if output is None:
        stored = load_calibration(bundle, replace(measured.platform, machine_checks={}))
        calibration = fitted(bundle, measured, _earlier([stored] if stored else [], measured))
    else:
        # What takes the place of the known factors does not begin with them.
        calibration = fitted(bundle, measured, _earlier(machines_of(bundle), measured), anew=True)
        reason = "scaled to another machine by calibration layers"
        bundle = _with_calibration(bundle, calibration, output, reason)
    return bundle, calibration, save_calibration(bundle, calibration)


def _with_calibration(bundle: Bundle, added: Calibration, output: Path, reason: str) -> Bundle:
    """Write a bundle with a calibration by layers in place of an earlier one of the same machine.

    Raises
    ------
    MeasurementError
        If the machine was disturbed.
    """
    if added.remarks:
        raise MeasurementError(
            f"{bundle.path} stays as it is, since others compare with what is written into it: "
            f"{'; '.join(added.remarks)}; run this again on a quiet machine, or with more --seconds"
        )
    others = [
        calibration
        for calibration in bundle.calibrations
        if calibration.source is not Source.LAYERS
        or calibration.is_reference != added.is_reference
        or calibration in bundle.layer_calibrations
        or added.platform.hardware_differences(calibration.platform)
    ]
    return write_calibrated(bundle.with_calibrations((*others, added), reason), output)


def refuse_other_layers(bundle: Bundle) -> None:
    """Refuse what layers cannot calibrate for this machine, before anything is measured.

    Raises
    ------
    MeasurementError
    MissingExtraError
    """
    if why := why_not_by_layers(bundle):
        raise MeasurementError(f"{bundle.path} cannot be calibrated for this machine: {why}")
    require("scipy.optimize", "train")
    require("psutil", "bench")
    refuse_more_threads(bundle)


def refuse_more_threads(bundle: Bundle) -> None:
    """Refuse a bundle of more threads than this machine has cores for.

    Raises
    ------
    MeasurementError
    """
    if bundle.setting.threads > usable_cores():
        raise MeasurementError(
            f"{bundle.path} is of {bundle.setting.threads} threads, and this machine has "
            f"{usable_cores()} cores for them; name another bundle"
        )


def measure_layers(
    bundle: Bundle,
    *,
    seconds: float = SECONDS,
    how: Mapping[str, Any] | None = None,
    is_reference: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Measure the layers with a bundle's framework and threads, in three turns if time allows.

    Nothing is fitted yet.

    Parameters
    ----------
    bundle : Bundle
    seconds : float
        As of `calibrate_by_layers`.
    how : mapping, optional
        Further keywords of the backend.
    is_reference : bool
        Whether this is the bundle's own machine, for which its times are measured: then the usual
        times of the monitor's checks are the bundle's (`Monitor.usual_costs`), by which a state
        that lasts as long as this shows.
    progress : callable, optional

    Raises
    ------
    MeasurementError
        As `calibrate_by_layers`.
    """
    started_s = time.monotonic()
    refuse_other_layers(bundle)
    target = target_of(bundle.device, bundle.framework)
    usual = bundle.costs if is_reference else {}
    settings = WorkerSettings(
        target, {"threads": bundle.setting.threads, **(how or {})}, protocol=_QUICK,
        reference_interval_s=1.0,
        usual={name: (ms, KNOWN_READINGS) for name, ms in usual.items()},
    )  # fmt: skip
    with WorkerProcess(settings) as worker:
        differences = worker.setting.differences(bundle.setting)
        if is_reference and differences:
            raise MeasurementError(
                f"{bundle.path} was measured on this machine with other settings "
                f"({'; '.join(differences)}), so that its layers' times cannot be stored in it"
            )
        if foreign := other_kernels(worker.setting, bundle.setting):
            raise MeasurementError(
                f"{bundle.path} is of other layers than this machine runs ({'; '.join(foreign)}); "
                "name a bundle of a similar machine, or measure layers here: resperf bench"
            )
        turns = max(TURNS, round(TURNS * seconds / SECONDS))
        return _Turns(worker, started_s + seconds - STOP_S, turns, progress).run()


def other_kernels(here: Setting, there: Setting) -> list[str]:
    """Say in what two settings differ that makes other kernels run.

    Blocks of another size are read by the same kernels, with shorter or longer vectors.
    """
    like = replace(here, framework_version=there.framework_version)
    blocks = [int(setting.options.get(NCHWC_BLOCK, "0")) for setting in (here, there)]
    if all(blocks):
        like = replace(like, options={**like.options, NCHWC_BLOCK: there.options[NCHWC_BLOCK]})
    return like.differences(there)


@dataclass
class _Turns:
    """Turns over the layers, every second one backwards: drift then shows, and cancels."""

    worker: WorkerProcess
    deadline_s: float
    turns: int
    progress: Progress | None = None
    rows: list[list[Measurement]] = field(default_factory=list)
    references_ms: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    costs: list[Mapping[str, float]] = field(default_factory=list)
    _longest_s: float = 1.0
    _costs_s: float = COSTS_S
    _over: bool = False

    def run(self) -> Calibration:
        """Measure until all turns are done or the time is over."""
        layers = self.worker.lower(CALIBRATION_LAYERS)
        for repeat in range(self.turns):
            self.rows.append(self._turn(layers if repeat % 2 == 0 else layers[::-1], repeat))
            if repeat < self.turns - 1:
                self._read_costs()
            layers = [layer for layer in layers if layer in self._measured]
            if self._over:
                break
        # As many again, over disturbed calibration layers alone.
        most = 2 * self.turns
        while not self._over and len(self.rows) < most and (again := self._disturbed(CLEAN)):
            self.rows.append(self._turn(again, len(self.rows)))
        disturbances, unknown = self._disturbances()
        drifts = (0.0, *self._drifts())
        busy = [BUSY in row.flags for rows in self.rows[: self.turns] for row in rows]
        times = LayerTimes(
            datetime.now(UTC).isoformat(timespec="seconds"),
            {layer.key: self._time_ms(layer) for layer in self._measured},
            _usual_costs(self.costs),
            steady=not disturbances,
            drift=max(drifts) - min(drifts),
            busy=sum(busy) / len(busy) if busy else 0.0,
        )
        return Calibration(
            Source.LAYERS, self.worker.setting, self.worker.platform,
            remarks=(*self.remarks, *disturbances, *unknown), times=(times,),
        )  # fmt: skip

    def _read_costs(self) -> None:
        """Measure what networks pay beside layers, if there is time."""
        start_s = time.monotonic()
        if self._over or start_s + self._costs_s > self.deadline_s:
            return
        try:
            self.costs.append(self.worker.costs())
        except WorkerDied as death:
            self._over = True
            self.remarks.append(f"the measuring process ended at the costs: {death.detail}")
        self._costs_s = time.monotonic() - start_s

    def _disturbed(self, fewest: int) -> list[Layer]:
        """Return the calibration layers that have fewer undisturbed measurements than `fewest`."""
        clean = Counter(row.layer for rows in self.rows for row in rows if not row.flags)
        return [layer for layer in self._measured if clean[layer] < fewest]

    @property
    def _measured(self) -> list[Layer]:
        return [row.layer for row in self.rows[0] if row.status is Status.OK]

    def _turn(self, layers: Sequence[Layer], repeat: int) -> list[Measurement]:
        rows: list[Measurement] = []
        for index, layer in enumerate(layers):
            start_s = time.monotonic()
            if start_s + self._longest_s > self.deadline_s:
                self._over = True
                if not repeat:
                    self.remarks.append(f"the time was over after {index} of {len(layers)} layers")
                break
            if self.progress is not None:
                planned = self.turns * len(CALIBRATION_LAYERS)
                done = min(index + repeat * len(CALIBRATION_LAYERS), planned)
                self.progress(done, planned, layer.kind)
            try:
                taken: Taken = self.worker.measure(layer, repeat, _HUNG_S)
            except WorkerDied as death:
                self._over = True
                self.remarks.append(f"the measuring process ended at {layer.key}: {death.detail}")
                break
            self._longest_s = max(self._longest_s, time.monotonic() - start_s)
            rows.append(taken.row)
            if taken.reading is not None and not math.isnan(taken.reading.reference_ms):
                self.references_ms.append(taken.reading.reference_ms)
        return rows

    def _time_ms(self, layer: Layer) -> float:
        """Return a calibration layer's time: of its unflagged measurements, if there are any."""
        mine = [row for rows in self.rows for row in rows if row.layer == layer]
        good = [row for row in mine if row.status is Status.OK]
        return median(row.value(EXECUTION) for row in [r for r in good if not r.flags] or good)

    def _disturbances(self) -> tuple[list[str], list[str]]:
        """Say how the machine changed meanwhile, and what could not be seen."""
        said, unknown = [], []
        rows = [row for rows in self.rows for row in rows if row.status is Status.OK]
        flags = Counter(flag for row in rows for flag in row.flags)
        disturbed = self._disturbed(1)
        if len(disturbed) > REMEMBERED_DISTURBED * len(self._measured):
            words = ", ".join(f"{flag} {count}" for flag, count in flags.most_common())
            said.append(
                f"{len(disturbed)} of {len(self._measured)} layers were disturbed whenever they "
                f"were measured ({words})"
            )
        if not self.references_ms:
            unknown.append("nothing watched the machine's speed: the framework runs no reference")
        else:
            usual_ms = median(self.references_ms)
            off = sum(
                abs(reference_ms / usual_ms - 1) > TOLERANCE for reference_ms in self.references_ms
            )
            if off > REMEMBERED_DISTURBED * len(self.references_ms):
                said.append(
                    f"the machine changed its speed: {off} of {len(self.references_ms)} readings "
                    f"of the reference are more than {TOLERANCE:.0%} off their median"
                )
        drifts = self._drifts()
        if not drifts:
            unknown.append("there was time for one turn only, so that a drift was not seen")
        elif (drift := max(drifts, key=abs)) and abs(drift) > TOLERANCE:
            said.append(f"a later turn took {math.exp(drift):.2f} times as long as the first")
        return said, unknown

    def _drifts(self) -> list[float]:
        """Return for later thirds of the time how much longer the layers took than in the first.

        Medians of logarithms; each third is one turn if there are no more.
        """
        turns = self.rows[: self.turns]
        parts = min(TURNS, len(turns))
        times_ms: list[dict[Layer, list[float]]] = [{} for _ in range(parts)]
        for index, rows in enumerate(turns):
            third = times_ms[index * parts // len(turns)]
            for row in rows:
                if row.status is Status.OK:
                    third.setdefault(row.layer, []).append(row.value(EXECUTION))
        first, *later = ({layer: median(ms) for layer, ms in third.items()} for third in times_ms)
        ratios = [[math.log(ms / first[layer]) for layer, ms in third.items()] for third in later]
        return [
            median(third_ratios) for third_ratios in ratios if len(third_ratios) >= FEWEST_LAYERS
        ]


def times_there(bundle: Bundle, layers: Sequence[Layer]) -> tuple[dict[Layer, float], bool]:
    """Return the layers' times on a bundle's machine, and whether all are its own predictions.

    These are the fallback for times that it does not hold, unless outside the trained range.
    """
    references = (
        calibration.times[-1].times_ms
        for calibration in bundle.calibrations
        if calibration.is_reference
    )
    stored = next(references, {})
    times = bundle.isolated().predict(layers)
    predicted = {
        layer: float(ms)
        for layer, ms, inside in zip(layers, times.ms, times.in_range, strict=True)
        if inside and ms > 0
    }
    measured = {layer: stored[layer.key] for layer in layers if layer.key in stored}
    times_ms = predicted | measured
    return {layer: times_ms[layer] for layer in layers if layer in times_ms}, not measured


def _earlier(calibrations: Sequence[Calibration], measured: Calibration) -> tuple[LayerTimes, ...]:
    """Return earlier runs on the hardware of what was measured, with the framework as it is now.

    Of more than are kept, the unsteady ones go first, then the oldest.
    """
    here = replace(measured.platform, machine_checks={})
    alike = (
        calibration.times
        for calibration in calibrations
        if calibration.setting == measured.setting
        and not here.hardware_differences(calibration.platform)
    )
    runs = next(alike, ())
    steady = [index for index, run in enumerate(runs) if run.steady]
    unsteady = [index for index, run in enumerate(runs) if not run.steady]
    return tuple(runs[index] for index in sorted([*unsteady, *steady][1 - MOST_RUNS :]))


def _joined(runs: Sequence[LayerTimes], keys: Collection[str]) -> LayerTimes:
    """Return the medians of the times of the layers with these keys, as of the last run."""
    # Another version of this package may have had other calibration layers.
    told = [{key: ms for key, ms in run.times_ms.items() if key in keys} for run in runs]
    times = [*filter(None, told)]
    times_ms = {
        key: median(run_ms[key] for run_ms in times if key in run_ms)
        for key in dict.fromkeys(key for run_ms in times for key in run_ms)
    }
    levels = [
        median(math.log(ms / times_ms[key]) for key, ms in run_ms.items()) for run_ms in times
    ]
    drift = max(levels, default=0.0) - min(levels, default=0.0)
    return replace(
        runs[-1],
        times_ms=times_ms,
        drift=max(drift, *(run.drift for run in runs)),
        costs=_usual_costs([run.costs for run in runs if run.costs]),
    )


def _usual_costs(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the lower quartile of several readings of each cost beside layers.

    As of a monitor's checks: a disturbance only ever costs time.
    """
    if not costs:
        return {}
    readings = {name: [reading[name] for reading in costs if name in reading] for name in costs[0]}
    return {name: float(np.quantile(values, 0.25)) for name, values in readings.items()}


def fitted(
    bundle: Bundle, measured: Calibration, earlier: Sequence[LayerTimes] = (), *, anew: bool = False
) -> Calibration:
    """Fit the groups' factors to the calibration layers' times here and on the bundle's machine.

    Where the bundle is of such hardware, or knows of some, its factors stand unless the layers are
    sure of others; `anew` leaves out what it knows of other machines. Times of `earlier` runs here
    are joined with those that were `measured`, but for unsteady ones where there are steady ones.

    Raises
    ------
    MeasurementError
        If too few calibration layers have both.
    """
    runs = (*earlier, *measured.times)
    # Blocks of another size make another layout of the same calibration layer.
    mine, theirs = (
        lower_layers(CALIBRATION_LAYERS, machine.setting, machine.platform)
        for machine in (measured, bundle)
    )
    there = {key: layer_from_key(key) for key in runs[-1].times_ms}
    there |= {layer.key: other for layer, other in zip(mine, theirs, strict=True)}
    run = _joined(counting(runs), there)
    here_ms = {there[key]: ms for key, ms in run.times_ms.items()}
    there_ms, predicted_reference = times_there(bundle, list(here_ms))
    layers = list(there_ms)
    if len(layers) < FEWEST_LAYERS:
        why = f" ({'; '.join(measured.remarks)})" if measured.remarks else ""
        raise MeasurementError(
            f"only {len(layers)} calibration layers have a time here and in {bundle.path}{why}; "
            f"at least {FEWEST_LAYERS} are needed: give more --seconds, or name another bundle"
        )
    speeds = Speeds.of(layers, list(there_ms.values()))
    shares = speeds.shares(layers, list(there_ms.values()))
    placed = [
        TimedNetwork(
            network=layer.key,
            batch=None,
            measured_ms=here_ms[layer],
            kinds_ms={
                group: share * there_ms[layer]
                for group, share in zip(GROUPS, row.tolist(), strict=True)
                if share
            },
        )
        for layer, row in zip(layers, shares, strict=True)
    ]
    priors = Priors(
        of_kinds=GROUP_WIDTH, common=MACHINES_WIDTH, noise=LAYER_NOISE, bounds=GROUP_BOUNDS
    )
    here = replace(measured.platform, machine_checks={})
    blank = replace(
        measured,
        platform=here,
        speeds=speeds,
        drift=run.drift,
        predicted_reference=predicted_reference,
        remarks=(*measured.remarks, *_far_apart(run.costs, bundle.costs)),
        times=runs,
    )
    calibration = fit_calibration(blank, placed, {}, priors)
    factor_ci, layer_ci = _doubts(calibration, shares)
    others = () if anew else machines_of(bundle)
    alike = [other for other in others if not here.hardware_differences(other.platform)]
    if here.same_hardware(bundle.platform):
        alike = [blank]
    if alike:
        drifting = {group: math.hypot(ci, run.drift) for group, ci in factor_ci.items()}
        calibration = _where_sure(calibration, drifting, alike[0])
    return replace(calibration, costs=run.costs, factor_ci=factor_ci, layer_ci=layer_ci)


def _where_sure(
    learnt: Calibration, factor_ci: Mapping[str, float], usual: Calibration
) -> Calibration:
    """Keep of each factor what its interval leaves: hardware of the same description is as fast.

    As the positive-part rule of James and Stein: within its interval a factor is the usual one.
    """

    def shrunk(factor: float, expected: float, ci: float) -> float:
        off = math.log(factor / expected)
        return expected * math.exp(off * (1 - (ci / off) ** 2)) if abs(off) > ci else expected

    return replace(
        learnt,
        factors={
            group: shrunk(factor, usual.factor(group), factor_ci[group])
            for group, factor in learnt.factors.items()
        },
        others=shrunk(learnt.others, usual.others, median(factor_ci.values())),
    )


def _far_apart(here: Mapping[str, float], there: Mapping[str, float]) -> list[str]:
    """Say that cores were far apart all the time, if passing on values was that slow."""
    least_ms = max(FAR_APART * there.get(OVERHEAD_PER_MB, 0.0), LEAST_FAR_APART_MS)
    if here.get(OVERHEAD_PER_MB, 0.0) <= least_ms:
        return []
    return [
        f"a MB passed from layer to layer cost {here[OVERHEAD_PER_MB]:.2f} ms, as on a host whose "
        "cores are far apart for a while, which predictions leave out: if networks take longer "
        "than predicted for good, use resperf calibrate --networks"
    ]


def _doubts(
    learnt: Calibration, shares: npt.NDArray[np.float64]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return `Calibration.factor_ci` and `Calibration.layer_ci`.

    From how far off the group's layers are that were left out of the fit, joined with the median
    of all, by Student's distribution. The factor's interval is that over the root of how many
    layers weigh in the group, and no more than is expected without any.
    """
    special = require("scipy.special", "train")
    runs = learnt.evidence["networks"]
    off = np.array([math.log(run["measured_ms"] / run["left_out_ms"]) for run in runs])
    usual = max(float(np.median(np.abs(off))) / float(special.ndtri(0.75)), LEAST_SPREAD)
    prior = half_width(GROUP_WIDTH)
    factor_ci, layer_ci = {}, {}
    for group, weights in zip(GROUPS, shares.T, strict=True):
        count = float(weights.sum())
        layer_ci[group] = half_width(*joined_spread(float(weights @ off**2), count, usual))
        factor_ci[group] = 1 / math.sqrt(count / layer_ci[group] ** 2 + 1 / prior**2)
    return factor_ci, layer_ci
