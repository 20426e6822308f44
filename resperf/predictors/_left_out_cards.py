"""How far predictions of a device are off that are made from the fits of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from resperf.features import Array
from resperf.predictors._class_fit import columns_of, relative_to
from resperf.predictors._fitted_classes import ClassFit
from resperf.predictors.intervals import SHARE, half_width
from resperf.predictors.operator_classes import Terms
from resperf.records import Record
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
            sheet_ms = columns_of(card.terms, fit.costs).sheet_ms
            predicted_ms = np.zeros(len(folds))
            for fold in np.unique(folds):
                own = folds == fold
                predicted_ms[own] = sheet_ms[own] @ by_fold.get(fold, fit.coefficients)
            logs.append(np.log(np.maximum(predicted_ms, 1e-9) / card.times_ms))
        errors.append(np.mean(logs, axis=0))
    return errors


def _coefficients(card: CardRows, fold_of: dict[str, str]) -> dict[str, Array]:
    """Return the coefficients of fits without each fold of families, all of the same shrinkage."""
    sheet_ms = columns_of(card.terms, card.fit.costs).sheet_ms
    relative = relative_to(card.times_ms, sheet_ms, card.fit.costs, training=card.is_training)
    folds = np.array([fold_of[family] for family in card.families])
    if len(set(folds)) < 2:
        return {}
    return {
        fold: relative.some(folds != fold).solve(card.fit.shrinkage) for fold in np.unique(folds)
    }
