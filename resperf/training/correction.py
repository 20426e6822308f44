"""Learning from whole networks what layers cost inside them, beyond what they cost alone.

Layers measured alone find their inputs nearer and the instructions of their kernel ready. Over many
networks the difference is systematic for each kind of layer: a factor for each, and a cost for each
layer and each byte that is handed over, fitted to measured totals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resperf.bundle import Correction
from resperf.errors import TrainingError, require
from resperf.predictors.intervals import conformal_bound

DOUBT = 0.03
"""Error of a measured total that is nobody's fault, relative."""
FACTOR_DOUBT, TRANSFERRED_DOUBT = 0.2, 0.4
"""How far a kind's factor lies from 1 before anything is known of it; where layers were measured on
another machine, after what is common to all of them."""
COST_DOUBT = 1.0
"""How far the costs behind each other lie from those of chains, relative."""
FACTOR_BOUNDS = (0.5, 2.0)
LEAST_NODE_MS, LEAST_MB_MS = 1e-3, 1e-3
"""Costs of a layer and of a MB handed over that are doubted by so much even where chains showed
none."""
FEWEST_NETWORKS = 5
REASONS_SHOWN = 3
LARGEST_FACTOR = 20.0
"""How many times faster or slower another machine may be."""
FEWEST_FOR_WIDTH = 10
"""Networks that a 90% interval of totals needs at least."""


@dataclass(frozen=True)
class Placed:
    """A network that was measured as a whole and predicted layer by layer.

    Attributes
    ----------
    network : str
        All batch sizes of a network are left out together.
    batch : int or None
    measured_ms : float
        Of all phases.
    kinds_ms : mapping of str to float
        Predicted execution of the layers of each group (`resperf.bundle.group_of`), alone.
    layers : int
        How many there are.
    handed_over_mb : float
    rest_ms : float
        Predicted time of everything else: outer phases, session call, shape-only operators.
    """

    network: str
    batch: int | None
    measured_ms: float
    kinds_ms: Mapping[str, float]
    layers: int
    handed_over_mb: float
    rest_ms: float


def fit_correction(
    placed: Sequence[Placed], costs: Mapping[str, float], *, doubt: float = FACTOR_DOUBT
) -> Correction:
    """Fit a factor for each kind and the costs behind each other to measured totals.

    Relative errors are minimised, with factors drawn towards 1 and costs towards those of chains:
    a kind that no network spends time on keeps its times.

    Parameters
    ----------
    placed : sequence of Placed
    costs : mapping of str to float
        Of the bundle: ``node_ms`` and ``handover_ms_per_mb``, where they are known.
    doubt : float
        How far a kind's factor lies from 1 before anything is known of it.

    Raises
    ------
    TrainingError
        If there are fewer than `FEWEST_NETWORKS` networks.
    """
    names = sorted({each.network for each in placed})
    refuse_few(names)
    kinds = sorted({kind for each in placed for kind in each.kinds_ms})
    solution = _solve(placed, kinds, costs, doubt)
    left_out = np.zeros(len(placed))
    for name in names:
        rest = [each for each in placed if each.network != name]
        without = _solve(rest, kinds, costs, doubt)
        for place, each in enumerate(placed):
            if each.network == name:
                left_out[place] = _total_ms(each, kinds, without)
    measured = np.array([each.measured_ms for each in placed])
    before = np.array([_total_ms(each, kinds, _prior(kinds, costs)) for each in placed])
    after = np.array([_total_ms(each, kinds, solution) for each in placed])
    return Correction(
        factors={kind: float(factor) for kind, factor in zip(kinds, solution, strict=False)},
        node_ms=float(solution[-2]),
        handover_ms_per_mb=float(solution[-1]),
        log_width=_log_width(placed, np.abs(np.log(measured / left_out))),
        evidence=_evidence(placed, before, after, left_out),
    )


def common_factor(placed: Sequence[Placed], costs: Mapping[str, float]) -> float:
    """Return how many times as long all layers take inside networks as `kinds_ms` says, at once.

    The median over runs: the first step from one machine to another.

    Parameters
    ----------
    placed : sequence of Placed
        At least one.
    costs : mapping of str to float
        As in `fit_correction`.

    Raises
    ------
    TrainingError
        If that is no factor between two machines, or no network has layers.
    """
    node_ms, mb_ms = _prior((), costs)
    ratios = [
        (each.measured_ms - each.rest_ms - node_ms * each.layers - mb_ms * each.handed_over_mb)
        / sum(each.kinds_ms.values())
        for each in placed
        if sum(each.kinds_ms.values()) > 0
    ]
    factor = float(np.median(ratios)) if ratios else math.nan
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise TrainingError(
            f"layers would take {factor:.3g} times as long here as where they were measured, which "
            "is not to be believed; measure layers on this machine (resperf bench)"
        )
    return factor


def refuse_few(names: Collection[str], left_out: Sequence[str] = ()) -> None:
    """Refuse to learn from few networks, with the reasons why others were left out.

    Raises
    ------
    TrainingError
        If there are fewer than `FEWEST_NETWORKS`.
    """
    if len(names) < FEWEST_NETWORKS:
        reasons = f"; left out: {'; '.join(left_out[:REASONS_SHOWN])}" if left_out else ""
        raise TrainingError(
            f"{len(names)} networks are too few to learn from how layers run inside networks; "
            f"measure at least {FEWEST_NETWORKS}{reasons}"
        )


def total_ms(placed: Placed, learnt: Correction) -> float:
    """Predict a network's total with what was learnt."""
    kinds = list(placed.kinds_ms)
    values = [*map(learnt.factor, kinds), learnt.node_ms, learnt.handover_ms_per_mb]
    return _total_ms(placed, kinds, values)


def _evidence(placed: Sequence[Placed], before: Any, after: Any, left_out: Any) -> dict[str, Any]:
    measured = np.array([each.measured_ms for each in placed])
    return {
        "networks": [
            {
                "network": each.network, "batch": each.batch, "measured_ms": each.measured_ms,
                "alone_ms": float(before[place]), "fitted_ms": float(after[place]),
                "left_out_ms": float(left_out[place]),
            }
            for place, each in enumerate(placed)
        ],
        "mape": {
            name: float(np.mean(np.abs(values / measured - 1)))
            for name, values in (("alone", before), ("fitted", after), ("left_out", left_out))
        },
    }  # fmt: skip


def _log_width(placed: Sequence[Placed], ratios: Any) -> float:
    """Return what nine of ten networks keep, at all their batch sizes.

    A conformal rank of the errors of networks that were left out of the fit, each with its worst:
    the batch sizes of one network err alike.
    """
    worst: dict[str, float] = {}
    for each, ratio in zip(placed, ratios, strict=True):
        worst[each.network] = max(worst.get(each.network, 0.0), float(ratio))
    if len(worst) < FEWEST_FOR_WIDTH:
        return math.inf
    return conformal_bound(list(worst.values()))


def _prior(kinds: Sequence[str], costs: Mapping[str, float]) -> Any:
    # Where no chains were measured, the search starts at nothing: networks alone say what it costs.
    chain = [costs.get("node_ms", 0.0), costs.get("handover_ms_per_mb", 0.0)]
    return np.array([1.0] * len(kinds) + chain)


def _row(each: Placed, kinds: Sequence[str]) -> list[float]:
    times = [each.kinds_ms.get(kind, 0.0) for kind in kinds]
    return [*times, float(each.layers), each.handed_over_mb]


def _total_ms(each: Placed, kinds: Sequence[str], solution: Any) -> float:
    return float(np.dot(_row(each, kinds), solution)) + each.rest_ms


def _solve(
    placed: Sequence[Placed], kinds: Sequence[str], costs: Mapping[str, float], doubt: float
) -> Any:
    """Return the factors, then the cost of a layer and of a MB handed over."""
    optimize = require("scipy.optimize", "train")
    prior = _prior(kinds, costs)
    rows = np.array([_row(each, kinds) for each in placed])
    measured = np.array([each.measured_ms for each in placed])
    rest = np.array([each.rest_ms for each in placed])
    doubts = np.array(
        [doubt] * len(kinds)
        + [COST_DOUBT * max(prior[-2], LEAST_NODE_MS), COST_DOUBT * max(prior[-1], LEAST_MB_MS)]
    )

    def residuals(values: Any) -> Any:
        errors = np.log(np.maximum(rows @ values + rest, 1e-9) / measured) / DOUBT
        return np.concatenate([errors, (values - prior) / doubts])

    low = [FACTOR_BOUNDS[0]] * len(kinds) + [0.0, 0.0]
    high = [FACTOR_BOUNDS[1]] * len(kinds) + [np.inf, np.inf]
    # One network in a bad state must not decide: large errors count linearly.
    found = optimize.least_squares(
        residuals, np.clip(prior, low, high), bounds=(low, high), loss="soft_l1", f_scale=2.0,
        x_scale=doubts,
    )  # fmt: skip
    return found.x
