"""Estimates of what a dataset lacks, by physical costs: poolings, activations, copies, views.

Single layers with inputs on the device do not contain the copies between host and device, and the
dataset may have no poolings. Whole calls on the same device contain them: a whole call is a session
call, the layer, and the copy of its output. The missing coefficients are fitted to them, with the
predictors of measured kinds given. For a device without whole calls, another device's coefficients
are scaled by both devices' specifications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle import MANIFEST, Bundle, ranges_of
from resperf.dataset import DatasetInfo, checksum, read_info, read_table
from resperf.devices import (
    DeviceFacts,
    canonical_device,
    device_class,
    device_facts,
    devices,
)
from resperf.errors import TrainingError
from resperf.features import Array, quantities
from resperf.layers import Layer, Pool
from resperf.platform import Platform
from resperf.predictors import LayerPredictor
from resperf.predictors.baseline import Baseline, fit_terms
from resperf.predictors.metrics import errors
from resperf.predictors.terms import physical_terms
from resperf.predictors.transfers import Transfers
from resperf.quantities import WHOLE_CALL
from resperf.settings import Setting
from resperf.training.activations import EstimatedKind
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import own_split

POOL_TERMS = ("in", "out", "window real")
"""Work of a pooling that is visible in whole calls; its launch is a separate constant."""

_GOLDEN_POOLS: tuple[Layer, ...] = tuple(
    Pool(
        batch=batch, channels_in=channels, height=size, width=size, kernel_height=kernel,
        kernel_width=kernel, stride_height=2, stride_width=2, layout="nhwc",
    )
    for batch, channels, size, kernel in ((1, 64, 224, 2), (8, 256, 27, 3), (16, 512, 14, 2))
)  # fmt: skip
"""Poolings of VGG16 and AlexNet with which a bundle's estimate is checked on loading: layers of the
source itself may not be redistributed."""

_SCALED_TERMS = ("in", "out")
"""Costs per byte scale with the bandwidth. The cost of a window does not scale with the peak: the
peaks of the 1080 Ti and the P1000 differ by a factor of six, this cost by less than three."""

FEWEST_CALLS = 50
"""Kinds with fewer whole calls are ignored: a tenth of them is the test split."""

_POOL, _VIEW, _COPIES = "pool execution", "view_ms", ("preprocess", "postprocess")
_MB = 1e6


@dataclass(frozen=True)
class Estimates:
    """Physical coefficients of what was not measured on a device.

    Attributes
    ----------
    transfers : Transfers
        For both directions, although the times contain only the output's copy.
    kinds : mapping of str to EstimatedKind
        Estimates of execution, by their names in a bundle.
    steps : mapping of str to mapping
        What was estimated -> ``how``, ``source`` and errors; stored in the bundle.
    """

    transfers: Transfers
    kinds: Mapping[str, EstimatedKind]
    steps: Mapping[str, Mapping[str, Any]]

    def complete(self, values: dict[str, Any]) -> None:
        """Add missing entries to a part of a bundle's manifest, marked as estimated.

        Measured entries are not replaced.
        """
        used = []
        for step, each in self.kinds.items():
            if each.baseline.kind not in values["predictors"]:
                each.add_to(values)
                used.append(step)
        for phase in _COPIES:
            if f"{phase}_ms" not in values["transfers"]:
                values["transfers"][f"{phase}_ms"] = self.transfers.to_json()
                used.append(phase)
        if _POOL in self.kinds and _VIEW not in values["costs"]:
            pool = self.kinds[_POOL].baseline
            values["costs"] = {**values["costs"], _VIEW: _launch_ms(pool)}
            used.append(_VIEW)
        values["estimates"] = {step: dict(self.steps[step]) for step in used}


def read_source(
    paths: Sequence[Path],
    setting: Setting,
    platform: Platform,
    exclude_keys: Set[str] = frozenset(),
) -> Source:
    """Read the source of estimates for a device.

    Parameters
    ----------
    paths : sequence of Path
        Either one bundle with estimates, or HDF5 files of whole calls: the first one of this
        device, further ones of other devices, on which the scaling of coefficients is evaluated.
    setting : Setting
    platform : Platform
        Framework and device to estimate for.
    exclude_keys : set of str
        Layers to leave out of the fit.

    Raises
    ------
    TrainingError
        If the paths contain nothing to estimate from, are of another device or framework, or the
        facts of a device needed for scaling are unknown.
    BundleError, DatasetError
        If one of them cannot be read.
    """
    bundles = [path for path in paths if (path / MANIFEST).exists()]
    if not bundles:
        first, *others = (WholeCalls.read(path, exclude_keys) for path in paths)
        first.check(setting, platform)
        for other in others:
            _ratios(first.device, other.device)
        return _Fitting(first, others)
    if len(paths) > 1:
        raise TrainingError(
            "estimates come either from one bundle or from files of whole calls; "
            f"{bundles[0]} is a bundle"
        )
    return _Scaling.of(Bundle.load(bundles[0]), setting, platform)


@dataclass(frozen=True)
class WholeCalls:
    """Whole calls of single layers on one device.

    Attributes
    ----------
    path : Path
    info : DatasetInfo
    kinds : mapping of str to LayerRows
    """

    path: Path
    info: DatasetInfo
    kinds: Mapping[str, LayerRows]

    @classmethod
    def read(cls, path: Path, exclude_keys: Set[str]) -> WholeCalls:
        """Read an HDF5 file of whole calls; kinds with fewer than `FEWEST_CALLS` are skipped."""
        info = read_info(path)
        if list(info.quantities) != [WHOLE_CALL]:
            raise TrainingError(
                f"{path} holds {', '.join(info.quantities)}, not whole calls: copies and poolings "
                "are estimated from whole calls; see docs/importing.md"
            )
        kinds = {k: layer_rows(t, exclude_keys) for k, t in read_table(path).items()}
        return cls(path, info, {k: rows for k, rows in kinds.items() if len(rows) >= FEWEST_CALLS})

    @property
    def device(self) -> str:
        """Canonical name of the device."""
        return canonical_device(self.info.platform.device)

    @property
    def device_class(self) -> str:
        """Class of the device."""
        return device_class(self.device, self.info.setting.framework)

    @property
    def origin(self) -> dict[str, Any]:
        """Provenance of the estimates, as stored in a bundle."""
        known = self.info.source
        published = {name: known[name] for name in ("citation", "files") if name in known}
        return {
            "device": self.device,
            "name": self.path.name,
            "checksum": checksum(self.path),
            **published,
        }

    def check(self, setting: Setting, platform: Platform) -> None:
        """Refuse whole calls of another device or framework than the layers'."""
        if self.device.casefold() != canonical_device(platform.device).casefold():
            raise TrainingError(
                f"{self.path} is of device {self.device}, the layers are of {platform.device}; "
                "give whole calls of the same device, or a bundle whose estimates can be scaled"
            )
        _check_framework(self.path, self.info.setting.framework, setting)


def _check_framework(path: Path, framework: str, wanted: Setting) -> None:
    if framework != wanted.framework:
        raise TrainingError(
            f"{path} was measured with {framework}, the layers with {wanted.framework}; give one "
            "of the same framework"
        )


@dataclass(frozen=True)
class _Fitting:
    """Coefficients fitted on whole calls of the device itself."""

    calls: WholeCalls
    others: Sequence[WholeCalls]

    def estimates(
        self, predictors: Mapping[str, LayerPredictor], session_ms: float | None
    ) -> Estimates:
        """Return the estimates, given predictors of execution by kind.

        Raises
        ------
        TrainingError
            If these predictors are not enough to separate the parts of a whole call.
        """
        if session_ms is None:
            raise TrainingError(
                "the cost of a session call was not measured with the layers: the whole calls of "
                f"{self.calls.path} cannot be separated into their parts"
            )
        known = {kind: each for kind, each in predictors.items() if kind in self.calls.kinds}
        if not known:
            raise TrainingError(
                f"{self.calls.path} has no kind of layer that was trained here "
                f"({', '.join(predictors)}): without one, calls and launches cannot be separated"
            )
        parts = {
            kind: own_split(rows)
            for kind, rows in self.calls.kinds.items()
            if kind in known or kind == "pool"
        }
        train = {kind: each.train for kind, each in parts.items()}
        execution_ms = {kind: known[kind].values(train[kind].columns) for kind in known}
        found = _coefficients(train, execution_ms)
        pool = None
        if "pool" in parts and "pool" not in known:
            terms = {"constant": found["launch"], **{term: found[term] for term in POOL_TERMS}}
            pool = Baseline.of("pool", terms, self.calls.device_class)
            known["pool"] = pool
        largest = max(float(_out_bytes(rows).max()) for rows in train.values())
        # A call pays it once for inputs and outputs together: half for each.
        constant_ms = max(0.0, found["call"] - session_ms) / 2
        copies = Transfers(constant_ms, (0.0,), (found["copy"],), largest)
        call_errors = {
            kind: _whole_call_errors(part.test, known[kind], copies, session_ms)
            for kind, part in parts.items()
        }
        factors = {kind: found[f"execution of {kind}"] for kind in execution_ms}
        steps = _steps(call_errors, factors)
        if pool is not None and self.others:
            scaled = {each.device: _scaling_errors(pool, self.calls.device, each)
                      for each in self.others}  # fmt: skip
            steps[_POOL] = {**steps[_POOL], "scaled_to": scaled}
        origin = self.calls.origin
        kinds = {}
        if pool is not None:
            ranges = ranges_of("pool", train["pool"].columns)
            kinds = {_POOL: EstimatedKind(pool, ranges, _GOLDEN_POOLS)}
        return Estimates(
            copies,
            kinds,
            {step: {**each, "source": origin} for step, each in steps.items()},
        )


def _out_bytes(rows: LayerRows) -> Array:
    return quantities(rows.kind, rows.columns)["out_bytes"]


def _whole_call_errors(
    rows: LayerRows, predictor: LayerPredictor, copies: Transfers, session_ms: float
) -> dict[str, float]:
    """Return errors of the bundle's parts, summed, on whole calls of the test split."""
    copied_ms = copies.constant_ms + copies.predict(_out_bytes(rows))
    whole_ms = session_ms + predictor.values(rows.columns) + copied_ms
    return errors(rows.times_ms[WHOLE_CALL], whole_ms).to_json()


def _steps(
    call_errors: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    fit = (
        "whole call = call + launch + pooled bytes and windows + output bytes copied, coefficients "
        "of at least zero, fitted together with layers whose execution is predicted"
    )
    share = "; includes half of the time of a call beyond a session call"
    return {
        _POOL: {"how": fit, "whole_call_errors": {"pool": call_errors.get("pool")}},
        "postprocess": {
            "how": fit + share,
            "whole_call_errors": dict(call_errors),
            "execution_factors": dict(factors),
        },
        "preprocess": {
            "how": "assumed equal to copying the output, since the source's times do not grow with "
            f"the input: it cannot be tested{share}"
        },
        _VIEW: {"how": "assumed equal to launching a pooling: it cannot be tested"},
    }


def _launch_ms(pool: Baseline) -> float:
    """Return the cost of an operator without work."""
    return float(pool.coefficients_[pool.terms_.index("constant")])


def _coefficients(
    kinds: Mapping[str, LayerRows], execution_ms: Mapping[str, Array]
) -> dict[str, float]:
    """Fit whole calls of all kinds together, with equal weights; poolings may be unknown.

    A factor on each predicted execution absorbs differences between framework versions, which
    would otherwise go into copies and poolings.
    """
    blocks: list[Array] = []
    names = ["call", "copy", *(f"execution of {kind}" for kind in execution_ms), "launch"]
    for kind, rows in kinds.items():
        unknown = np.full(len(rows), float(kind not in execution_ms))
        layers = [
            execution_ms[each] if each == kind else np.zeros(len(rows)) for each in execution_ms
        ]
        work = (
            physical_terms("pool", rows.columns, POOL_TERMS)
            if unknown.any()
            else np.zeros((len(rows), len(POOL_TERMS)))
        )
        columns = np.stack([np.ones(len(rows)), _out_bytes(rows) / _MB, *layers, unknown], axis=1)
        blocks.append(np.concatenate([columns, work], axis=1))
    times_ms = np.concatenate([rows.times_ms[WHOLE_CALL] for rows in kinds.values()])
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in kinds.values()])
    fitted = fit_terms(np.concatenate(blocks), times_ms, weights)
    return dict(zip((*names, *POOL_TERMS), map(float, fitted), strict=True))


def _scaling_errors(pool: Baseline, device: str, other: WholeCalls) -> dict[str, float]:
    """Evaluate scaled poolings on another device's whole calls; its calls and copies are fitted.

    Returns
    -------
    dict
        ``execution_factor``: best-fitting factor of the scaled times, 1 if they scale exactly;
        ``whole_call_mape``: on whole calls of the test split, with that factor.
    """
    if "pool" not in other.kinds:
        raise TrainingError(f"{other.path} has no poolings to evaluate the scaling on")
    part = own_split(other.kinds["pool"])
    terms = _scaled_terms(pool, _ratios(device, other.device)["bandwidth"]) | {"constant": 0.0}
    scaled = Baseline.of("pool", terms, other.device_class)
    found = _coefficients({"pool": part.train}, {"pool": scaled.values(part.train.columns)})
    factor = found["execution of pool"]
    whole_ms = found["call"] + found["copy"] * _out_bytes(part.test) / _MB
    whole_ms = whole_ms + factor * scaled.values(part.test.columns)
    return {
        "execution_factor": factor,
        "whole_call_mape": errors(part.test.times_ms[WHOLE_CALL], whole_ms).mape,
    }


@dataclass(frozen=True)
class _Scaling:
    """Coefficients of another device, scaled."""

    bundle: Bundle
    ratios: Mapping[str, float]
    device_class: str

    @classmethod
    def of(cls, bundle: Bundle, setting: Setting, platform: Platform) -> _Scaling:
        """Check that a bundle's estimates can be scaled to a device."""
        lacking = {_POOL, *_COPIES, _VIEW} - set(bundle.estimates)
        if lacking:
            raise TrainingError(
                f"{bundle.path} has no estimate of {', '.join(sorted(lacking))}; give a bundle "
                "that was trained with --estimate-from whole calls"
            )
        if any("scaled" in step for step in bundle.estimates.values()):
            raise TrainingError(
                f"the estimates of {bundle.path} are already scaled; give the bundle of the device "
                "that they were fitted on"
            )
        _check_framework(bundle.path, bundle.framework, setting)
        ratios = _ratios(bundle.device, platform.device)
        return cls(bundle, ratios, device_class(platform.device, setting.framework))

    def estimates(
        self,
        predictors: Mapping[str, LayerPredictor],  # noqa: ARG002
        session_ms: float | None,  # noqa: ARG002
    ) -> Estimates:
        part, ratios = self.bundle.part, self.ratios
        fitted = Baseline.load(part["predictors"]["pool"]["execution_ms"], self.bundle.path)
        copies = Transfers.from_json(part["transfers"]["postprocess_ms"])
        factors = {
            _POOL: {"bytes_times_longer": ratios["bandwidth"]},
            **{phase: {"bytes_times_longer": ratios["bus"]} for phase in _COPIES},
            _VIEW: {},
        }
        terms = _scaled_terms(fitted, ratios["bandwidth"])
        pool = Baseline.of("pool", terms, self.device_class)
        return Estimates(
            replace(copies, ms_per_mb=tuple(ms * ratios["bus"] for ms in copies.ms_per_mb)),
            {_POOL: EstimatedKind(pool, part["ranges"]["pool"], _GOLDEN_POOLS)},
            {
                step: {
                    "how": f"taken from the {self.bundle.device}, costs per byte scaled",
                    "scaled": {"from": self.bundle.device, **factors[step]},
                    "fitted": dict(fitted_step),
                }
                for step, fitted_step in self.bundle.estimates.items()
                if step in factors
            },
        )


Source = _Fitting | _Scaling
"""Source of estimates, read and checked before training."""


def _ratios(source: str, target: str) -> dict[str, float]:
    """Return how many times longer a byte takes on the target, in memory and on the bus."""
    ours, theirs = _facts(source), _facts(target)
    return {
        "bandwidth": ours.bandwidth_bytes_per_s / theirs.bandwidth_bytes_per_s,
        "bus": ours.bus_bytes_per_s / theirs.bus_bytes_per_s,
    }


def _facts(device: str) -> DeviceFacts:
    facts = device_facts(device)
    if facts is None or not facts.bus:
        raise TrainingError(
            f"bandwidth and bus of device {device!r} are unknown; estimates can be scaled between "
            f"{', '.join(name for name, each in devices().items() if each.bus)}"
        )
    return facts


def _scaled_terms(pool: Baseline, bytes_times_longer: float) -> dict[str, float]:
    return {
        term: float(value) * (bytes_times_longer if term in _SCALED_TERMS else 1.0)
        for term, value in zip(pool.terms_, pool.coefficients_, strict=True)
    }
