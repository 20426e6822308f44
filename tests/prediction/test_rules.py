"""How networks' quantities follow from layers', and the sum of layers as a predictor."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resperf.bundle import Bundle
from resperf.errors import TrainingError, UnsupportedError
from resperf.network import read_network
from resperf.prediction import SumOfLayers, predict_network
from resperf.prediction.rules import composable, composed
from resperf.predictors import Examples
from resperf.quantities import (
    PHASES,
    QUANTITIES,
    Composition,
    Quantity,
    learnt_quantities,
)
from resperf.settings import Mode, Setting

LAYERS = {"forward_ms": [1.0, 2.0], "backward_ms": [3.0, 4.0], "update_ms": [0.5, 0.25]}
LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"


def value(name: str) -> float:
    return composed(name, LAYERS)


def test_the_table_says_how_quantities_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert value("forward_ms") == 3.0
    assert value("step_ms") == 3.0 + 7.0 + 0.75
    assert value("preprocess_ms") == 0.0  # It is a phase of its own.
    assert composable("step_ms", LAYERS)
    assert not composable("step_ms", ["forward_ms"])
    with pytest.raises(UnsupportedError, match=r"peak_memory_bytes .* does not follow"):
        value("peak_memory_bytes")
    row = QUANTITIES["forward_ms"]
    largest = replace(row, over_layers=Composition.MAXIMUM)
    monkeypatch.setitem(QUANTITIES, "forward_ms", largest)  # type: ignore[arg-type]
    assert value("step_ms") == 2.0 + 7.0 + 0.75


def test_the_sum_of_layers_is_a_predictor_of_networks() -> None:
    folder = Path(__file__).parents[1] / "golden" / "bundle"
    summed, bundle = SumOfLayers.load({}, folder), Bundle.load(folder)
    networks = [read_network(LENET, batch=batch) for batch in (1, 4)]
    predicted = summed.predict(networks, bundle.setting, bundle.platform)
    expected = [predict_network(network, bundle) for network in networks]
    assert set(predicted) == {"preprocess_ms", "execution_ms", "postprocess_ms", "latency_ms"}
    np.testing.assert_array_equal(
        predicted["latency_ms"].values, [each.total_ms for each in expected]
    )
    np.testing.assert_array_equal(
        predicted["execution_ms"].values, [each.phases.execution_ms for each in expected]
    )
    assert math.isnan(predicted["execution_ms"].low[0])
    with pytest.raises(TrainingError, match="made of predictors of layers"):
        summed.fit(
            Examples(networks * 4, "latency_ms", np.ones(8)),
            validation=Examples(networks, "latency_ms", np.ones(2)),
            seed=0,
        )
    with pytest.raises(Exception, match="for synthetic, training; it has conv"):
        summed.predict(networks, Setting("synthetic", mode=Mode.TRAINING), bundle.platform)


def test_layers_learn_their_main_quantity_and_what_adds_up_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert learnt_quantities(PHASES) == ("execution_ms",)
    assert learnt_quantities(["profiled_ms", "whole_call_ms"]) == ("whole_call_ms",)
    # Passes are parts of a step, and a layer's peak says nothing about a network's.
    names = ["forward_ms", "backward_ms", "step_ms", "peak_memory_bytes"]
    assert learnt_quantities(names) == ("step_ms",)
    for name, over in (("energy_mj", Composition.SUM), ("peak_w", Composition.MAXIMUM)):
        row = Quantity(name, "", over)
        monkeypatch.setitem(QUANTITIES, name, row)  # type: ignore[arg-type]
    names = ["peak_w", "energy_mj", *PHASES]
    assert learnt_quantities(names) == ("execution_ms", "energy_mj", "peak_w")
