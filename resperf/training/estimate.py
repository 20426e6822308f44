"""What a dataset lacks, estimated by physical terms: poolings, copies, shape-only operators.

Single layers whose data already lie on the device tell nothing of the copies between host and
device, and often nothing of poolings. Whole calls of the same device do, taken together with the
predictors of what was measured: a whole call is a session call, the layer, and its output's copy.
For a device without whole calls, another's coefficients are scaled by what the makers say of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from resperf.bundle import MANIFEST, Bundle, ranges_of
from resperf.dataset import checksum, read_info, read_table
from resperf.devices import DeviceFacts, canonical_device, device_facts, devices
from resperf.errors import TrainingError
from resperf.features import Array, quantities
from resperf.layers import Layer, Pool
from resperf.measurement import WHOLE_CALL
from resperf.predictors import Predictor
from resperf.predictors.baseline import Baseline, fit_terms
from resperf.predictors.metrics import errors
from resperf.predictors.terms import physical_terms
from resperf.predictors.transfers import Transfers
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import own_split

POOL_TERMS = ("in", "out", "window real")
"""Work of a pooling that shows in whole calls; its launch is a constant beside it."""

_SCALED_TERMS = ("in", "out")
"""Bytes scale with the bandwidth. What a window costs beside them does not scale with the peak:
between the 1080 Ti and the P1000, six times apart, it differs by less than three."""

_MB = 1e6

_CANNED = tuple(
    Pool(
        batch=batch, channels_in=channels, height=size, width=size, kernel_height=kernel,
        kernel_width=kernel, stride_height=2, stride_width=2, layout="nhwc",
    )
    for batch, channels, size, kernel in ((1, 64, 224, 2), (8, 256, 27, 3), (16, 512, 14, 2))
)  # fmt: skip
"""Poolings of VGG16 and AlexNet: a bundle holds no layer of a source that may not be shared."""


@dataclass(frozen=True)
class Estimates:
    """Physical coefficients of what was not measured on a device.

    Attributes
    ----------
    device : str
    pool : Baseline
        Execution of poolings.
    pool_ranges : mapping
        Fields of the poolings that the coefficients were fitted on.
    transfers : Transfers
        Of either direction: the times tell of the output's copy alone.
    launch_ms : float
        What an operator costs that does nothing; charged for those that only change a shape.
    steps : mapping of str to mapping
        What was estimated -> ``how``, ``source``, ``errors``: goes into the bundle.
    """

    device: str
    pool: Baseline
    pool_ranges: Mapping[str, Any]
    transfers: Transfers
    launch_ms: float
    steps: Mapping[str, Mapping[str, Any]]

    def complete(self, values: dict[str, Any], canned: Sequence[Mapping[str, Any]]) -> None:
        """Add to a bundle's manifest what it lacks, and say that this was estimated.

        Parameters
        ----------
        values : dict
            The manifest, changed in place. What it has from measurements stays.
        canned : sequence of mapping
            Entries of `canned_pools`.
        """
        used = []
        if "pool" not in values["predictors"]:
            described = {"method": self.pool.method, **self.pool.export(Path(), "")}
            values["predictors"]["pool"] = {"execution": described}
            values["ranges"]["pool"] = dict(self.pool_ranges)
            values["canned"] = [*values["canned"], *canned]
            used.append("pool execution")
        for phase in ("preprocess", "postprocess"):
            if phase not in values["transfers"]:
                values["transfers"][phase] = self.transfers.to_json()
                used.append(phase)
        if "view_ms" not in values["costs"]:
            values["costs"] = {**values["costs"], "view_ms": self.launch_ms}
            used.append("view_ms")
        values["estimates"] = {step: dict(self.steps[step]) for step in used}


def canned_pools() -> tuple[Layer, ...]:
    """Return poolings of well-known networks that a bundle's estimate is checked with."""
    return _CANNED


def estimates_from(
    paths: Sequence[Path], predictors: Mapping[str, Predictor], session_ms: float, device: str
) -> Estimates:
    """Fit coefficients on whole calls of a device, or scale those of another device's bundle.

    Parameters
    ----------
    paths : sequence of Path
        Either one bundle that holds estimates, or HDF5 files of whole calls: the first one of
        this device, further ones of other devices, on which scaling the coefficients is judged.
    predictors : mapping of str to Predictor
        Kind -> predictor of execution on this device.
    session_ms : float
        What a session call costs there.
    device : str

    Raises
    ------
    TrainingError
        If the paths hold nothing to estimate from, or a device to scale between is not known.
    """
    if (paths[0] / MANIFEST).exists():
        return _scaled_from(Bundle.load(paths[0]), device)
    found = _fitted(paths[0], predictors, session_ms, device)
    scaling = dict(_scaling(found, path) for path in paths[1:])
    if not scaling:
        return found
    pool = {**found.steps["pool execution"], "scaled_to": scaling}
    return replace(found, steps={**found.steps, "pool execution": pool})


def _whole_calls(path: Path) -> tuple[str, dict[str, LayerRows]]:
    """Read whole calls: their device, and the rows of each kind."""
    info = read_info(path)
    if list(info.phases) != [WHOLE_CALL]:
        raise TrainingError(
            f"{path} holds {', '.join(info.phases)}, not whole calls: copies and poolings are "
            "estimated from whole calls; see docs/importing.md"
        )
    tables = read_table(path)
    if "pool" not in tables:
        raise TrainingError(f"{path} holds no poolings; import them into the same file")
    device = canonical_device(info.fingerprint.device)
    return device, {kind: layer_rows(table) for kind, table in tables.items()}


def _fitted(
    path: Path, predictors: Mapping[str, Predictor], session_ms: float, device: str
) -> Estimates:
    measured_on, kinds = _whole_calls(path)
    if measured_on != canonical_device(device):
        raise TrainingError(
            f"{path} is of device {measured_on}, the layers are of {device}; give whole calls of "
            "the same device, or a bundle whose estimates are scaled"
        )
    known = {kind: rows for kind, rows in kinds.items() if kind == "pool" or kind in predictors}
    parts = {kind: own_split(rows) for kind, rows in known.items()}
    train = {kind: each.train for kind, each in parts.items()}
    execution_ms = {
        kind: predictors[kind].predict(rows.columns)
        for kind, rows in train.items()
        if kind != "pool"
    }
    coefficients = _coefficients(train, execution_ms)
    launch_ms = coefficients["launch"]
    pool = _pool({"constant": launch_ms, **{term: coefficients[term] for term in POOL_TERMS}})
    largest = max(float(quantities(k, r.columns)["out_bytes"].max()) for k, r in train.items())
    copies = Transfers(
        max(0.0, coefficients["call"] - session_ms), (0.0,), (coefficients["copy"],), largest
    )
    judged = {
        kind: _whole_call_errors(
            part.test, pool if kind == "pool" else predictors[kind], copies, session_ms
        )
        for kind, part in parts.items()
    }
    factors = {kind: coefficients[f"execution of {kind}"] for kind in execution_ms}
    source = {"device": measured_on, "name": path.name, "checksum": checksum(path)}
    return Estimates(
        measured_on,
        pool,
        ranges_of(train["pool"].columns),
        copies,
        launch_ms,
        {step: {**each, "source": source} for step, each in _steps(judged, factors).items()},
    )


def _whole_call_errors(
    rows: LayerRows, predictor: Predictor, copies: Transfers, session_ms: float
) -> dict[str, float]:
    """Judge what the bundle's parts give for whole calls that were not fitted."""
    copied_ms = copies.predict(quantities(rows.kind, rows.columns)["out_bytes"])
    whole_ms = session_ms + predictor.predict(rows.columns) + copied_ms
    return errors(rows.times_ms[WHOLE_CALL], whole_ms).to_json()


def _steps(
    judged: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    fit = (
        "whole call = call + launch + pooled bytes and windows + output bytes copied, coefficients "
        "of at least zero, fitted together with layers whose execution is predicted"
    )
    return {
        "pool execution": {"how": fit, "whole_call_errors": {"pool": judged["pool"]}},
        "postprocess": {
            "how": fit,
            "whole_call_errors": dict(judged),
            "execution_factors": dict(factors),
        },
        "preprocess": {
            "how": "taken to cost what copying the output costs, since the source's times do not "
            "grow with the input: there is nothing to judge it by"
        },
        "view_ms": {
            "how": "taken to cost what launching a pooling costs: there is nothing to judge it by"
        },
    }


def _pool(terms: Mapping[str, float]) -> Baseline:
    described = {"kind": "pool", "terms": dict(terms), "floor_ms": terms["constant"]}
    return Baseline.load(described, Path())


def _coefficients(
    kinds: Mapping[str, LayerRows], execution_ms: Mapping[str, Array]
) -> dict[str, float]:
    """Fit whole calls of all kinds together, each kind counting alike; poolings may be unknown.

    A factor on each predicted execution takes up what another version of the framework changed,
    so that copies and poolings need not.
    """
    blocks: list[Array] = []
    names = ["call", "copy", *(f"execution of {kind}" for kind in execution_ms), "launch"]
    for kind, rows in kinds.items():
        unknown = np.full(len(rows), float(kind not in execution_ms))
        copied_mb = quantities(kind, rows.columns)["out_bytes"] / _MB
        layers = [
            execution_ms[each] if each == kind else np.zeros(len(rows)) for each in execution_ms
        ]
        work = (
            physical_terms("pool", rows.columns, POOL_TERMS)
            if unknown.any()
            else np.zeros((len(rows), len(POOL_TERMS)))
        )
        columns = np.stack([np.ones(len(rows)), copied_mb, *layers, unknown], axis=1)
        blocks.append(np.concatenate([columns, work], axis=1))
    times_ms = np.concatenate([rows.times_ms[WHOLE_CALL] for rows in kinds.values()])
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in kinds.values()])
    fitted = fit_terms(np.concatenate(blocks), times_ms, weights)
    return dict(zip((*names, *POOL_TERMS), map(float, fitted), strict=True))


def _ratios(source: str, target: str) -> dict[str, float]:
    """Say how many times longer bytes and copies take on the target."""
    ours, theirs = _facts(source), _facts(target)
    return {
        "bandwidth": ours.bandwidth_bytes_per_s / theirs.bandwidth_bytes_per_s,
        "bus": ours.bus_bytes_per_s / theirs.bus_bytes_per_s,
    }


def _facts(device: str) -> DeviceFacts:
    facts = device_facts(device)
    if facts is None or not facts.bus:
        raise TrainingError(
            f"no bandwidth and bus are known of device {device!r}; estimates can be scaled between "
            f"{', '.join(name for name, each in devices().items() if each.bus)}"
        )
    return facts


def _scaled_terms(pool: Baseline, ratios: Mapping[str, float]) -> dict[str, float]:
    terms = dict(zip(pool.terms_, map(float, pool.coefficients_), strict=True))
    return {
        term: value * ratios["bandwidth"] if term in _SCALED_TERMS else value
        for term, value in terms.items()
    }


def _scaled_from(bundle: Bundle, device: str) -> Estimates:
    lacking = {"pool execution", "postprocess", "preprocess", "view_ms"} - set(bundle.estimates)
    if lacking:
        raise TrainingError(
            f"{bundle.path} holds no estimate of {', '.join(sorted(lacking))}; give a bundle that "
            "was trained with --estimate-from whole calls"
        )
    ratios = _ratios(bundle.device, device)
    predictor = bundle.manifest["predictors"]["pool"]["execution"]
    pool = _pool(_scaled_terms(Baseline.load(predictor, bundle.path), ratios))
    copies = Transfers.from_json(bundle.manifest["transfers"]["postprocess"])
    scaled = {"from": bundle.device, "times_longer": ratios}
    return Estimates(
        device,
        pool,
        bundle.manifest["ranges"]["pool"],
        replace(copies, ms_per_mb=tuple(ms * ratios["bus"] for ms in copies.ms_per_mb)),
        bundle.costs["view_ms"],
        {step: {**each, "scaled": scaled} for step, each in bundle.estimates.items()},
    )


def _scaling(estimates: Estimates, path: Path) -> tuple[str, dict[str, float]]:
    """Judge scaled poolings by another device's whole calls: what its calls and copies leave.

    Returns
    -------
    device : str
    judged : dict
        ``execution_factor``: what the scaled times must be multiplied by to fit, 1 if they scale;
        ``whole_call_mape``: of whole calls that were not fitted, with them as they are.
    """
    device, kinds = _whole_calls(path)
    terms = _scaled_terms(estimates.pool, _ratios(estimates.device, device))
    pool = _pool(terms | {"constant": 0.0})
    part = own_split(kinds["pool"])
    fitted = _coefficients({"pool": part.train}, {"pool": pool.predict(part.train.columns)})
    copies = Transfers(fitted["call"], (0.0,), (fitted["copy"],), 0.0)
    judged = _whole_call_errors(part.test, pool, copies, 0.0)
    return device, {
        "execution_factor": fitted["execution of pool"],
        "whole_call_mape": judged["mape"],
    }
