"""Fitting what training steps cost on several devices (`resperf.devices.exchange`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from resperf.devices.exchange import Exchange, exchange_s
from resperf.errors import UnsupportedError, require
from resperf.predictors.intervals import SHARE, conformal_bound, equal_shares

Array = np.ndarray[Any, np.dtype[np.float64]]
_STARTS: dict[str, tuple[float, float]] = {
    "slowdown": (0.05, 2.0), "overlap": (0.5, 1.0), "host_s": (1e-3, 2.0),
    "contention": (0.1, 1.0), "more_of_two": (0.05, 2.0),
    "inside_latency_s": (1e-4, 2.0), "inside_bytes_per_s": (5e9, 2.0),
    "between_latency_s": (3e-4, 2.0), "between_bytes_per_s": (1.2e9, 2.0),
}  # fmt: skip
"""Coefficient, of slowdown and overlap what is above 1, of two nodes' contention what is above that
of more -> where a fit starts, and how many times
(as a logarithm) clusters differ: links by a factor of some 7, the rest less."""
_TIGHTNESS = 0.02
"""Weight of the distance to the start: a coefficient that is one spread away costs as much as an
error of 2% of every step. The rows decide what they can, the start what they cannot."""
_OUTLYING = 0.1
"""Relative error from which on a row counts in proportion, not by its square: shared networks and
hosts make single runs twice as long."""
_NUDGES = 3
"""Further starts, made from a seed."""


class GroupStep(NamedTuple):
    """A measured training step of several devices.

    Attributes
    ----------
    network, family : str
    batch : int
        Of each device.
    size_bytes : float
        Of its gradients.
    devices, nodes, per_node : int
        Devices and nodes that took part, and devices of the fullest node.
    alone_s : float
        The step of one device at the same batch size, in seconds.
    time_s : float
        The step of all.
    """

    network: str
    family: str
    batch: int
    size_bytes: float
    devices: int
    nodes: int
    per_node: int
    alone_s: float
    time_s: float


class FittedExchange(NamedTuple):
    """Coefficients of a cluster.

    Attributes
    ----------
    exchange : Exchange
    inside, between : tuple of float
        Latency in seconds and bandwidth in bytes per second.
    logarithms : array of shape (coefficients,)
        What a fit of another cluster may start from.
    """

    exchange: Exchange
    inside: tuple[float, float]
    between: tuple[float, float]
    logarithms: Array

    def times_s(self, rows: Sequence[GroupStep]) -> Array:
        """Return the predicted step of each row in seconds, (rows,)."""
        return self._times_s(_columns(rows))

    def _times_s(self, columns: Array) -> Array:
        size_bytes, nodes, per_node, alone_s, _ = columns
        sums_s = exchange_s(
            size_bytes, nodes, per_node, self.inside, self.between, self.exchange
        )  # fmt: skip
        return np.asarray(self.exchange.step_s(alone_s, sums_s))


def fit_exchange(rows: Sequence[GroupStep], prior: FittedExchange | None = None) -> FittedExchange:
    """Fit the coefficients to steps by least logarithmic errors; networks count alike.

    Parameters
    ----------
    rows : sequence of GroupStep
    prior : FittedExchange, optional
        What coefficients are drawn to: those that were pooled over clusters, for a cluster with few
        rows. The best of several starts counts.

    Raises
    ------
    UnsupportedError
        If there are no rows.
    """
    if not rows:
        raise UnsupportedError("no training steps on several devices: measure some on 2 or more")
    least_squares = require("scipy.optimize", "train").least_squares
    columns = _columns(rows)
    names = [row.network for row in rows]
    weights = np.sqrt(equal_shares(names) / len(set(names)))
    start, spreads = np.log([value for value, _ in _STARTS.values()]), _spreads()
    centre = start if prior is None else prior.logarithms

    def errors(logarithms: Array) -> Array:
        off = np.log(_fitted(logarithms)._times_s(columns) / columns[-1]) / _OUTLYING
        # Pseudo-Huber: like a square near 0, in proportion far away.
        pulled = _OUTLYING * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        return np.concatenate([pulled * weights, _TIGHTNESS * (logarithms - centre) / spreads])

    random = np.random.default_rng(0)
    starts = [centre, *(centre + random.normal(0, 0.5, (_NUDGES, len(centre))) * spreads)]
    results = [least_squares(errors, start, max_nfev=200) for start in starts]
    return _fitted(min(results, key=lambda result: float(result.cost)).x)


def with_interval(
    rows: Sequence[GroupStep], fitted: FittedExchange, prior: FittedExchange | None = None
) -> FittedExchange:
    """Add the interval of networks that were not fitted, and how many devices were.

    Each network is predicted by a fit of the others; with one network alone, by its own fit, which
    is then too narrow.
    """
    ratios, shares = [], []
    names = list(dict.fromkeys(row.network for row in rows))
    for name in names:
        held = [row for row in rows if row.network == name]
        others = [row for row in rows if row.network != name]
        fit = fit_exchange(others, prior) if others else fitted
        ratios.append(np.array([row.time_s for row in held]) / fit.times_s(held))
        shares.append(np.full(len(held), 1 / len(held)))
    # Networks count alike, and together as many rows as there are.
    ratio, share = np.concatenate(ratios), np.concatenate(shares) * len(rows) / len(names)
    outer = (1 + SHARE) / 2
    exchange = Exchange(**{
        **vars(fitted.exchange),
        "low": min(-conformal_bound(-ratio, share, share=outer), 1.0),
        "high": max(conformal_bound(ratio, share, share=outer), 1.0),
        "most_devices": max(row.devices for row in rows),
    })  # fmt: skip
    return fitted._replace(exchange=exchange)


def residual(
    rows: Sequence[GroupStep], fitted: FittedExchange, extra: Mapping[str, Array] | None = None,
    seeds: int = 5,
) -> tuple[Array | None, float, float]:  # fmt: skip
    """Fit what is left of the logarithm of each step to totals, if that helps unseen networks.

    A ridge regression that half of the networks teach must lower the errors on the other half by
    more than its gain differs from seed to seed.

    Parameters
    ----------
    rows : sequence of GroupStep
    fitted : FittedExchange
    extra : mapping of str to array of shape (columns,), optional
        Network -> more columns, such as its embedding.
    seeds : int
        How many halves are drawn.

    Returns
    -------
    coefficients : array of shape (columns,), or None
        As `corrected_s` takes them; None if they do not help.
    gain, spread : float
        Mean of how much lower the logarithmic error is over the seeds, and its standard deviation;
        NaN with one network.
    """
    names = sorted({row.network for row in rows})
    if len(names) < 2:
        return None, math.nan, math.nan
    left = np.log(np.array([row.time_s for row in rows]) / fitted.times_s(rows))
    columns, gains = _totals(rows, extra), []
    for seed in range(seeds):
        drawn = set(np.random.default_rng(seed).permutation(names)[: (len(names) + 1) // 2])
        seen = np.array([row.network in drawn for row in rows])
        after = left - columns @ _ridge(columns[seen], left[seen])
        gains.append(float(np.mean(np.abs(left[~seen])) - np.mean(np.abs(after[~seen]))))
    gain, spread = float(np.mean(gains)), float(np.std(gains, ddof=1))
    return (_ridge(columns, left) if gain > spread else None), gain, spread


def corrected_s(
    rows: Sequence[GroupStep], fitted: FittedExchange, coefficients: Array | None,
    extra: Mapping[str, Array] | None = None,
) -> Array:  # fmt: skip
    """Return the predicted step of each row with the residual, if there is one, (rows,)."""
    if coefficients is None:
        return fitted.times_s(rows)
    return fitted.times_s(rows) * np.exp(_totals(rows, extra) @ coefficients)


def _totals(rows: Sequence[GroupStep], extra: Mapping[str, Array] | None) -> Array:
    return np.array([
        [1.0, *np.log([row.size_bytes, row.alone_s, row.devices, row.nodes, row.batch]),
         *(() if extra is None else extra[row.network])]
        for row in rows
    ])  # fmt: skip


def _ridge(columns: Array, aims: Array) -> Array:
    """Solve a ridge regression; the strength is that of one row in a hundred."""
    strength = 0.01 * len(aims) * np.eye(columns.shape[1])
    return np.asarray(np.linalg.solve(columns.T @ columns + strength, columns.T @ aims))


def pooled(fits: Sequence[FittedExchange]) -> FittedExchange:
    """Return the geometric means of several clusters' coefficients."""
    return _fitted(np.mean([fit.logarithms for fit in fits], axis=0))


def _spreads() -> Array:
    return np.array([spread for _, spread in _STARTS.values()])


def _columns(rows: Sequence[GroupStep]) -> Array:
    names = ("size_bytes", "nodes", "per_node", "alone_s", "time_s")
    return np.array([[getattr(row, name) for row in rows] for name in names], dtype=float)


def _fitted(logarithms: Array) -> FittedExchange:
    value = dict(zip(_STARTS, np.exp(np.clip(logarithms, -40, 40)).tolist(), strict=True))
    exchange = Exchange(
        slowdown=1 + value["slowdown"], overlap=1 + value["overlap"], host_s=value["host_s"],
        contention=value["contention"],
        contention_of_two=value["contention"] + value["more_of_two"],
    )  # fmt: skip
    return FittedExchange(
        exchange, (value["inside_latency_s"], value["inside_bytes_per_s"]),
        (value["between_latency_s"], value["between_bytes_per_s"]), logarithms,
    )  # fmt: skip
