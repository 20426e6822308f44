"""From a dataset to a bundle: split, fit one predictor per kind and quantity, evaluate, write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle import (
    NETWORK,
    Bundle,
    GoldenLayer,
    Source,
    golden_layers,
    golden_networks,
    provenance,
    ranges_of,
    replaced_folder,
    write_manifest,
)
from resperf.dataset import NETWORKS, noise_warning, read_info, read_table
from resperf.errors import BundleError, LayerError, TrainingError
from resperf.features import Array, quantities
from resperf.layers import KINDS, key_at_any_batch
from resperf.lowering import lower
from resperf.network import Network, networks_at
from resperf.predictors import DEFAULT_METHOD, Examples, LayerPredictor, methods_of, predictor_class
from resperf.predictors.transfers import Transfers
from resperf.quantities import QUANTITIES, Level, learnt_quantities
from resperf.splits import SPLIT_SEED, architecture_of, split_of_keys
from resperf.training.learning import (
    CannotLearnError,
    Judged,
    Learning,
    TrainingProgress,
    described_dataset,
    on_platforms,
    set_places,
    values_of,
)
from resperf.training.rows import (
    OTHER_SETTING,
    LayerRows,
    layer_rows,
    network_examples,
    network_quantities,
    stored_copies,
)
from resperf.training.trials import Trial, own_split

_GOLDEN_NETWORKS = 3


def learn_networks(
    learning: Learning, dataset: Path, excluded: Sequence[str], device: str | None
) -> dict[str, Any]:
    """Train a method on all quantities of a dataset's networks that it can learn.

    Networks are split by name: all batch sizes of one are in the same part, and all sizes of its
    images if these follow an ``@`` in its name.

    Parameters
    ----------
    learning : Learning
        Gets what was learnt.
    dataset : Path
    excluded : sequence of str
        Networks (names of their files) to exclude from training.
    device : str or None
        Name of the device; the dataset's if None.

    Returns
    -------
    dict
        Part of a bundle's manifest.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    TrainingError
        If it has no rows of networks that the method can learn.
    """
    limited = predictor_class(learning.method).quantities
    learnable = [name for name in network_quantities(dataset) if limited is None or name in limited]
    if not learnable:
        raise TrainingError(
            f"{dataset} has no rows of whole networks that {learning.method} can learn; measure "
            "networks or import a list of them"
        )
    noisy = noise_warning([read_table(dataset, networks=True)[NETWORKS]])
    learning.notes += [noisy] if noisy else []
    left_out = {Path(name).stem for name in excluded}
    learning.rows[NETWORK] = {}
    learning.judged |= {"validation": [], "test": []}
    seen: set[str] = set()
    every: list[Examples] = []
    for name in learnable:
        reads_lists = predictor_class(learning.method).reads_lists
        examples = network_examples(dataset, name, lists=reads_lists)
        keys = [network.name for network in examples.networks]
        included = ~np.isin(keys, list(left_out))
        split = split_of_keys([architecture_of(key) for key in keys])
        parts = {
            label: examples.select(np.flatnonzero(getattr(split, label) & included))
            for label in ("train", "validation", "test")
        }
        learning.rows[NETWORK][name] = {
            **{label: len(part) for label, part in parts.items()},
            "left_out": {"excluded": int(np.sum(~included))},
        }
        learning.learn(NETWORK, parts["train"], parts["validation"])
        for label, judged in learning.judged.items():
            if len(rest := parts[label]):
                values = values_of(learning.predictors[NETWORK][name], rest)
                judged.append((NETWORK, name, rest.values, values))
        seen |= {
            network.name for network in (*parts["train"].networks, *parts["validation"].networks)
        }
        every.append(parts["train"])
    learning.seen += sorted(seen)
    learning.how = list(
        dict.fromkeys(setting.without_batch() for one in every for setting in one.settings)
    )
    # A bundle's first platform answers where nobody asks for several devices.
    where = sorted(
        dict.fromkeys(platform for one in every for platform in one.platforms),
        key=lambda platform: platform.devices,
    )
    learning.where = [
        platform if device is None else replace(platform, device=device) for platform in where
    ]
    chosen = [every[0].networks[row] for row in _spread(every[0].values, _GOLDEN_NETWORKS)]
    graphs = [graph for graph in chosen if isinstance(graph, Network)]
    # Quantities of another mode have no rows under the first setting.
    judging = {
        one.quantity: learning.predictors[NETWORK][one.quantity]
        for one in every
        if learning.how[0] in {setting.without_batch() for setting in one.settings}
    }
    golden_of = (
        golden_networks(graphs, judging, learning.how[0], learning.where[0]) if graphs else []
    )
    golden = {"layers": [], "networks": golden_of}
    return learning.part({"transfers": {}, "ranges": {}, "golden": golden})


def _spread(values: Array, count: int) -> list[int]:
    """Return some rows, from the one with the smallest to that with the largest value."""
    order = np.argsort(values, kind="stable").tolist()
    ranks = np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)
    return [order[rank] for rank in np.unique(ranks)]


FEWEST_ROWS = 8
"""Training rows below which a kind gets no predictor."""

FEWEST_ROWS_FOR_NETWORK = 40
"""Training rows below which a kind gets the baseline, for every method."""

TRANSFERRED = {"preprocess_ms": "in_bytes", "postprocess_ms": "out_bytes"}
"""Phase -> the bytes of a layer that are copied between host and device in it."""

_GOLDEN = 10


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
        stored = {
            "settings": {str(i): how.to_json() for i, how in enumerate(learning.how, start=1)},
            "platforms": {str(i): at.to_json() for i, at in enumerate(learning.where, start=1)},
        }
        manifest = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **stored,
            "parts": [{**part, **{name: list(values) for name, values in stored.items()}}],
            "provenance": came_from,
        }
        write_manifest(folder, manifest)
    return Bundle.load(output)


def _learn_layers(
    learning: Learning, dataset: Path, exclude_keys: Set[str], device: str | None
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
    set_places(learning, train)
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
    typical = {kind: _typical(rows, learning) for kind, rows in train.items()}
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
        all_phases = predictor_class(chosen).all_phases and not learning.own_times_only
        for phase in measured if all_phases else learnt_quantities(measured):
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


def _typical(rows: LayerRows, learning: Learning) -> list[GoldenLayer]:
    """Return layers spread over their times."""
    chosen = _spread(rows.times_ms[rows.layer_quantity], _GOLDEN)
    # Every third first, so that a shorter selection is spread as well.
    thirds = [row for start in range(3) for row in chosen[start::3]]
    some = rows.select(np.array(thirds))
    places = (
        # A method of one setting has the first.
        [own.index(value) if value in own else 0 for value in values]
        * (len(some) if len(values) == 1 else 1)
        for values, own in ((some.settings, learning.how), (some.platforms, learning.where))
    )
    return [GoldenLayer(*row) for row in zip(some.keys, *places, strict=True)]


BATCHES = (1, 8)
"""At batch 1 a layer may have another key; for larger batches only the batch differs."""


def keys_of_networks(datasets: Sequence[Path], networks: Sequence[Path]) -> frozenset[str]:
    """Find the keys in datasets that are layers of networks, at any batch size.

    Parameters
    ----------
    datasets : sequence of Path
    networks : sequence of Path
        ONNX files; they are lowered for each dataset's machine.

    Raises
    ------
    NetworkError, ShapeError, UnsupportedError
        If a network cannot be read or lowered.
    DatasetError
        If a dataset cannot be read.
    """
    if not networks:
        return frozenset()
    return frozenset().union(*(_keys_in(dataset, networks) for dataset in datasets))


def _keys_in(dataset: Path, networks: Sequence[Path]) -> frozenset[str]:
    info = read_info(dataset)
    wanted = {
        key_at_any_batch(node.layer.key)
        for path in networks
        for network in networks_at(path, BATCHES)
        for node in lower(network, info.setting, info.platform).nodes
        if node.layer is not None
    }
    return frozenset(
        str(key)
        for table in read_table(dataset).values()
        for key in table.key
        if key_at_any_batch(str(key)) in wanted
    )
