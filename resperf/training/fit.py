"""From a dataset to a bundle: split, fit one predictor per kind and phase, evaluate, write."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from resperf._version import __version__
from resperf.bundle import (
    COPIES_ASSUMED,
    Bundle,
    golden_layers,
    provenance,
    ranges_of,
    replaced_folder,
    write_manifest,
)
from resperf.dataset import noise_warning, read_info, read_table
from resperf.errors import BundleError, LayerError, TrainingError
from resperf.features import Array, quantities, take
from resperf.layers import KINDS
from resperf.predictors import (
    DEFAULT_METHOD,
    LayerPredictor,
    layer_predictor_class,
    methods_of,
    predictor_class,
)
from resperf.predictors.baseline import Baseline
from resperf.predictors.transfers import Transfers
from resperf.quantities import QUANTITIES, Level
from resperf.settings import OPTIMIZER
from resperf.splits import SPLIT_SEED, pack_keys
from resperf.training.activations import estimate_activations
from resperf.training.estimate import Source, read_source
from resperf.training.judged import Judged, errors_of, intervals_of, stored_and_loaded
from resperf.training.manifest import described_dataset, manifest_of, part_of
from resperf.training.networks import train_networks
from resperf.training.progress import TrainingProgress
from resperf.training.rows import LayerRows, layer_rows, network_quantities, stored_copies
from resperf.training.trials import Trial, fit_rows, own_split

FEWEST_ROWS = 8
"""Training rows below which a kind gets no predictor."""

FEWEST_ROWS_FOR_NETWORK = 40
"""Training rows below which a kind gets the baseline, for every method."""

TRANSFERRED = {"preprocess_ms": "in_bytes", "postprocess_ms": "out_bytes"}
"""Phase -> the bytes of a layer that are copied between host and device in it."""

_EVERY_PHASE = ("resperfnet", "perfnet")
"""Methods whose papers learn every phase; the others learn only the layers' own times."""
_COMPARED_ROWS = 1000


@dataclass
class _Learnt:
    """Predictors fitted so far."""

    predictors: dict[str, dict[str, LayerPredictor]] = field(default_factory=dict)
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def train(
    dataset: Path,
    output: Path,
    *,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    epochs: int | None = None,
    trees: int | None = None,
    device: str | None = None,
    exclude_keys: Set[str] = frozenset(),
    excluded: Sequence[str] = (),
    estimate_from: Sequence[Path] = (),
    progress: TrainingProgress | None = None,
) -> Bundle:
    """Train predictors on a dataset and write them as a bundle.

    Parameters
    ----------
    dataset : Path
        HDF5 file of a campaign.
    output : Path
        Folder of the bundle; an existing bundle is replaced once the new one is complete.
    method : str
        A name of `resperf.predictors.METHODS`.
    seed : int
        The same seed gives the same bytes on the same machine and versions, except for the creation
        date.
    epochs : int, optional
        The method's own choice by default.
    trees : int, optional
        Most trees of each predictor: fewer make a smaller bundle. The method's own choice by
        default.
    device : str, optional
        Name of the device; the dataset's by default.
    exclude_keys : set of str
        Layers that are used neither for training nor for validation.
    excluded : sequence of str
        Names of the networks of these layers, for the bundle's provenance.
    estimate_from : sequence of Path
        Sources of estimates for poolings and copies that the dataset lacks; see
        `resperf.training.estimate.read_source`. Activations are then estimated from the dataset
        itself.
    progress : callable, optional

    Returns
    -------
    Bundle
        As loaded from `output`.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    TrainingError
        If the method is not known or grows no trees, no kind has enough rows, or nothing can be
        estimated from `estimate_from`.
    OutputError
        If the bundle cannot be written; an existing one is unchanged.
    """
    settings = _settings(method, epochs, trees)
    if predictor_class(method).level is Level.NETWORK:
        return train_networks(
            dataset, output, method=method, seed=seed, settings=settings, device=device,
            excluded=excluded, progress=progress,
        )  # fmt: skip
    info = read_info(dataset)
    if device is not None:
        info = replace(info, platform=replace(info.platform, device=device))
    # Its errors must come before minutes of training.
    source = (
        read_source(estimate_from, info.setting, info.platform, exclude_keys)
        if estimate_from
        else None
    )
    tables = read_table(dataset)
    if not tables and network_quantities(dataset):
        known = ", ".join(methods_of(Level.NETWORK)) or "none is installed"
        raise TrainingError(
            f"{dataset} holds rows of whole networks only and {method} learns from layers; choose "
            f"a --method that learns from networks ({known}), or measure layers with: resperf bench"
        )
    noisy = noise_warning(tables.values())
    parts = {
        kind: own_split(layer_rows(table, exclude_keys, info)) for kind, table in tables.items()
    }
    was_calibrated = _is_calibrated(output)
    with replaced_folder(output) as folder:
        learnt = _fit_kinds(parts, folder, method, seed, settings, progress)
        learnt.notes += [noisy] if noisy else []
        if was_calibrated:
            learnt.notes.append(
                "the in-network correction of the earlier bundle is lost; fit it again with: "
                f"resperf calibrate {output}"
            )
        if not learnt.predictors:
            raise TrainingError(
                f"{dataset} has too few rows to learn from ({'; '.join(learnt.notes) or 'none'}); "
                "measure more layers with: resperf bench"
            )
        transfers = _fit_transfers(parts)
        described = described_dataset(info, dataset)
        part = part_of(info) | {
            "method": method,
            "predictors": learnt.stored,
            "transfers": {name: each.to_json() for name, each in transfers.items()},
            "ranges": {
                kind: ranges_of(parts[kind].train.kind, parts[kind].train.columns)
                for kind in learnt.predictors
            },
            "errors": {
                name: errors_of(_predicted(name, parts, learnt, transfers))
                for name in ("validation", "test")
            },
            "intervals": intervals_of(_predicted("validation", parts, learnt, transfers)),
            "training": _training(parts, learnt, seed, settings),
            "copies": stored_copies({kind: parts[kind].train for kind in learnt.predictors})
            or COPIES_ASSUMED,
            "golden": {
                "layers": golden_layers(
                    {kind: _typical(parts[kind].train) for kind in learnt.predictors},
                    learnt.predictors,
                ),
                "networks": [],
            },
        }
        if source is not None:
            session_ms = info.machine_costs.get("session_ms")
            _estimate(part, described, source, learnt, parts, session_ms)
        learnt.notes += [
            f"{phase}: no transfer was measured, none is predicted"
            for phase in TRANSFERRED
            if phase not in part["transfers"]
        ]
        came_from = provenance(
            [described, *(described_dataset(read_info(each), each) for each in estimate_from
                          if each.is_file())],
            seeds={"training": seed, "split": SPLIT_SEED},
            excluded={"networks": list(excluded), "layers": len(exclude_keys)},
        )  # fmt: skip
        where = info.platform.with_probes(info.machine_costs)
        ranges: Mapping[str, Mapping[str, Sequence[str]]] = part["ranges"]
        optimizers = {each for known in ranges.values() for each in known.get(OPTIMIZER, ())}
        how = [info.setting.with_optimizer(each) for each in sorted({"", *optimizers})]
        write_manifest(folder, manifest_of(part, how, [where], came_from))
    return Bundle.load(output)


def _is_calibrated(folder: Path) -> bool:
    """Return whether the folder has a calibrated bundle."""
    try:
        return any(part.correction is not None for part in Bundle.load(folder).parts)
    except BundleError:
        return False


def _settings(method: str, epochs: int | None, trees: int | None) -> dict[str, int | None]:
    """Return the settings of a method's predictors."""
    settings: dict[str, int | None] = {"epochs": epochs}
    if trees is None:
        return settings
    if "trees" not in signature(predictor_class(method)).parameters:
        raise TrainingError(f"{method} has no number of trees to choose; leave out --trees")
    return {**settings, "trees": trees}


def _estimate(
    part: dict[str, Any],
    dataset: Mapping[str, Any],
    source: Source,
    learnt: _Learnt,
    parts: Mapping[str, Trial],
    session_ms: float | None,
) -> None:
    """Add estimates for what the dataset lacks to a part."""
    execution = {
        kind: quantities["execution_ms"]
        for kind, quantities in learnt.predictors.items()
        if "execution_ms" in quantities
    }
    if not execution:
        raise TrainingError("a bundle of whole calls needs no estimates; leave out --estimate-from")
    estimates = source.estimates(execution, session_ms)
    if "conv" in execution:
        activations = estimate_activations(execution["conv"], parts["conv"])
        estimates = dataclasses.replace(estimates, activations=activations)
    estimates.complete(part, dataset)
    if not part["estimates"]:
        learnt.notes.append("everything was measured: nothing was estimated")


def _fit_kinds(
    parts: Mapping[str, Trial],
    folder: Path,
    method: str,
    seed: int,
    settings: Mapping[str, int | None],
    progress: TrainingProgress | None,
) -> _Learnt:
    learnt = _Learnt()
    for kind, part in parts.items():
        if part.train.kind not in KINDS:
            learnt.notes.append(f"{kind}: no features are defined for this kind, no predictor")
            continue
        if len(part.train) < FEWEST_ROWS:
            learnt.notes.append(f"{kind}: {len(part.train)} training rows, no predictor")
            continue
        chosen, made_with = method, settings
        if len(part.train) < FEWEST_ROWS_FOR_NETWORK:
            chosen, made_with = "baseline", {}
            learnt.notes.append(f"{kind}: {len(part.train)} training rows, baseline only")
        own = part.train.layer_quantity
        for phase in part.train.times_ms if chosen in _EVERY_PHASE else (own,):
            report = partial(progress, kind, phase) if progress is not None else None
            try:
                fitted = layer_predictor_class(chosen)(part.train.kind, **made_with)
                _fit_one(fitted, part, phase, seed, report, folder, learnt)
            except (LayerError, _CannotLearnError) as error:
                # Other kinds keep their predictors: they may have taken minutes to train.
                if phase != own or chosen == "baseline":
                    learnt.notes.append(f"{kind} {phase}: no predictor ({error})")
                    continue
                learnt.notes.append(f"{kind}: baseline only ({error})")
                _fit_one(Baseline(part.train.kind), part, phase, seed, report, folder, learnt)
    return learnt


class _CannotLearnError(TrainingError):
    """A method cannot learn one kind."""


def _fit_one(
    predictor: LayerPredictor,
    part: Trial,
    phase: str,
    seed: int,
    report: Any,
    folder: Path,
    learnt: _Learnt,
) -> None:
    """Fit and export one predictor, and store it as it will be loaded."""
    rows = part.train.timed(phase)
    if len(rows) < FEWEST_ROWS:
        # Copies that are only views take no time, which the transfers predict as well.
        learnt.notes.append(f"{rows.name} {phase}: too short to learn, predicted by transfers")
        return
    try:
        fit_rows(predictor, rows, part.validation.timed(phase), phase, seed=seed, progress=report)
    except TrainingError as error:
        raise _CannotLearnError(str(error)) from error
    learnt.notes += [note for note in predictor.notes_ if note not in learnt.notes]
    places = np.linspace(0, len(rows) - 1, min(len(rows), _COMPARED_ROWS)).astype(int)
    some = take(rows.columns, places)
    stored, loaded = stored_and_loaded(predictor, folder, rows.name, lambda each: each.values(some))
    learnt.predictors.setdefault(rows.name, {})[phase] = loaded
    learnt.stored.setdefault(rows.name, {})[phase] = stored


def _fit_transfers(parts: Mapping[str, Trial]) -> dict[str, Transfers]:
    """Fit copies between host and device to the rows of all kinds together, if there are any."""
    transfers = {}
    for phase, quantity in TRANSFERRED.items():
        sizes, times = [], []
        for rows in (part.train for part in parts.values()):
            if rows.kind in KINDS and len(rows) and phase in rows.times_ms:
                sizes.append(quantities(rows.kind, rows.columns)[quantity])
                times.append(rows.times_ms[phase])
        with contextlib.suppress(TrainingError, ValueError):
            transfers[phase] = Transfers.fit(np.concatenate(sizes), np.concatenate(times))
    return transfers


def _predicted(
    name: str,
    parts: Mapping[str, Trial],
    learnt: _Learnt,
    transfers: Mapping[str, Transfers],
) -> Iterator[Judged]:
    """Predict a split of the rows: kind, phase, measured and predicted times in ms."""
    for kind, predictors in learnt.predictors.items():
        split_rows = getattr(parts[kind], name)
        for phase in (phase for phase in QUANTITIES if phase in split_rows.times_ms):
            rows = split_rows.timed(phase)
            if not len(rows):
                continue
            if phase in predictors:
                predicted_ms: Array = predictors[phase].values(rows.columns)
            elif phase in transfers:
                sizes = quantities(rows.kind, rows.columns)[TRANSFERRED[phase]]
                predicted_ms = transfers[phase].predict(sizes)
            else:
                continue
            yield kind, phase, rows.times_ms[phase], predicted_ms


def _typical(rows: LayerRows, count: int = 10) -> tuple[str, ...]:
    """Return keys of layers spread over their times, from the shortest to the longest."""
    order = np.argsort(rows.times_ms[rows.layer_quantity], kind="stable")
    places = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    # Every third first, so that a shorter selection is spread as well.
    spread = np.concatenate([places[start::3] for start in range(3)])
    return rows.select(order[spread]).keys


def _training(
    parts: Mapping[str, Trial],
    learnt: _Learnt,
    seed: int,
    settings: Mapping[str, int | None],
) -> dict[str, Any]:
    used = [parts[kind] for kind in learnt.predictors]
    return {
        "resperf": __version__,
        "seed": seed,
        "split_seed": SPLIT_SEED,
        "trees": None,
        **settings,
        "rows": {
            kind: {
                "train": len(part.train),
                "validation": len(part.validation),
                "test": len(part.test),
                "left_out": dict(part.train.left_out),
            }
            for kind, part in parts.items()
        },
        "notes": learnt.notes,
        "seen": pack_keys([key for p in used for key in (*p.train.keys, *p.validation.keys)]),
    }
