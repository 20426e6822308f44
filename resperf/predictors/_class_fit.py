"""Costs of operator classes on one device under one setting: fitted, predicting, stored.

A network's time is the sum of its terms, each times a coefficient of at least zero: how many times
what the data sheet says it takes. Relative errors are minimised, by absolute value. Coefficients
are drawn towards the data sheet by as much as predicts families best that were left out; so are
terms that the networks do not tell apart. Classes are drawn to the coefficients of wider ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from resperf.features import Array
from resperf.grouping import grouped
from resperf.predictors._base import Band, Estimate, stored
from resperf.predictors.intervals import ASSUMED, Intervals, bounds_of
from resperf.predictors.linear import Robust, fit_coefficients, left_out
from resperf.predictors.operator_classes import UPDATE, Cost, Terms, pool_of
from resperf.splits import FOLDS, folds_of
from resperf.units import json_values

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
        drawn_to = self.expected
        if self.pools is not None:
            expected = self.pools.T @ self.expected / self.pools.sum(axis=0)
            pooled = _fit_near(self.matrix @ self.pools, expected, shrinkage.to_sheet)
            drawn_to = np.asarray(self.pools @ pooled)
        return _fit_near(self.matrix, drawn_to, shrinkage.to_pool)

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


_SCALE = 0.3
"""Distance over which errors of networks are alike."""
_NOISE = 0.05
"""Variance of single errors over that of the errors that near networks share."""
_NEAR, _FAR = 0.15, 0.3
"""Distances up to which a correction counts fully, and from which it does not count."""
_LARGEST = 0.7
"""Logarithm that an error is limited to: outliers say nothing of other networks."""
_DIGITS = 4
"""Decimals of places and weights: as many as bundles store of places."""


@dataclass(frozen=True)
class Nearness:
    """Corrects predicted times from networks that are made of the same classes of operators.

    Gaussian process regression on the logarithm of measured over predicted time. What a network is
    near to is decided by the shares of its predicted time in each class. Without a near network
    there is no correction, so that a new family is predicted no worse than without.

    Attributes
    ----------
    places : array (networks, classes)
        Square roots of the shares of their time: vectors of length 1.
    weights : array (networks,)
    """

    places: Array
    weights: Array

    @classmethod
    def fit(cls, class_ms: Array, ratios: Array) -> Self:
        """Learn from predictions of networks whose own family was left out.

        Parameters
        ----------
        class_ms : array (networks, classes)
            Predicted time in each class.
        ratios : array (networks,)
            Measured over predicted time.
        """
        places = np.round(_places(class_ms), _DIGITS)
        errors = np.clip(np.log(ratios), -_LARGEST, _LARGEST)
        alike = np.exp(-_distances(places, places) / _SCALE)
        weights = np.linalg.solve(alike + _NOISE * np.eye(len(alike)), errors)
        return cls(places, np.round(np.asarray(weights, dtype=float), _DIGITS))

    def nearness(self, class_ms: Array) -> Array:
        """Return how far each network is known: 1 near one that was measured, 0 far from all."""
        nearest = _distances(_places(class_ms), self.places).min(axis=1)
        return np.asarray(np.clip((_FAR - nearest) / (_FAR - _NEAR), 0.0, 1.0))

    def factors(self, class_ms: Array) -> Array:
        """Return what the predicted times are to be multiplied by."""
        alike = np.exp(-_distances(_places(class_ms), self.places) / _SCALE)
        return np.asarray(np.exp(alike @ self.weights * self.nearness(class_ms)))


def _places(class_ms: Array) -> Array:
    shares = np.sqrt(class_ms)
    return np.asarray(shares / np.maximum(np.linalg.norm(shares, axis=1, keepdims=True), 1e-12))


def _distances(first: Array, second: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(2 - 2 * first @ second.T, 0.0)))


GROUPS: Mapping[str, tuple[str, ...]] = {
    "convolutions with normalisation and activation": (
        "convolution", "depthwise", "grouped convolution", "batch norm", "group norm", "relu",
        "silu",
    ),
    "attention": ("attention", "batched product", "softmax"),
    "products with normalisation and activation": ("product", "layer norm", "gelu"),
    "recurrent layers": ("recurrent",),
}  # fmt: skip
"""Group -> how the names of its classes begin. All other classes move and combine data."""
OTHER_GROUP = "other operators"
_LEAST_COEFFICIENT = 0.02
"""Of a term in the shares that nearness is judged by: a fit sets many to zero."""
RARE_SHARE = 0.05
"""Share of a network's time, by data sheet, in rare classes from which the user is warned."""
_NEARNESS = 0.5
"""Nearness from which a network has the interval of those near known ones."""
_MARK = np.dtype(np.uint16)
_PLAIN = (
    "costs", "shrinkage", "near", "far", "shortest_ms", "families", "least_batch", "largest_batch",
    "rare",
)  # fmt: skip
"""Attributes of `ClassFit` that are stored as plain JSON values."""
_PER_PLACE = 1e4
"""Steps in which places of networks are stored."""


@dataclass(frozen=True)
class ClassFit:
    """Costs of classes on one device under one setting.

    Attributes
    ----------
    costs : tuple of Cost
    coefficients, expected : array (costs,)
        Times what the data sheet says; what is expected without any measurement.
    draws : array (draws, costs)
        Coefficients of fits to other draws of the same families.
    shrinkage : Shrinkage
    identified : Identified
    nearness : Nearness or None
        Correction near known networks; None with few of them.
    near, far : Intervals or None
        Of networks near to known ones, and of new families; None with few networks.
    shortest_ms : float
        Shortest measured time; shorter ones are extrapolated.
    families : int
    least_batch, largest_batch : int
        Smallest and largest batch size of the networks; others are extrapolated. 0 if not known.
    rare : tuple of str
        Classes of which too few networks had operators; their costs are those of `REST`.
    """

    costs: tuple[Cost, ...]
    coefficients: Array
    expected: Array
    draws: Array
    shrinkage: Shrinkage
    identified: Identified
    nearness: Nearness | None
    near: Intervals | None
    far: Intervals | None
    shortest_ms: float
    families: int
    least_batch: int = 0
    largest_batch: int = 0
    rare: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        networks: Sequence[Terms],
        times_ms: Array,
        families: Sequence[str],
        *,
        training: bool,
        seed: int = 0,
        similar: Sequence[str] = (),
        batches: Sequence[int] = (),
    ) -> Self:
        """Fit to times of whole networks.

        Parameters
        ----------
        networks : sequence of Terms
        times_ms : array (networks,)
        families : sequence of str
            Networks of one family are left out together.
        training : bool
            Whether the times are of training steps.
        seed : int
        similar : sequence of str, optional
            Sizes and twins of one network have one name; the families by default.
        batches : sequence of int, optional
            Batch size of each network.
        """
        families, similar = (
            _apart(names, len(networks)) for names in (families, similar or families)
        )
        costs = costs_of(
            networks, min(FEWEST_NETWORKS, max(2, len(networks) // 8)), training=training
        )
        sheet_ms = columns_of(networks, costs)
        relative = relative_to(times_ms, sheet_ms, costs, training=training)
        shrinkage = relative.best_shrinkage(families)
        coefficients = relative.solve(shrinkage)
        draws = relative.draws(families, shrinkage, seed)
        listed = {UPDATE.of, *(cost.of for cost in costs)}
        self = cls(
            costs, coefficients, relative.expected, draws, shrinkage, relative.identified(costs),
            None, None, None, float(times_ms.min()),
            len(set(families)), min(batches, default=0), max(batches, default=0),
            tuple(sorted({cost.of for network in networks for cost in network} - listed)),
        )  # fmt: skip
        if len(networks) < 2 * FEWEST_NETWORKS:
            return self
        class_ms = self.class_ms(sheet_ms)
        folds, family_folds = folds_of(similar), folds_of(families)
        network_out, family_out = (
            times_ms * relative.left_out(of, shrinkage) for of in (folds, family_folds)
        )
        errors = times_ms / np.maximum(network_out, 1e-9)
        # A network may be near others of its family, or those of other families alone.
        corrected = [
            out * left_out_factors(class_ms, errors, of)
            for out, of in ((network_out, folds), (family_out, family_folds))
        ]
        return replace(
            self,
            nearness=Nearness.fit(class_ms, errors),
            near=Intervals.fit(np.tile(times_ms, 2), np.concatenate(corrected), [*families] * 2),
            far=Intervals.fit(times_ms, family_out, families),
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in alphabetical order."""
        return tuple(sorted({cost.of for cost in self.costs}))

    def class_ms(self, sheet_ms: Array) -> Array:
        """Return times by class for judging nearness, shape (networks, classes)."""
        floor = np.maximum(self.coefficients, _LEAST_COEFFICIENT + 0.05 * self.expected)
        index = {name: number for number, name in enumerate(self.classes)}
        member = np.zeros((len(self.costs), len(index)))
        for row, cost in enumerate(self.costs):
            member[row, index[cost.of]] = 1.0
        return np.asarray(sheet_ms * floor @ member)

    def predict(self, networks: Sequence[Terms], batches: Sequence[int] = ()) -> Estimate:
        """Predict whole networks with their intervals.

        Times that are `outside` what was measured, and networks of which more than `RARE_SHARE` is
        in rare classes, have wide intervals: twice as wide in logarithms, and at least half to
        twice the time.

        Parameters
        ----------
        networks : sequence of Terms
        batches : sequence of int, optional
            Batch size of each; taken to be among those measured by default.
        """
        sheet_ms, unlisted_ms = self._columns(networks), self._unlisted_ms(networks)
        plain_ms = sheet_ms @ self.coefficients + unlisted_ms
        given = batches or [self.least_batch] * len(plain_ms)
        outside = np.array(
            [self.is_far(*row) for row in zip(plain_ms, given, networks, strict=True)], dtype=bool
        )
        times_ms, low, high = plain_ms, *bounds_of(self.far, plain_ms, ~outside)
        if self.nearness is not None:
            class_ms = self.class_ms(sheet_ms)
            class_ms[:, self.classes.index(REST)] += unlisted_ms
            times_ms = plain_ms * self.nearness.factors(class_ms)
            is_near = self.nearness.nearness(class_ms) > _NEARNESS
            near = bounds_of(self.near, times_ms, ~outside)
            low, high = (np.where(is_near, a, b) for a, b in zip(near, (low, high), strict=True))
        widest = np.where(outside, math.exp(ASSUMED), 1.0)
        return Estimate(
            times_ms, np.minimum(low, times_ms / widest), np.maximum(high, times_ms * widest)
        )

    def is_far(self, time_ms: float, batch: int, terms: Terms) -> bool:
        """Whether a network is `outside`, or more than `RARE_SHARE` of it is in rare classes."""
        rare = sum(self.rare_shares(terms).values())
        return rare > RARE_SHARE or bool(self.outside(time_ms, batch))

    def outside(self, time_ms: float, batch: int) -> str:
        """Say why a time is extrapolated; empty if the data has such batch sizes and times."""
        if batch < self.least_batch:
            return f"the smallest batch size of the data is {self.least_batch}"
        if batch > self.largest_batch > 0:
            return f"the largest batch size of the data is {self.largest_batch}"
        if time_ms < self.shortest_ms:
            return f"all networks of the data take at least {self.shortest_ms:.3g} ms"
        return ""

    def _columns(self, networks: Sequence[Terms]) -> Array:
        """Return the terms of classes that the data has, shape (networks, costs)."""
        listed = [
            {cost: time for cost, time in network.items() if not self._is_unlisted(cost)}
            for network in networks
        ]
        return columns_of(listed, self.costs)

    def _is_unlisted(self, cost: Cost) -> bool:
        return cost.of not in self.rare and cost.of != UPDATE.of and cost not in self._listed

    @cached_property
    def _listed(self) -> frozenset[Cost]:
        return frozenset(self.costs)

    def _unlisted_ms(self, networks: Sequence[Terms]) -> Array:
        """Return the time of terms that no network of the data has, shape (networks,)."""
        return np.array(
            [
                sum(
                    time * self._unlisted_coefficient(cost)
                    for cost, time in network.items()
                    if self._is_unlisted(cost)
                )
                for network in networks
            ],
            dtype=float,
        )

    def _unlisted_coefficient(self, cost: Cost) -> float:
        """Return the mean coefficient of the wider class, or else what the data sheet says."""
        if (pool := pool_of(cost)) in self._pools:
            return self._pools[pool]
        # The factor of training steps is in the coefficients of `REST` that are expected.
        scale = float(self.expected.max())
        return scale * float(expected_of([cost], training=False)[0])

    @cached_property
    def _pools(self) -> Mapping[Cost, float]:
        pairs = zip(map(pool_of, self.costs), self.coefficients.tolist(), strict=True)
        coefficients: dict[Cost, list[float]] = grouped(pairs)
        return {pool: sum(values) / len(values) for pool, values in coefficients.items()}

    def bands(self, network: Terms, name_of: Callable[[str], str]) -> dict[str, Band]:
        """Return the time of a network by what a class is called: an attribution, no measurement.

        Parameters
        ----------
        network : Terms
        name_of : callable
            Takes the name of a class, such as `group_of`.
        """
        sheet_ms, unlisted_ms = self._columns([network])[0], self._unlisted_ms([network])[0]
        plain_ms = float(sheet_ms @ self.coefficients) + unlisted_ms
        factor = float(self.predict([network]).values[0]) / max(plain_ms, 1e-12)
        used = np.flatnonzero(sheet_ms > 0).tolist()
        places = grouped((name_of(self.costs[index].of), index) for index in used)
        bands = {}
        for name, chosen in places.items():
            value = factor * float(sheet_ms[chosen] @ self.coefficients[chosen])
            drawn = factor * self.draws[:, chosen] @ sheet_ms[chosen]
            low, high = np.quantile(drawn, (0.05, 0.95))
            bands[name] = Band(value, min(float(low), value), max(float(high), value))
        for cost, time in network.items():
            if self._is_unlisted(cost):
                # As uncertain as any estimate without measurements: half to twice.
                own = factor * time * self._unlisted_coefficient(cost)
                band = bands.get(name_of(cost.of), Band(0.0, 0.0, 0.0))
                parts = zip(band, (own, own / 2, own * 2), strict=True)
                bands[name_of(cost.of)] = Band(*(a + b for a, b in parts))
        return bands

    def rare_shares(self, network: Terms) -> dict[str, float]:
        """Return the shares of a network by data sheet in classes that few networks have."""
        classes = {*self.classes, UPDATE.of}
        total = max(sum(network.values()), 1e-12)
        shares: dict[str, float] = {}
        for cost, time in network.items():
            if cost.of not in classes:
                shares[cost.of] = shares.get(cost.of, 0.0) + time / total
        return shares

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without `arrays`."""
        return {
            **{name: json_values(value) for name, value in vars(self).items() if name in _PLAIN},
            "identified": self.identified._asdict(),
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is stored as arrays, in the precision that is kept."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "coefficients": self.coefficients.astype(np.float32),
            "expected": self.expected.astype(np.float32),
            "draws": self.draws.astype(np.float16),
        }
        if self.nearness is not None:
            arrays["places"] = np.round(self.nearness.places * _PER_PLACE).astype(_MARK)
            arrays["weights"] = self.nearness.weights.astype(np.float32)
        return arrays

    @classmethod
    def from_stored(cls, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Read what `to_json` and `arrays` returned."""
        identified = dict(stored(values, "identified"))
        identified["collinear"] = tuple(tuple(names) for names in identified["collinear"])
        near, far = (stored(values, name) for name in ("near", "far"))
        loaded = {name: array.astype(float) for name, array in arrays.items()}
        nearness = None
        if "places" in loaded:
            nearness = Nearness(loaded["places"] / _PER_PLACE, loaded["weights"])
        return cls(
            tuple(Cost(*fields) for fields in stored(values, "costs")),
            stored(loaded, "coefficients"),
            stored(loaded, "expected"),
            stored(loaded, "draws"),
            Shrinkage(*stored(values, "shrinkage")),
            Identified(**identified),
            nearness,
            None if near is None else Intervals.from_json(near),
            None if far is None else Intervals.from_json(far),
            float(stored(values, "shortest_ms")),
            int(stored(values, "families")),
            int(stored(values, "least_batch")),
            int(stored(values, "largest_batch")),
            tuple(stored(values, "rare")),
        )


def _apart(groups: Sequence[str], networks: int) -> Sequence[str]:
    """Return groups that can be left out; with too few of them, each network is its own."""
    return groups if len(set(groups)) >= FOLDS else [str(number) for number in range(networks)]


def left_out_factors(class_ms: Array, ratios: Array, folds: Sequence[str]) -> Array:
    """Return corrections of networks, each learnt without its fold; NaN where none is near."""

    def factors(rest: npt.NDArray[np.bool_], own: npt.NDArray[np.bool_]) -> Array:
        learnt = Nearness.fit(class_ms[rest], ratios[rest])
        near = learnt.nearness(class_ms[own]) > _NEARNESS
        return np.where(near, learnt.factors(class_ms[own]), np.nan)

    return left_out(folds, factors)


def group_of(name: str) -> str:
    """Return the group of a class."""
    groups = (group for group, beginnings in GROUPS.items() if name.startswith(beginnings))
    return next(groups, OTHER_GROUP)
