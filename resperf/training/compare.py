"""Methods compared: each learns from the same rows and is judged on rows that none has seen."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from resperf.dataset import KindTable, floor_of_medians, noise_floor, read_info, read_table
from resperf.errors import LayerError, TrainingError
from resperf.features import FEATURED_KINDS, Array, Columns, take
from resperf.predictors import LayerPredictor, Progress, layer_predictor_class
from resperf.predictors.metrics import errors, errors_by_time, r_squared
from resperf.quantities import layer_quantity
from resperf.training.comparison import TIMED_LAYERS, Compared, Comparison, ComparisonSettings
from resperf.training.progress import TrainingProgress
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import Trial, curve, fit_rows, folded, other_file, own_split

_TIMED_CALLS = 5
_TIMED_S = 1.0

Found = Callable[[Compared], None]
"""Told of each result as soon as it exists."""


def compare(
    dataset: Path,
    settings: ComparisonSettings,
    *,
    test: Path | None = None,
    found: Found | None = None,
    progress: TrainingProgress | None = None,
) -> Comparison:
    """Train methods on the same rows of a dataset and judge them on the same other rows.

    Parameters
    ----------
    dataset : Path
        HDF5 file. Its own test split judges; no method sees it.
    settings : ComparisonSettings
    test : Path, optional
        Another dataset, all of which judges instead; the rows of `dataset` then all train, or
        choose the best epoch. Layers of both files do not train, unless the files are of two
        devices.
    found : callable, optional
        Told of each result as soon as it exists.
    progress : callable, optional
        Told as in training, with the method's name behind the phase.

    Raises
    ------
    DatasetError
        If a file cannot be read.
    TrainingError
        If settings do not fit together, or no method could be fitted and judged.
    MissingExtraError
        If a method needs a package that is not installed.
    """
    if test is not None and settings.folds is not None:
        raise TrainingError("folds judge on the dataset itself; leave out the folds or the test")
    notes: list[str] = []
    compared: list[Compared] = []
    for source in _sources(dataset, test, settings, notes):
        for phase in settings.phases or (layer_quantity(source.judging_table.quantities),):
            floor = noise_floor(source.judging_table, phase).mape
            for trials in _points(source, phase, settings):
                for method in settings.methods:
                    tell = partial(progress, source.kind, f"{phase} {method}") if progress else None
                    try:
                        one = _judged(trials, phase, method, settings, floor, tell)
                    except (TrainingError, LayerError) as error:
                        notes.append(f"{source.kind} {phase}: {method} left out: {error}")
                        continue
                    compared.append(one)
                    if found is not None:
                        found(one)
    if not compared:
        raise TrainingError(
            f"{dataset}: nothing could be compared ({'; '.join(notes) or 'it has no rows'})"
        )
    return Comparison(tuple(compared), tuple(notes))


@dataclass(frozen=True)
class _Source:
    """The rows of one kind: what may be learnt from, and what is judged on.

    `judging` is None where the rows' own test split judges. `shared` says whether layers of both
    files may train.
    """

    rows: LayerRows
    judging: LayerRows | None
    judging_table: KindTable
    shared: bool

    @property
    def kind(self) -> str:
        return self.rows.kind


def _sources(
    dataset: Path, test: Path | None, settings: ComparisonSettings, notes: list[str]
) -> Iterator[_Source]:
    """Read the kinds asked for; notes say which are left out, and where the files are unlike."""
    tables = _tables(dataset, settings)
    others = tables if test is None else read_table(test)
    shared = test is not None and _unlike(dataset, test, notes)
    for kind in (kind for kind in tables if not settings.kinds or kind in settings.kinds):
        if kind not in FEATURED_KINDS:
            notes.append(f"{kind}: no features are defined for this kind, nothing to compare")
        elif kind not in others:
            notes.append(f"{kind}: {test} has no such layer")
        else:
            _check_times(dataset, tables[kind], test, others[kind], settings.phases)
            rows = layer_rows(tables[kind])
            judging = None if test is None else layer_rows(others[kind])
            both = 0 if judging is None or shared else len({*rows.keys} & {*judging.keys})
            if both:
                notes.append(f"{kind}: {both} layers of {dataset} are in {test} too, not trained")
            yield _Source(rows, judging, others[kind], shared)


def _tables(dataset: Path, settings: ComparisonSettings) -> dict[str, KindTable]:
    """Read a dataset, and refuse kinds that it does not have."""
    tables = read_table(dataset)
    missing = [kind for kind in settings.kinds if kind not in tables]
    if missing:
        raise TrainingError(
            f"{dataset} has no layer of kind {', '.join(missing)}; it has: {', '.join(tables)}"
        )
    return tables


def _check_times(
    dataset: Path, table: KindTable, test: Path | None, other: KindTable, phases: Sequence[str]
) -> None:
    """Refuse phases that were not measured, and times that are not times of the same."""
    for phase in phases or (layer_quantity(table.quantities),):
        for path, times_ms in ((dataset, table.times_ms), (test, other.times_ms)):
            if phase not in times_ms:
                raise TrainingError(f"{path} has no {phase} times; it has: {', '.join(times_ms)}")


def _unlike(dataset: Path, test: Path, notes: list[str]) -> bool:
    """Say whether two files are of two devices; every difference is noted."""
    mine, theirs = read_info(dataset), read_info(test)
    notes += [
        f"the machine of {test} is not that of {dataset}: {difference}"
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
    elif source.judging is None:
        trials = (own_split(rows),)
    else:
        trials = (other_file(rows, source.judging.timed(phase), shared=source.shared),)
    return curve(trials, settings.rows, settings.seed)


def _judged(
    trials: Sequence[Trial],
    phase: str,
    method: str,
    settings: ComparisonSettings,
    floor: float,
    progress: Progress | None,
) -> Compared:
    """Fit and judge a method once for each trial, and take the results together.

    `floor` is the noise floor of single measurements.
    """
    runs = [_run(trial, phase, method, settings, progress) for trial in trials]
    measured_ms = np.concatenate([trial.test.times_ms[phase] for trial in trials])
    predicted_ms = np.concatenate([run.predicted_ms for run in runs])
    mapes = tuple(
        errors(trial.test.times_ms[phase], run.predicted_ms).mape
        for trial, run in zip(trials, runs, strict=True)
    )
    return Compared(
        kind=trials[0].test.kind,
        phase=phase,
        method=method,
        rows_trained=round(mean(trial.rows_seen for trial in trials)),
        rows_validation=round(mean(len(trial.validation) for trial in trials)),
        errors=errors(measured_ms, predicted_ms),
        bins=errors_by_time(measured_ms, predicted_ms),
        r2=r_squared(measured_ms, predicted_ms),
        fold_mapes=mapes if settings.folds is not None else (),
        fit_s=mean(run.fit_s for run in runs),
        predict_us=median(run.predict_us for run in runs),
        noise_floor=floor_of_medians(
            floor, np.concatenate([trial.test.measured for trial in trials])
        ),
        measured_ms=measured_ms,
        predicted_ms=predicted_ms,
    )


@dataclass(frozen=True)
class _Run:
    """What one fit came to."""

    predicted_ms: Array
    fit_s: float
    predict_us: float


def _run(
    trial: Trial,
    phase: str,
    method: str,
    settings: ComparisonSettings,
    progress: Progress | None,
) -> _Run:
    """Fit, store, load, and predict the rows that are judged on."""
    if not len(trial.test):
        raise TrainingError("no rows to judge on; measure more layers with: resperf bench")
    start = time.perf_counter()
    predictor = fit_rows(
        layer_predictor_class(method)(trial.train.kind, epochs=settings.epochs),
        trial.train, trial.validation, phase, seed=settings.seed, progress=progress,
    )  # fmt: skip
    fit_s = time.perf_counter() - start
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        # What a bundle would hold is judged, not what the training library answers.
        values: Mapping[str, Any] = json.loads(json.dumps(predictor.export(Path(folder), "judged")))
        stored = type(predictor).load(values, Path(folder))
        predicted_ms = stored.values(trial.test.columns)
        predict_us = _predict_us(stored, trial.test.columns, len(trial.test))
    return _Run(predicted_ms, fit_s, predict_us)


def _predict_us(predictor: LayerPredictor, columns: Columns, rows: int) -> float:
    """Return the median time of a call, per layer."""
    count = max(rows, TIMED_LAYERS)
    many = take(columns, np.arange(count) % rows)
    taken: list[float] = []
    while not taken or (len(taken) < _TIMED_CALLS and sum(taken) < _TIMED_S):
        start = time.perf_counter()
        predictor.values(many)
        taken.append(time.perf_counter() - start)
    return median(taken) / count * 1e6
