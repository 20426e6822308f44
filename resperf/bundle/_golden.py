"""Golden samples: what a bundle predicted when it was written, and what it predicts now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle._manifest import NETWORK, damage_named
from resperf.errors import BundleError
from resperf.features import Array, columns_of_keys, feature_matrix
from resperf.grouping import grouped
from resperf.layers import kind_of_key
from resperf.measurement import layer_kind
from resperf.network import Network, structure_digest
from resperf.platform import Platform
from resperf.predictors import Predictor
from resperf.settings import Setting

_Layer = tuple[Mapping[str, Any], tuple[Setting, Platform]]
_FEATURE_TOLERANCE = 1e-6
_OUTPUT_TOLERANCE = 1e-4
"""Relative: versions of ONNX Runtime add up in another order."""
_SHORTEST_MS = 1e-3
"""Shorter times are compared as if they took as long."""


@dataclass(eq=False)
class Golden:
    """Samples of one part of a bundle.

    Attributes
    ----------
    path : Path
        Folder of the bundle, for errors.
    samples : mapping
        ``layers`` and ``networks`` of the manifest.
    settings : sequence of Setting
    platforms : sequence of Platform
        Of the part, in its order.
    kinds : collection of str
        Kinds whose own time the part predicts: each must have a sample.
    """

    path: Path
    samples: Mapping[str, Any]
    settings: Sequence[Setting]
    platforms: Sequence[Platform]
    kinds: Collection[str]
    _layers: dict[str, list[_Layer]] = field(default_factory=dict)
    _same_outputs: set[tuple[str, str]] = field(default_factory=set)

    def check_features(self, kind: str) -> list[_Layer]:
        """Compare the features of a kind's layers with what is computed now, once.

        Returns
        -------
        list of (mapping, (Setting, Platform))
            The layers, and what each was predicted under.

        Raises
        ------
        BundleError
            If the kind has no sample, or its features are others.
        """
        if kind in self._layers:
            return self._layers[kind]
        how, where = self.settings, self.platforms
        with damage_named(self.path):
            layers = [
                (entry, (how[entry.get("setting", 0)], where[entry.get("platform", 0)]))
                for entry in self.samples.get("layers", ())
                if kind_of_key(entry["key"]) == kind
            ]
            if kind not in self.kinds:
                return layers
            entries = [entry for entry, _ in layers]
            if not entries:
                raise BundleError(f"{self.path} has no golden layer for {kind}; train it again")
            columns = columns_of_keys(entry["key"] for entry in entries)
            stored = np.array([entry["features"] for entry in entries], dtype=float)
            # Choices added later only add columns of zeros.
            now, then = (
                features[:, np.any(features != 0, axis=0)]
                for features in (feature_matrix(layer_kind(kind), columns)[1], stored)
            )
            if now.shape != then.shape or not np.allclose(now, then, rtol=_FEATURE_TOLERANCE):
                raise BundleError(
                    f"{self.path}: features of {kind} are not those it was trained with, but the "
                    "feature set version is the same; train it again"
                )
        self._layers[kind] = layers
        return layers

    def check(self, kind: str, quantity: str, predictor: Predictor) -> None:
        """Compare features and predictions of a kind's layers with the stored ones, once.

        Raises
        ------
        BundleError
            If they are others.
        """
        layers = self.check_features(kind)
        if (kind, quantity) in self._same_outputs:
            return
        pairs = ((how, entry) for entry, how in layers if quantity in entry["values"])
        for conditions, some in grouped(pairs).items():
            columns = columns_of_keys(entry["key"] for entry in some)
            with damage_named(self.path):
                predicted = predictor.predict(columns, *conditions)
            then = np.array([entry["values"][quantity] for entry in some], dtype=float)
            self._refuse_other_values(kind, quantity, predicted[quantity].values, then)
        self._same_outputs.add((kind, quantity))

    def check_networks(self, networks: Sequence[Network], quantity: str, values: Array) -> None:
        """Compare predictions of networks that are samples with the stored ones.

        Raises
        ------
        BundleError
            If they are others.
        """
        golden = {
            (entry["digest"], entry["batch"]): entry["values"]
            for entry in self.samples.get("networks", ())
        }
        for network, now in zip(networks, values, strict=True):
            if not isinstance(network, Network):
                continue  # what stands for a network at some batch size
            stored = golden.get((structure_digest(network), network.batch), {}) if golden else {}
            if quantity in stored:
                then = np.array([stored[quantity]], dtype=float)
                self._refuse_other_values(NETWORK, quantity, np.array([now]), then)

    def _refuse_other_values(self, kind: str, quantity: str, now: Array, then: Array) -> None:
        off = np.abs(now - then) / np.maximum(np.abs(then), _SHORTEST_MS)
        if not np.all(off <= _OUTPUT_TOLERANCE):
            worst = off.argmax()
            raise BundleError(
                f"{self.path}: {kind} {quantity} predicts {now[worst]:.6g} where it predicted "
                f"{then[worst]:.6g} when stored; train it again"
            )
