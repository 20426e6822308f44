"""Learning from rows of whole networks: one predictor for each quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle import NETWORK, golden_networks
from resperf.dataset import NETWORKS, noise_warning, read_table
from resperf.errors import TrainingError
from resperf.network import Network
from resperf.predictors import Examples, predictor_class
from resperf.splits import architecture_of, split_of_keys
from resperf.training.learning import Learning, values_of
from resperf.training.rows import network_examples, network_quantities

_GOLDEN = 3


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
    graphs = [graph for graph in _typical(every[0]) if isinstance(graph, Network)]
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


def _typical(examples: Examples) -> list[Network]:
    """Return some networks from the one with the smallest to that with the largest value."""
    order = np.argsort(examples.values, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, _GOLDEN).astype(int))
    return [examples.networks[order[index]] for index in places]
