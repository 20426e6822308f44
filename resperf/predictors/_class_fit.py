"""Fit of the terms of operator classes to times of whole networks, and what it can tell apart.

A network's time is the sum of its terms, each times a coefficient of at least zero: how many times
what the data sheet says it takes. Relative errors are minimised, by absolute value. Coefficients
are drawn towards the data sheet by as much as predicts families best that were left out; so are
terms that the networks do not tell apart. Classes are drawn to the coefficients of wider ones.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from resperf.features import Array
from resperf.predictors.linear import Robust, fit_coefficients, left_out
from resperf.predictors.operator_classes import UPDATE, Cost, Terms, pool_of
from resperf.splits import folds_of

REST = "other"
"""Class that rare classes are pooled in."""
FEWEST_NETWORKS = 25
"""Networks that have a class of operators; with fewer it is pooled."""
DRAWS = 20
"""Fits to families drawn with replacement, for the bands of attributed times."""
_RECIPE, _SIZE = re.compile(r"\.[^-]*"), re.compile(r"(-reparameterised)?([-_]\d{3})*$")
_POOLED_TERMS = ("bytes", "flops", "kernels")
_EXPECTED = {"bytes": 1.0, "flops": 1.0, "kernels": 0.5}
"""Coefficients by the data sheet of an inference; those of other terms, which stand for parts of
these, are zero."""
TRAINING_FACTOR = 3.0
"""A training step computes a forward pass, and twice as much backwards."""
ROBUST = Robust(rounds=2, least_error=0.03, by_squares=False)
"""Relative errors count by their absolute value."""
_UNRESOLVED = 1e-3
"""Singular value over the largest one, below which a combination of terms is not determined."""
_TAKES_PART = 0.3
"""Weight in such a combination from which a term is named."""


class Shrinkage(NamedTuple):
    """How strongly coefficients are drawn.

    Attributes
    ----------
    to_sheet : float
        Those of pools of classes, to the data sheet.
    to_pool : float
        Those of classes, to their pool's.
    """

    to_sheet: float
    to_pool: float


SHRINKAGES = (Shrinkage(0.03, 0.01), Shrinkage(0.03, 0.1), Shrinkage(0.1, 0.1), Shrinkage(0.3, 0.3))
"""Those that a fit chooses from."""


class Identified(NamedTuple):
    """What the networks tell apart.

    Attributes
    ----------
    rank : int
        Of the matrix of relative terms, out of `terms`.
    terms : int
    condition : float
        Largest over smallest singular value, columns scaled to length 1.
    collinear : tuple of tuple of str
        Terms that only a combination of is known of; drawn to the data sheet.
    """

    rank: int
    terms: int
    condition: float
    collinear: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Relative:
    """Terms over measured times, with what a fit needs.

    Attributes
    ----------
    matrix : array (networks, costs)
    expected : array (costs,)
        Coefficients by the data sheet.
    pools : array (costs, pools) or None
        1 where a term is of a pool; None to draw each term to `expected` by itself.
    """

    matrix: Array
    expected: Array
    pools: Array | None = None

    def some(self, chosen: Any) -> Relative:
        """Return some of the networks, by a mask or by places."""
        return Relative(self.matrix[chosen], self.expected, self.pools)

    def solve(self, shrinkage: Shrinkage) -> Array:
        """Return the coefficients: first of pools of classes, then of each class."""
        return _fit_near(self.matrix, self._drawn_to(shrinkage), shrinkage.to_pool)

    def _drawn_to(self, shrinkage: Shrinkage) -> Array:
        """Return what the coefficients of classes are drawn to: those of their pools."""
        if self.pools is None:
            return self.expected
        expected = self.pools.T @ self.expected / self.pools.sum(axis=0)
        pooled = _fit_near(self.matrix @ self.pools, expected, shrinkage.to_sheet)
        return np.asarray(self.pools @ pooled)

    def left_out(self, groups: Sequence[str], shrinkage: Shrinkage) -> Array:
        """Return the prediction over the measured time of each network, its group left out."""
        return left_out(
            groups, lambda rest, own: self.matrix[own] @ self.some(rest).solve(shrinkage)
        )

    def best_shrinkage(self, groups: Sequence[str]) -> Shrinkage:
        """Return the shrinkage with the smallest error on groups left out, a fourth at a time."""
        folds = folds_of(groups)
        errors = {
            shrinkage: float(np.mean(np.abs(self.left_out(folds, shrinkage) - 1)))
            for shrinkage in SHRINKAGES
        }
        return min(errors, key=errors.__getitem__)

    def identified(self, costs: Sequence[Cost]) -> Identified:
        """Return what the networks tell apart, without what the data sheet adds."""
        lengths = np.linalg.norm(self.matrix, axis=0)
        used = np.flatnonzero(lengths > 0)
        _, sizes, directions = np.linalg.svd(self.matrix[:, used] / lengths[used], False)
        resolved = sizes > _UNRESOLVED * sizes[0]
        missing = directions[: len(sizes)][~resolved]
        together = {
            tuple(str(costs[used[index]]) for index in np.flatnonzero(np.abs(vector) > _TAKES_PART))
            for vector in missing
        }
        condition = float(sizes[0] / sizes[-1]) if sizes[-1] > 0 else np.inf
        collinear = tuple(sorted(names for names in together if len(names) > 1))
        return Identified(int(resolved.sum()), len(used), condition, collinear)

    def draws(self, groups: Sequence[str], shrinkage: Shrinkage, seed: int) -> Array:
        """Return coefficients of fits to groups drawn with replacement, shape (draws, costs)."""
        random = np.random.default_rng(seed)
        names = np.array(groups)
        kinds = np.unique(names)
        rows = {name: np.flatnonzero(names == name) for name in kinds}
        coefficients = []
        for _ in range(DRAWS):
            drawn = np.concatenate([rows[name] for name in random.choice(kinds, len(kinds))])
            coefficients.append(self.some(drawn).solve(shrinkage))
        return np.array(coefficients)


def _fit_near(relative: Array, expected: Array, shrinkage: float) -> Array:
    """Fit coefficients of at least zero to ``relative @ coefficients = 1``, near expected ones."""
    return fit_coefficients(
        relative, np.ones(len(relative)), robust=ROBUST, centre=expected,
        strengths=np.full(len(expected), shrinkage),
    )  # fmt: skip


def costs_of(
    networks: Iterable[Terms], fewest: int = FEWEST_NETWORKS, *, training: bool
) -> tuple[Cost, ...]:
    """Return the terms of the classes that enough networks have, and of the rest."""
    terms: dict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for network in networks:
        counts.update({cost.of for cost in network})
        for cost in network:
            terms[cost.of].add(cost.term)
    if not training:
        del counts[UPDATE.of]
    costs = [Cost(of, term) for of in terms if counts[of] >= fewest for term in sorted(terms[of])]
    return tuple(sorted({*costs, *(Cost(REST, term) for term in _POOLED_TERMS)}))


def alike(names: Sequence[str], networks: Sequence[Terms]) -> list[str]:
    """Return one name for all sizes and twins of a network.

    Sizes are told by the last number of a name, training recipes by what follows a dot; twins do
    the same work in every class.
    """
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    bare = [_SIZE.sub("", _RECIPE.sub("", name)) for name in names]
    for name, network in zip(bare, networks, strict=True):
        total = max(sum(network.values()), 1e-12)
        work = ",".join(f"{cost} {time / total:.3f}" for cost, time in sorted(network.items()))
        parents[root(work)] = root(name)
    return [root(name) for name in bare]


def columns_of(networks: Sequence[Terms], costs: Sequence[Cost]) -> Array:
    """Return times by the data sheet, (networks, costs); of unknown classes under `REST`."""
    index = {cost: number for number, cost in enumerate(costs)}
    classes = {cost.of for cost in costs} | {UPDATE.of}
    sheet_ms = np.zeros((len(networks), len(costs)))
    for row, network in enumerate(networks):
        for cost, time_ms in network.items():
            column = cost if cost.of in classes else Cost(REST, cost.term)
            if column in index:
                sheet_ms[row, index[column]] += time_ms
    return sheet_ms


def relative_to(
    times_ms: Array, sheet_ms: Array, costs: Sequence[Cost], *, training: bool
) -> Relative:
    """Return the terms of networks relative to their measured times."""
    pools = [pool_of(cost) for cost in costs]
    names = sorted(set(pools))
    member = np.array([[float(pool == name) for name in names] for pool in pools])
    return Relative(sheet_ms / times_ms[:, None], expected_of(costs, training=training), member)


def expected_of(costs: Sequence[Cost], *, training: bool) -> Array:
    """Return the coefficients that the data sheet lets expect."""
    factor = TRAINING_FACTOR if training else 1.0
    return factor * np.array([_EXPECTED.get(cost.term, 0.0) for cost in costs])
