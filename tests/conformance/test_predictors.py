"""What every predictor promises, whatever its method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.errors import BundleError, TrainingError
from resperf.features import columns_of
from resperf.predictors import METHODS, Examples, LayerPredictor, layer_predictor_class

pytest.importorskip("tensorflow")
pytest.importorskip("scipy")

EPOCHS = 2
Fitted = tuple[LayerPredictor, dict[str, Any], Path]


KINDS = ("conv", "pool", "dense", "activation")


@pytest.fixture(scope="module", params=[(m, k) for m in METHODS for k in KINDS], ids="-".join)
def fitted(request: Any, toy_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    method, kind = request.param
    predictor = fit(method, kind, toy_rows)
    folder = tmp_path_factory.mktemp(f"{method}-{kind}")
    return predictor, predictor.export(folder, "stem"), folder


def fit(method: str, kind: str, toy_rows: Any, seed: int = 1, **changes: Any) -> LayerPredictor:
    layers, times_ms = toy_rows(kind, 60, noise=0.02)
    columns = columns_of(layers)
    judged_layers, judged_ms = toy_rows(kind, 12, seed=9)
    predictor = layer_predictor_class(method)(kind, epochs=EPOCHS)
    arguments = {"subjects": columns, "values": times_ms} | changes
    returned = predictor.fit(
        Examples(quantity="execution_ms", **arguments),
        validation=Examples(columns_of(judged_layers), "execution_ms", judged_ms),
        seed=seed,
    )
    assert returned is predictor
    return predictor


def test_predictions_are_times(fitted: Fitted, toy_rows: Any) -> None:
    predictor = fitted[0]
    layers, _ = toy_rows(predictor.kind, 30, seed=5)
    times_ms = predictor.values(columns_of(layers))
    assert times_ms.shape == (30,)
    assert times_ms.dtype == np.float64
    assert np.isfinite(times_ms).all()
    assert (times_ms >= 0).all()
    alone = predictor.values(columns_of(layers[:1]))
    np.testing.assert_allclose(alone, times_ms[:1], rtol=1e-5, atol=1e-6)


def test_what_is_loaded_predicts_what_was_trained(fitted: Fitted, toy_rows: Any) -> None:
    predictor, values, folder = fitted
    loaded = type(predictor).load(json.loads(json.dumps(values)), folder)
    layers, _ = toy_rows(predictor.kind, 60, seed=6)
    columns = columns_of(layers)
    trained_ms, loaded_ms = predictor.values(columns), loaded.values(columns)
    assert (np.abs(loaded_ms - trained_ms) <= 1e-4 * np.maximum(trained_ms, 1e-3)).all()
    assert loaded.kind == predictor.kind


def test_files_are_those_that_the_values_name(fitted: Fitted) -> None:
    _, values, folder = fitted
    written = sorted(file.name for file in folder.iterdir())
    parts = [values, *values.get("averaged", {}).values()]
    assert written == sorted(part["network"] for part in parts if "network" in part)
    assert all(name.endswith(".onnx") for name in written)


def test_missing_values_are_refused(fitted: Fitted) -> None:
    predictor, values, folder = fitted
    for name in set(values) - {"members", "factors"}:  # bundles of before there were factors
        if name in ("network", "kind", "terms", "averaged") or name.startswith("f"):
            rest = {k: v for k, v in values.items() if k != name}
            with pytest.raises(BundleError, match=f"lacks '{name}'"):
                type(predictor).load(rest, folder)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bytes(method: str, toy_rows: Any, tmp_path: Path) -> None:
    exports = []
    for place in ("one", "two"):
        folder = tmp_path / place
        folder.mkdir()
        values = fit(method, "dense", toy_rows).export(folder, "s")
        exports.append((json.dumps(values), [f.read_bytes() for f in sorted(folder.iterdir())]))
    assert exports[0] == exports[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_times_are_refused(method: str, bad: float, toy_rows: Any) -> None:
    times_ms = toy_rows("dense", 60)[1].copy()
    times_ms[3] = bad
    with pytest.raises(TrainingError, match="execution_ms of row 3"):
        fit(method, "dense", toy_rows, values=times_ms)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_rows_are_refused(method: str, toy_rows: Any) -> None:
    layers, times_ms = toy_rows("dense", 5)
    with pytest.raises(TrainingError, match="5 rows to learn from"):
        fit(method, "dense", toy_rows, subjects=columns_of(layers), values=times_ms)


@pytest.mark.parametrize("method", METHODS)
def test_a_field_that_never_varies_does_no_harm(method: str, toy_rows: Any) -> None:
    layers, times_ms = toy_rows("conv", 60)
    same = [layer.replace(kernel_height=3, kernel_width=3, batch=2) for layer in layers]
    predictor = fit(method, "conv", toy_rows, subjects=columns_of(same), values=times_ms)
    assert np.isfinite(predictor.values(columns_of(same))).all()


def test_progress_is_told() -> None:
    with pytest.raises(TrainingError, match="epochs=0"):
        layer_predictor_class("residual")("conv", epochs=0)
    with pytest.raises(TrainingError, match="no method 'magic'; known methods: baseline"):
        layer_predictor_class("magic")
