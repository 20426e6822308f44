"""Baselines on steps of distributed training: Ernest, black and gray box, and controls.

Venkataraman et al. 2016 (Ernest, section 4) and the baselines of PredictDDL (section IV): the same
rows as `resperf.predictors.exchange_fit` and those of one device, of one cluster at a time.
Throughput of the cluster is in proportion to its devices there, so that it is no column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from resperf.errors import require
from resperf.features import Array
from resperf.grouping import grouped
from resperf.predictors.exchange_fit import GroupStep
from resperf.predictors.intervals import equal_shares
from resperf.predictors.linear import fit_coefficients

Rows = Sequence[GroupStep]
Predict = Callable[[Rows], Array]
"""Rows -> their steps in seconds; NaN where a method says nothing."""
_IDENTITY = 32
"""Numbers of the random vector of a network: as many as GHN-2's."""


def ernest(rows: Rows, _seed: int = 0) -> Predict:
    """Fit one model per network: it says nothing about others."""
    by_network = grouped((row.network, row) for row in rows)
    fits = {name: ernest_shared(own) for name, own in by_network.items()}
    return lambda asked: np.array([
        fits[row.network]([row])[0] if row.network in fits else np.nan for row in asked
    ])  # fmt: skip


def ernest_shared(rows: Rows, _seed: int = 0) -> Predict:
    """Fit all networks by one model, as PredictDDL does with Ernest.

    Non-negative least squares on 1, scale / machines, machines and log machines; the scale of a
    step is the batch of all devices.
    """

    def terms(asked: Rows) -> Array:
        return np.array([
            [1.0, row.batch, row.devices, np.log(row.devices)] for row in asked
        ])  # fmt: skip

    coefficients = fit_coefficients(terms(rows), _times(rows), relative=False)
    return lambda asked: terms(asked) @ coefficients


def black_box(rows: Rows, _seed: int = 0) -> Predict:
    """Fit a line to the network's name, the devices, and the batch."""
    return _line(rows, with_parameters=False)


def gray_box(rows: Rows, _seed: int = 0) -> Predict:
    """Fit the same with the number of parameters; published rows do not say the layers."""
    return _line(rows, with_parameters=True)


def _line(rows: Rows, *, with_parameters: bool) -> Predict:
    names = sorted({row.network for row in rows})

    def terms(asked: Rows) -> Array:
        return np.array([
            [*(row.network == name for name in names), row.devices, row.nodes, row.batch,
             row.size_bytes / 1e6 * with_parameters]
            for row in asked
        ])  # fmt: skip

    # Names and parameters say the same of known networks: the shortest solution.
    coefficients = np.linalg.lstsq(terms(rows), _times(rows), rcond=None)[0]
    return lambda asked: np.asarray(terms(asked) @ coefficients)


def nearest(rows: Rows, _seed: int = 0) -> Predict:
    """Take the row of the most similar network, scaled by the steps on one device.

    Similar by parameters and step on one device; of its rows, the nearest nodes and devices.
    """

    def coordinates(asked: Rows) -> Array:
        return np.log([
            [row.size_bytes, row.alone_s, row.nodes, row.devices] for row in asked
        ])  # fmt: skip

    seen = coordinates(rows)
    ratios = _times(rows) / np.array([row.alone_s for row in rows])

    def predict(asked: Rows) -> Array:
        nearby = [int(np.argmin(np.abs(seen - own).sum(axis=1))) for own in coordinates(asked)]
        return np.asarray(ratios[nearby] * [row.alone_s for row in asked])

    return predict


def identity(rows: Rows, seed: int = 0) -> Predict:
    """Grow trees on a random vector for each network: what a split of rows proves by itself."""
    lightgbm = require("lightgbm", "train")
    vectors: dict[str, Array] = {}

    def terms(asked: Rows) -> Array:
        for name in sorted({row.network for row in asked} - set(vectors)):
            # Of the name alone: the same network has the same vector in every split.
            numbers = np.random.default_rng([seed, *name.encode()])
            vectors[name] = numbers.normal(size=_IDENTITY)
        return np.array([
            [*vectors[row.network], row.devices, row.nodes, row.per_node, row.batch]
            for row in asked
        ])  # fmt: skip

    settings = {
        "objective": "regression_l1", "learning_rate": 0.1, "num_leaves": 31,
        "min_data_in_leaf": min(5, max(len(rows) // 10, 1)), "seed": seed, "deterministic": True,
        "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    learnt = lightgbm.Dataset(
        terms(rows), np.log(_times(rows)), weight=equal_shares([row.network for row in rows])
    )
    trees = lightgbm.train(settings, learnt, 200)
    return lambda asked: np.exp(np.asarray(trees.predict(terms(asked))))


def alone(_rows: Rows, _seed: int = 0) -> Predict:
    """Take the step of one device: nothing is exchanged."""
    return lambda asked: np.array([row.alone_s for row in asked])


def _times(rows: Rows) -> Array:
    return np.array([row.time_s for row in rows])


BASELINES: Mapping[str, Callable[[Rows, int], Predict]] = {
    "one device": alone, "nearest": nearest, "ernest": ernest, "ernest-shared": ernest_shared,
    "black box": black_box, "gray box": gray_box, "identity": identity,
}  # fmt: skip
