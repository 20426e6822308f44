"""A bundle in memory: it predicts layers, networks and transfers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.bundle._calibration import Calibration, Source
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
from resperf.platform import Platform
from resperf.predictors import Estimate, LayerPredictor, Predictor, predictor_class
from resperf.predictors.intervals import Intervals, bounds_of, widened
from resperf.predictors.transfers import Transfers
from resperf.quantities import EXECUTION, WHOLE_CALL, layer_quantity
from resperf.settings import HALF_TYPES, Setting


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
        first. Where networks were measured on another machine than the layers, they are of that.
    origin : Platform
        Where the layers were measured.
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
    calibrations : tuple of Calibration
        What it was calibrated by, in the order in which they apply; each says for which machine.
    layer_calibrations : tuple of Calibration
        Those that scale layers in isolation from `origin` to `platform`.
    calibrated_by : Calibration or None
        The one by which it answers for another machine than its own (`for_machine`).
    unseen : bool
        Whether it stands for a device of which it has no rows (`for_device`).
    part : mapping
        The manifest's part for this setting and platform.
    manifest : mapping
        Everything that ``bundle.json`` holds.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], index: int = 0) -> None:
        self.path = path
        self.manifest = manifest
        self._index = index
        self.created: str = manifest["created"]
        part: Mapping[str, Any] = manifest["parts"][index]
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
        self.origin = self.platform
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
        self.calibrations = tuple(map(Calibration.from_json, part.get("calibrations", ())))
        self.layer_calibrations: tuple[Calibration, ...] = ()
        self.calibrated_by: Calibration | None = None
        with_networks = [c.platform for c in self.calibrations if c.source is Source.NETWORKS]
        for calibration in self.calibrations:
            if calibration.scales_layers and calibration.platform in with_networks:
                self._scale_layers(calibration)
                self.settings, self.platforms = (self.setting,), (self.platform,)
        keys = [(kind, name) for kind, names in part["predictors"].items() for name in names]
        of_layers = [key for key in keys if key[0] != NETWORK]
        self.layer_quantities = tuple(dict.fromkeys(name for _, name in of_layers))
        self.layer_quantity = layer_quantity(self.layer_quantities or (EXECUTION,))
        self.kinds = tuple(kind for kind, name in of_layers if name == self.own_quantity(kind))
        self.network_quantities = tuple(name for kind, name in keys if kind == NETWORK)
        self._golden = Golden(path, part["golden"], self.settings, self.platforms, self.kinds)
        self.unseen = False

    @classmethod
    def load(cls, path: Path) -> Bundle:
        """Read a bundle and check all of it: that it is complete, safe, and has the same features.

        The predictions of its golden layers are compared when a predictor is first used.

        Returns
        -------
        Bundle
            Its first part.

        Raises
        ------
        BundleError
            If it is missing, damaged or unsafe, or if features have changed since.
        """
        return cls.read_only_manifest(Path(path)).check()

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
        """The bundle itself, once it is complete and safe.

        Features and predictions of a kind's golden layers are compared when its predictor is first
        used; `check` compares the features of all.

        Raises
        ------
        BundleError
            If it is not.
        """
        with damage_named(self.path):
            check_files(self.path, self.manifest)
            for part in self.parts:
                part._predictors  # noqa: B018
        return self

    def check(self) -> Bundle:
        """Return the bundle itself, once all kinds have the features they were trained with.

        Raises
        ------
        BundleError
            If one has not, or the bundle is incomplete or unsafe.
        """
        for part in self.checked.parts:
            for kind in part.kinds:
                part._golden.check_features(kind)
        return self

    @cached_property
    def _predictors(self) -> dict[tuple[str, str], Predictor]:
        predictors = {}
        for kind, of_kind in self.part["predictors"].items():
            for quantity, values in of_kind.items():
                try:
                    method = predictor_class(values["method"])
                except TrainingError as error:
                    raise BundleError(f"{self.path} cannot be used: {error}") from error
                predictors[kind, quantity] = method.load(values, self.path)
        return predictors

    @cached_property
    def parts(self) -> tuple[Bundle, ...]:
        """All parts of the bundle, one per set of settings and platforms, this one included."""
        parts = tuple(
            self if index == self._index else Bundle(self.path, self.manifest, index)
            for index in range(len(self.manifest["parts"]))
        )
        # All parts share this tuple, so that each is read and checked once.
        for part in parts:
            part.__dict__["parts"] = parts
        return parts

    def part_for(
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
        wanted = setting.framework, setting.mode
        fitting = [
            (
                *min(
                    (
                        device_class(where.device, setting.framework) != mine,
                        len(where.differences(platform)),
                    )
                    for where in part.platforms
                ),
                min(len(how.differences(setting)) for how in settings),
                index,
            )
            for index, part in enumerate(self.parts)
            if (part.kinds if kind is None else part.has(kind, quantity))
            if (settings := [s for s in part.settings if (s.framework, s.mode) == wanted])
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

    def with_calibrations(self, calibrations: Sequence[Calibration], reason: str) -> Bundle:
        """Return the bundle with these calibrations alone, and the reason in its provenance."""
        parts = list(self.manifest["parts"])
        parts[self._index] = {**self.part, "calibrations": [c.to_json() for c in calibrations]}
        provenance = changed(self.provenance, reason)
        manifest = {**self.manifest, "parts": parts, "provenance": provenance}
        return Bundle(self.path, manifest, self._index)

    @property
    def adds_up_layers(self) -> bool:
        """Whether networks are predicted layer by layer, not by predictors of networks alone."""
        return bool(self.kinds) or not self.network_quantities

    def without_calibrations(self, *sources: Source) -> Bundle:
        """Return the bundle as it answers without what was timed in these ways."""
        alone = self._copy()
        alone.calibrations = tuple(c for c in self.calibrations if c.source not in sources)
        return alone

    def isolated(self) -> Bundle:
        """Return the bundle with its layers as they were measured in isolation."""
        return self.without_calibrations(Source.NETWORKS, Source.RUNS)

    def runs_calibrations(
        self,
        quantity: str | None = None,
        setting: Setting | None = None,
        platform: Platform | None = None,
    ) -> tuple[Calibration, ...]:
        """Return what users' runs taught of the device and setting that it answers for.

        Parameters
        ----------
        quantity : str, optional
            One that a predictor of networks answers; None for layers.
        setting : Setting, optional
        platform : Platform, optional
            The bundle's own unless given.
        """
        if self.adds_up_layers != (quantity is None):
            return ()
        device = self.device if platform is None else platform.device
        return tuple(
            calibration
            for calibration in self.calibrations
            if calibration.is_of_runs(device, setting or self.setting)
            if quantity in (None, calibration.quantity)
        )

    @property
    def network_calibrations(self) -> tuple[Calibration, ...]:
        """Those of layers inside networks, which follow each other; the last has the costs."""
        learnt = [
            calibration
            for calibration in self.calibrations
            if calibration.source is Source.NETWORKS
        ]
        return (*learnt, *self.runs_calibrations())

    def for_device(self, platform: Platform, setting: Setting | None = None) -> Bundle:
        """Return the bundle as it answers for another device, by default under its setting."""
        there = self._copy()
        there.setting = setting or self.setting
        there.platform, there.device = platform, platform.device
        there.unseen = all(
            platform.device != own_platform.device for own_platform in self.platforms
        )
        return there

    def for_machine(self, calibration: Calibration) -> Bundle:
        """Return the bundle as it answers on the machine where calibration layers were measured.

        What networks taught is of the machine where they were measured, so it is left out on other
        hardware.
        """
        there = self._copy()
        if not calibration.platform.same_hardware(self.platform):
            there = there.without_calibrations(Source.NETWORKS)
        there.calibrations += (calibration,)
        there.calibrated_by = calibration
        there._scale_layers(calibration)
        return there

    def _scale_layers(self, calibration: Calibration) -> None:
        where = calibration.platform
        self.costs = calibration.of_costs(self.costs, is_alike=where.same_hardware(self.platform))
        self.layer_calibrations += (calibration,)
        self.setting = calibration.setting
        # Lowered networks are kept by the identity of the platform.
        self.platform = where if where.device == self.device else replace(where, device=self.device)

    def without_session(self) -> Bundle:
        """Return the bundle as it answers for a user, whose session none of its rows are of."""
        setting = self.setting.without_session()
        if setting == self.setting:
            return self
        there = self._copy()
        there.setting = setting
        return there

    def _copy(self) -> Bundle:
        """Return a copy that shares the predictors, which are loaded and checked once."""
        if self.part["predictors"]:
            self._predictors  # noqa: B018
        clone = copy.copy(self)
        if "checked" in vars(self):
            # The copy is the bundle that is checked, not the one that it was made from.
            vars(clone)["checked"] = clone
        return clone

    def infers(self, kind: str, dtype: str) -> bool:
        """Say whether no row of the device, of this type of values, taught a kind's predictor."""
        predictor = self._predictors.get((kind, self.own_quantity(kind)))
        has_rows = predictor is None or predictor.has_rows_of(self.platform, self.setting, dtype)
        return self.unseen or not has_rows

    def knows_device(self) -> bool:
        """Say whether networks on the device, or its layers in its precision, taught it."""
        if self.unseen:
            return False
        if self.network_quantities:
            predictors = map(self.network_predictor, self.network_quantities)
            return all(own.has_rows_of(self.platform, self.setting) for own in predictors)
        return self._measured_kinds() > 0

    def knows_most_kinds(self) -> bool:
        """Say whether half of its kinds of layers at least were measured so."""
        return 2 * self._measured_kinds() >= len(self.kinds)

    def _measured_kinds(self) -> int:
        """Count the kinds of layers that rows of the device taught, in its precision."""
        dtype = HALF_TYPES.get(self.setting.precision, "float32")
        return sum(not self.infers(kind, dtype) for kind in self.kinds)

    @property
    def serves_unseen(self) -> bool:
        """Whether some of its predictors answer for devices that no row came from, by their facts.

        Rows of one device do not say how devices differ.
        """
        several = len({platform.device for platform in self.platforms}) > 1
        return several and any(method.unseen_devices for method in self._methods())

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Precision that some of its predictors answer by rows of another -> that one."""
        return {key: value for method in self._methods() for key, value in method.fallbacks.items()}

    @property
    def many_settings(self) -> bool:
        """Whether its predictors of layers answer for each of its settings and platforms."""
        return any(method.many_settings for method in self._methods())

    def _methods(self) -> list[type[Predictor]]:
        """Return the classes of its predictors, which need not be loaded for that."""
        methods = {
            values["method"]
            for quantities in self.part["predictors"].values()
            for values in quantities.values()
        }
        return [predictor_class(method) for method in sorted(methods)]

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the bundle comes from; unknown entries are ``"unknown"``."""
        entries: Mapping[str, Any] = self.manifest["provenance"]
        return entries

    def own_quantity(self, kind: str) -> str:
        """Return the quantity of a kind's own time: `layer_quantity`, or that of its steps."""
        return quantity_of(kind, self.layer_quantity)

    def has(self, kind: str, quantity: str | None = None) -> bool:
        """Say whether a kind has a predictor of its own, by default of `own_quantity`."""
        return (quantity or self.own_quantity(kind)) in self.part["predictors"].get(kind, ())

    def method_of(self, kind: str, quantity: str = EXECUTION) -> str:
        """Name what predicts a kind's quantity: its predictor's method, or ``transfers``."""
        predictor = self._predictors.get((kind, quantity))
        return "transfers" if predictor is None else predictor.method

    @property
    def validation(self) -> dict[str, float]:
        """Map each kind to the validation MAPE of its `own_quantity`, a fraction."""
        return {
            kind: quantities[self.own_quantity(kind)]["mape"]
            for kind, quantities in self.errors.get("validation", {}).items()
            if self.own_quantity(kind) in quantities
        }

    @property
    def machine(self) -> str:
        """Name of the machine that is predicted, and of the one that measured the layers."""
        here = self.platform.machine
        if self.layer_calibrations:
            return f"{here} (layers measured on {self.origin.machine})"
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
        estimates = {}
        for name in self.network_quantities if quantity is None else (quantity,):
            predictor = self._predictors[NETWORK, name]
            predicted = predictor.predict(networks, how, where)[name]
            if (how, where) == (self.settings[0], self.platforms[0]):
                self._golden.check_networks(networks, name, predicted.values)
            bounded = self._bounded(NETWORK, name, predicted, np.ones(len(networks), dtype=bool))
            for calibration in self.runs_calibrations(name, how, where):
                shares = predictor.network_shares(networks, how, where)
                accounts = [predictor.account(network, how, where) for network in networks]
                outside = np.array([bool(account and account.extrapolated) for account in accounts])
                bounded = _corrected(bounded, shares, calibration, outside)
            estimates[name] = bounded
        return estimates

    def network_predictor(self, quantity: str) -> Predictor:
        """Return the predictor of a quantity of networks."""
        return self._predictors[NETWORK, quantity]

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
            If features or a predictor no longer give the values of a kind's golden layers.
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
            predicted, kind_reasons = self._predict_kind(kind, own, columns)
            for row, reason in zip(rows, kind_reasons, strict=True):
                reasons[row] = reason
            inside = np.array([not reason for reason in kind_reasons], dtype=bool)
            bounded = self._bounded(kind, own, predicted, inside)
            ms[rows], low_ms[rows], high_ms[rows] = bounded.values, bounded.low, bounded.high
        in_range = np.array([not reason for reason in reasons], dtype=bool)
        if quantity == self.layer_quantity:
            for calibration in self.layer_calibrations:
                ms, low_ms, high_ms = _scaled(calibration, layers, ms, low_ms, high_ms)
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
                self._golden.check(kind, EXECUTION, predictor)
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
        times_ms = [
            predictor.dispatch_ms(self.setting, self.platform)
            for predictor in self._predictors.values()
            if isinstance(predictor, LayerPredictor)
        ]
        finite_ms = [ms for ms in times_ms if not math.isnan(ms)]
        return float(np.median(finite_ms)) if finite_ms else self.costs.get("dispatch_ms", math.nan)

    def _bounded(
        self, kind: str, quantity: str, predicted: Estimate, in_range: npt.NDArray[np.bool_]
    ) -> Estimate:
        """Add the bundle's bounds where the predictor has none of its own."""
        values = predicted.values
        low, high = widened(values, predicted.low, predicted.high, in_range)
        others = bounds_of(self._intervals.get((kind, quantity)), values, in_range)
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
            self._golden.check(kind, quantity, predictor)
            ranges = self.part["ranges"].get(kind, {})
            if self.layer_calibrations:
                columns = in_known_blocks(columns, ranges)
            predicted = predictor.predict(columns, self.setting, self.platform)[quantity]
            of_layers = predictor if isinstance(predictor, LayerPredictor) else None
            with damage_named(self.path):
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
    calibration: Calibration, layers: Sequence[Layer], ms: Array, low_ms: Array, high_ms: Array
) -> tuple[Array, Array, Array]:
    """Scale times of layers to another machine; the spread of single ones joins their intervals."""
    factors, width = calibration.scaled(layers, ms)
    ms_there = factors * ms
    with np.errstate(divide="ignore", invalid="ignore"):
        lower, upper = (
            np.exp(np.hypot(np.log(bound_ms / ms), width)) for bound_ms in (low_ms, high_ms)
        )
    return ms_there, ms_there / lower, ms_there * upper


def _corrected(
    estimate: Estimate,
    shares: Sequence[Mapping[str, float]],
    learnt: Calibration,
    outside: npt.NDArray[np.bool_],
) -> Estimate:
    """Multiply the groups of networks by their factors; the runs' errors give the interval.

    Networks `outside` what was measured have at least the interval that they had before.
    """
    factors = np.array(
        [
            sum(share * learnt.factor(group) for group, share in network_shares.items())
            for network_shares in shares
        ]
    )
    values = estimate.values * factors
    ratio = math.exp(learnt.log_width)
    low, high = values / ratio, values * ratio
    return Estimate(
        values,
        np.where(outside, np.fmin(low, estimate.low * factors), low),
        np.where(outside, np.fmax(high, estimate.high * factors), high),
    )
