"""A bundle in memory: it predicts layers and transfers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from resperf.bundle._in_place import Carried, InPlace
from resperf.bundle._manifest import read_manifest
from resperf.bundle._ranges import outside
from resperf.errors import BundleError, ResperfError
from resperf.features import Array, columns_of, feature_matrix, quantities
from resperf.layers import Layer, kind_of_key, layer_from_key
from resperf.measurement import WHOLE_CALL, layer_phase
from resperf.platform import from_fingerprint
from resperf.predictors import METHODS, LayerPredictor, layer_predictor_class
from resperf.predictors.intervals import Intervals, assumed
from resperf.predictors.transfers import Transfers

_FEATURE_TOLERANCE = 1e-6
_OUTPUT_TOLERANCE = 1e-4
_SHORTEST_MS = 1e-3


@dataclass(frozen=True)
class Times:
    """Predicted times of layers, in their order.

    Attributes
    ----------
    ms : array of float64 (layers,)
        NaN where the bundle has no predictor.
    in_range : array of bool (layers,)
        Whether every field lies within what the bundle was trained on.
    reason : tuple of str
        Empty, or why a layer is out of range or has no time: ``"height=900 above 512"``.
    low_ms, high_ms : array of float64 (layers,)
        Bounds that hold nine of ten measured times; NaN where the bundle knows none. Wider out of
        range.
    """

    ms: Array
    in_range: npt.NDArray[np.bool_]
    reason: tuple[str, ...]
    low_ms: Array
    high_ms: Array


class Bundle:
    """Predictors of one device and framework; made by `load`.

    Attributes
    ----------
    path : Path
    device, framework, method, created : str
        `created` is ISO 8601, UTC.
    setting : Setting
    platform : Platform
        How and where the training rows were measured.
    costs : mapping of str to float
        ``session_ms`` and ``view_ms`` of that machine, where they are known.
    layer_phase : str
        What the layers' times contain: ``execution``, or ``whole_call`` where the training rows
        held nothing else.
    kinds : tuple of str
        Kinds of layers that have a predictor of that phase.
    errors : mapping
        ``errors["validation"][kind][phase]`` holds ``rows``, ``mape``, ``rmse_ms``, ``mae_ms`` and
        ``within_10`` (fractions); ``errors["test"]`` likewise.
    estimates : mapping
        What was estimated rather than learnt -> ``how``, ``source`` and errors. Named
        ``"pool execution"``, ``"preprocess"``, ``"postprocess"``, ``"view_ms"``.
    in_place : InPlace or None
        What whole networks taught about layers inside them, where the bundle was calibrated.
    carried : Carried or None
        Where the layers were measured, where that was another machine than `platform`.
    manifest : mapping
        Everything that ``bundle.json`` holds.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.device: str = manifest["device"]
        self.framework: str = manifest["framework"]
        self.method: str = manifest["method"]
        self.created: str = manifest["created"]
        self.setting, self.platform = from_fingerprint(manifest["fingerprint"])
        self.costs: Mapping[str, float] = manifest["costs"]
        self.errors: Mapping[str, Any] = manifest["errors"]
        self.estimates: Mapping[str, Any] = manifest.get("estimates", {})
        self._predictors = {
            (kind, phase): _predictor(values, phase, path)
            for kind, phases in manifest["predictors"].items()
            for phase, values in phases.items()
        }
        self._transfers = {
            phase: Transfers.from_json(values) for phase, values in manifest["transfers"].items()
        }
        self._intervals = {
            (kind, phase): Intervals.from_json(values)
            for kind, phases in manifest.get("intervals", {}).items()
            for phase, values in phases.items()
        }
        learnt = manifest.get("in_place")
        self.in_place = None if learnt is None else InPlace.from_json(learnt)
        carried = manifest.get("carried")
        self.carried = None if carried is None else Carried.from_json(carried)
        self.layer_phase = layer_phase({phase for _, phase in self._predictors} or {"execution"})
        self.kinds = tuple(kind for kind, phase in self._predictors if phase == self.layer_phase)
        self._checked: set[tuple[str, str]] = set()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a bundle and check that it is whole, safe, and means what it meant when written.

        The features of its canned layers are computed and compared now, their predictions when a
        predictor is first used.

        Raises
        ------
        BundleError
            If it is missing, damaged or unsafe, or if features have changed since.
        """
        path = Path(path)
        manifest = read_manifest(path)
        try:
            self = cls(path, manifest)
            self._check_features()
        except BundleError:
            raise
        except (ResperfError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(
                f"{path} does not hold what a bundle holds ({type(error).__name__}: {error}); "
                "restore it or train it again"
            ) from error
        return self

    def without_in_place(self) -> Bundle:
        """Return the same bundle, its layers as they are alone."""
        if self.in_place is None:
            return self
        return Bundle(self.path, {k: v for k, v in self.manifest.items() if k != "in_place"})

    def has(self, kind: str, phase: str | None = None) -> bool:
        """Say whether a kind has a predictor of its own for a phase, by default `layer_phase`."""
        return (kind, phase or self.layer_phase) in self._predictors

    def method_of(self, kind: str, phase: str = "execution") -> str:
        """Name what predicts a kind's phase: its predictor's method, or ``transfers``."""
        phases = self.manifest["predictors"].get(kind, {})
        return str(phases[phase]["method"]) if phase in phases else "transfers"

    @property
    def validation(self) -> dict[str, float]:
        """Map each kind to the validation MAPE of its `layer_phase`, a fraction."""
        found = self.errors.get("validation", {})
        return {
            kind: phases[self.layer_phase]["mape"]
            for kind, phases in found.items()
            if self.layer_phase in phases
        }

    @property
    def machine(self) -> str:
        """The machine that the times are of, in words, and where the layers were measured."""
        here = self.platform.machine
        if self.carried is None:
            return here
        return f"{here} (layers measured on {self.carried.origin.machine})"

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def predict(self, layers: Sequence[Layer], phase: str = "execution") -> Times:
        """Predict lowered layers of any kinds.

        Parameters
        ----------
        layers : sequence of Layer
        phase : str
            A name of `resperf.measurement.TIMED`. Where kinds have no predictor of their own for
            preprocess or postprocess, the bundle's transfers stand in. One phase never stands in
            for another.

        Raises
        ------
        BundleError
            If a predictor does not give what it gave when it was stored.
        """
        ms, low_ms, high_ms = (np.full(len(layers), np.nan) for _ in range(3))
        reasons = [""] * len(layers)
        rows_of: dict[str, list[int]] = {}
        for row, layer in enumerate(layers):
            rows_of.setdefault(layer.kind, []).append(row)
        for kind, rows in rows_of.items():
            chosen = [layers[row] for row in rows]
            ms[rows], found = self._predict_kind(kind, phase, chosen)
            for row, reason in zip(rows, found, strict=True):
                reasons[row] = reason
            known = np.array([not reason for reason in found], dtype=bool)
            low_ms[rows], high_ms[rows] = self._bounds(kind, phase, ms[rows], known)
        in_range = np.array([not reason for reason in reasons], dtype=bool)
        if self.carried is not None and phase == self.layer_phase:
            ms, low_ms, high_ms = (self.carried.factor * each for each in (ms, low_ms, high_ms))
        return Times(ms, in_range, tuple(reasons), low_ms, high_ms)

    def _bounds(
        self, kind: str, phase: str, ms: Array, in_range: npt.NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """Return the bounds of times of one kind; NaN in bundles that were made without."""
        intervals = self._intervals.get((kind, phase))
        if intervals is not None:
            return intervals.bounds(ms, in_range)
        if "intervals" in self.manifest:
            return assumed(ms, in_range)
        return np.full(len(ms), np.nan), np.full(len(ms), np.nan)

    def transfer_ms(
        self,
        phase: Literal["preprocess", "postprocess"] | str,
        tensor_bytes: Sequence[float] | Array,
    ) -> Array:
        """Predict copies between host and device.

        Parameters
        ----------
        phase : {"preprocess", "postprocess"}
            Towards the device, or back.
        tensor_bytes : sequence of float (tensors,)

        Returns
        -------
        array of float64 (tensors,)
            In ms; NaN where the bundle knows nothing of such transfers.
        """
        transfers = self._transfers.get(phase)
        if transfers is None:
            return np.full(len(tensor_bytes), np.nan)
        return transfers.predict(np.asarray(tensor_bytes, dtype=float))

    def transfers_outside(
        self, phase: str, tensor_bytes: Sequence[float] | npt.NDArray[Any]
    ) -> list[str]:
        """Say for each tensor why its copy is beyond what was measured; empty where it is not."""
        transfers = self._transfers.get(phase)
        # What takes the same time whatever the size has no range.
        known = transfers is None or not any(transfers.ms_per_mb)
        largest = math.inf if transfers is None or known else transfers.largest_bytes
        return [
            f"tensor of {size:.0f} B above {largest:.0f}" if size > largest else ""
            for size in tensor_bytes
        ]

    def _predict_kind(
        self, kind: str, phase: str, layers: Sequence[Layer]
    ) -> tuple[Array, Sequence[str]]:
        predictor = self._predictors.get((kind, phase))
        if predictor is not None:
            self._check_outputs(kind, phase, predictor)
            columns = columns_of(layers)
            ranges = self.manifest["ranges"].get(kind, {})
            return predictor.values(columns), outside(kind, columns, ranges)
        if phase in self._transfers:
            name = "in_bytes" if phase == "preprocess" else "out_bytes"
            sizes = quantities(kind, columns_of(layers))[name]
            return self.transfer_ms(phase, sizes), self.transfers_outside(phase, sizes)
        reason = f"no predictor for {kind}"
        if phase != WHOLE_CALL and self.layer_phase == WHOLE_CALL:
            reason = f"the bundle predicts whole calls, not {phase}"
        return np.full(len(layers), np.nan), [reason] * len(layers)

    def _canned(self, kind: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self.manifest["canned"] if kind_of_key(entry["key"]) == kind]

    def _check_features(self) -> None:
        """Compare the canned layers' features with what is computed now."""
        for kind in self.kinds:
            entries = self._canned(kind)
            if not entries:
                raise BundleError(f"{self.path} has no canned layer for {kind}; train it again")
            layers = [layer_from_key(entry["key"]) for entry in entries]
            now = _telling_columns(feature_matrix(kind, columns_of(layers))[1])
            then = _telling_columns(np.array([entry["features"] for entry in entries], dtype=float))
            if now.shape != then.shape or not np.allclose(now, then, rtol=_FEATURE_TOLERANCE):
                raise BundleError(
                    f"{self.path}: features of {kind} are not those it was trained with, though "
                    "its feature set version is; train it again"
                )

    def _check_outputs(self, kind: str, phase: str, predictor: LayerPredictor) -> None:
        """Compare the canned layers' predictions with the stored ones, once."""
        if (kind, phase) in self._checked:
            return
        entries = [entry for entry in self._canned(kind) if phase in entry["ms"]]
        if entries:
            layers = [layer_from_key(entry["key"]) for entry in entries]
            now = predictor.values(columns_of(layers))
            then = np.array([entry["ms"][phase] for entry in entries], dtype=float)
            off = np.abs(now - then) / np.maximum(np.abs(then), _SHORTEST_MS)
            if not np.all(off <= _OUTPUT_TOLERANCE):
                raise BundleError(
                    f"{self.path}: {kind} {phase} predicts {now[off.argmax()]:.6g} ms where it "
                    f"predicted {then[off.argmax()]:.6g} ms when stored; train it again"
                )
        self._checked.add((kind, phase))


def _telling_columns(features: Array) -> Array:
    """Return the columns that are not all zero: a choice that came later only adds zeros."""
    return features[:, np.any(features != 0, axis=0)]


def _predictor(values: Mapping[str, Any], phase: str, folder: Path) -> LayerPredictor:
    method = values["method"]
    if method not in METHODS:
        raise BundleError(f"{folder} uses the method {method!r}; known: {', '.join(METHODS)}")
    return layer_predictor_class(method).load({"quantity": f"{phase}_ms", **values}, folder)
