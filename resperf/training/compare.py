"""Comparison of methods: trained on the same rows and evaluated on the same unseen rows."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from resperf.dataset import KindTable, floor_of_medians, noise_floor, read_info, read_table
from resperf.errors import LayerError, TrainingError
from resperf.features import Array, Columns, take
from resperf.layers import KINDS
from resperf.measurement import quantity_of
from resperf.predictors import LayerPredictor, Progress, layer_predictor_class
from resperf.predictors.metrics import Errors, TimeBin, errors, errors_by_time, r_squared
from resperf.quantities import layer_quantity
from resperf.records import Record
from resperf.training.learning import TrainingProgress, of_main_platform, values_of
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import Trial, curve, fit_rows, folded, other_file, own_split

TIMED_LAYERS = 1000
"""Predictions are timed over at least this many layers in one call."""
_TIMED_CALLS = 5
_TIMED_S = 1.0


@dataclass(frozen=True)
class Compared(Record):
    """One method on one kind and quantity.

    Attributes
    ----------
    kind, phase, method : str
    rows_trained : int
        Rows that the method saw, validation rows included; the mean over the folds.
    rows_validation : int
        How many of these were used for validation only: best epoch, early stopping.
    errors : Errors
        Over the test rows; with folds, over those of all folds together.
    bins : tuple of TimeBin
        The same, by measured time.
    r2 : float
        See `resperf.predictors.metrics.r_squared`.
    fold_mapes : tuple of float
        MAPE of each fold; empty without folds.
    fit_s : float
        Wall time of a fit, the mean over the folds. The first network of a process also loads
        TensorFlow, which takes some seconds.
    predict_us : float
        Time to predict one layer, with at least `TIMED_LAYERS` in one call, by the predictor as a
        bundle stores it: without the libraries that trained it.
    noise_floor : float
        MAPE of a perfect predictor against these times, which are medians where layers were
        measured more than once; NaN if nothing was measured twice.
    measured_ms, predicted_ms : array (test rows,)
    """

    kind: str
    phase: str
    method: str
    rows_trained: int
    rows_validation: int
    errors: Errors
    bins: tuple[TimeBin, ...]
    r2: float
    fold_mapes: tuple[float, ...]
    fit_s: float
    predict_us: float
    noise_floor: float
    measured_ms: Array = field(repr=False, compare=False)
    predicted_ms: Array = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values without the times; unknown values are None."""
        values = super().to_json()
        del values["measured_ms"], values["predicted_ms"]
        errors: dict[str, Any] = values.pop("errors")
        return {**values, **errors}


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison, and notes on what was skipped."""

    rows: tuple[Compared, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonSettings:
    """How methods are compared.

    Attributes
    ----------
    methods : tuple of str
        Names of `resperf.predictors.METHODS`.
    rows : tuple of int
        Points of a learning curve: how many rows of a kind a method may see. Empty: all.
    folds : int or None
        Cross-validate over the rows outside the test split instead of evaluating on it.
    kinds : tuple of str
        Empty: all kinds of the dataset.
    phases : tuple of str
        Empty: the one with a layer's own time, which is execution if it was measured.
    seed : int
        Of the fits, of the folds, and of the rows of a learning curve. The test split is always
        the same.

    Raises
    ------
    TrainingError
        If a method is unknown or named twice, or a number is too small.
    """

    methods: tuple[str, ...]
    rows: tuple[int, ...] = ()
    folds: int | None = None
    kinds: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.methods:
            raise TrainingError("no method to compare; name some, such as: baseline,boosted")
        for method in self.methods:
            layer_predictor_class(method)
            if self.methods.count(method) > 1:
                raise TrainingError(f"method {method!r} is named twice")
        if self.folds is not None and self.folds < 2:
            raise TrainingError(f"{self.folds} folds; cross-validation needs at least 2")
        if any(count < 1 for count in self.rows):
            raise TrainingError(f"rows={min(self.rows)} must be at least 1")


OnResult = Callable[[Compared], None]
"""Called with each result as soon as it exists."""


def compare(
    dataset: Path,
    settings: ComparisonSettings,
    *,
    test: Path | None = None,
    on_result: OnResult | None = None,
    progress: TrainingProgress | None = None,
) -> Comparison:
    """Train methods on the same rows of a dataset and evaluate them on the same other rows.

    Parameters
    ----------
    dataset : Path
        HDF5 file. Methods are evaluated on its test split, which no method sees.
    settings : ComparisonSettings
    test : Path, optional
        Another dataset to evaluate on, all of it; all rows of `dataset` are then for training or
        validation. Layers that are in both files are not trained on, unless the files are of
        two devices.
    on_result : callable, optional
        Called with each result as soon as it exists.
    progress : callable, optional
        Called as in training, with the method's name after the phase.

    Raises
    ------
    DatasetError
        If a file cannot be read.
    TrainingError
        If settings contradict each other, or no method could be fitted and evaluated.
    MissingExtraError
        If a method needs a package that is not installed.
    """
    if test is not None and settings.folds is not None:
        raise TrainingError(
            "folds evaluate on the dataset itself; give either folds or a test dataset"
        )
    notes: list[str] = []
    compared: list[Compared] = []
    for source in _sources(dataset, test, settings, notes):
        for phase in _phases(source.test_table, settings.phases):
            floor = noise_floor(source.test_table, phase).mape
            for trials in _points(source, phase, settings):
                for method in settings.methods:
                    report = progress and partial(progress, source.rows.name, f"{phase} {method}")
                    try:
                        one = _evaluated(trials, phase, method, settings, floor, report)
                    except (TrainingError, LayerError) as error:
                        notes.append(f"{source.rows.name} {phase}: {method} skipped: {error}")
                        continue
                    compared.append(one)
                    if on_result is not None:
                        on_result(one)
    if not compared:
        raise TrainingError(
            f"{dataset}: nothing could be compared "
            f"({'; '.join(notes) or 'it has no rows of layers'})"
        )
    return Comparison(tuple(compared), tuple(notes))


@dataclass(frozen=True)
class _Source:
    """The rows of one kind to learn from, and those to evaluate on.

    `test` is None if the rows' own test split is used. `shared` says whether layers that are in
    both files may train.
    """

    rows: LayerRows
    test: LayerRows | None
    test_table: KindTable
    shared: bool


def _sources(
    dataset: Path, test: Path | None, settings: ComparisonSettings, notes: list[str]
) -> Iterator[_Source]:
    """Read the requested kinds; notes name skipped kinds and differences between the machines."""
    many = all(layer_predictor_class(method).many_settings for method in settings.methods)
    tables = _of_one(dataset, read_table(dataset), notes, many=many)
    if missing := [kind for kind in settings.kinds if kind not in tables]:
        raise TrainingError(
            f"{dataset} has no layer of kind {', '.join(missing)}; it has: {', '.join(tables)}"
        )
    others = tables if test is None else _of_one(test, read_table(test), notes, many=many)
    info, other_info = read_info(dataset), read_info(test or dataset)
    shared = test is not None and _of_two_devices(dataset, test, notes)
    for kind in (kind for kind in tables if not settings.kinds or kind in settings.kinds):
        if tables[kind].kind not in KINDS:
            notes.append(f"{kind}: no features are defined for this kind, nothing to compare")
        elif kind not in others:
            notes.append(f"{kind}: {test} has no such layer")
        else:
            _check_times(dataset, tables[kind], test, others[kind], settings.phases)
            rows = layer_rows(tables[kind], info=info, many=many)
            test_rows = None
            if test is not None:
                test_rows = layer_rows(others[kind], info=other_info, many=many)
            both = 0 if test_rows is None or shared else len({*rows.keys} & {*test_rows.keys})
            if both:
                notes.append(
                    f"{kind}: {both} layers of {dataset} are also in {test} and not trained on"
                )
            yield _Source(rows, test_rows, others[kind], shared)


def _of_one(
    path: Path, tables: dict[str, KindTable], notes: list[str], *, many: bool
) -> dict[str, KindTable]:
    """Return the rows of the platform of most rows, unless all methods take several."""
    of_most, main, others = of_main_platform(tables)
    if many or main is None or not others:
        return tables
    notes.append(
        f"{path}: only its rows of {main.device} are compared, not those of "
        f"{', '.join(others)}, since not all methods learn several devices"
    )
    return of_most


def _check_times(
    dataset: Path, table: KindTable, test: Path | None, other: KindTable, phases: Sequence[str]
) -> None:
    """Refuse quantities that were not measured in both files."""
    for phase in _phases(table, phases):
        for path, times_ms in ((dataset, table.times_ms), (test, other.times_ms)):
            if phase not in times_ms:
                raise TrainingError(f"{path} has no {phase} times; it has: {', '.join(times_ms)}")


def _phases(table: KindTable, phases: Sequence[str]) -> list[str]:
    """Return the quantities to learn; the execution of training steps is their ``step_ms``."""
    names = phases or (layer_quantity(table.quantities),)
    return [quantity_of(table.name, name) for name in names]


def _of_two_devices(dataset: Path, test: Path, notes: list[str]) -> bool:
    """Return whether two files are of two devices; notes every difference of the machines."""
    mine, theirs = read_info(dataset), read_info(test)
    notes += [
        f"{test} and {dataset} are of different machines: {difference}"
        for difference in (
            *theirs.platform.differences(mine.platform),
            *theirs.setting.differences(mine.setting),
        )
    ]
    return mine.platform.device != theirs.platform.device


def _points(
    source: _Source, phase: str, settings: ComparisonSettings
) -> tuple[tuple[Trial, ...], ...]:
    """Return the trials of each point of the learning curve."""
    rows = source.rows.timed(phase)
    if settings.folds is not None:
        trials = folded(rows, settings.folds, settings.seed)
    elif source.test is None:
        trials = (own_split(rows),)
    else:
        trials = (other_file(rows, source.test.timed(phase), shared=source.shared),)
    return curve(trials, settings.rows, settings.seed)


def _evaluated(
    trials: Sequence[Trial],
    phase: str,
    method: str,
    settings: ComparisonSettings,
    floor: float,
    progress: Progress | None,
) -> Compared:
    """Fit and evaluate a method once for each trial, and combine the results.

    `floor` is the noise floor of single measurements.
    """
    runs = (_run(trial, phase, method, settings, progress) for trial in trials)
    predictions_ms, fits_s, predicts_us = zip(*runs, strict=True)
    measured_ms = np.concatenate([trial.test.times_ms[phase] for trial in trials])
    predicted_ms = np.concatenate(predictions_ms)
    mapes = tuple(
        errors(trial.test.times_ms[phase], own_ms).mape
        for trial, own_ms in zip(trials, predictions_ms, strict=True)
    )
    return Compared(
        kind=trials[0].test.name,
        phase=phase,
        method=method,
        rows_trained=round(mean(trial.rows_seen for trial in trials)),
        rows_validation=round(mean(len(trial.validation) for trial in trials)),
        errors=errors(measured_ms, predicted_ms),
        bins=errors_by_time(measured_ms, predicted_ms),
        r2=r_squared(measured_ms, predicted_ms),
        fold_mapes=mapes if settings.folds is not None else (),
        fit_s=mean(fits_s),
        predict_us=median(predicts_us),
        noise_floor=floor_of_medians(
            floor, np.concatenate([trial.test.measured for trial in trials])
        ),
        measured_ms=measured_ms,
        predicted_ms=predicted_ms,
    )


def _run(
    trial: Trial, phase: str, method: str, settings: ComparisonSettings, progress: Progress | None
) -> tuple[Array, float, float]:
    """Fit, store, load, and predict the test rows.

    Also returns how long the fit takes in s, and the prediction of a row in us.
    """
    if not len(trial.test):
        raise TrainingError("no rows to evaluate on; measure more layers with: resperf bench")
    start = time.perf_counter()
    predictor = fit_rows(
        layer_predictor_class(method)(trial.train.kind), trial.train, trial.validation, phase,
        seed=settings.seed, progress=progress,
    )  # fmt: skip
    fit_s = time.perf_counter() - start
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        # Evaluate what a bundle would store, not what the training library predicts.
        values: Mapping[str, Any] = json.loads(
            json.dumps(predictor.export(Path(folder), "compared"))
        )
        stored = type(predictor).load(values, Path(folder))
        predicted_ms = values_of(stored, trial.test.examples(phase))
        predict_us = _predict_us(stored, trial.test.columns, len(trial.test))
    return predicted_ms, fit_s, predict_us


def _predict_us(predictor: LayerPredictor, columns: Columns, rows: int) -> float:
    """Return the median time of a call per layer, in microseconds."""
    count = max(rows, TIMED_LAYERS)
    many = take(columns, np.arange(count) % rows)
    taken: list[float] = []
    while not taken or (len(taken) < _TIMED_CALLS and sum(taken) < _TIMED_S):
        start = time.perf_counter()
        predictor.values(many)
        taken.append(time.perf_counter() - start)
    return median(taken) / count * 1e6
