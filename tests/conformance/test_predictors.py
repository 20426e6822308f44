"""What every predictor promises, whatever its method, its level and the kind of its subjects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.errors import BundleError, LayerError, TrainingError
from resperf.features import Array, Columns, columns_of
from resperf.measurement import layer_kind
from resperf.network import read_network
from resperf.platform import Platform
from resperf.predictors import (
    METHODS,
    Examples,
    LayerPredictor,
    layer_predictor_class,
    methods_of,
)
from resperf.predictors.baseline import Baseline
from resperf.quantities import Level
from resperf.settings import PASSES, Setting
from resperf.testing.predictors import check_export, check_predictions, check_predictor

pytest.importorskip("tensorflow")
pytest.importorskip("scipy")

SETTING, PLATFORM = Setting("synthetic", "1"), Platform("toy")
RTX3090 = Platform("rtx3090")
"""Some predictors of networks need a device whose data sheet is known."""
EPOCHS = {"resperfnet": 150, "perfnet": 150}
"""Methods that start from nothing need more passes than those that start from the baseline."""
FEWEST_EPOCHS = 2
SLOWER = {"svr": 100.0}
"""What the toy device's times are multiplied by: `svr` ignores errors below 0.1 ms."""

METHODS_OF_LAYERS = methods_of(Level.LAYER)
ALL_KINDS = (
    "conv", "pool", "dense", "activation", "transpose", "quantized_dense", "elementwise",
    "dense_step",
)  # fmt: skip
"""Like a convolution, moving data, quantised, with names, a training step."""


def knows(method: str, kind: str) -> bool:
    kinds = layer_predictor_class(method).kinds
    return kinds is None or layer_kind(kind) in kinds


def slower_by(method: str, kind: str) -> float:
    """Return what the toy device's times are multiplied by; a training step is three passes."""
    return SLOWER.get(method, 1.0) * (1 if kind == layer_kind(kind) else PASSES)


def columns_for(kind: str, layers: Sequence[Any]) -> Columns:
    """Return layers as columns; training steps of ``dense_step`` have two optimizers."""
    is_step = kind != layer_kind(kind)
    return columns_of(layers, [("sgd", "adam")[each.batch % 2] for each in layers] * is_step or "")


CLAIMED = [(m, k) for m in METHODS_OF_LAYERS for k in ALL_KINDS if knows(m, k)]
CLAIMED.remove(("gianniti", "transpose"))
UNCLAIMED = [(m, k) for m in METHODS_OF_LAYERS for k in ALL_KINDS if not knows(m, k)]
Fitted = tuple[LayerPredictor, dict[str, Any], Path, str]
"""Predictor, what it exported, the folder of its files, and kind as files name it."""


Fits = Callable[..., LayerPredictor]


@pytest.fixture(scope="module")
def fits(toy_rows: Any) -> Fits:
    """Fit each method on rows once."""
    made: dict[tuple[str, str, bool], LayerPredictor] = {}

    def fitted_once(method: str, kind: str, *, same_window: bool = False) -> LayerPredictor:
        key = (method, kind, same_window)
        if key not in made:
            if same_window:
                made[key] = fit(method, kind, toy_rows, **same_window_rows(toy_rows))
            else:
                epochs = EPOCHS.get(method, FEWEST_EPOCHS)
                made[key] = fit(method, kind, toy_rows, epochs=epochs)
        return made[key]

    return fitted_once


def same_window_rows(toy_rows: Any) -> dict[str, Any]:
    """Return convolutions whose window and batch never vary, and their times."""
    layers, times_ms = toy_rows("conv", 60)
    same = [layer.replace(kernel_height=3, kernel_width=3, batch=2) for layer in layers]
    return {"subjects": columns_of(same), "values": times_ms}


@pytest.fixture(scope="module", params=CLAIMED, ids="-".join)
def fitted(request: Any, fits: Fits, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    method, kind = request.param
    predictor = fits(method, kind)
    assert (predictor.method, predictor.kind) == (method, layer_kind(kind))
    folder = tmp_path_factory.mktemp(f"{method}-{kind}")
    return predictor, predictor.export(folder, "stem"), folder, kind


def fit(
    method: str,
    kind: str,
    toy_rows: Any,
    seed: int = 1,
    epochs: int = FEWEST_EPOCHS,
    **changes: Any,
) -> LayerPredictor:
    layers, times_ms = toy_rows(layer_kind(kind), 60, noise=0.02)
    judged_layers, judged_ms = toy_rows(layer_kind(kind), 12, seed=9)
    predictor = layer_predictor_class(method)(layer_kind(kind), epochs=epochs)
    slower = slower_by(method, kind)
    arguments = {"subjects": columns_for(kind, layers), "values": slower * times_ms} | changes
    judged = columns_for(kind, judged_layers)
    returned = predictor.fit(
        Examples(quantity="execution_ms", **arguments),
        validation=Examples(judged, "execution_ms", slower * judged_ms),
        seed=seed,
    )
    assert returned is predictor
    return predictor


def test_predictions_follow_the_measured_values(fitted: Fitted, toy_rows: Any) -> None:
    """Evaluated on the training rows: few rows promise nothing about others."""
    predictor, _, _, kind = fitted
    layers, times_ms = toy_rows(predictor.kind, 60, noise=0.02)
    slower = slower_by(predictor.method, kind)
    columns = columns_for(kind, layers)
    check_predictions(predictor, examples_of(columns, slower * times_ms))
    together = predictor.values(columns)
    alone = predictor.values(columns_for(kind, layers[:1]))
    np.testing.assert_allclose(alone, together[:1], rtol=1e-5, atol=1e-6)


class Constant(Baseline):
    """The mean of all times, whatever is asked about."""

    def values(self, columns: Any) -> Array:
        return np.full(len(next(iter(columns.values()))), super().values(columns).mean())


class Zero(Baseline):
    """Nothing takes time."""

    def values(self, columns: Any) -> Array:
        return 0.0 * super().values(columns)


class Unscaled(Baseline):
    """Seconds for milliseconds."""

    def values(self, columns: Any) -> Array:
        return super().values(columns) / 1000


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(Constant, "constant"), (Zero, "another scale"), (Unscaled, "another scale")],
)
def test_broken_predictors_are_found_out(
    broken: type[Baseline], reason: str, toy_rows: Any, tmp_path: Path
) -> None:
    layers, times_ms = toy_rows("dense", 60)
    examples = examples_of(columns_of(layers), times_ms)
    with pytest.raises(AssertionError, match=reason):
        check_predictor(lambda: broken("dense"), examples, tmp_path)
    check_predictor(lambda: Baseline("dense"), examples, tmp_path)


def examples_of(columns: Columns, times_ms: Array) -> Examples:
    return Examples(columns, "execution_ms", times_ms, [SETTING], [PLATFORM])


def network_rows(count: int) -> tuple[Sequence[Any], Array]:
    """LeNet at batch sizes, and peaks of 2,000 bytes for each sample beside 50,000."""
    lenet = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
    batches = np.unique(np.geomspace(1, 512, 4 * count).astype(int))[:count]
    networks = [read_network(lenet, batch=int(batch)) for batch in batches]
    return networks, 50_000.0 + 25_000.0 * batches


@pytest.mark.parametrize("method", [*methods_of(Level.NETWORK), "toy-peak-memory"])
def test_predictors_of_networks_promise_the_same(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    monkeypatch.setitem(METHODS, "toy-peak-memory", "toy_peak_memory:ToyPeakMemory")
    from resperf.predictors import predictor_class

    networks, peaks = network_rows(30)
    quantities = predictor_class(method).quantities
    # Networks without a time of their own: 50 us, and 25 us for each sample.
    wanted = ["execution_ms", "peak_memory_bytes", "step_ms"] if quantities else []
    quantity = next((name for name in wanted if name in quantities), "peak_memory_bytes")
    measured = peaks if quantity == "peak_memory_bytes" else peaks / 1e6
    examples = Examples(networks, quantity, measured, [SETTING], [RTX3090])
    predictor = check_predictor(lambda: predictor_class(method)("network"), examples, tmp_path)
    layers = Examples({"batch": np.ones(30)}, quantity, measured)
    with pytest.raises(TrainingError, match="is for networks, not for layers"):
        predictor.fit(layers, validation=layers, seed=0)
    sys.modules.pop("toy_peak_memory", None)


def test_what_is_loaded_predicts_what_was_trained(
    fitted: Fitted, toy_rows: Any, tmp_path: Path
) -> None:
    predictor, _, _, kind = fitted
    layers, times_ms = toy_rows(predictor.kind, 60, seed=6)
    check_export(predictor, examples_of(columns_for(kind, layers), times_ms), tmp_path)


def test_files_are_those_that_the_values_name(fitted: Fitted) -> None:
    _, values, folder, _ = fitted
    written = sorted(file.name for file in folder.iterdir())
    assert written == ([values["network"]] if "network" in values else [])
    assert all(name.endswith(".onnx") for name in written)


def test_missing_values_are_refused(fitted: Fitted) -> None:
    predictor, values, folder, _ = fitted
    for name in set(values) - {"factors"}:  # bundles of before there were factors
        if name in ("network", "kind", "terms") or name.startswith("f"):
            rest = {k: v for k, v in values.items() if k != name}
            with pytest.raises(BundleError, match=f"lacks '{name}'"):
                type(predictor).load(rest, folder)


@pytest.mark.parametrize(("method", "kind"), UNCLAIMED)
def test_kinds_that_a_method_does_not_know_are_refused(
    method: str, kind: str, toy_rows: Any
) -> None:
    with pytest.raises(LayerError, match=f"not '{kind}'"):
        fit(method, kind, toy_rows)


def test_layers_that_do_nothing_are_none_for_a_line_over_operations(toy_rows: Any) -> None:
    with pytest.raises(TrainingError, match="transpose: these layers have no operations"):
        fit("gianniti", "transpose", toy_rows)


@pytest.mark.parametrize("method", METHODS_OF_LAYERS)
def test_the_same_seed_gives_the_same_bytes(
    method: str, fits: Fits, toy_rows: Any, tmp_path: Path
) -> None:
    """Whatever was fitted before."""
    exports = []
    again = fit(method, "conv", toy_rows, **same_window_rows(toy_rows))
    for place, predictor in enumerate((fits(method, "conv", same_window=True), again)):
        folder = tmp_path / str(place)
        folder.mkdir()
        values = predictor.export(folder, "s")
        exports.append((json.dumps(values), [f.read_bytes() for f in sorted(folder.iterdir())]))
    assert exports[0] == exports[1]


@pytest.mark.parametrize("method", METHODS_OF_LAYERS)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_times_are_refused(method: str, bad: float, toy_rows: Any) -> None:
    times_ms = toy_rows("dense", 60)[1].copy()
    times_ms[3] = bad
    with pytest.raises(TrainingError, match="execution_ms of row 3"):
        fit(method, "dense", toy_rows, values=times_ms)


@pytest.mark.parametrize("method", METHODS_OF_LAYERS)
def test_too_few_rows_are_refused(method: str, toy_rows: Any) -> None:
    layers, times_ms = toy_rows("dense", 5)
    with pytest.raises(TrainingError, match="5 rows to learn from"):
        fit(method, "dense", toy_rows, subjects=columns_of(layers), values=times_ms)


@pytest.mark.parametrize("method", METHODS_OF_LAYERS)
def test_a_field_that_never_varies_does_no_harm(method: str, fits: Fits, toy_rows: Any) -> None:
    predictor = fits(method, "conv", same_window=True)
    assert np.isfinite(predictor.values(same_window_rows(toy_rows)["subjects"])).all()


def test_a_method_of_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("no_such_package:Method", "resperf.predictors:Method"):
        monkeypatch.setitem(METHODS, "theirs", value)
        with pytest.raises(TrainingError, match=f"method theirs cannot be loaded from {value}"):
            layer_predictor_class("theirs")


def test_unknown_methods_quantities_and_epochs_are_refused(toy_rows: Any) -> None:
    with pytest.raises(TrainingError, match="epochs=0"):
        layer_predictor_class("boosted")("conv", epochs=0)
    with pytest.raises(TrainingError, match="no method 'magic'; known methods: baseline"):
        layer_predictor_class("magic")
    layers, times_ms = toy_rows("dense", 60)
    examples = Examples(columns_of(layers), "epoch_s", times_ms)
    with pytest.raises(TrainingError, match="epoch_s is no quantity of a layer"):
        Baseline("dense").fit(examples, validation=examples, seed=0)
