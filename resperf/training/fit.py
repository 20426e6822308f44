"""From a dataset to a bundle: split, fit one predictor per kind and quantity, evaluate, write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle import (
    Bundle,
    GoldenLayer,
    Source,
    golden_layers,
    provenance,
    ranges_of,
    replaced_folder,
    write_manifest,
)
from resperf.dataset import noise_warning, read_info, read_table
from resperf.errors import BundleError, LayerError, TrainingError
from resperf.features import quantities
from resperf.layers import KINDS
from resperf.predictors import (
    DEFAULT_METHOD,
    LayerPredictor,
    methods_of,
    predictor_class,
)
from resperf.predictors.transfers import Transfers
from resperf.quantities import QUANTITIES, Level, learnt_quantities
from resperf.splits import SPLIT_SEED
from resperf.training.learning import CannotLearnError, Judged, Learning, values_of
from resperf.training.manifest import described_dataset, manifest_of
from resperf.training.networks import learn_networks
from resperf.training.places import Places, on_platforms, set_places
from resperf.training.progress import TrainingProgress
from resperf.training.rows import (
    OTHER_SETTING,
    LayerRows,
    layer_rows,
    network_quantities,
    stored_copies,
)
from resperf.training.trials import Trial, own_split

FEWEST_ROWS = 8
"""Training rows below which a kind gets no predictor."""

FEWEST_ROWS_FOR_NETWORK = 40
"""Training rows below which a kind gets the baseline, for every method."""

TRANSFERRED = {"preprocess_ms": "in_bytes", "postprocess_ms": "out_bytes"}
"""Phase -> the bytes of a layer that are copied between host and device in it."""

_GOLDEN = 10
_EVERY_PHASE = ("resperfnet", "perfnet")
"""Methods whose papers learn every phase; the others learn only the layers' own times."""


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
    own_times_only: bool = False,
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
    own_times_only : bool
        Whether methods that learn every phase leave copies to `Transfers`, as others do: faster.
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
        If the method is not known or grows no trees, or no kind has enough rows.
    OutputError
        If the bundle cannot be written; an existing one is unchanged.
    """
    settings = _settings(method, epochs, trees)
    info = read_info(dataset)
    if device is not None:
        info = replace(info, platform=replace(info.platform, device=device))
    was_calibrated = _is_calibrated(output)
    with replaced_folder(output) as folder:
        learning = Learning(info, folder, method, seed, settings, progress, own_times_only)
        if predictor_class(method).level is Level.NETWORK:
            part = learn_networks(learning, dataset, excluded, device)
        else:
            part = _learn_layers(learning, dataset, exclude_keys, device)
        if was_calibrated:
            learning.notes.append(
                "the in-network correction of the earlier bundle is lost; fit it again with: "
                f"resperf calibrate {output}"
            )
        came_from = provenance(
            [described_dataset(info, dataset)],
            seeds={"training": seed, "split": SPLIT_SEED},
            excluded={"networks": list(excluded), "layers": len(exclude_keys)},
        )
        write_manifest(folder, manifest_of(part, learning.how, learning.where, came_from))
    return Bundle.load(output)


def _learn_layers(
    learning: Learning,
    dataset: Path,
    exclude_keys: Set[str],
    device: str | None,
) -> dict[str, Any]:
    """Train a method on a dataset's layers; copies by their bytes."""
    method = learning.method
    tables = read_table(dataset)
    if not tables and network_quantities(dataset):
        methods = ", ".join(methods_of(Level.NETWORK)) or "none is installed"
        raise TrainingError(
            f"{dataset} holds rows of whole networks only and {method} learns from layers; choose "
            f"a --method that learns from networks ({methods}), or measure layers with: "
            "resperf bench"
        )
    tables = on_platforms(learning, tables, device)
    many = predictor_class(method).many_settings
    rows = {
        kind: layer_rows(table, exclude_keys, learning.info, many=many)
        for kind, table in tables.items()
    }
    learning.notes += [
        f"{kind}: {count} rows under {OTHER_SETTING} than most are left out"
        for kind, kind_rows in rows.items()
        if (count := kind_rows.left_out.get(OTHER_SETTING))
    ]
    parts = {kind: own_split(kind_rows) for kind, kind_rows in rows.items()}
    _fit_kinds(learning, parts)
    noisy = noise_warning(tables.values())
    learning.notes += [noisy] if noisy else []
    if not learning.predictors:
        raise TrainingError(
            f"{dataset} has too few rows to learn from ({'; '.join(learning.notes) or 'none'}); "
            "measure more layers with: resperf bench"
        )
    used = {kind: parts[kind] for kind in learning.predictors}
    train = {kind: part.train for kind, part in used.items()}
    places = set_places(learning, train)
    # Copies of several machines have nothing in common.
    transfers = _fit_transfers(parts) if len(learning.where) == 1 else {}
    for name in ("validation", "test"):
        rows = {kind: getattr(part, name) for kind, part in used.items()}
        learning.judged[name] = list(_predicted(rows, learning.predictors, transfers))
    learning.rows |= {
        kind: {
            **{name: len(getattr(part, name)) for name in ("train", "validation", "test")},
            "left_out": dict(part.train.left_out),
        }
        for kind, part in parts.items()
    }
    learning.seen += [k for p in used.values() for k in (*p.train.keys, *p.validation.keys)]
    ranges = {
        kind: ranges_of(rows.kind, rows.columns, learning.predictors[kind].get(rows.layer_quantity))
        for kind, rows in train.items()
    }
    typical = {kind: _typical(rows, places) for kind, rows in train.items()}
    golden = golden_layers(typical, learning.predictors, learning.how, learning.where)
    entries = {
        "transfers": {name: transfer.to_json() for name, transfer in transfers.items()},
        "ranges": ranges,
        "copies": stored_copies(train),
        "golden": {"layers": golden, "networks": []},
    }
    part = learning.part(entries)
    learning.notes += [
        f"{phase}: no transfer was measured, none is predicted"
        for phase in TRANSFERRED
        if phase not in part["transfers"]
    ]
    return part


def _is_calibrated(folder: Path) -> bool:
    """Return whether the folder has a calibrated bundle."""
    try:
        return any(
            calibration.source is Source.NETWORKS
            for part in Bundle.load(folder).parts
            for calibration in part.calibrations
        )
    except BundleError:
        return False


def _settings(method: str, epochs: int | None, trees: int | None) -> dict[str, int | None]:
    """Return the settings of a method's predictors."""
    settings: dict[str, int | None] = {"epochs": epochs}
    if trees is None:
        return settings
    if "trees" not in signature(predictor_class(method)).parameters:
        raise TrainingError(f"{method} has no number of trees to choose; leave out trees")
    return {**settings, "trees": trees}


def _fit_kinds(learning: Learning, parts: Mapping[str, Trial]) -> None:
    """Fit every kind and phase that there are enough rows of."""
    notes = learning.notes
    # The baseline does not know several devices.
    many = predictor_class(learning.method).many_settings
    for kind, part in parts.items():
        count = len(part.train)
        if part.train.kind not in KINDS:
            notes.append(f"{kind}: no features are defined for this kind, no predictor")
            continue
        if count < FEWEST_ROWS:
            notes.append(f"{kind}: {count} training rows, no predictor")
            continue
        other = "baseline" if count < FEWEST_ROWS_FOR_NETWORK and not many else None
        if other is not None:
            notes.append(f"{kind}: {count} training rows, baseline only")
        chosen, own = other or learning.method, part.train.layer_quantity
        measured = part.train.times_ms
        every_phase = chosen in _EVERY_PHASE and not learning.own_times_only
        for phase in measured if every_phase else learnt_quantities(measured):
            rows, validation = part.train.timed(phase), part.validation.timed(phase)
            if len(rows) < FEWEST_ROWS:
                # Copies that are only views take no time, which the transfers predict as well.
                notes.append(f"{kind} {phase}: too short to learn, predicted by transfers")
                continue
            examples = rows.examples(phase), validation.examples(phase)
            try:
                learning.learn(kind, *examples, method=other)
            except (LayerError, CannotLearnError) as error:
                # Other kinds keep their predictors: they may have taken minutes to train.
                if many or phase != own or chosen == "baseline":
                    notes.append(f"{kind} {phase}: no predictor ({error})")
                    continue
                notes.append(f"{kind}: baseline only ({error})")
                learning.learn(kind, *examples, method="baseline")


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
    rows_of: Mapping[str, LayerRows],
    predictors: Mapping[str, Mapping[str, LayerPredictor]],
    transfers: Mapping[str, Transfers],
) -> Iterator[Judged]:
    """Predict a split of the rows: kind, phase, measured and predicted times in ms."""
    for kind, every in rows_of.items():
        for phase in (phase for phase in QUANTITIES if phase in every.times_ms):
            rows = every.timed(phase)
            if not len(rows):
                continue
            if phase in predictors[kind]:
                predicted_ms = values_of(predictors[kind][phase], rows.examples(phase))
            elif phase in transfers:
                sizes = quantities(rows.kind, rows.columns)[TRANSFERRED[phase]]
                predicted_ms = transfers[phase].predict(sizes)
            else:
                continue
            yield kind, phase, rows.times_ms[phase], predicted_ms


def _typical(rows: LayerRows, places: Places) -> list[GoldenLayer]:
    """Return layers spread over their times, from the shortest to the longest."""
    order = np.argsort(rows.times_ms[rows.layer_quantity], kind="stable")
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(_GOLDEN, len(rows))).astype(int))
    # Every third first, so that a shorter selection is spread as well.
    spread = np.concatenate([chosen[start::3] for start in range(3)])
    return places.golden(rows.select(order[spread]))
