"""A bundle in memory: it predicts layers, networks and transfers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.bundle._adaptation import Adaptation, TransferredCalibration
from resperf.bundle._correction import Calibration, Correction
from resperf.bundle._golden import Golden
from resperf.bundle._manifest import NETWORK, check_files, damage_named, read_manifest
from resperf.bundle._provenance import changed
from resperf.bundle._ranges import in_known_blocks, outside
from resperf.copies import StoredCopies
from resperf.devices import device_class
from resperf.errors import BundleError, TrainingError
from resperf.features import Array, Columns, columns_of, quantities
from resperf.layers import Layer
from resperf.measurement import layer_kind, quantity_of, written_kind
from resperf.network import Network
from resperf.platform import Platform, distance, instruction_set
from resperf.predictors import (
    Account,
    Estimate,
    LayerPredictor,
    Predictor,
    predictor_class,
)
from resperf.predictors.intervals import Intervals, assumed, widened
from resperf.predictors.transfers import Transfers
from resperf.quantities import EXECUTION, WHOLE_CALL, layer_quantity
from resperf.settings import HALF_TYPES, SESSION, Setting


@dataclass(frozen=True)
class Times:
    """Predicted times of layers, in their order.

    Attributes
    ----------
    ms : array of float64 (layers,)
        NaN if the bundle has no predictor.
    in_range : array of bool (layers,)
        Whether every field is inside the trained range.
    reason : tuple of str
        Empty, or why a layer is out of range or has no time: ``"height=900 above 512"``.
    low_ms, high_ms : array of float64 (layers,)
        90% interval of measured times; NaN if unknown, as for copies. Wider out of range.
    """

    ms: Array
    in_range: npt.NDArray[np.bool_]
    reason: tuple[str, ...]
    low_ms: Array
    high_ms: Array


class Bundle:
    """Predictors for one setting and platform; made by `load`.

    A bundle on disk may have several such parts, each a `Bundle` in memory: `parts`.

    Attributes
    ----------
    path : Path
    device, framework, method, created : str
        `created` is ISO 8601, UTC.
    settings : tuple of Setting
    platforms : tuple of Platform
        How and where the training rows were measured; several if a network predictor was trained
        on rows of several, or training steps have optimizers. `setting` and `platform` are the
        first.
    costs : mapping of str to float
        ``call_ms`` and ``reshape_ms`` of that machine, if known.
    transfers : mapping of str to Transfers
        ``preprocess_ms`` and ``postprocess_ms`` -> copies to the device, and back.
    stored_copies : mapping of str to StoredCopies
        Kind -> copies of a layer per measured run; for other kinds they are assumed.
    layer_quantity : str
        What the layers' times contain: ``execution_ms``, or ``whole_call_ms`` if the training rows
        held nothing else.
    layer_quantities, network_quantities : tuple of str
        All quantities that predictors of layers, and of networks, have.
    kinds : tuple of str
        Kinds of layers (`resperf.measurement.written_kind`) that have a predictor of their own
        time: of `layer_quantity`, or ``step_ms`` of training steps.
    errors : mapping
        ``errors["validation"][kind][quantity]`` holds ``rows``, ``mape``, ``rmse_ms``, ``mae_ms``
        and ``within_10`` (fractions); ``errors["test"]`` likewise.
    estimates : mapping
        What was estimated instead of learnt -> ``how``, ``source`` and errors. Named
        ``"pool execution"``, ``"preprocess"``, ``"postprocess"``, ``"reshape_ms"``.
    correction : Correction or None
        In-network correction, if the bundle was calibrated on its machine.
    calibrations : tuple of Calibration
        What users' runs of networks taught besides, by device and setting (`calibration`).
    transferred : TransferredCalibration or None
        Where the layers were measured, if not on `platform`.
    machines : tuple of Adaptation
        How times are on other machines that `resperf calibrate -o` was run on.
    adapted : Adaptation or None
        How times are scaled to another machine, which is then `platform` (`adapted_to`).
    unseen : bool
        Whether it stands for a device of which it has no rows (`for_device`).
    part : mapping
        The manifest's part for this setting and platform.
    manifest : mapping
        Everything that ``bundle.json`` holds.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], place: int = 0) -> None:
        self.path = path
        self.manifest = manifest
        self._place = place
        self.created: str = manifest["created"]
        part: Mapping[str, Any] = manifest["parts"][place]
        self.part = part
        self.device: str = part["device"]
        self.framework: str = part["framework"]
        self.method: str = part["method"]
        self.settings = tuple(
            Setting.from_json(manifest["settings"][mark]) for mark in part["settings"]
        )
        self.platforms = tuple(
            Platform.from_json(manifest["platforms"][mark]) for mark in part["platforms"]
        )
        self.setting, self.platform = self.settings[0], self.platforms[0]
        self.costs: Mapping[str, float] = part["costs"]
        self.stored_copies = {
            kind: StoredCopies.from_json(values) for kind, values in part["copies"].items()
        }
        self.errors: Mapping[str, Any] = part["errors"]
        self.estimates: Mapping[str, Any] = part.get("estimates", {})
        self.transfers = {
            quantity: Transfers.from_json(values) for quantity, values in part["transfers"].items()
        }
        self._intervals = {
            (kind, quantity): Intervals.from_json(values)
            for kind, quantities in part.get("intervals", {}).items()
            for quantity, values in quantities.items()
        }
        learnt = part.get("correction")
        self.correction = None if learnt is None else Correction.from_json(learnt)
        self.calibrations = tuple(map(Calibration.from_json, part.get("calibrations", ())))
        origin = part.get("transferred_calibration")
        self.transferred = None if origin is None else TransferredCalibration.from_json(origin)
        self.machines = tuple(map(Adaptation.from_json, part.get("machines", ())))
        known = [(kind, name) for kind, names in part["predictors"].items() for name in names]
        of_layers = [key for key in known if key[0] != NETWORK]
        self.layer_quantities = tuple(dict.fromkeys(name for _, name in of_layers))
        self.layer_quantity = layer_quantity(self.layer_quantities or (EXECUTION,))
        self.kinds = tuple(kind for kind, name in of_layers if name == self.own_quantity(kind))
        self.network_quantities = tuple(name for kind, name in known if kind == NETWORK)
        self.adapted: Adaptation | None = None
        self._last_adapted: Bundle | None = None
        self.unseen = False

    @classmethod
    def load(cls, path: Path) -> Bundle:
        """Read a bundle and check that it is complete, safe, and still predicts what it did.

        The features of its golden layers are compared now, and their predictions when a predictor
        is first used.

        Returns
        -------
        Bundle
            Its first part.

        Raises
        ------
        BundleError
            If it is missing, damaged or unsafe, or if features have changed since.
        """
        return cls.read_only_manifest(Path(path)).checked

    @classmethod
    def read_only_manifest(cls, path: Path) -> Bundle:
        """Read a bundle without any file but its manifest; it predicts once it is `checked`.

        Raises
        ------
        BundleError
            If the manifest is missing or damaged.
        """
        with damage_named(path):
            return cls(path, read_manifest(path)).parts[0]

    @cached_property
    def checked(self) -> Bundle:
        """The bundle itself, once it is complete, safe and has the features it was trained with.

        Raises
        ------
        BundleError
            If it is not.
        """
        with damage_named(self.path):
            check_files(self.path, self.manifest)
            for part in self.parts:
                part._golden.check_features(part.own_quantity, part._predictors)
        return self

    @cached_property
    def _golden(self) -> Golden:
        return Golden(self.path, self.part["golden"], self.settings, self.platforms)

    @cached_property
    def _predictors(self) -> dict[tuple[str, str], Predictor]:
        return {
            (kind, quantity): _predictor(values, self.path)
            for kind, quantities in self.part["predictors"].items()
            for quantity, values in quantities.items()
        }

    @cached_property
    def parts(self) -> tuple[Bundle, ...]:
        """All parts of the bundle, one per set of settings and platforms, this one included."""
        parts = tuple(
            self if place == self._place else Bundle(self.path, self.manifest, place)
            for place in range(len(self.manifest["parts"]))
        )
        # All parts share this tuple, so that each is read and checked once.
        for part in parts:
            part.__dict__["parts"] = parts
        return parts

    def answering(
        self, kind: str | None, quantity: str | None, setting: Setting, platform: Platform
    ) -> Bundle:
        """Return the part that answers for a subject under a setting on a platform.

        The framework and the mode must agree. Among those parts, one for the class of the device is
        preferred, then the one whose platform differs least, then the one whose setting does.

        Parameters
        ----------
        kind : str or None
            A layer kind, or ``"network"``; None for any kind of layer.
        quantity : str or None
            None for any.
        setting : Setting
        platform : Platform

        Raises
        ------
        BundleError
            If no part does; the message lists the parts.
        """
        mine = device_class(platform.device, setting.framework)
        fitting = [
            (
                device_class(where.device, how.framework) != mine,
                len(where.differences(platform)),
                len(how.differences(setting)),
                place,
            )
            for place, part in enumerate(self.parts)
            if (part.kinds if kind is None else part.has(kind, quantity))
            for how in part.settings
            if (how.framework, how.mode) == (setting.framework, setting.mode)
            for where in part.platforms
        ]
        if fitting:
            return self.parts[min(fitting)[-1]]
        there = "; ".join(
            f"{', '.join(sorted('.'.join(key) for key in part._predictors))} on {part.device} "
            f"with {part.framework}, {part.setting.mode}"
            for part in self.parts
        )
        raise BundleError(
            f"{self.path} has no {quantity or 'predictor'} of {kind or 'layers'} for "
            f"{setting.framework}, {setting.mode}; "
            f"it has {there}"
        )

    def changed(self, reason: str, **values: Any) -> Bundle:
        """Return the bundle with changed values of its part, and the reason in its provenance.

        A value of None removes that entry. `settings` and `platforms` are lists of values, not of
        references.
        """
        manifest = {**self.manifest, "provenance": changed(self.provenance, reason)}
        for name in ("settings", "platforms"):
            if name in values:
                found = {f"{self._place}-{i}": v.to_json() for i, v in enumerate(values[name])}
                manifest[name] = {**manifest[name], **found}
                values[name] = list(found)
        part = {k: v for k, v in {**self.part, **values}.items() if v is not None}
        parts = list(self.manifest["parts"])
        parts[self._place] = part
        manifest["parts"] = parts
        for name in ("settings", "platforms"):
            used = {mark for each in parts for mark in each[name]}
            manifest[name] = {k: v for k, v in manifest[name].items() if k in used}
        return Bundle(self.path, manifest, self._place)

    def without_correction(self) -> Bundle:
        """Return the bundle without in-network correction: its layers as measured in isolation."""
        alone = self.without_calibrations()
        alone.correction = None
        return alone

    def without_calibrations(self) -> Bundle:
        """Return the bundle as it answers without what users' runs of networks taught."""
        alone = self._copy()
        alone.calibrations = ()
        return alone

    def calibration(
        self,
        quantity: str | None = None,
        setting: Setting | None = None,
        platform: Platform | None = None,
    ) -> Calibration | None:
        """Return what users' runs taught of the device and setting that it answers for.

        Parameters
        ----------
        quantity : str, optional
            One that a predictor of networks answers; None for layers.
        setting : Setting, optional
        platform : Platform, optional
            The bundle's own unless given.
        """
        device = self.device if platform is None else platform.device
        fitting = (
            each
            for each in self.calibrations
            if each.of_layers == (quantity is None) and quantity in (None, each.quantity)
            if each.is_of(device, setting or self.setting)
        )
        return next(fitting, None)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Corrections of layers inside networks, which follow each other; the last has the costs.

        That of the bundle's machine, and that from a user's runs.
        """
        calibration = self.calibration()
        learnt = None if calibration is None else calibration.correction
        return tuple(each for each in (self.correction, learnt) if each is not None)

    def for_device(self, platform: Platform, setting: Setting | None = None) -> Bundle:
        """Return the bundle as it answers for another device, by default under its setting."""
        there = self._copy()
        there.setting = setting or self.setting
        there.platform, there.device = platform, platform.device
        there.unseen = all(platform.device != each.device for each in self.platforms)
        return there

    def adapted_to(self, adaptation: Adaptation) -> Bundle:
        """Return the bundle as it answers on the machine that probes were measured on.

        An in-network correction is of the machine where its networks were measured, so it is left
        out on other hardware. The last one is kept: lowered networks are kept for its setting and
        platform.
        """
        if self._last_adapted is not None and self._last_adapted.adapted == adaptation:
            return self._last_adapted
        there = self._copy()
        there.adapted = adaptation
        is_alike = adaptation.platform.same_hardware(self.platform)
        there.setting = adaptation.setting
        there.costs = adaptation.of_costs(self.costs, is_alike=is_alike)
        there.platform = replace(adaptation.platform, device=self.device)
        there.correction = self.correction if is_alike else None
        self._last_adapted = there
        return there

    @property
    def nearest(self) -> Adaptation | None:
        """The one of its `machines` with the same vectors that is most similar to this one.

        None if there is none, or the bundle's own machine is at least as similar.
        """
        vectors = instruction_set().partition("+")[0]
        found = min(
            (m for m in self.machines if m.platform.instruction_set.partition("+")[0] == vectors),
            key=lambda each: distance(each.setting, each.platform),
            default=None,
        )
        if found is None:
            return None
        own = distance(self.setting, self.platform)
        return found if distance(found.setting, found.platform) < own else None

    def without_session(self) -> Bundle:
        """Return the bundle as it answers for a user, whose session none of its rows are of."""
        options = {name: each for name, each in self.setting.options.items() if name != SESSION}
        if options == self.setting.options:
            return self
        there = self._copy()
        there.setting = replace(self.setting, options=options)
        return there

    def _copy(self) -> Bundle:
        """Return a copy that shares the predictors, which are loaded and checked once."""
        if self.part["predictors"]:
            self._predictors  # noqa: B018
            self._golden  # noqa: B018
        made = copy.copy(self)
        made._last_adapted = None
        if "checked" in vars(self):
            # The copy is the bundle that is checked, not the one that it was made from.
            vars(made)["checked"] = made
        return made

    def infers(self, kind: str, dtype: str) -> bool:
        """Say whether no row of the device, of this type of values, taught a kind's predictor."""
        predictor = self._predictors.get((kind, self.own_quantity(kind)))
        knows = predictor is None or predictor.has_rows_of(self.platform, self.setting, dtype)
        return self.unseen or not knows

    def knows_device(self) -> bool:
        """Say whether networks on the device, or its layers in its precision, taught it."""
        if self.unseen or self.network_quantities:
            return not self.unseen
        dtype = HALF_TYPES.get(self.setting.precision, "float32")
        return not all(self.infers(kind, dtype) for kind in self.kinds)

    @property
    def serves_unseen(self) -> bool:
        """Whether some of its predictors answer for devices that no row came from, by their facts.

        Rows of one device do not say how devices differ.
        """
        several = len({platform.device for platform in self.platforms}) > 1
        return several and any(each.unseen_devices for each in self._methods())

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Precision that some of its predictors answer by rows of another -> that one."""
        return {key: value for each in self._methods() for key, value in each.fallbacks.items()}

    @property
    def many_settings(self) -> bool:
        """Whether its predictors of layers answer for each of its settings and platforms."""
        return any(each.many_settings for each in self._methods())

    def _methods(self) -> list[type[Predictor]]:
        """Return the classes of its predictors, which need not be loaded for that."""
        methods = {
            values["method"]
            for quantities in self.part["predictors"].values()
            for values in quantities.values()
        }
        return [predictor_class(each) for each in sorted(methods)]

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the bundle comes from; unknown entries are ``"unknown"``."""
        found: Mapping[str, Any] = self.manifest["provenance"]
        return found

    def own_quantity(self, kind: str) -> str:
        """Return the quantity of a kind's own time: `layer_quantity`, or that of its steps."""
        return quantity_of(kind, self.layer_quantity)

    def has(self, kind: str, quantity: str | None = None) -> bool:
        """Say whether a kind has a predictor of its own, by default of `own_quantity`."""
        return (quantity or self.own_quantity(kind)) in self.part["predictors"].get(kind, ())

    def method_of(self, kind: str, quantity: str = EXECUTION) -> str:
        """Name what predicts a kind's quantity: its predictor's method, or ``transfers``."""
        found = self._predictors.get((kind, quantity))
        return "transfers" if found is None else found.method

    @property
    def validation(self) -> dict[str, float]:
        """Map each kind to the validation MAPE of its `own_quantity`, a fraction."""
        found = self.errors.get("validation", {})
        return {
            kind: quantities[self.own_quantity(kind)]["mape"]
            for kind, quantities in found.items()
            if self.own_quantity(kind) in quantities
        }

    @property
    def machine(self) -> str:
        """Name of the machine that is predicted, and of the one that measured the layers."""
        here = self.platform.machine
        if self.transferred is not None:
            return f"{here} (layers measured on {self.transferred.origin.machine})"
        if self.adapted is not None:
            return f"{here} (layers measured on {self.platforms[0].machine})"
        return here

    @property
    def size_bytes(self) -> int:
        """Total size of the bundle's files."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def predict_networks(
        self,
        networks: Sequence[Network],
        setting: Setting | None = None,
        platform: Platform | None = None,
        quantity: str | None = None,
    ) -> dict[str, Estimate]:
        """Predict whole networks by the predictors trained on networks.

        Parameters
        ----------
        networks : sequence of Network
        setting : Setting, optional
        platform : Platform, optional
            The bundle's own unless given.
        quantity : str, optional
            The one that is predicted; all by default.

        Returns
        -------
        dict of str to Estimate
            By quantity, with what users' runs taught; empty if no predictor is of networks.

        Raises
        ------
        BundleError
            If a network is a golden sample and its prediction is not the stored one.
        """
        how, where = setting or self.setting, platform or self.platform
        found = {}
        for name in self.network_quantities if quantity is None else (quantity,):
            predictor = self._predictors[NETWORK, name]
            predicted = predictor.predict(networks, how, where)[name]
            if (how, where) == (self.settings[0], self.platforms[0]):
                self._golden.check_networks(networks, name, predicted.values)
            inside = np.ones(len(networks), dtype=bool)
            bounded = self._bounded(NETWORK, name, predicted, inside)
            calibration = self.calibration(name, how, where)
            if calibration is not None:
                shares = predictor.network_shares(networks, how, where)
                accounts = [predictor.account(each, how, where) for each in networks]
                outside = np.array([bool(each and each.extrapolated) for each in accounts])
                bounded = _corrected(bounded, shares, calibration.correction, outside)
            found[name] = bounded
        return found

    def shares(
        self, networks: Sequence[Network], quantity: str, setting: Setting, platform: Platform
    ) -> Sequence[Mapping[str, float]]:
        """Return by what groups a predictor of networks explains a quantity: shares of each."""
        return self._predictors[NETWORK, quantity].network_shares(networks, setting, platform)

    def account(
        self, network: Network, quantity: str, setting: Setting, platform: Platform
    ) -> Account | None:
        """Say more about the prediction of a network, if the predictor of the quantity can."""
        return self._predictors[NETWORK, quantity].account(network, setting, platform)

    def at_batches(
        self, read: Callable[[int], Network], batches: Sequence[int], quantity: str
    ) -> Mapping[int, Any]:
        """Return what stands for a network at each of several batch sizes in `predict_networks`."""
        return self._predictors[NETWORK, quantity].at_batches(read, batches)

    def most_devices(self, quantity: str, setting: Setting, platform: Platform) -> int:
        """Return how many devices shared one run at most, of those that taught a quantity."""
        return self._predictors[NETWORK, quantity].most_devices(setting, platform)

    def predict(
        self,
        layers: Sequence[Layer],
        quantity: str = EXECUTION,
        optimizers: Sequence[str] | Array = (),
    ) -> Times:
        """Predict lowered layers of any kinds.

        Parameters
        ----------
        layers : sequence of Layer
        quantity : str
            A name of `resperf.quantities.QUANTITIES`. Kinds without a predictor of their own for
            ``preprocess_ms`` or ``postprocess_ms`` use the bundle's transfers. No quantity is
            substituted for another, but the execution of a training step is its ``step_ms``.
        optimizers : sequence of str, optional
            Of each layer's training step; empty for inference.

        Raises
        ------
        BundleError
            If a predictor no longer gives the stored values.
        """
        given = optimizers if len(optimizers) else [""] * len(layers)
        ms, low_ms, high_ms = (np.full(len(layers), np.nan) for _ in range(3))
        reasons = [""] * len(layers)
        rows_of: dict[str, list[int]] = {}
        for row, (layer, optimizer) in enumerate(zip(layers, given, strict=True)):
            rows_of.setdefault(written_kind(layer.kind, optimizer), []).append(row)
        for kind, rows in rows_of.items():
            columns = columns_of([layers[row] for row in rows], [given[row] for row in rows])
            own = quantity_of(kind, quantity)
            predicted, found = self._predict_kind(kind, own, columns)
            for row, reason in zip(rows, found, strict=True):
                reasons[row] = reason
            inside = np.array([not reason for reason in found], dtype=bool)
            bounded = self._bounded(kind, own, predicted, inside)
            ms[rows], low_ms[rows], high_ms[rows] = bounded.values, bounded.low, bounded.high
        in_range = np.array([not reason for reason in reasons], dtype=bool)
        if self.transferred is not None and quantity == self.layer_quantity:
            factor = self.transferred.factor
            ms, low_ms, high_ms = (factor * each for each in (ms, low_ms, high_ms))
            if (probed := self.transferred.adaptation) is not None:
                ms, low_ms, high_ms = _scaled(probed, layers, ms, low_ms, high_ms)
        if self.adapted is not None and quantity == self.layer_quantity:
            ms, low_ms, high_ms = _scaled(self.adapted, layers, ms, low_ms, high_ms)
        return Times(ms, in_range, tuple(reasons), low_ms, high_ms)

    def gpu_busy_fraction(self, layers: Sequence[Layer]) -> Array:
        """Return the share of each layer's predicted execution in which the device works.

        Parameters
        ----------
        layers : sequence of Layer
            Lowered; kinds may be mixed.

        Returns
        -------
        array of float64 (layers,)
            1 unless the times contain the host's dispatch (`LayerPredictor.gpu_busy_fraction`).
        """
        shares = np.ones(len(layers))
        for kind in {layer.kind for layer in layers}:
            predictor = self._predictors.get((kind, EXECUTION))
            if isinstance(predictor, LayerPredictor):
                rows = [row for row, layer in enumerate(layers) if layer.kind == kind]
                columns = columns_of([layers[row] for row in rows])
                shares[rows] = predictor.gpu_busy_fraction(columns, self.setting, self.platform)
        return shares

    @property
    def dispatch_ms(self) -> float:
        """Time that the host needs to start one kernel, as layers show it; NaN if not known.

        The median of the kinds of layers. Where their times are the device's alone, the dispatch
        was measured beside them (``dispatch_ms`` of the machine's costs).
        """
        found = [
            each.dispatch_ms(self.setting, self.platform)
            for each in self._predictors.values()
            if isinstance(each, LayerPredictor)
        ]
        known = [each for each in found if not math.isnan(each)]
        return float(np.median(known)) if known else self.costs.get("dispatch_ms", math.nan)

    def _bounded(
        self, kind: str, quantity: str, predicted: Estimate, in_range: npt.NDArray[np.bool_]
    ) -> Estimate:
        """Add the bundle's bounds where the predictor has none of its own."""
        values = predicted.values
        low, high = widened(values, predicted.low, predicted.high, in_range)
        intervals = self._intervals.get((kind, quantity))
        bounds = assumed if intervals is None else intervals.bounds
        others = bounds(values, in_range)
        low, high = (
            np.where(np.isnan(own), other, own)
            for own, other in zip((low, high), others, strict=True)
        )
        return Estimate(values, low, high)

    def _predict_kind(
        self, kind: str, quantity: str, columns: Columns
    ) -> tuple[Estimate, Sequence[str]]:
        predictor = self._predictors.get((kind, quantity))
        if predictor is not None and (predictor.unseen_devices or not self.unseen):
            self._golden.check_outputs(kind, quantity, predictor)
            ranges = self.part["ranges"].get(kind, {})
            if self.adapted is not None or self.transferred is not None:
                columns = in_known_blocks(columns, ranges)
            predicted = predictor.predict(columns, self.setting, self.platform)[quantity]
            of_layers = predictor if isinstance(predictor, LayerPredictor) else None
            return predicted, outside(predictor.kind, columns, ranges, of_layers)
        if (transfers := self.transfers.get(quantity)) is not None:
            name = "in_bytes" if quantity == "preprocess_ms" else "out_bytes"
            sizes = quantities(layer_kind(kind), columns)[name]
            return Estimate.without_bounds(transfers.predict(sizes)), transfers.outside(sizes)
        reason = f"no predictor for {kind}"
        if self.layer_quantity == WHOLE_CALL and quantity != self.layer_quantity:
            reason = f"the bundle predicts whole calls, not {quantity.removesuffix('_ms')}"
        rows = len(next(iter(columns.values())))
        return Estimate.without_bounds(np.full(rows, np.nan)), [reason] * rows


def _scaled(
    adapted: Adaptation, layers: Sequence[Layer], ms: Array, low_ms: Array, high_ms: Array
) -> tuple[Array, Array, Array]:
    """Scale times of layers to another machine; the probes' spread joins their intervals."""
    factors, width = adapted.scaled(layers, ms)
    ms_there = factors * ms
    with np.errstate(divide="ignore", invalid="ignore"):
        lower, upper = (np.exp(np.hypot(np.log(each / ms), width)) for each in (low_ms, high_ms))
    return ms_there, ms_there / lower, ms_there * upper


def _corrected(
    estimate: Estimate,
    shares: Sequence[Mapping[str, float]],
    learnt: Correction,
    outside: npt.NDArray[np.bool_],
) -> Estimate:
    """Multiply the groups of networks by their factors; the runs' errors give the interval.

    Networks `outside` what was measured have at least the interval that they had before.
    """
    factors = np.array(
        [sum(share * learnt.factor(group) for group, share in each.items()) for each in shares]
    )
    values = estimate.values * factors
    ratio = math.exp(learnt.log_width)
    low, high = values / ratio, values * ratio
    return Estimate(
        values,
        np.where(outside, np.fmin(low, estimate.low * factors), low),
        np.where(outside, np.fmax(high, estimate.high * factors), high),
    )


def _predictor(values: Mapping[str, Any], folder: Path) -> Predictor:
    try:
        method = predictor_class(values["method"])
    except TrainingError as error:
        raise BundleError(f"{folder} cannot be used: {error}") from error
    return method.load(values, folder)
