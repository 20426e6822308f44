"""A user's own runs of networks become part of any bundle; nothing is measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from resperf.bundle import Bundle, Calibration, Source, provenance, write_calibrated
from resperf.dataset import checksum, read_info, read_networks
from resperf.devices import canonical_device, is_at_hand
from resperf.errors import DeviceError, ResperfError, TrainingError, UnsupportedError, require
from resperf.measurement import NetworkRef
from resperf.network import Network
from resperf.platform import Platform
from resperf.prediction import predict_network
from resperf.prediction.choice import Query, choose, with_own_card
from resperf.prediction.data_sheet import METHOD
from resperf.prediction.offers import own_offers
from resperf.predictors.intervals import ASSUMED
from resperf.quantities import EXECUTION
from resperf.settings import PLAIN_PRECISIONS, Setting, same_settings
from resperf.training.correction import TimedNetwork, fit_calibration, priors_of_runs
from resperf.training.learning import described_dataset
from resperf.training.rows import network_examples, network_quantities
from resperf.workflows.calibrate_networks import refuse_published_rule, timed_prediction

OF_LAYERS = ("latency_ms", EXECUTION)
"""What runs may say where layers are added up; the first that they have counts."""
_SHOWN = 3
"""Reasons that an error names."""


@dataclass(frozen=True)
class _Run:
    """A network that somebody ran, and how long it took."""

    network: Network
    setting: Setting
    platform: Platform
    value: float


def calibrate_by_runs(
    query: Query, runs: Path, output: Callable[[Bundle], Path]
) -> tuple[Bundle, Calibration, list[str]]:
    """Learn from runs of networks how much longer they take than a bundle says, and write that.

    One network gives one factor for all, drawn to 1 by how far the factors of devices usually are
    apart; the more networks there are, the more the groups of their layers get factors of their
    own. The bundle's other devices and settings answer as before.

    Parameters
    ----------
    query : Query
        Which bundle, or which device: then whatever answers for it. What it leaves open is taken
        from the runs.
    runs : Path
        Dataset with rows of networks, as ``resperf dataset import --format list`` makes it.
    output : callable
        Folder to write for the bundle that was found; may be its own.

    Returns
    -------
    bundle : Bundle
        As written, as it answers for the runs' device and setting.
    calibration : Calibration
    notes : list of str
        Rows that were left out, and why.

    Raises
    ------
    DatasetError
        If the runs cannot be read.
    TrainingError
        If no row can be used; says why.
    ResperfError
        As `resperf.prediction.choice.choose`, and if the output cannot be written.
    """
    require("scipy.optimize", "train")
    query = with_own_card(query)
    wanted, device = _most_frequent(runs, query)
    bundle = _with_setting(_chosen_bundle(query, wanted, device), wanted)
    refuse_published_rule(bundle)
    quantities = OF_LAYERS if bundle.adds_up_layers else bundle.network_quantities
    notes: list[str] = []
    quantity, chosen = _chosen(runs, bundle, quantities, notes)
    base = bundle.without_calibrations(Source.RUNS)
    placed = list(_placed(base, chosen, quantity, notes))
    if not placed:
        named = "; ".join(notes[:_SHOWN])
        raise TrainingError(
            f"{runs} has no run that {bundle.path} can be calibrated with; 1 network is needed, 10 "
            f"give a good interval: {named or 'it has no rows of whole networks'}"
        )
    costs = base.network_calibrations[-1].costs if base.network_calibrations else base.costs
    about = Calibration(
        Source.RUNS,
        bundle.setting.without_batch(),
        Platform(bundle.device),
        quantity=quantity,
        evidence={"dataset": {"name": runs.name, "checksum": checksum(runs)}},
    )
    priors = priors_of_runs(fmean(width for _, width in placed))
    timed = [network for network, _ in placed]
    calibration = fit_calibration(about, timed, costs if base.adds_up_layers else {}, priors)
    return _written(bundle, calibration, runs, output(bundle)), calibration, notes


def _most_frequent(runs: Path, query: Query) -> tuple[Setting, str]:
    """Return the setting and the device of most rows of networks, of those that are asked for.

    Raises
    ------
    TrainingError
        If there is none.
    """
    rows = [row for row in read_networks(runs).measurements if isinstance(row.subject, NetworkRef)]
    if not rows:
        raise TrainingError(
            f"{runs} has no rows of whole networks; list yours in a CSV and make one with: "
            "resperf dataset import runs.csv --format list"
        )
    device = None if query.device is None else canonical_device(query.device)
    of_device = [row for row in rows if device in (None, canonical_device(row.platform.device))]
    if not of_device:
        there = ", ".join(dict.fromkeys(row.platform.device for row in rows))
        raise TrainingError(
            f"{runs} has no rows of {device}, only of {there}; name that device, or import the "
            "list again with --device"
        )
    fitting = [
        row
        for row in of_device
        if query.framework in (None, row.setting.framework)
        and (query.precision is None or query.fits(row.setting))
        and (row.setting.is_compiled or not query.compiled)
    ]
    settings = [(row.setting.without_batch(), row.platform.device) for row in fitting or of_device]
    [(chosen, _)] = Counter(settings).most_common(1)
    return chosen


def _chosen_bundle(query: Query, wanted: Setting, device: str) -> Bundle:
    """Return what answers for the runs; if a bundle is named, it, though the runs are of others.

    Raises
    ------
    ResperfError
        As `resperf.prediction.choice.choose`.
    """
    of_device = replace(query, device=device)
    of_setting = replace(
        of_device,
        framework=query.framework or wanted.framework or None,
        precision=query.precision or wanted.precision or PLAIN_PRECISIONS[1],
        compiled=query.compiled or wanted.is_compiled,
    )
    if query.bundle is not None:
        # The rows that do not fit are counted later.
        for question in (of_setting, of_device):
            with suppress(DeviceError, UnsupportedError):
                return choose(question).bundle
        return choose(query).bundle
    return choose(of_setting).bundle


def _with_setting(bundle: Bundle, wanted: Setting) -> Bundle:
    """Return the part of the runs' setting for the same device; the bundle if there is none."""
    if bundle.method == METHOD:
        return bundle
    setting = _completed(wanted, bundle)
    own = own_offers(bundle.parts, None if bundle.unseen else bundle.device)
    fitting = [offer for offer in own if same_settings(offer.setting) == same_settings(setting)]
    if not fitting:
        return bundle
    nearest = min(fitting, key=lambda offer: wanted.threads not in (0, offer.setting.threads))
    return replace(nearest, platform=bundle.platform).bundle


def _completed(setting: Setting, bundle: Bundle) -> Setting:
    """Return a setting with the bundle's framework if its own is not known."""
    return replace(setting, framework=setting.framework or bundle.framework)


def _chosen(
    runs: Path, bundle: Bundle, quantities: Sequence[str], notes: list[str]
) -> tuple[str, list[_Run]]:
    """Return the runs of what the bundle answers, and count the others in `notes`."""
    present = network_quantities(runs)
    quantity = next((name for name in quantities if name in present), None)
    if quantity is None:
        raise TrainingError(
            f"{runs} holds {', '.join(present) or 'no times'} of networks, {bundle.path} predicts "
            f"{', '.join(quantities) or 'none'}: they contain different things; if yours are the "
            "latter, say so in the list's column 'quantity'"
        )
    lists = not bundle.adds_up_layers
    examples = network_examples(runs, quantity, lists=lists, left_out=notes)
    rows = map(
        _Run, examples.networks, examples.settings, examples.platforms, map(float, examples.values)
    )
    fitting: list[_Run] = []
    others: dict[str, list[_Run]] = {}
    for row in rows:
        reason = _foreign(row, bundle)
        (others.setdefault(reason, []) if reason else fitting).append(row)
    notes[:0] = [
        f"left out: {len(some)} {reason}, first {some[0].network.name}"
        for reason, some in others.items()
    ]
    return quantity, fitting


def _foreign(run: _Run, bundle: Bundle) -> str:
    """Say in what a run differs from what the bundle answers; empty if in nothing."""
    device = canonical_device(run.platform.device)
    if device != canonical_device(bundle.device):
        return f"of device {device}, not {bundle.device}"
    mine, theirs = same_settings(_completed(run.setting, bundle)), same_settings(bundle.setting)
    differing = [name for name in mine if mine[name] != theirs[name]]
    if differing:
        name = differing[0]
        return f"of {name} {mine[name] or 'default'}, not {theirs[name] or 'default'}"
    threads = run.setting.threads, bundle.setting.threads
    if all(threads) and threads[0] != threads[1]:
        return f"of {threads[0]} threads, not {threads[1]}"
    # Of what a list says, only the name is known of the machine.
    if is_at_hand(bundle.device) and run.platform.cores:
        hardware = run.platform.hardware_differences(bundle.platform)
        speed = run.platform.speed_differences(bundle.platform)
        if other := [difference for difference in hardware if difference not in speed]:
            return f"of another machine ({other[0]})"
    return ""


def _placed(
    base: Bundle, runs: Iterable[_Run], quantity: str, notes: list[str]
) -> Iterator[tuple[TimedNetwork, float]]:
    """Yield what each network consists of, and half its interval as a logarithm.

    Those that the bundle does not predict are named in `notes`.
    """
    for run in runs:
        name = run.network.name
        try:
            if base.adds_up_layers:
                prediction = predict_network(run.network, base, whole=False)
                placed = timed_prediction(prediction, name, run.value, quantity)
                yield placed, _half_width(prediction.low_ms, prediction.high_ms)
            else:
                yield _of_groups(base, run, quantity)
        except ResperfError as error:
            notes.append(f"{name}: {error}")


def _of_groups(base: Bundle, run: _Run, quantity: str) -> tuple[TimedNetwork, float]:
    """Divide what a predictor of networks says into groups.

    Raises
    ------
    UnsupportedError
        If it says nothing.
    """
    setting = base.setting
    estimate = base.predict_networks([run.network], setting, base.platform, quantity)[quantity]
    value = float(estimate.values[0])
    if not value > 0:
        raise UnsupportedError(f"no {quantity} is predicted")
    predictor = base.network_predictor(quantity)
    [shares] = predictor.network_shares([run.network], setting, base.platform)
    groups_ms = {group: share * value for group, share in shares.items()}
    placed = TimedNetwork(run.network.name, run.setting.batch, run.value, groups_ms)
    return placed, _half_width(float(estimate.low[0]), float(estimate.high[0]))


def _half_width(low: float, high: float) -> float:
    """Return half the logarithmic width of an interval; an assumed one if it is not known."""
    return math.log(high / low) / 2 if 0 < low <= high < math.inf else ASSUMED


def _written(bundle: Bundle, calibration: Calibration, runs: Path, output: Path) -> Bundle:
    """Write the bundle with a calibration, in place of an earlier one of the same runs' sort."""
    earlier = bundle.runs_calibrations(None if bundle.adds_up_layers else calibration.quantity)
    others = [other for other in bundle.calibrations if other not in earlier]
    if bundle.method == METHOD and not bundle.provenance:
        came_from = provenance([described_dataset(read_info(runs), runs)], seeds={}, excluded={})
        bundle = Bundle(bundle.path, {**bundle.manifest, "provenance": came_from})
    calibrated = bundle.with_calibrations(
        (*others, calibration),
        f"calibrated for {bundle.device} with {calibration.count} networks of "
        f"{runs.name} (sha256 {calibration.evidence['dataset']['checksum']})",
    )
    return write_calibrated(calibrated, output).for_device(bundle.platform, bundle.setting)
