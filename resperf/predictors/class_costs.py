"""Costs of operator classes, learnt from the times of whole networks.

No single layer needs to have been measured: the times of many networks say what their operators
cost together. One fit per device, mode, precision, layout, version, and eager or compiled; its
coefficients are relative to the device's data sheet. There is no constant, so that totals follow
the batch size. The idea of a linear form over few totals of a network is ConvMeter's (Beringer et
al. 2024, "ConvMeter: Predicting the Performance of Convolutional Neural Networks").

A device without a fit is predicted by the geometric mean of what the fits of the others say with
its data sheet, with an interval from leaving one device out after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from resperf.devices import device_facts, known_facts
from resperf.errors import UnsupportedError
from resperf.features import Array, Columns
from resperf.lowering.torch import COMPILED
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._base import Account, Band, Estimate, Predicted, Predictor, Task, stored
from resperf.predictors._class_fit import RARE_SHARE, ClassFit, columns_of, group_of, relative_to
from resperf.predictors._class_fit import alike as twins
from resperf.predictors.intervals import SHARE, half_width
from resperf.predictors.operator_classes import RunNetwork, Terms, class_terms, run_network
from resperf.quantities import Level
from resperf.records import Record
from resperf.settings import Mode, Setting
from resperf.splits import folds_of


class CardRows(NamedTuple):
    """The networks that a fit of one device was learnt from."""

    fit: ClassFit
    terms: Sequence[Terms]
    times_ms: Array
    families: Sequence[str]
    is_training: bool


@dataclass(frozen=True)
class Spread(Record):
    """Interval of a device that none of the networks were measured on, and where it comes from.

    What most of the error is, is one factor of the device. The next device's factor is drawn as
    those of the devices that were left out, of which there are few (Student's t); its networks
    spread around it as theirs did. Families were left out together with the device.

    Attributes
    ----------
    width : float
        Half width of the 90% interval, in logarithms.
    devices : int
    mape : float
        Mean of the devices' mean absolute relative errors, a fraction.
    coverage : float
        Share of networks inside the interval that is made without the errors of their own device,
        where there are more than two devices; else inside this one.
    """

    width: float
    devices: int
    mape: float
    coverage: float

    def bounds(self, times_ms: Array) -> tuple[Array, Array]:
        """Return the bounds of predicted times."""
        factor = float(np.exp(self.width))
        return times_ms / factor, times_ms * factor

    def __str__(self) -> str:
        return (
            f"{self.devices} devices that were left out one after the other (MAPE {self.mape:.1%}, "
            f"{self.coverage:.0%} within a factor of {np.exp(self.width):.2f})"
        )


def spread_of(cards: Sequence[CardRows]) -> Spread:
    """Leave one device out after the other, and in each a fourth of the families after the other.

    Parameters
    ----------
    cards : sequence of CardRows
        At least two.
    """
    errors = errors_of_left_out(cards)
    width = width_of(errors)
    if len(cards) > 2:
        # The interval for a device from errors in which it took no part, not even to teach.
        inside = []
        for index, own in enumerate(errors):
            others = [card for number, card in enumerate(cards) if number != index]
            inside.append(np.abs(own) <= width_of(errors_of_left_out(others)))
    else:
        inside = [np.abs(own) <= width for own in errors]
    mape = np.mean([np.mean(np.abs(np.exp(own) - 1)) for own in errors])
    return Spread(width, len(cards), float(mape), float(np.mean([rows.mean() for rows in inside])))


def width_of(errors: Sequence[Array]) -> float:
    """Return the half width of the interval of one more device."""
    factors = np.array([np.median(own) for own in errors])
    within = np.quantile(np.abs(np.concatenate([e - np.median(e) for e in errors])), SHARE)
    # Factors are around one: there is no mean to take off.
    of_device = half_width(float(np.sqrt(np.mean(factors**2))), len(errors) - 1)
    return float(np.hypot(of_device, within))


def errors_of_left_out(cards: Sequence[CardRows]) -> list[Array]:
    """Return for each device the logarithms of predicted over measured times."""
    families = sorted({family for card in cards for family in card.families})
    fold_of = dict(zip(families, folds_of(families), strict=True))
    solved = [_coefficients(card, fold_of) for card in cards]
    errors = []
    for index, card in enumerate(cards):
        folds = np.array([fold_of[family] for family in card.families])
        logs = []
        for other, (fit, by_fold) in enumerate(zip((c.fit for c in cards), solved, strict=True)):
            if other == index:
                continue
            sheet_ms = columns_of(card.terms, fit.costs)
            predicted_ms = np.zeros(len(folds))
            for fold in np.unique(folds):
                own = folds == fold
                predicted_ms[own] = sheet_ms[own] @ by_fold.get(fold, fit.coefficients)
            logs.append(np.log(np.maximum(predicted_ms, 1e-9) / card.times_ms))
        errors.append(np.mean(logs, axis=0))
    return errors


def _coefficients(card: CardRows, fold_of: dict[str, str]) -> dict[str, Array]:
    """Return the coefficients of fits without each fold of families, all of the same shrinkage."""
    sheet_ms = columns_of(card.terms, card.fit.costs)
    relative = relative_to(card.times_ms, sheet_ms, card.fit.costs, training=card.is_training)
    folds = np.array([fold_of[family] for family in card.families])
    if len(set(folds)) < 2:
        return {}
    return {
        fold: relative.some(folds != fold).solve(card.fit.shrinkage) for fold in np.unique(folds)
    }


_SINGULAR = 1e12
"""Condition that rounding alone gives."""
_FITS = "fits"
_OWN, _OTHERS = "whole networks on this device", "whole networks on other devices"


class _Chosen(NamedTuple):
    """What answers for a device and setting: a fit of its own, or those of other devices."""

    fits: tuple[ClassFit, ...]
    spread: Spread | None
    notes: tuple[str, ...]

    def predict(self, terms: Sequence[Terms], batches: Sequence[int]) -> Estimate:
        """Predict networks: the geometric mean of what the fits say."""
        estimates = [fit.predict(terms, batches) for fit in self.fits]
        if self.spread is None:
            return estimates[0]
        values = np.array([estimate.values for estimate in estimates])
        times_ms = np.exp(np.log(np.maximum(values, 1e-9)).mean(axis=0))
        # Within the data, the spread of whole devices holds; outside it, what is wider.
        low, high = self.spread.bounds(times_ms)
        outside = np.array(
            [
                all(fit.is_far(*row) for fit in self.fits)
                for row in zip(times_ms, batches, terms, strict=True)
            ],
            dtype=bool,
        )
        lowest = np.min([estimate.low for estimate in estimates], axis=0)
        highest = np.max([estimate.high for estimate in estimates], axis=0)
        return Estimate(
            times_ms,
            np.where(outside, np.minimum(low, lowest), low),
            np.where(outside, np.maximum(high, highest), high),
        )

    def outside(self, time_ms: float, batch: int) -> str:
        """Say why a time is extrapolated by all of the fits; empty if it is not by one."""
        reasons = [fit.outside(time_ms, batch) for fit in self.fits]
        return reasons[0] if all(reasons) else ""

    def bands(self, terms: Terms, batch: int, name_of: Callable[[str], str]) -> dict[str, Band]:
        """Return attributed times by what a class is called.

        Of several fits, the mean of their shares of the predicted time, with the outermost of their
        bands.
        """
        time_ms = float(self.predict([terms], [batch]).values[0])
        of_fits = []
        for fit in self.fits:
            parts = fit.bands(terms, name_of)
            factor = time_ms / max(sum(part.value for part in parts.values()), 1e-12)
            of_fits.append({k: Band(*(factor * value for value in v)) for k, v in parts.items()})
        nothing = Band(0.0, 0.0, 0.0)
        bands = {}
        for key in dict.fromkeys(key for of_fit in of_fits for key in of_fit):
            values, lows, highs = zip(
                *(of_fit.get(key, nothing) for of_fit in of_fits), strict=True
            )
            bands[key] = Band(sum(values) / len(values), min(lows), max(highs))
        return bands


class ClassCosts(Predictor):
    """Predicts a network's time from what classes of operators cost in other networks.

    Attributes
    ----------
    spreads_ : dict of str to Spread
        By `kind_of_setting`: how far devices are off that are predicted from the others.
    """

    method = "class-costs"
    level = Level.NETWORK
    quantities = frozenset({"execution_ms", "step_ms", "latency_ms"})
    reads_lists = True
    uses_validation = False
    unseen_devices = True
    fallbacks: ClassVar[Mapping[str, str]] = {"fp16": "amp", "bf16": "amp"}

    _fits: Mapping[str, ClassFit] | None = None
    _stored_in: Path | None = None

    def _learn(self, task: Task) -> None:
        examples = task.examples
        settings, platforms = zip(*examples.per_row(), strict=True)
        rows: dict[str, list[int]] = {}
        kinds: dict[str, dict[str, str]] = {}
        for row, (setting, platform) in enumerate(zip(settings, platforms, strict=True)):
            key = setting_name(setting, platform)
            rows.setdefault(key, []).append(row)
            kinds.setdefault(kind_of_setting(setting, platform), {})[key] = platform.device
        fits: dict[str, ClassFit] = {}
        cards: dict[str, CardRows] = {}
        notes = []
        for key, chosen in rows.items():
            terms = [
                _terms(_run(examples.networks[row], settings[row]), platforms[row])
                for row in chosen
            ]
            names = [examples.networks[row].name for row in chosen]
            families = [examples.groups[row] for row in chosen] if examples.groups else names
            is_training = settings[chosen[0]].mode is Mode.TRAINING
            fits[key] = ClassFit.fit(
                terms, examples.values[chosen], families, training=is_training, seed=task.seed,
                similar=twins(names, terms), batches=[settings[row].batch or 0 for row in chosen],
            )  # fmt: skip
            cards[key] = CardRows(fits[key], terms, examples.values[chosen], families, is_training)
            notes.append(described(key, fits[key], len(chosen)))
        self._fits = fits
        self.spreads_ = {
            kind: spread_of([cards[key] for key in _latest(devices).values()])
            for kind, devices in kinds.items()
            if len(set(devices.values())) > 1
        }
        notes += [f"{kind}, devices left out: {spread}" for kind, spread in self.spreads_.items()]
        self.notes_ = tuple(notes)

    @property
    def fits_(self) -> Mapping[str, ClassFit]:
        """One for each device and setting, by `setting_name`; read when they are needed."""
        if self._fits is None:
            assert self._stored_in is not None
            fits = {}
            with np.load(self._stored_in, allow_pickle=False) as file:
                for index, (key, values) in enumerate(json.loads(file[_FITS].tobytes()).items()):
                    own = [name for name in file.files if name.startswith(f"{index}/")]
                    arrays = {name.partition("/")[2]: file[name] for name in own}
                    fits[key] = ClassFit.from_stored(values, arrays)
            self._fits = fits
        return self._fits

    def fit_for(self, setting: Setting, platform: Platform) -> ClassFit | None:
        """Return the fit of a device and setting; of the latest version if that one is not known.

        None if there is none.
        """
        wanted = setting_name(setting, platform)
        if wanted in self.fits_:
            return self.fits_[wanted]
        start = wanted.rpartition(" ")[0]
        others = [key for key in self.fits_ if key.rpartition(" ")[0] == start]
        return self.fits_[max(others, key=_version)] if others else None

    def _chosen(self, setting: Setting, platform: Platform) -> _Chosen:
        """Choose the fits that answer.

        Raises
        ------
        UnsupportedError
            If no network was measured with such a setting on a device of this class.
        """
        precision = self.fallbacks.get(setting.precision, setting.precision)
        how = replace(setting, precision=precision)
        notes = []
        if precision != setting.precision:
            notes.append(
                f"no network was measured in {setting.precision}: operators cost what they do with "
                f"{precision}, without the casts"
            )
        if (own := self.fit_for(how, platform)) is not None:
            return _Chosen((own,), None, tuple(notes))
        kind = kind_of_setting(how, platform)
        if kind not in self.spreads_:
            raise UnsupportedError(
                f"no network was measured with {setting_name(setting, platform)}; known: "
                f"{', '.join(sorted(self.fits_))}; ask for one of these"
            )
        alike = {
            key: device
            for key in self.fits_
            if " ".join((_class_of(device := key.split(" ")[0]), *key.split(" ")[1:-1])) == kind
        }
        latest = _latest(alike)
        spread = self.spreads_[kind]
        notes.append(
            f"not measured on this device with this setting: inferred from {', '.join(latest)} and "
            f"data sheets; interval from {spread}"
        )
        return _Chosen(tuple(self.fits_[key] for key in latest.values()), spread, tuple(notes))

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict whole networks."""
        chosen = self._chosen(setting, platform)
        runs = [
            _run(network, setting) for network in cast("Sequence[Network | RunNetwork]", subjects)
        ]
        terms = [_terms(run, platform) for run in runs]
        return {self.quantity_: chosen.predict(terms, [_batch(run, chosen) for run in runs])}

    def account(
        self, network: Network | RunNetwork, setting: Setting, platform: Platform
    ) -> Account:
        """Say what the time of a network was inferred from, and attribute it to its operators.

        Compiled networks have no groups and classes.
        """
        chosen, run = self._chosen(setting, platform), _run(network, setting)
        terms, batch = _terms(run, platform), _batch(run, chosen)
        notes = [*chosen.notes]
        rare = min(
            (fit.rare_shares(terms) for fit in chosen.fits), key=lambda shares: sum(shares.values())
        )
        if (share := sum(rare.values())) > RARE_SHARE:
            notes.append(
                f"{share:.0%} of the work is in operators that few measured networks have, most of "
                f"it {max(rare, key=rare.__getitem__)}: expect larger errors"
            )
        told_apart = setting.compiled not in COMPILED
        time_ms = float(chosen.predict([terms], [batch]).values[0])
        return Account(
            _OWN if chosen.spread is None else _OTHERS,
            chosen.bands(terms, batch, group_of) if told_apart else {},
            chosen.bands(terms, batch, str) if told_apart else {},
            chosen.outside(time_ms, batch),
            run.left_out,
            tuple(notes),
        )

    def network_shares(
        self, networks: Sequence[Network], setting: Setting, platform: Platform
    ) -> Sequence[Mapping[str, float]]:
        """Return the shares of each network's time in groups of operators; of several fits, means.

        Unlike `account`, of compiled networks as well.
        """
        chosen = self._chosen(setting, platform)
        shares = []
        for network in networks:
            run = _run(network, setting)
            bands = chosen.bands(_terms(run, platform), _batch(run, chosen), group_of)
            total_ms = sum(band.value for band in bands.values())
            shares.append(
                {name: band.value / total_ms for name, band in bands.items() if band.value}
            )
        return shares

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        path = folder / f"{stem}.npz"
        arrays: dict[str, Any] = {
            f"{index}/{name}": array
            for index, fit in enumerate(self.fits_.values())
            for name, array in fit.arrays().items()
        }
        fits = json.dumps({key: fit.to_json() for key, fit in self.fits_.items()})
        arrays[_FITS] = np.frombuffer(fits.encode(), dtype=np.uint8)
        np.savez_compressed(path, **arrays)
        layer_ci = {kind: spread.to_json() for kind, spread in self.spreads_.items()}
        return {"network": path.name, "layer_ci": layer_ci}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        self._stored_in = folder / stored(values, "network")
        layer_ci = stored(values, "layer_ci")
        self.spreads_ = {kind: Spread.from_json(spread) for kind, spread in layer_ci.items()}


def setting_name(setting: Setting, platform: Platform) -> str:
    """Return the name that a fit is stored by."""
    words = (platform.device, *_words(setting), f"torch-{setting.framework_version or 'unknown'}")
    return " ".join(words)


def kind_of_setting(setting: Setting, platform: Platform) -> str:
    """Return the name of what fits of several devices have in common."""
    return " ".join((_class_of(platform.device), *_words(setting)))


def _words(setting: Setting) -> tuple[str, ...]:
    return (
        setting.mode, setting.precision or "fp32", setting.layout or "nchw",
        setting.compiled or "eager",
    )  # fmt: skip


def _class_of(device: str) -> str:
    facts = device_facts(device)
    return "unknown" if facts is None else facts.device_class


def _version(key: str) -> tuple[int, ...]:
    """Return the numbers of the version that a key ends with; none come before all others."""
    return tuple(int(word) for word in key.rpartition("torch-")[2].split(".") if word.isdigit())


def _latest(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the key of the latest version of each device, from keys and their devices."""
    in_order = sorted(keys, key=lambda key: (keys[key], _version(key)))
    return {keys[key]: key for key in in_order}


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
    together = "; ".join(" with ".join(names) for names in told.collinear[:3])
    return f"{text}; only together: {together}" if together else text


def _run(network: Network | RunNetwork, setting: Setting) -> RunNetwork:
    return network if isinstance(network, RunNetwork) else run_network(network, setting)


def _terms(run: RunNetwork, platform: Platform) -> Terms:
    return class_terms(run, known_facts(platform.device))


def _batch(run: RunNetwork, chosen: _Chosen) -> int:
    """Return the batch size of a network; of an unknown one, one that the data has."""
    batch = max(fit.least_batch for fit in chosen.fits)
    return batch if run.batch is None else run.batch
