"""A correction of predicted times from networks that are made of the same classes of operators.

Gaussian process regression on the logarithm of measured over predicted time. What a network is near
to is decided by the shares of its predicted time in each class. Without a near network there is no
correction, so that a new family is predicted no worse than without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from resperf.features import Array

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
    """Corrects predictions near known networks.

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
