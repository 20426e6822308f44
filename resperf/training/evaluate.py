"""Evaluating a bundle on rows that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.bundle import NETWORK, Bundle
from resperf.dataset import (
    DatasetInfo,
    KindTable,
    floor_of_medians,
    noise_floor,
    read_info,
    read_networks,
    read_table,
)
from resperf.devices import device_class
from resperf.errors import TrainingError, UnsupportedError
from resperf.features import Array
from resperf.grouping import grouped
from resperf.measurement import DEFECTS
from resperf.platform import Platform
from resperf.predictors import Examples, Predictor, predictor_class
from resperf.predictors.metrics import Errors, errors
from resperf.quantities import QUANTITIES, layer_quantity
from resperf.records import Record
from resperf.settings import OPTIMIZER, Setting
from resperf.splits import architecture_of, split_of_keys, was_packed
from resperf.targets import UNKNOWN
from resperf.training.rows import (
    OTHER_SETTING,
    LayerRows,
    layer_rows,
    network_examples,
    network_quantities,
)

Part = Literal["test", "all"]


@dataclass(frozen=True)
class EvaluatedNetwork(Record):
    """A measured network and its prediction, in the unit of the quantity.

    Attributes
    ----------
    network : str
    batch : int or None
    device : str
    setting : Setting
        As the dataset says.
    measured, predicted : float
    low, high : float
        The 90% interval; NaN if unknown.
    """

    network: str
    batch: int | None
    device: str
    setting: Setting
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Signed error of the prediction, as a fraction of the measured value."""
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an unknown interval is None."""
        return {**super().to_json(), "error": self.error}


@dataclass(frozen=True)
class Evaluated(Record):
    """Errors of one kind and quantity.

    Attributes
    ----------
    kind, phase, method : str
        `method` is the predictor's, or ``transfers``.
    errors : Errors
    noise_floor : float
        MAPE that a perfect predictor would score against these medians, a fraction; NaN if nothing
        was measured twice.
    out_of_range : int
        How many of the rows are outside the trained range.
    in_interval : float
        Share of single measurements within the bundle's 90% intervals, averaged over layers; NaN
        if it has none. Medians of repeats are inside more often.
    networks : tuple of EvaluatedNetwork
        Each of the rows, if they are of whole networks.
    """

    kind: str
    phase: str
    method: str
    errors: Errors
    noise_floor: float
    out_of_range: int
    in_interval: float
    networks: tuple[EvaluatedNetwork, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an unknown noise floor is None."""
        values = super().to_json()
        if not self.networks:
            del values["networks"]
        errors: dict[str, Any] = values.pop("errors")
        return {**values, **errors}


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, and notes on what was skipped."""

    rows: tuple[Evaluated, ...]
    notes: tuple[str, ...]


def evaluate(
    dataset: Path, bundle: Bundle, split: Part = "test", totals: Predictor | None = None
) -> Evaluation:
    """Compare a bundle's predictions with a dataset's measured times.

    The part of the bundle that is nearest to the setting and platform of each row predicts it.

    Parameters
    ----------
    dataset : Path
        The bundle's own dataset, or another one of the same device class and framework.
    bundle : Bundle
    split : {"test", "all"}
        ``test``: the test split. ``all``: every row that was used neither for training nor for
        validation of this bundle. Totals of layers have no split: networks to which the in-network
        correction was fitted are left out.
    totals : Predictor, optional
        Predicts networks by the bundle's layers (`resperf.prediction.SumOfLayers`).

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    BundleError
        If no part of the bundle predicts layers of the dataset's framework and mode.
    TrainingError
        If no unseen row remains, the dataset's times are of another quantity than the bundle's, or
        it is of another framework or device class.
    """
    info, tables = read_info(dataset), read_table(dataset)
    setting = _completed(info.setting, bundle)
    measured = [(setting, platform) for table in tables.values() for platform in table.platforms]
    if not tables:
        rows = read_networks(dataset).measurements
        measured = [(_completed(row.setting, bundle), row.platform) for row in rows]
    if measured and not any(_is_of(bundle, *pair) for pair in measured):
        how, where = measured[0]
        predicted = dict.fromkeys(f"{part.framework} on {part.device}" for part in bundle.parts)
        raise TrainingError(
            f"{dataset} was measured with {how.framework}, {how.mode}, on {where.device}; "
            f"{bundle.path} predicts {' and '.join(predicted)}: choose a bundle of that framework "
            "and kind of device (resperf devices lists them)"
        )
    notes: list[str] = []
    evaluated: list[Evaluated] = []
    for kind, table in tables.items():
        runs = _runs(table, info, bundle, split, notes)
        own = layer_quantity(table.quantities)
        for run in runs:
            if run.part.kinds and own != run.part.own_quantity(kind):
                raise TrainingError(
                    f"{dataset} holds times of {own}, {bundle.path} predicts "
                    f"{run.part.own_quantity(kind)}: they contain different things; train a "
                    "bundle from this dataset"
                )
        if lacking := sum(len(run.rows) for run in runs if not run.part.has(kind)):
            notes.append(f"{kind}: {lacking} rows, the bundle has no predictor")
        if unseen := [run for run in runs if len(run.rows) and run.part.has(kind)]:
            evaluated += _evaluate_kind(kind, table, unseen)
        notes += _of_defects(kind, table, info, bundle)
    evaluated += _evaluate_networks(dataset, bundle, split, totals, notes)
    if not evaluated:
        reasons = f" ({'; '.join(dict.fromkeys(notes))})" if notes else ""
        raise TrainingError(
            f"{dataset} has no row that {bundle.path} can predict and was not trained on{reasons}; "
            "measure more layers with: resperf bench"
        )
    return Evaluation(tuple(evaluated), tuple(dict.fromkeys(notes)))


def _of_defects(kind: str, table: KindTable, info: DatasetInfo, bundle: Bundle) -> Iterator[str]:
    """Say how many rows are left out as defects, none of which was trained on, and their errors."""
    rows = table.select(table.ok & table.defective)
    if not len(rows):
        return
    rows = replace(rows, flags=np.full(len(rows), ""))
    runs = [run for run in _runs(rows, info, bundle, "all", []) if run.part.has(kind)]
    judged = [f"{row.phase} {row.errors.mape:.1%}" for row in _evaluate_kind(kind, rows, runs)]
    errors_of = f"; the MAPE of these is {', '.join(judged)}" if judged else ""
    yield f"{kind}: {len(rows)} rows flagged {' or '.join(DEFECTS)} are left out{errors_of}"


@dataclass(frozen=True)
class _Run:
    """Rows of one setting and platform that a part of the bundle has not seen.

    `table` has all rows of that setting and platform.
    """

    part: Bundle
    rows: LayerRows
    table: KindTable


def _runs(
    table: KindTable, info: DatasetInfo, bundle: Bundle, split: Part, notes: list[str]
) -> list[_Run]:
    """Return the rows of a kind, each of which the nearest part of the bundle predicts.

    Bundles of one setting and platform are judged on the rows of most; the others are noted.
    """
    rows = layer_rows(table, info=info, many=any(part.many_settings for part in bundle.parts))
    if others := rows.left_out.get(OTHER_SETTING):
        notes.append(f"{table.name}: {others} rows under {OTHER_SETTING} than most are left out")
    runs = []
    for given, platform, places in rows.examples(rows.layer_quantity).by_setting():
        setting = _completed(given, bundle)
        part = bundle
        if any(part.kinds for part in bundle.parts):
            if not _is_of(bundle, setting, platform):
                notes.append(f"layers on {platform.device} with {setting.framework} are left out")
                continue
            part = bundle.part_for(None, None, setting, platform)
        notes.extend(_differences(setting, platform, part))
        some = rows.select(places)
        unseen = some.select(np.flatnonzero(_unseen_keys(some.keys, part, split)))
        if part.many_settings:
            part = part.for_device(platform, setting)
        same_setting = np.array([other.with_optimizer("") == given for other in table.settings])
        same_platform = np.array([other == platform for other in table.platforms])
        own = table.select(same_setting[table.setting] & same_platform[table.machine])
        runs.append(_Run(part, unseen, own))
    return runs


_UNKNOWN_IF_EMPTY = ("framework", "framework_version", "provider", "threads", "options")


def _completed(setting: Setting, bundle: Bundle) -> Setting:
    """Return a row's setting without batch; a bundle's values replace what is unknown of it."""
    unknown = [name for name in _UNKNOWN_IF_EMPTY if not getattr(setting, name)]
    filled = {name: getattr(bundle.setting, name) for name in unknown}
    return replace(setting.without_batch(), **filled)


def _is_of(bundle: Bundle, setting: Setting, platform: Platform) -> bool:
    """Say whether a part of a bundle is of this framework, mode and device class, if known."""
    mine = device_class(platform.device, setting.framework)
    return any(
        (setting.framework, setting.mode) in {(how.framework, how.mode) for how in part.settings}
        and (mine == theirs or UNKNOWN in (mine, theirs))
        for part in bundle.parts
        for theirs in [device_class(part.device, part.framework)]
    )


def _differences(setting: Setting, platform: Platform, part: Bundle) -> list[str]:
    nearest = min(
        (
            [*platform.hardware_differences(where), *setting.differences(how)]
            for where in part.platforms
            for how in part.settings
        ),
        key=len,
    )
    return [f"dataset and bundle are of different machines: {difference}" for difference in nearest]


def _evaluate_networks(
    dataset: Path, bundle: Bundle, split: Part, totals: Predictor | None, notes: list[str]
) -> list[Evaluated]:
    """Evaluate predictors of whole networks, and totals of layers, on measured networks."""
    quantities = network_quantities(dataset)
    parts_of = {part for name in quantities for part in QUANTITIES[name].parts}
    learnt_by = {
        name: part.method_of(NETWORK, name)
        for part in bundle.parts
        for name in part.network_quantities
    }
    has_layers = any(part.kinds for part in bundle.parts)
    evaluated = []
    for quantity in quantities:
        predictors: list[tuple[str, Predictor | None]] = []
        if quantity in learnt_by:
            predictors.append((learnt_by[quantity], None))
        if totals is not None and has_layers and quantity not in parts_of:
            predictors.append((totals.method, totals))
        for method, predictor in predictors:
            lists = predictor is None and predictor_class(method).reads_lists
            examples = network_examples(dataset, quantity, lists=lists, left_out=notes)
            rows = _networks(examples, bundle, split, predictor, notes)
            if rows:
                evaluated.append(_of_networks(quantity, method, rows))
    return evaluated


def _networks(
    examples: Examples, bundle: Bundle, split: Part, totals: Predictor | None, notes: list[str]
) -> list[EvaluatedNetwork]:
    """Predict measured networks as a whole, or with `totals` by their layers.

    Networks that the bundle was trained on, or its in-network correction was fitted to, are left
    out. Notes say which cannot be predicted, and why.
    """
    rows = []
    for network, given, platform, measured in zip(
        examples.networks, examples.settings, examples.platforms, examples.values, strict=True
    ):
        setting = _completed(given, bundle)
        if not _is_of(bundle, setting, platform):
            notes.append(f"networks on {platform.device} with {setting.framework} are left out")
            continue
        kind, quantity = (NETWORK, examples.quantity) if totals is None else (None, None)
        part = bundle.part_for(kind, quantity, setting, platform)
        if totals is None and not _unseen_keys([network.name], part, split).all():
            continue
        # Parts that are of one device and setting answer as these.
        there = part.for_device(platform, setting) if part.many_settings or totals is None else part
        fitted = {
            entry["network"]
            for learnt in (
                there.network_calibrations if totals else there.runs_calibrations(examples.quantity)
            )
            for entry in learnt.evidence.get("networks", ())
        }
        if network.name in fitted:
            notes.append("networks to which the in-network correction was fitted are left out")
            continue
        try:
            if totals is None:
                predicted = part.predict_networks([network], setting, platform, examples.quantity)
            else:
                predicted = dict(totals.predict([network], setting, platform))
            estimate = predicted.get(examples.quantity)
        except UnsupportedError as error:
            notes.append(f"{network.name}: {error}")
            continue
        notes.extend(() if totals is None else totals.notes_)
        if estimate is None or math.isnan(estimate.values[0]):
            notes.append(f"{network.name}: no {examples.quantity} is predicted")
            continue
        notes.extend(_differences(setting, platform, part))
        values = (float(array[0]) for array in (estimate.values, estimate.low, estimate.high))
        about = (network.name, network.batch, platform.device, given)
        rows.append(EvaluatedNetwork(*about, float(measured), *values))
    return rows


def _of_networks(quantity: str, method: str, rows: Sequence[EvaluatedNetwork]) -> Evaluated:
    measured, values, low, high = (
        np.array([getattr(row, name) for row in rows])
        for name in ("measured", "predicted", "low", "high")
    )
    within, judged = _within(measured, low, high), errors(measured, values)
    return Evaluated(NETWORK, quantity, method, judged, math.nan, 0, within, tuple(rows))


def _unseen_keys(keys: Sequence[str], bundle: Bundle, split: Part) -> npt.NDArray[np.bool_]:
    training = bundle.part["training"]
    unseen = ~was_packed(keys, training["seen"])
    if split == "test":
        # Keys of layers hold no @.
        unseen &= split_of_keys(list(map(architecture_of, keys)), training["split_seed"]).test
    return unseen


def _evaluate_kind(kind: str, table: KindTable, runs: Sequence[_Run]) -> list[Evaluated]:
    evaluated = []
    for phase in (phase for phase in QUANTITIES if phase in table.times_ms):
        timed = [replace(run, rows=run.rows.timed(phase)) for run in runs]
        timed = [run for run in timed if len(run.rows)]
        predicted = [
            run.part.predict(run.rows.layers(), phase, run.rows.columns.get(OPTIMIZER, ()))
            for run in timed
        ]
        if not timed or any(np.isnan(times.ms).any() for times in predicted):
            continue
        measured = np.concatenate([run.rows.measured for run in timed])
        within = [
            _within(_single_times(run.table, run.rows, phase), times.low_ms, times.high_ms)
            for run, times in zip(timed, predicted, strict=True)
        ]
        evaluated.append(
            Evaluated(
                kind,
                phase,
                timed[0].part.method_of(kind, phase),
                errors(
                    np.concatenate([run.rows.times_ms[phase] for run in timed]),
                    np.concatenate([times.ms for times in predicted]),
                ),
                floor_of_medians(noise_floor(table, phase).mape, measured),
                sum(int(np.sum(~times.in_range)) for times in predicted),
                float(np.average(within, weights=[len(run.rows) for run in timed])),
            )
        )
    return evaluated


def _single_times(table: KindTable, rows: LayerRows, phase: str) -> list[Array]:
    """Return each layer's measurements that are not noisy; its median if all are noisy."""
    clean = np.flatnonzero(table.ok & ~table.noisy)
    clean_ms = table.times_ms[phase][clean].tolist()
    times_ms = grouped(zip(table.key[clean].astype(str), clean_ms, strict=True))
    return [
        np.array(times_ms.get(key, [median_ms]))
        for key, median_ms in zip(rows.keys, rows.times_ms[phase].tolist(), strict=True)
    ]


def _within(measured: Iterable[Array], lows: Array, highs: Array) -> float:
    """Return the share of measured values within their bounds, averaged over the subjects."""
    if np.isnan(lows).any():
        return math.nan
    shares = [
        np.mean((low <= own) & (own <= high))
        for own, low, high in zip(measured, lows, highs, strict=True)
    ]
    return float(np.mean(shares))
