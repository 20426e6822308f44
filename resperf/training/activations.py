"""Unfused activations, estimated from convolutions with and without one.

Where a framework does not fuse the activation after a convolution, as TensorFlow on GPUs, the time
that it adds to the convolution is the time of the activation itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.bundle import GoldenLayer, golden_layers, ranges_of
from resperf.features import Columns, quantities, take
from resperf.layers import Activation, Layer
from resperf.predictors import LayerPredictor
from resperf.predictors.baseline import Baseline
from resperf.predictors.linear import fit_coefficients
from resperf.predictors.metrics import errors
from resperf.predictors.terms import physical_terms
from resperf.training.rows import LayerRows
from resperf.training.trials import Trial

STEP = "activation execution"
"""Name of this estimate in a bundle."""

SHORTEST_MS = 1e-4
"""Shorter predictions are not used."""

TERMS = ("constant", "in", "out exponential", "out tanh", "out hard")
"""A launch, values read and written, and the extra cost of functions beyond a comparison."""

GOLDEN: tuple[Layer, ...] = tuple(
    Activation(batch=batch, values=values, activation="relu")
    for batch, values in ((1, 802_816), (8, 4096), (32, 100_352))
)
"""Activations with which a bundle's estimate is checked on loading."""


@dataclass(frozen=True)
class EstimatedKind:
    """Estimated execution time of a kind of layer.

    Attributes
    ----------
    baseline : Baseline
    ranges : mapping
        Fields of the layers that the coefficients were fitted on.
    golden : tuple of Layer
        Layers with which a bundle's estimate is checked on loading.
    """

    baseline: Baseline
    ranges: Mapping[str, Any]
    golden: tuple[Layer, ...]

    def add_to(self, values: dict[str, Any]) -> None:
        """Add the kind to a part of a bundle's manifest."""
        kind, quantity = self.baseline.kind, self.baseline.quantity_
        described = {"method": self.baseline.method, **self.baseline.export(Path(), "")}
        values["predictors"][kind] = {quantity: described}
        values["ranges"][kind] = dict(self.ranges)
        golden = {kind: [GoldenLayer(layer.key) for layer in self.golden]}
        values["golden"]["layers"] += golden_layers(golden, {kind: {quantity: self.baseline}})


def estimate_activations(
    predictor: LayerPredictor, parts: Trial
) -> tuple[EstimatedKind, dict[str, Any]] | None:
    """Estimate activations from a predictor of convolutions.

    The predicted time with each activation, minus that without, is fitted by physical terms of the
    output.

    Parameters
    ----------
    predictor : LayerPredictor
        Predicts the execution of convolutions.
    parts : Trial
        Its rows. Convolutions and activations come from the training rows, errors from the test
        rows.

    Returns
    -------
    EstimatedKind, dict
        The estimate, and how it was made with its errors, for the bundle.
        None if no row has an activation, all rows have one, or activations add no time.
    """
    seen = set(map(str, np.unique(parts.train.columns["activation"])))
    functions = sorted(seen - {"none"})
    biased = _has_bias(parts.train)
    if not functions or "none" not in seen or not biased.any():
        return None
    convs = take(parts.train.columns, biased)
    without_ms = np.tile(predictor.values(_with(convs, "none")), len(functions))
    with_functions = {name: np.tile(column, len(functions)) for name, column in convs.items()}
    with_functions["activation"] = np.repeat(functions, int(biased.sum()))
    with_ms = predictor.values(with_functions)
    outputs = _outputs(with_functions)
    added_ms = with_ms - without_ms
    usable = with_ms > SHORTEST_MS
    terms = physical_terms("activation", outputs, TERMS)
    # Errors relative to the convolution with its activation, as its predictor was trained.
    fitted = fit_coefficients(
        terms[usable] / with_ms[usable, None], added_ms[usable] / with_ms[usable], relative=False
    )
    coefficients = dict(zip(TERMS, map(float, fitted), strict=True))
    if not coefficients["in"] > 0:
        # Activations are fused into the convolutions, or the method does not distinguish them.
        return None
    where = parts.train.examples(parts.train.layer_quantity).device_class
    baseline = Baseline.of("activation", coefficients, where)
    found = EstimatedKind(baseline, ranges_of("activation", outputs), GOLDEN)
    return found, _with_errors(baseline, predictor, parts.test)


def _has_bias(rows: LayerRows) -> npt.NDArray[np.bool_]:
    """Select convolutions with a bias: without one, an activation may also change the kernel."""
    return np.asarray(rows.columns["bias"], dtype=bool)


def _with(convs: Columns, function: str) -> Columns:
    return {**convs, "activation": np.full(len(convs["batch"]), function)}


def _outputs(convs: Columns) -> dict[str, npt.NDArray[Any]]:
    """Return the activations of the convolutions' outputs as columns."""
    q = quantities("conv", convs)
    return {
        "batch": np.asarray(convs["batch"]),
        "values": (q["pixels_out"] * q["channels_out"]).astype(np.int64),
        "activation": np.asarray(convs["activation"]),
        "dtype": np.asarray(convs["dtype"]),
    }


def _with_errors(baseline: Baseline, predictor: LayerPredictor, test: LayerRows) -> dict[str, Any]:
    """Return errors of convolution without activation plus estimate, on the test rows."""
    activations = np.asarray(test.columns["activation"])
    rows = test.select(_has_bias(test) & (activations != "none"))
    step: dict[str, Any] = {
        "how": "extra time of convolutions with an activation over those without, as predicted "
        "here: launch and bytes, coefficients of at least zero"
    }
    if not len(rows):
        return step
    measured_ms = rows.times_ms[rows.layer_quantity]
    alone_ms = baseline.values(_outputs(rows.columns))
    added_ms = predictor.values(_with(rows.columns, "none")) + alone_ms
    return step | {
        "errors_added": {"conv": errors(measured_ms, added_ms).to_json()},
        "errors_learnt": {"conv": errors(measured_ms, predictor.values(rows.columns)).to_json()},
    }
