"""From rows of whole networks to a bundle: one predictor for each quantity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf._version import __version__
from resperf.bundle import (
    NETWORK,
    Bundle,
    golden_networks,
    provenance,
    replaced_folder,
    write_manifest,
)
from resperf.dataset import NETWORKS, noise_warning, read_info, read_table
from resperf.errors import TrainingError
from resperf.features import Array
from resperf.network import Network
from resperf.predictors import Examples, Predictor, predictor_class
from resperf.splits import SPLIT_SEED, pack_keys, split_of_keys
from resperf.training.judged import Judged, errors_of, intervals_of, stored_and_loaded
from resperf.training.manifest import described_dataset, manifest_of, part_of
from resperf.training.progress import TrainingProgress
from resperf.training.rows import network_examples, network_quantities

_GOLDEN = 3


def train_networks(
    dataset: Path,
    output: Path,
    *,
    method: str,
    seed: int,
    settings: Mapping[str, Any],
    device: str | None = None,
    excluded: Sequence[str] = (),
    progress: TrainingProgress | None = None,
) -> Bundle:
    """Train a method on all quantities of a dataset's networks that it can learn; write a bundle.

    Networks are split by name: all batch sizes of one are in the same part.

    Parameters
    ----------
    dataset, output, method, seed, device, progress
        As in `resperf.training.train`.
    settings : mapping
        Settings of the method's predictors.
    excluded : sequence of str
        Networks (names of their files) to exclude from training.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    TrainingError
        If it has no rows of networks that the method can learn.
    OutputError
        If the bundle cannot be written; an existing one is unchanged.
    """
    info = read_info(dataset)
    if device is not None:
        info = dataclasses.replace(info, platform=dataclasses.replace(info.platform, device=device))
    limited = predictor_class(method).quantities
    learnable = [name for name in network_quantities(dataset) if limited is None or name in limited]
    if not learnable:
        raise TrainingError(
            f"{dataset} has no rows of whole networks that {method} can learn; measure networks "
            "or import a list of them"
        )
    noisy = noise_warning([read_table(dataset, networks=True)[NETWORKS]])
    left_out = {Path(name).stem for name in excluded}
    part = part_of(info) | {
        "method": method,
        "predictors": {NETWORK: {}},
        "transfers": {},
        "ranges": {},
        "golden": {"layers": [], "networks": []},
    }
    rows, learnt, seen = {}, {}, set()
    judged: dict[str, list[Judged]] = {"validation": [], "test": []}
    every: list[Examples] = []
    with replaced_folder(output) as folder:
        for name in learnable:
            examples = network_examples(dataset, name, lists=predictor_class(method).reads_lists)
            keys = [network.name for network in examples.networks]
            known = ~np.isin(keys, list(left_out))
            split = split_of_keys(keys)
            train, validation, test = (
                _select(examples, np.flatnonzero(chosen & known))
                for chosen in (split.train, split.validation, split.test)
            )
            rows[name] = {
                "train": len(train), "validation": len(validation), "test": len(test),
                "left_out": {"excluded": int(np.sum(~known))},
            }  # fmt: skip
            predictor = predictor_class(method)(NETWORK, **settings)
            report = partial(progress, NETWORK, name) if progress is not None else None
            predictor.fit(
                train, validation=validation if len(validation) else train, seed=seed,
                progress=report,
            )  # fmt: skip
            part["predictors"][NETWORK][name], learnt[name] = stored_and_loaded(
                predictor, folder, NETWORK, partial(predicted, examples=train, quantity=name)
            )
            for label, rest in (("validation", validation), ("test", test)):
                if len(rest):
                    values = predicted(learnt[name], rest, name)
                    judged[label].append((NETWORK, name, rest.values, values))
            seen |= {each.name for each in (*train.networks, *validation.networks)}
            every.append(train)
        part["errors"] = {label: errors_of(each) for label, each in judged.items()}
        part["intervals"] = intervals_of(judged["validation"])
        how = _unique([each.without_batch() for one in every for each in one.settings])
        where = _unique([each for one in every for each in one.platforms])
        if device is not None:
            where = [dataclasses.replace(each, device=device) for each in where]
        graphs = [each for each in _typical(every[0]) if isinstance(each, Network)]
        if graphs:
            part["golden"]["networks"] = golden_networks(graphs, learnt, how[0], where[0])
        part["training"] = {
            "resperf": __version__, "seed": seed, "split_seed": SPLIT_SEED, **settings,
            "rows": {NETWORK: rows}, "notes": [noisy] if noisy else [],
            "seen": pack_keys(sorted(seen)),
        }  # fmt: skip
        came_from = provenance(
            [described_dataset(info, dataset)],
            seeds={"training": seed, "split": SPLIT_SEED},
            excluded={"networks": list(excluded), "layers": 0},
        )
        write_manifest(folder, manifest_of(part, how, where, came_from))
    return Bundle.load(output)


def predicted(predictor: Predictor, examples: Examples, quantity: str) -> Array:
    """Predict each example under its own setting on its own platform, shape (rows,)."""
    return np.array(
        [
            predictor.predict([network], setting.without_batch(), platform)[quantity].values[0]
            for network, setting, platform in zip(
                examples.networks, examples.settings, examples.platforms, strict=True
            )
        ],
        dtype=float,
    )


def _select(examples: Examples, places: npt.NDArray[np.intp]) -> Examples:
    def chosen(values: Sequence[Any]) -> list[Any]:
        return [values[place] for place in places]

    return Examples(
        chosen(examples.networks), examples.quantity, examples.values[places],
        chosen(examples.settings), chosen(examples.platforms),
        groups=chosen(examples.groups) if examples.groups else (),
    )  # fmt: skip


def _typical(examples: Examples) -> list[Any]:
    """Return some networks from the one with the smallest to that with the largest value."""
    order = np.argsort(examples.values, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, _GOLDEN).astype(int))
    return [examples.networks[order[place]] for place in places]


def _unique(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
