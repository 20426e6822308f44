"""Conformance: whether a method keeps the contract of `Predictor`.

A broken promise is an ``AssertionError`` that says which, so that a test only has to call these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from resperf.errors import TrainingError
from resperf.platform import Platform
from resperf.predictors import Examples, Predictor
from resperf.settings import Setting
from resperf.timing import rank_correlation

LARGEST_TOTAL, LARGEST_FACTOR = 100.0, 5.0
"""How far all values together may be off, and the median of them."""
LEAST_CORRELATION = 0.5
"""Of the ranks of predicted and measured values."""
TOO_FEW = 3
"""Rows that no method may learn from."""
RELATIVE, SMALLEST = 1e-4, 1e-3
"""How far a loaded predictor may be from the trained one, of at least so much: 1 us."""


def check_predictor(make: Callable[[], Predictor], examples: Examples, folder: Path) -> Predictor:
    """Check that a method fits, predicts, exports, loads, and refuses what it cannot learn from.

    Parameters
    ----------
    make : callable
        Returns a predictor that was not fitted.
    examples : Examples
        Rows to learn from that differ in size, all with the first setting and platform. Predictions
        are checked on the same rows: few rows promise nothing about others.
    folder : Path
        An empty folder for exported files.

    Returns
    -------
    Predictor
        The fitted one.

    Raises
    ------
    AssertionError
    """
    predictor = make()
    fitted = predictor.fit(examples, validation=examples, seed=0)
    assert fitted is predictor, "fit does not return the predictor"
    check_predictions(predictor, examples)
    check_predictions(check_export(predictor, examples, folder), examples)
    for bad, reason in (
        (examples.select(np.arange(TOO_FEW)), f"{TOO_FEW} rows"),
        (_with_value(examples, np.nan), "a value that is no number"),
        (_with_value(examples, 0.0), "a value of 0"),
    ):
        try:
            make().fit(bad, validation=bad, seed=0)
        except TrainingError:
            continue
        raise AssertionError(f"it learns from {reason}")
    return predictor


def check_predictions(predictor: Predictor, examples: Examples) -> None:
    """Check what is predicted for measured subjects; zeros, constants and other units fail.

    Raises
    ------
    AssertionError
    """
    measured = examples.values
    predicted = predictor.predict(examples.subjects, *_setting_and_platform(examples))
    assert examples.quantity in predicted, f"{examples.quantity} is not predicted"
    prediction = predicted[examples.quantity]
    for numbers in (prediction.values, prediction.low, prediction.high):
        assert numbers.shape == measured.shape, f"shape {numbers.shape} for {measured.shape}"
        assert numbers.dtype == np.float64, f"predictions are {numbers.dtype}"
    assert np.isfinite(prediction.values).all(), "predictions are not finite"
    assert (prediction.values >= 0).all(), "predictions are negative"
    bounded = np.isfinite(prediction.low) & np.isfinite(prediction.high)
    inside = (prediction.low <= prediction.values) & (prediction.values <= prediction.high)
    assert inside[bounded].all(), "predictions are outside of their intervals"
    total = prediction.values.sum() / measured.sum()
    assert 1 / LARGEST_TOTAL < total < LARGEST_TOTAL, "the predictions are of another scale"
    assert np.ptp(prediction.values) > 0, "the predictions are constant"
    off = np.abs(np.log(np.maximum(prediction.values, 1e-12) / measured))
    assert np.median(off) < np.log(LARGEST_FACTOR), "half of the predictions are far off"
    correlation = rank_correlation(prediction.values.tolist(), measured.tolist())
    assert correlation > LEAST_CORRELATION, f"rank correlation {correlation:.2f}"


def check_export(predictor: Predictor, examples: Examples, folder: Path) -> Predictor:
    """Check that what is loaded predicts what was trained, by values that JSON can hold.

    Returns
    -------
    Predictor
        The loaded one.

    Raises
    ------
    AssertionError
    """
    loaded = type(predictor).load(json.loads(json.dumps(predictor.export(folder, "stem"))), folder)
    kept = (predictor.kind, predictor.quantity_)
    assert (loaded.kind, loaded.quantity_) == kept, "kind or quantity is another one when loaded"
    trained, again = (
        model.predict(examples.subjects, *_setting_and_platform(examples))[examples.quantity].values
        for model in (predictor, loaded)
    )
    near = np.abs(again - trained) <= RELATIVE * np.maximum(trained, SMALLEST)
    assert near.all(), "what is loaded predicts other values"
    return loaded


def _setting_and_platform(examples: Examples) -> tuple[Setting, Platform]:
    return examples.settings[0], examples.platforms[0]


def _with_value(examples: Examples, value: float) -> Examples:
    values = examples.values.copy()
    values[0] = value
    return replace(examples, values=values)
