"""Simulated memory of training steps, corrected per device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resperf.errors import UnsupportedError
from resperf.network import read_network
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.memory_timeline import MemoryTimeline, simulated
from resperf.settings import Mode, Setting

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
ADAM = Setting("torch", mode=Mode.TRAINING, optimizer="adam", precision="fp32")
CARD = Platform("a100-40gb")
CONTEXT, SHARE, WORKSPACE = 1.7e9, 1.02, 0.4


def test_resnet50_by_hand() -> None:
    """Weights of 25.6 million values, Adam's two states, gradients and roots at the update."""
    network = read_network(NETWORKS / "resnet50.onnx", batch=1)
    step = simulated(network, ADAM, "a100-40gb")
    weights = 4 * 25_557_032
    groups = step.peaks.groups
    assert groups["weights"] == pytest.approx(weights, rel=0.001)
    assert groups["optimizer state"] == pytest.approx(2 * weights, rel=0.001)
    assert groups["gradients of weights"] == pytest.approx(weights, rel=0.001)
    assert groups["update of weights"] == pytest.approx(weights, rel=0.001)
    assert step.peaks.allocated_bytes == sum(groups.values())
    assert step.peaks.reserved_bytes >= step.peaks.allocated_bytes


def test_memory_grows_with_the_batch_and_with_the_optimizer() -> None:
    peaks = {}
    for optimizer in ("sgd", "momentum", "adam"):
        for batch in (32, 64):
            network = read_network(NETWORKS / "resnet18.onnx", batch=batch)
            setting = ADAM.with_optimizer(optimizer)
            peaks[optimizer, batch] = simulated(network, setting, "a100").peaks.allocated_bytes
    weights = 4 * 11_689_512
    for batch in (32, 64):
        # The peak is in the backward pass, where an update's temporaries are not.
        assert peaks["momentum", batch] - peaks["sgd", batch] == pytest.approx(weights, rel=0.01)
        assert peaks["adam", batch] - peaks["momentum", batch] == pytest.approx(weights, rel=0.01)
    kept = peaks["sgd", 64] - peaks["sgd", 32]
    assert peaks["sgd", 64] == pytest.approx(2 * kept, rel=0.15)


def test_an_unknown_optimizer_is_refused() -> None:
    network = read_network(NETWORKS / "lenet5.onnx", batch=1)
    with pytest.raises(UnsupportedError, match="'lion' is not known; known: sgd, momentum"):
        simulated(network, ADAM.with_optimizer("lion"), "a100")


def examples() -> Examples:
    names = ("lenet5", "resnet18", "squeezenet1_1", "mobilenet_v2", "mobilenet_v1")
    networks = [
        read_network(NETWORKS / f"{name}.onnx", batch=batch)
        for name in names
        for batch in (8, 32, 64)
    ]
    steps = [simulated(network, ADAM, CARD.device) for network in networks]
    values = [
        CONTEXT + SHARE * step.peaks.reserved_bytes + WORKSPACE * step.convolved_bytes
        for step in steps
    ]
    groups = [network.name for network in networks]
    return Examples(networks, "process_memory_bytes", np.array(values), [ADAM], [CARD], groups)


def test_what_libraries_hold_is_learnt_although_a_run_failed() -> None:
    rows = examples()
    values = rows.values.copy()
    values[4] *= 3  # one that holds far more than its tensors
    rows = replace(rows, values=values)
    predictor = MemoryTimeline("network").fit(rows, validation=rows, seed=0)
    (fit,) = predictor.fits_
    assert fit.coefficients["constant"] == pytest.approx(CONTEXT, rel=0.02)
    assert fit.coefficients["simulated"] == pytest.approx(SHARE, rel=0.05)
    assert fit.coefficients["convolved"] == pytest.approx(WORKSPACE, rel=0.2)
    network = read_network(NETWORKS / "resnet18.onnx", batch=128)
    (value,) = predictor.predict([network], ADAM, CARD)["process_memory_bytes"].values
    step = simulated(network, ADAM, CARD.device)
    expected = CONTEXT + SHARE * step.peaks.reserved_bytes + WORKSPACE * step.convolved_bytes
    assert value == pytest.approx(expected, rel=0.03)
    assert value == pytest.approx(predictor.of_simulated(step, like_rows=True)[0])


def test_other_cards_have_wider_intervals() -> None:
    rows = examples()
    predictor = MemoryTimeline("network").fit(rows, validation=rows, seed=0)
    step = simulated(rows.networks[7], ADAM, CARD.device)
    value, low, high = predictor.of_simulated(step, like_rows=True)
    other = predictor.of_simulated(step, like_rows=False)
    assert other[0] == value
    assert other[1] < low <= value <= high < other[2]
