"""Costs of operator classes, learnt from the times of whole networks.

No single layer needs to have been measured: the times of many networks say what their operators
cost together. One fit per device, mode, precision, layout, version, and eager or compiled; its
coefficients are relative to the device's data sheet. There is no constant, so that totals follow
the batch size. The idea of a linear form over few totals of a network is ConvMeter's (Beringer et
al. 2024, "ConvMeter: Predicting the Performance of Convolutional Neural Networks").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from resperf.devices import DeviceFacts, device_facts
from resperf.errors import TrainingError, UnsupportedError
from resperf.features import Array, Columns
from resperf.lowering.torch import COMPILED
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._base import Estimate, Examples, Predicted, Predictor, Task, stored
from resperf.predictors._class_fit import (
    FEWEST_NETWORKS,
    FOLDS,
    Identified,
    Shrinkage,
    alike,
    columns_of,
    costs_of,
    folds_of,
    relative_to,
)
from resperf.predictors._nearness import Nearness
from resperf.predictors.intervals import Intervals, assumed
from resperf.predictors.operator_classes import (
    UPDATE,
    Cost,
    RunNetwork,
    Terms,
    class_terms,
    run_network,
)
from resperf.quantities import Level
from resperf.settings import Mode, Setting

GROUPS: Mapping[str, tuple[str, ...]] = {
    "convolutions with normalisation and activation": (
        "convolution", "depthwise", "grouped convolution", "batch norm", "group norm", "relu",
        "silu",
    ),
    "attention": ("attention", "batched product", "softmax"),
    "products with normalisation and activation": ("product", "layer norm", "gelu"),
}  # fmt: skip
"""Group -> how the names of its classes begin. All other classes move and combine data."""
OTHER_GROUP = "other operators"
_RARE_SHARE = 0.05
"""Share of a network's time, by data sheet, in rare classes from which the user is warned."""
_LEAST_COEFFICIENT = 0.02
"""Of a term in the shares that nearness is judged by: a fit sets many to zero."""
_SINGULAR = 1e12
"""Condition that rounding alone gives."""
_DIGITS = 6


class Band(NamedTuple):
    """A time attributed to a part of a network, with the band of equally good fits, in ms."""

    value: float
    low: float
    high: float


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
        """
        families, similar = (
            _apart(each, len(networks)) for each in (families, similar or families)
        )
        costs = costs_of(
            networks, min(FEWEST_NETWORKS, max(2, len(networks) // 8)), training=training
        )
        sheet_ms = columns_of(networks, costs).sheet_ms
        relative = relative_to(times_ms, sheet_ms, costs, training=training)
        shrinkage = relative.best_shrinkage(families)
        coefficients = relative.solve(shrinkage)
        draws = relative.draws(families, shrinkage, seed)
        self = cls(
            costs, coefficients, relative.expected, draws, shrinkage, relative.identified(costs),
            None, None, None, float(times_ms.min()),
            len(set(families)),
        )  # fmt: skip
        if len(networks) < 2 * FEWEST_NETWORKS:
            return self
        family_out = times_ms * relative.left_out(folds_of(families), shrinkage)
        folds = folds_of(similar)
        network_out = times_ms * relative.left_out(folds, shrinkage)
        class_ms = self.class_ms(sheet_ms)
        errors = times_ms / np.maximum(network_out, 1e-9)
        corrected = network_out * left_out_factors(class_ms, errors, folds)
        return cls(
            **{
                **vars(self),
                "nearness": self.corrected_by(sheet_ms, errors),
                "near": Intervals.fit(times_ms, corrected),
                "far": Intervals.fit(times_ms, family_out),
            }
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in alphabetical order."""
        return tuple(sorted({cost.of for cost in self.costs}))

    def class_ms(self, sheet_ms: Array) -> Array:
        """Return times by class for judging nearness, shape (networks, classes)."""
        floor = np.maximum(self.coefficients, _LEAST_COEFFICIENT + 0.05 * self.expected)
        place = {name: number for number, name in enumerate(self.classes)}
        member = np.zeros((len(self.costs), len(place)))
        for row, cost in enumerate(self.costs):
            member[row, place[cost.of]] = 1.0
        return np.asarray(sheet_ms * floor @ member)

    def corrected_by(self, sheet_ms: Array, ratios: Array) -> Nearness:
        """Return the correction that measured over predicted times of networks teach."""
        return Nearness.fit(self.class_ms(sheet_ms), ratios)

    def predict(self, networks: Sequence[Terms]) -> Estimate:
        """Predict whole networks with their intervals."""
        sheet_ms = columns_of(networks, self.costs).sheet_ms
        plain_ms = sheet_ms @ self.coefficients
        in_range = plain_ms >= self.shortest_ms
        far = _bounds(self.far, plain_ms, in_range)
        if self.nearness is None:
            return Estimate(plain_ms, *far)
        class_ms = self.class_ms(sheet_ms)
        times_ms = plain_ms * self.nearness.factors(class_ms)
        is_near = self.nearness.nearness(class_ms) > 0.5
        near = _bounds(self.near, times_ms, in_range)
        low, high = (np.where(is_near, a, b) for a, b in zip(near, far, strict=True))
        return Estimate(times_ms, np.minimum(low, times_ms), np.maximum(high, times_ms))

    def attributed(self, network: Terms) -> dict[str, Band]:
        """Return the time in each class of a network: an attribution, no measurement."""
        return self._attributed(network, lambda name: name)

    def groups(self, network: Terms) -> dict[str, Band]:
        """Return the time in each group of `GROUPS`."""
        return self._attributed(network, group_of)

    def _attributed(self, network: Terms, name_of: Any) -> dict[str, Band]:
        sheet_ms = columns_of([network], self.costs).sheet_ms[0]
        factor = float(self.predict([network]).values[0]) / max(
            float(sheet_ms @ self.coefficients), 1e-12
        )
        places: dict[str, list[int]] = {}
        for place, cost in enumerate(self.costs):
            if sheet_ms[place] > 0:
                places.setdefault(name_of(cost.of), []).append(place)
        found = {}
        for name, chosen in places.items():
            value = factor * float(sheet_ms[chosen] @ self.coefficients[chosen])
            drawn = factor * self.draws[:, chosen] @ sheet_ms[chosen]
            low, high = np.quantile(drawn, (0.05, 0.95))
            found[name] = Band(value, min(float(low), value), max(float(high), value))
        return found

    def shares(self, network: Terms) -> dict[str, float]:
        """Return the shares of a network's time in the groups of `GROUPS`."""
        found: dict[str, float] = {}
        times_ms = columns_of([network], self.costs).sheet_ms[0] * self.coefficients
        for cost, time_ms in zip(self.costs, times_ms, strict=True):
            group = group_of(cost.of)
            found[group] = found.get(group, 0.0) + float(time_ms)
        total_ms = sum(found.values())
        return {group: time_ms / total_ms for group, time_ms in found.items() if time_ms > 0}

    def rare_share(self, network: Terms) -> float:
        """Return the share of a network by data sheet in classes that few networks have."""
        known = {*self.classes, UPDATE.of}
        rare = sum(time for cost, time in network.items() if cost.of not in known)
        return rare / max(sum(network.values()), 1e-12)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "costs": [list(cost) for cost in self.costs],
            "coefficients": np.round(self.coefficients, _DIGITS).tolist(),
            "expected": self.expected.tolist(),
            "draws": np.round(self.draws, _DIGITS).tolist(),
            "shrinkage": list(self.shrinkage),
            "identified": self.identified._asdict(),
            "nearness": None if self.nearness is None else self.nearness.to_json(),
            "near": None if self.near is None else self.near.to_json(),
            "far": None if self.far is None else self.far.to_json(),
            "shortest_ms": self.shortest_ms,
            "families": self.families,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        identified = dict(stored(values, "identified"))
        identified["collinear"] = tuple(tuple(each) for each in identified["collinear"])
        nearness, near, far = (stored(values, name) for name in ("nearness", "near", "far"))
        return cls(
            tuple(Cost(*each) for each in stored(values, "costs")),
            np.array(stored(values, "coefficients"), dtype=float),
            np.array(stored(values, "expected"), dtype=float),
            np.array(stored(values, "draws"), dtype=float),
            Shrinkage(*stored(values, "shrinkage")),
            Identified(**identified),
            None if nearness is None else Nearness.from_json(nearness),
            None if near is None else Intervals.from_json(near),
            None if far is None else Intervals.from_json(far),
            float(stored(values, "shortest_ms")),
            int(stored(values, "families")),
        )


def _apart(groups: Sequence[str], networks: int) -> Sequence[str]:
    """Return groups that can be left out; with too few of them, each network is its own."""
    return groups if len(set(groups)) >= FOLDS else [str(number) for number in range(networks)]


def left_out_factors(class_ms: Array, ratios: Array, folds: Sequence[str]) -> Array:
    """Return corrections of networks, each learnt without its fold."""
    names = np.array(folds)
    factors = np.ones(len(names))
    for name in np.unique(names):
        own = names == name
        factors[own] = Nearness.fit(class_ms[~own], ratios[~own]).factors(class_ms[own])
    return factors


def group_of(name: str) -> str:
    """Return the group of a class."""
    for group, beginnings in GROUPS.items():
        if name.startswith(beginnings):
            return group
    return OTHER_GROUP


class ClassCosts(Predictor):
    """Predicts a network's time from what classes of operators cost in other networks.

    Attributes
    ----------
    fits_ : dict of str to ClassFit
        One for each device and setting, by `setting_name`.
    """

    method = "class-costs"
    level = Level.NETWORK
    quantities = frozenset({"execution_ms", "step_ms", "latency_ms"})
    reads_lists = True

    fits_: dict[str, ClassFit]

    def _learn(self, task: Task) -> None:
        examples = task.examples
        if not (examples.settings and examples.platforms):
            raise TrainingError(
                f"{self.method} needs to know the device and the setting of each network"
            )
        rows: dict[str, list[int]] = {}
        keys = [
            setting_name(setting, platform)
            for setting, platform in zip(*_per_row(examples), strict=True)
        ]
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        self.fits_, notes = {}, []
        for key, chosen in rows.items():
            terms = [self._terms_of_row(examples, row) for row in chosen]
            names = [examples.networks[row].name for row in chosen]
            families = [examples.groups[row] for row in chosen] if examples.groups else names
            setting = _per_row(examples)[0][chosen[0]]
            fit = ClassFit.fit(
                terms, examples.values[chosen], families,
                training=setting.mode is Mode.TRAINING, seed=task.seed,
                similar=alike(names, terms),
            )  # fmt: skip
            self.fits_[key] = fit
            notes.append(described(key, fit, len(chosen)))
        self.notes_ = tuple(notes)

    def _terms_of_row(self, examples: Examples, row: int) -> Terms:
        settings, platforms = _per_row(examples)
        return terms_of(examples.networks[row], settings[row], platforms[row])

    def fit_for(self, setting: Setting, platform: Platform) -> ClassFit:
        """Return the fit of a device and setting; of the latest version if that one is not known.

        Raises
        ------
        UnsupportedError
            If there is none.
        """
        wanted = setting_name(setting, platform)
        if wanted in self.fits_:
            return self.fits_[wanted]
        start = wanted.rpartition(" ")[0]
        others = sorted(key for key in self.fits_ if key.rpartition(" ")[0] == start)
        if not others:
            raise UnsupportedError(
                f"no network was measured with {wanted}; known: {', '.join(sorted(self.fits_))}"
            )
        return self.fits_[others[-1]]

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict whole networks; `notes_` warns of what the data hardly has."""
        fit = self.fit_for(setting, platform)
        notes, terms, names = [], [], []
        for subject in cast("Sequence[Network | RunNetwork]", subjects):
            run = _run(subject, setting)
            found = class_terms(run, _facts(platform))
            terms.append(found)
            names.append(run.name)
            if run.left_out:
                notes.append(
                    f"{run.name}: {len(run.left_out)} operators are left out, the first: "
                    f"{run.left_out[0]}"
                )
            if (share := fit.rare_share(found)) > _RARE_SHARE:
                notes.append(
                    f"{run.name}: {share:.0%} of its work is in operators of a sort that few of "
                    "the measured networks have; expect larger errors"
                )
        estimate = fit.predict(terms)
        for name, value in zip(names, estimate.values, strict=True):
            if value < fit.shortest_ms:
                notes.append(
                    f"{name}: extrapolated, all networks of the data take "
                    f"at least {fit.shortest_ms:.3g} ms"
                )
        self.notes_ = tuple(notes)
        return {self.quantity_: estimate}

    def network_shares(
        self, networks: Sequence[Network], setting: Setting, platform: Platform
    ) -> Sequence[Mapping[str, float]]:
        """Return the shares of each network's time in the groups of `GROUPS`."""
        fit = self.fit_for(setting, platform)
        return [fit.shares(terms_of(network, setting, platform)) for network in networks]

    def attributed(
        self, network: Network | RunNetwork, setting: Setting, platform: Platform
    ) -> tuple[dict[str, Band], dict[str, Band]]:
        """Return the times of groups and of classes with their bands; none of compiled networks."""
        if setting.compiled in COMPILED:
            return {}, {}
        fit, terms = self.fit_for(setting, platform), terms_of(network, setting, platform)
        return fit.groups(terms), fit.attributed(terms)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:  # noqa: ARG002
        return {"fits": {key: fit.to_json() for key, fit in self.fits_.items()}}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:  # noqa: ARG002
        fits = stored(values, "fits")
        self.fits_ = {key: ClassFit.from_json(each) for key, each in fits.items()}


def setting_name(setting: Setting, platform: Platform) -> str:
    """Return the name that a fit is stored by."""
    words = (
        platform.device, setting.mode, setting.precision or "fp32", setting.layout or "nchw",
        setting.compiled or "eager", f"torch-{setting.framework_version or 'unknown'}",
    )  # fmt: skip
    return " ".join(words)


def described(key: str, fit: ClassFit, networks: int) -> str:
    """Return what a fit can tell apart, in one line."""
    told = fit.identified
    singular = told.condition > _SINGULAR
    condition = "singular" if singular else f"condition {told.condition:.2g}"
    text = (
        f"{key}: {networks} networks of {fit.families} families; rank {told.rank} of "
        f"{told.terms} terms, {condition}, shrinkage {fit.shrinkage.to_sheet:g} "
        f"and {fit.shrinkage.to_pool:g}"
    )
    together = "; ".join(" with ".join(each) for each in told.collinear[:3])
    return f"{text}; only together: {together}" if together else text


def terms_of(network: Network | RunNetwork, setting: Setting, platform: Platform) -> Terms:
    """Return the terms of a network under a setting on a platform."""
    return class_terms(_run(network, setting), _facts(platform))


def _run(network: Network | RunNetwork, setting: Setting) -> RunNetwork:
    return network if isinstance(network, RunNetwork) else run_network(network, setting)


def _facts(platform: Platform) -> DeviceFacts:
    facts = device_facts(platform.device)
    if facts is None:
        raise UnsupportedError(
            f"the data sheet of {platform.device!r} is not known; add its facts as in "
            "docs/importing.md"
        )
    return facts


def _per_row(examples: Examples) -> tuple[Sequence[Setting], Sequence[Platform]]:
    """Return one setting and one platform per row."""
    rows = len(examples)
    settings, platforms = examples.settings, examples.platforms
    return (
        settings if len(settings) == rows else list(settings) * rows,
        platforms if len(platforms) == rows else list(platforms) * rows,
    )


def _bounds(intervals: Intervals | None, times_ms: Array, in_range: Any) -> tuple[Array, Array]:
    if intervals is None:
        return assumed(times_ms, in_range)
    return intervals.bounds(times_ms, in_range)
