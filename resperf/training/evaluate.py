"""Evaluating a bundle on rows that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.bundle import NETWORK, Bundle, Times
from resperf.dataset import KindTable, floor_of_medians, noise_floor, read_info, read_table
from resperf.errors import TrainingError
from resperf.features import Array
from resperf.predictors.metrics import Errors, errors
from resperf.quantities import QUANTITIES, layer_quantity
from resperf.splits import split_of_keys, was_packed
from resperf.training.rows import SHORTEST_MS, LayerRows, layer_rows, network_examples
from resperf.units import json_number

Part = Literal["test", "all"]


@dataclass(frozen=True)
class Evaluated:
    """Errors of one kind and phase.

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
    """

    kind: str
    phase: str
    method: str
    errors: Errors
    noise_floor: float
    out_of_range: int
    in_interval: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an unknown noise floor is None."""
        return {
            "kind": self.kind,
            "phase": self.phase,
            "method": self.method,
            **self.errors.to_json(),
            "noise_floor": json_number(self.noise_floor),
            "out_of_range": self.out_of_range,
            "in_interval": json_number(self.in_interval),
        }


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, and notes on what was skipped."""

    rows: tuple[Evaluated, ...]
    notes: tuple[str, ...]


def evaluate(dataset: Path, bundle: Bundle, split: Part = "test") -> Evaluation:
    """Compare a bundle's predictions with a dataset's measured times.

    Parameters
    ----------
    dataset : Path
        The bundle's own dataset, or another one of the same device and framework.
    bundle : Bundle
    split : {"test", "all"}
        ``test``: the test split. ``all``: every row that was used neither for training nor for
        validation of this bundle.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    TrainingError
        If no unseen row remains, or the dataset's times are of another quantity than the bundle's.
    """
    info = read_info(dataset)
    if bundle.kinds and layer_quantity(info.quantities) != bundle.layer_quantity:
        raise TrainingError(
            f"{dataset} holds times of {layer_quantity(info.quantities)}, {bundle.path} predicts "
            f"{bundle.layer_quantity}: they contain different things; train a bundle from "
            "this dataset"
        )
    notes = [
        f"dataset and bundle are of different machines: {difference}"
        for difference in (
            *info.platform.hardware_differences(bundle.platform),
            *info.setting.differences(bundle.setting),
        )
    ]
    found: list[Evaluated] = []
    for kind, table in read_table(dataset).items():
        rows = _unseen(layer_rows(table), bundle, split)
        if not bundle.has(kind):
            notes.append(f"{kind}: {len(rows)} rows, the bundle has no predictor")
        elif len(rows):
            found += _evaluate_kind(kind, table, rows, bundle)
    for quantity in bundle.network_quantities:
        found += _evaluate_networks(dataset, bundle, quantity, split)
    if not found:
        raise TrainingError(
            f"{dataset} has no row that {bundle.path} can predict and was not trained on; "
            "measure more layers with: resperf bench"
        )
    return Evaluation(tuple(found), tuple(notes))


def _evaluate_networks(
    dataset: Path, bundle: Bundle, quantity: str, split: Part
) -> list[Evaluated]:
    """Evaluate a predictor of whole networks on networks that it was not trained on."""
    rows = network_examples(dataset, quantity)
    names = [network.name for network in rows.networks]
    unseen = _unseen_keys(names, bundle, split)
    if not unseen.any():
        return []
    found = [
        bundle.answering(NETWORK, quantity, setting, platform).predict_networks(
            [network], replace(setting, batch=None, shapes={}), platform
        )[quantity]
        for network, setting, platform, chosen in zip(
            rows.networks, rows.settings, rows.platforms, unseen, strict=True
        )
        if chosen
    ]
    values, low, high = (
        np.array([getattr(each, name)[0] for each in found]) for name in ("values", "low", "high")
    )
    measured = rows.values[unseen]
    within = math.nan if np.isnan(low).any() else np.mean((low <= measured) & (measured <= high))
    return [
        Evaluated(
            NETWORK, quantity, bundle.method_of(NETWORK, quantity), errors(measured, values),
            math.nan, 0, float(within),
        )
    ]  # fmt: skip


def _unseen_keys(keys: Sequence[str], bundle: Bundle, split: Part) -> npt.NDArray[np.bool_]:
    training = bundle.part["training"]
    unseen = ~was_packed(keys, training["seen"])
    if split == "test":
        unseen &= split_of_keys(keys, training["split_seed"]).test
    return unseen


def _unseen(rows: LayerRows, bundle: Bundle, split: Part) -> LayerRows:
    return rows.select(np.flatnonzero(_unseen_keys(rows.keys, bundle, split)))


def _evaluate_kind(kind: str, table: KindTable, rows: LayerRows, bundle: Bundle) -> list[Evaluated]:
    layers = np.array(rows.layers(), dtype=object)
    found = []
    for phase in (phase for phase in QUANTITIES if phase in rows.times_ms):
        timed = rows.times_ms[phase] >= SHORTEST_MS
        if not timed.any():
            continue
        times = bundle.predict(list(layers[timed]), phase)
        if np.isnan(times.ms).any():
            continue
        found.append(
            Evaluated(
                kind,
                phase,
                bundle.method_of(kind, phase),
                errors(rows.times_ms[phase][timed], times.ms),
                floor_of_medians(noise_floor(table, phase).mape, rows.measured[timed]),
                int(np.sum(~times.in_range)),
                _within(_single_times(table, rows, phase, timed), times),
            )
        )
    return found


def _single_times(
    table: KindTable, rows: LayerRows, phase: str, chosen: npt.NDArray[np.bool_]
) -> list[Array]:
    """Return each layer's measurements that are not noisy; its median if all are noisy."""
    clean = np.flatnonzero(table.ok & ~table.noisy)
    found: dict[str, list[float]] = {}
    for key, time_ms in zip(
        table.key[clean].astype(str), table.times_ms[phase][clean], strict=True
    ):
        found.setdefault(key, []).append(float(time_ms))
    medians_ms = rows.times_ms[phase]
    return [
        np.array(found.get(rows.keys[row], [float(medians_ms[row])]))
        for row in np.flatnonzero(chosen)
    ]


def _within(measured_ms: list[Array], times: Times) -> float:
    """Return the share of measured times within their bounds, averaged over layers."""
    if np.isnan(times.low_ms).any():
        return math.nan
    return float(
        np.mean([
            np.mean((low <= each) & (each <= high))
            for each, low, high in zip(measured_ms, times.low_ms, times.high_ms, strict=True)
        ])
    )  # fmt: skip
