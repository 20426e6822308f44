"""Fitting calibrations to whole networks, or to calibration layers.

A layer measured in isolation finds its inputs and its kernel's instructions in cache. Inside
networks it does not, and the difference is systematic for each kind of layer. The correction is a
factor for each kind, and an overhead between layers for each layer and each byte passed between
layers. Both are fitted to measured totals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np

from resperf.bundle import OVERHEAD_PER_LAYER, OVERHEAD_PER_MB, Calibration
from resperf.errors import TrainingError, require
from resperf.features import Array
from resperf.predictors.intervals import PRIOR_NETWORKS, conformal_bound, half_width, joined_spread
from resperf.predictors.linear import left_out
from resperf.splits import Mask

TOTAL_NOISE = 0.03
"""Relative noise of a measured total."""
RUN_NOISE = 0.2
"""Relative spread of networks around the factors of a card that others were measured on or only
its data sheet is known of: 0.11 to 0.15 on timm's cards, with tails."""
ELSEWHERE_NOISE = 0.05
"""Relative spread of networks on a machine other than that of their layers."""
SCALED_NOISE, SCALED_WIDTH, SCALED_COMMON = 0.1, 0.1, 0.05
"""Where calibration layers have scaled the layers to such a machine: relative spread of its
networks, and prior standard deviations of a kind's factor and of the common one, which is little
more than how the machine's speed changes in minutes."""
FACTOR_PRIOR_WIDTH = 0.2
"""Prior standard deviation of a kind's factor around 1, or around a factor common to all kinds.
Also that of a common factor of a card: 0.06 to 0.33 were seen, in logarithms, where others or a
data sheet answered."""
MACHINES_WIDTH = 0.7
"""Prior standard deviation of the logarithm of a factor common to all layers of another machine:
processors of one generation differ by up to a factor of two."""
COST_PRIOR_WIDTH = 1.0
"""Prior standard deviation of overheads between layers around those of chains, relative."""
FACTOR_BOUNDS = (0.5, 2.0)
LEAST_NODE_MS, LEAST_MB_MS = 1e-3, 1e-3
"""Smallest costs of a layer and of a MB passed between layers that scale the prior's width."""
FEWEST_NETWORKS = 5
REASONS_SHOWN = 3
_LEAST_COST = 1e-9
_MOST_FOLDS = 40
"""Parts in which many networks are left out of the fit."""
LARGEST_FACTOR = 20.0
"""Largest ratio of speeds between two machines."""
FEWEST_FOR_WIDTH = 10
"""Fewest networks for a 90% interval of totals from them alone."""


@dataclass(frozen=True)
class TimedNetwork:
    """A network that was measured as a whole and predicted layer by layer.

    Attributes
    ----------
    network : str
        In cross-validation, all batch sizes of a network are left out together.
    batch : int or None
    measured_ms : float
        Total of all phases.
    kinds_ms : mapping of str to float
        Predicted execution of the layers of each group (`resperf.bundle.group_of`), in isolation.
    layers : int
        Number of layers.
    mb_between_layers : float
        MB passed between layers.
    rest_ms : float
        Predicted time of everything else: outer phases, per-run overhead, reshapes.
    noise : float
        Relative standard error of `measured_ms`, as far as it was measured several times.
    """

    network: str
    batch: int | None
    measured_ms: float
    kinds_ms: Mapping[str, float]
    layers: int = 0
    mb_between_layers: float = 0.0
    rest_ms: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class Priors:
    """What is expected of corrections before any network was measured.

    Attributes
    ----------
    of_kinds : float
        Prior standard deviation of a kind's factor around the common one.
    common : float
        Prior standard deviation of the logarithm of a factor that all kinds share; 0 without one.
    noise : float
        Relative noise of a total around its correction.
    log_width : float
        Logarithm of the half width of the totals' 90% interval as it was known before; infinite if
        few networks say nothing of it.
    bounds : (float, float)
        Of a kind's factor around the common one.
    """

    of_kinds: float = FACTOR_PRIOR_WIDTH
    common: float = 0.0
    noise: float = TOTAL_NOISE
    log_width: float = math.inf
    bounds: tuple[float, float] = FACTOR_BOUNDS


def priors_of_runs(log_width: float) -> Priors:
    """Return what is expected of a user's runs of networks on a device.

    Parameters
    ----------
    log_width : float
        As in `Priors`, of the bundle without the runs.
    """
    return Priors(common=FACTOR_PRIOR_WIDTH, noise=RUN_NOISE, log_width=log_width)


def priors_elsewhere(*, scaled: bool) -> Priors:
    """Return what is expected of networks on another machine than that of their layers.

    `scaled` says whether the layers were scaled to that machine by calibration layers.
    """
    if scaled:
        return Priors(of_kinds=SCALED_WIDTH, common=SCALED_COMMON, noise=SCALED_NOISE)
    return Priors(common=MACHINES_WIDTH, noise=ELSEWHERE_NOISE)


def fit_calibration(
    about: Calibration,
    placed: Sequence[TimedNetwork],
    costs: Mapping[str, float],
    priors: Priors | None = None,
) -> Calibration:
    """Fit a factor for each kind and the overhead between layers to measured totals.

    Relative errors are minimised, with priors that draw factors towards 1 (or a factor that all
    kinds share, and that towards 1) and costs towards those of chains. A kind that takes no time in
    any network has the factor that all share.

    Parameters
    ----------
    about : Calibration
        Says what was measured, where and under which setting; it is returned with what was fitted.
    placed : sequence of TimedNetwork
        At least one; of at least `FEWEST_NETWORKS` networks without a common factor.
    costs : mapping of str to float
        The bundle's ``overhead_ms_per_layer`` and ``overhead_ms_per_mb``, if known.
    priors : Priors, optional
        By default those of a bundle's own machine, measured for this purpose.

    Raises
    ------
    TrainingError
        If there are too few networks, or they take implausibly long or short.
    """
    priors = priors or Priors()
    names = sorted({run.network for run in placed})
    kinds = sorted({kind for run in placed for kind in run.kinds_ms})
    if not priors.common:
        refuse_few(names)
    others, solution = _solve(placed, kinds, costs, priors)
    parts = np.array_split(names, min(len(names), _MOST_FOLDS))
    fold_of = {name: str(number) for number, part in enumerate(parts) for name in part}

    def total_without(rest: Mask, own: Mask) -> Array:
        _, without = _solve([*compress(placed, rest)], kinds, costs, priors)
        return np.array([_total_ms(run, kinds, without) for run in compress(placed, own)])

    left_out_ms = left_out([fold_of[run.network] for run in placed], total_without)
    measured = np.array([run.measured_ms for run in placed])
    before = np.array([_total_ms(run, kinds, _prior(kinds, costs)) for run in placed])
    after = np.array([_total_ms(run, kinds, solution) for run in placed])
    if priors.common:
        _refuse_implausible(float(np.median(measured / before)))
    return replace(
        about,
        factors={kind: float(factor) for kind, factor in zip(kinds, solution, strict=False)},
        costs={OVERHEAD_PER_LAYER: float(solution[-2]), OVERHEAD_PER_MB: float(solution[-1])},
        log_width=_log_width(placed, np.abs(np.log(measured / left_out_ms)), priors.log_width),
        evidence={**about.evidence, **_evidence(placed, before, after, left_out_ms)},
        others=others,
    )


def _refuse_implausible(factor: float) -> None:
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise TrainingError(
            f"layers would take {factor:.3g} times as long as where they were measured, which is "
            "implausible; check the units of the times, or measure layers (resperf bench)"
        )


def refuse_few(names: Collection[str], left_out: Sequence[str] = ()) -> None:
    """Refuse too few networks, with the reasons why others were left out.

    Raises
    ------
    TrainingError
        If there are fewer than `FEWEST_NETWORKS`.
    """
    if len(names) < FEWEST_NETWORKS:
        reasons = f"; left out: {'; '.join(left_out[:REASONS_SHOWN])}" if left_out else ""
        raise TrainingError(
            f"{len(names)} networks are too few to fit an in-network correction; measure at least "
            f"{FEWEST_NETWORKS}{reasons}"
        )


def _evidence(
    placed: Sequence[TimedNetwork], before: Any, after: Any, left_out_ms: Any
) -> dict[str, Any]:
    measured = np.array([run.measured_ms for run in placed])
    return {
        "networks": [
            {
                "network": run.network, "batch": run.batch, "measured_ms": run.measured_ms,
                "alone_ms": float(before[index]), "fitted_ms": float(after[index]),
                "left_out_ms": float(left_out_ms[index]),
            }
            for index, run in enumerate(placed)
        ],
        "mape": {
            name: float(np.mean(np.abs(values / measured - 1)))
            for name, values in (("alone", before), ("fitted", after), ("left_out", left_out_ms))
        },
    }  # fmt: skip


def standard_errors(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the relative standard error of each run's measurements.

    A few say little of a run's own spread: that of all runs counts as much as two of them.
    """
    logs = [np.log(run) for run in runs]
    squares = [float(np.sum((values - values.mean()) ** 2)) for values in logs]
    freedom = sum(len(values) - 1 for values in logs)
    if not freedom:
        return [0.0] * len(runs)
    usual = sum(squares) / freedom
    return [
        math.sqrt(
            (PRIOR_NETWORKS * usual + square) / (PRIOR_NETWORKS + len(values) - 1) / len(values)
        )
        for values, square in zip(logs, squares, strict=True)
    ]


def _log_width(placed: Sequence[TimedNetwork], ratios: Any, prior_width: float) -> float:
    """Return the bound of |ln(measured / predicted)| for nine of ten runs of networks.

    It is a conformal bound on networks that were left out of the fit: of all runs, where those of a
    network weigh together as one, without what their measurements are off (`TimedNetwork.noise`).
    With few networks their spread, and of each the worst run's, is joined to `prior_width`,
    by Student's distribution.
    """
    noises = np.array([run.noise for run in placed])
    own = max(float(np.mean(ratios**2 - noises**2)), TOTAL_NOISE**2)
    ratios = ratios * np.sqrt(own / (own + noises**2))
    worst: dict[str, float] = {}
    for run, ratio in zip(placed, ratios, strict=True):
        worst[run.network] = max(worst.get(run.network, 0.0), float(ratio))
    if len(worst) >= FEWEST_FOR_WIDTH:
        runs = Counter(run.network for run in placed)
        return conformal_bound(ratios, [1 / runs[run.network] for run in placed])
    if math.isinf(prior_width):
        return math.inf
    squares = sum(error**2 for error in worst.values())
    width = half_width(*joined_spread(squares, len(worst), prior_width / half_width(1.0)))
    # No wider than before, unless the networks say that it was too narrow.
    return max(min(width, prior_width), *worst.values())


def _prior(kinds: Sequence[str], costs: Mapping[str, float]) -> Any:
    # Without measured chains the prior is 0, and networks alone determine the costs.
    chain = [costs.get(OVERHEAD_PER_LAYER, 0.0), costs.get(OVERHEAD_PER_MB, 0.0)]
    return np.array([1.0] * len(kinds) + chain)


def _row(run: TimedNetwork, kinds: Sequence[str]) -> list[float]:
    times = [run.kinds_ms.get(kind, 0.0) for kind in kinds]
    return [*times, float(run.layers), run.mb_between_layers]


def _total_ms(run: TimedNetwork, kinds: Sequence[str], solution: Any) -> float:
    return float(np.dot(_row(run, kinds), solution)) + run.rest_ms


def _solve(
    placed: Sequence[TimedNetwork], kinds: Sequence[str], costs: Mapping[str, float], priors: Priors
) -> tuple[float, Any]:
    """Return the common factor; and the factors, then the costs of a layer and of a MB."""
    prior = _prior(kinds, costs)
    if not placed:
        return 1.0, prior
    optimize = require("scipy.optimize", "train")
    rows = np.array([_row(run, kinds) for run in placed])
    measured = np.array([run.measured_ms for run in placed])
    rest = np.array([run.rest_ms for run in placed])
    noise = np.hypot(priors.noise, [run.noise for run in placed])
    if priors.common:
        # Runs of one network err alike: all of them together count as one.
        runs = Counter(run.network for run in placed)
        noise *= np.sqrt([runs[run.network] for run in placed])
    least_costs = np.array([LEAST_NODE_MS, LEAST_MB_MS])
    widths = np.concatenate([
        [priors.of_kinds] * len(kinds), COST_PRIOR_WIDTH * np.maximum(prior[-2:], least_costs)
    ])  # fmt: skip
    low = [priors.bounds[0]] * len(kinds) + [0.0, 0.0]
    high = [priors.bounds[1]] * len(kinds) + [np.inf, np.inf]
    start = np.clip(prior, low, high)
    if priors.common:
        # The last value is the logarithm of the common factor.
        prior, start = np.append(prior, 0.0), np.append(start, 0.0)
        widths = np.append(widths, priors.common)
        low, high = [*low, -np.inf], [*high, np.inf]

    def scaled(values: Any) -> tuple[float, Any]:
        common = math.exp(values[-1]) if priors.common else 1.0
        solution = values[: len(kinds) + 2].copy()
        solution[: len(kinds)] *= common
        return common, solution

    def residuals(values: Any) -> Any:
        _, solution = scaled(values)
        errors = np.log(np.maximum(rows @ solution + rest, 1e-9) / measured) / noise
        return np.concatenate([errors, (values - prior) / widths])

    # One badly measured network must not dominate: large errors count linearly.
    solved = optimize.least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=2.0, x_scale=widths
    )
    common, solution = scaled(solved.x)
    # The solver stays inside its bounds: a cost of nothing is a little more than that.
    return common, np.where(solution < _LEAST_COST, 0.0, solution)
