"""Measuring a network on the simulated device: every number follows from its formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from onnx import TensorProto
from onnx.helper import make_node

from resperf.backends import backend
from resperf.backends.monitors import Monitor
from resperf.errors import MeasurementError, ResperfError
from resperf.layers import layer_from_key
from resperf.testing.synthetic import CALL_MS, SESSION_MS, SyntheticBackend, closed_form_ms
from resperf.timing import KNOWN_READINGS, SamplingProtocol
from resperf.workflows.demo import light_networks, unknown_share
from resperf.workflows.measure import (
    measure_network,
    reference_monitor,
)

LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
QUICK = SamplingProtocol(budget_s=0.001, min_time_s=0.0, warmup_s=0.0)


def measured(backend: SyntheticBackend, **options):
    with reference_monitor(backend) as monitor:
        return measure_network(
            LENET, backend, monitor=monitor, protocol=QUICK,
            **{"batch": 2, "seconds": 0.01, **options},
        )  # fmt: skip


def test_phases_layers_and_remainder_follow_the_formulas():
    backend = SyntheticBackend(gflops=50, gb_per_s=5)
    result = measured(backend)
    layers = [layer_from_key(layer.key) for layer in result.layers]
    assert [layer.kind for layer in layers] == [
        "conv", "pool", "conv", "pool", "dense", "dense", "dense",
    ]  # fmt: skip
    times_ms = [closed_form_ms(layer, "execution_ms", 50, 5) for layer in layers]
    got_ms = [layer.execution_ms for layer in result.layers]
    assert got_ms == pytest.approx(times_ms, rel=1e-3)
    assert result.layers_ms == pytest.approx(sum(times_ms), rel=1e-3)
    # 2 images of 28 x 28, 10 scores each, 4 bytes a value, 5 GB/s
    assert result.phases.preprocess_ms == pytest.approx(CALL_MS + 2 * 784 * 4 / 5e6, rel=1e-3)
    assert result.phases.postprocess_ms == pytest.approx(CALL_MS + 2 * 10 * 4 / 5e6, rel=1e-3)
    assert result.phases.execution_ms == pytest.approx(SESSION_MS + sum(times_ms), rel=1e-3)
    assert result.call_ms == SESSION_MS
    assert result.remainder_ms == pytest.approx(0.0, abs=1e-4)
    assert result.percentiles_ms["p50"] == pytest.approx(result.total_ms, rel=1e-3)
    assert (result.subject.network, result.subject.batch) == ("lenet5", 2)
    assert result.subject.device == "synthetic"


def test_layers_may_be_left_out():
    result = measured(SyntheticBackend(), layers=False)
    assert result.layers == ()
    assert math.isnan(result.remainder_ms)
    assert result.to_json()["remainder_ms"] is None


def test_values_that_decide_shapes_are_asked_for_and_given_where_they_are_taken(network_file):
    nodes = [
        make_node("Expand", ["x", "size"], ["large"]),
        make_node("Relu", ["large"], ["y"]),
    ]
    inputs = {"x": [1, 1], "size": (TensorProto.INT64, [2])}
    path = network_file("expanded.onnx", nodes, inputs, {"y": None}, {})
    for values, message in ((None, "--value size=N,N"), ({"size": (3, 4)}, "leave out --value")):
        with pytest.raises(ResperfError, match=message):
            measure_network(path, SyntheticBackend(), monitor=None, values=values)


def test_a_layer_that_fails_is_listed_with_its_status():
    result = measured(SyntheticBackend(fail={"unsupported": "features_out=84"}))
    assert len(result.layers) == 6
    [skipped] = result.skipped
    assert skipped.reason == "unsupported: synthetic: unsupported on demand"
    assert result.remainder_ms > 0


def test_equal_layers_are_measured_once_and_progress_is_told():
    told = []
    measured(SyntheticBackend(), progress=lambda *words: told.append(words))
    assert told[0] == (0, 7, "conv")
    assert told[-1] == (7, 7, "done")


def test_the_json_form_is_that_of_a_prediction_with_percentiles():
    document = measured(SyntheticBackend()).to_json()
    assert list(document)[:8] == [
        "network", "device", "framework", "batch", "total_ms", "phases", "layers", "skipped",
    ]  # fmt: skip
    assert set(document["percentiles_ms"]) == {"p50", "p95", "p99"}
    assert all(layer["in_range"] for layer in document["layers"])


def test_few_runs_are_said_to_be_few():
    few = measured(SyntheticBackend(), batch=1, seconds=1e-6, layers=False)
    assert len(few.timed.totals_ms) == 9
    assert any(warning.startswith("only 9 runs") for warning in few.warnings)
    many = measured(SyntheticBackend(), layers=False)
    assert len(many.timed.totals_ms) > 20
    assert not any(warning.startswith("only") for warning in many.warnings)
    assert many.timed.steady_rounds == many.timed.rounds


def test_the_demo_judges_those_light_networks_whose_unknown_operators_move_little():
    from resperf.lowering import lower
    from resperf.network import read_network

    shares = {}
    for path in light_networks():
        if path.stem in ("light_vgg19", "light_squeezenet"):
            network = read_network(path)
            shares[path.stem] = unknown_share(
                network,
                lower(network, SyntheticBackend().setting(), SyntheticBackend().platform()),
                ("conv", "pool", "dense", "activation"),
            )
    assert shares["light_vgg19"] < 0.01  # a softmax over 1000 scores
    assert shares["light_squeezenet"] > 0.01  # eight concatenations


def test_usual_times_of_machine_checks_count_on_their_own_machine_only():
    device = backend("synthetic")
    asked = []

    class Asked(Monitor):
        def start(self, backend, *, usual, networks):
            assert networks
            asked.append(usual)
            return self

    setting, platform = device.setting(), device.platform()
    costs = {"caches_check_ms": 0.1}
    for settings, machine in (
        (setting, replace(platform, device="named")),
        (replace(setting, threads=setting.threads + 1), platform),
    ):
        with reference_monitor(
            device,
            bundle=SimpleNamespace(setting=settings, platform=machine, costs=costs),
            monitor=Asked(),
        ):
            pass
    with reference_monitor(device, monitor=Asked()):
        pass
    assert asked == [{"caches_check_ms": (0.1, KNOWN_READINGS)}, {}, {}]


def test_a_framework_that_cannot_run_the_reference_is_refused():
    device = backend("synthetic", fail={"unsupported": "channels_in=64"})
    refusal = pytest.raises(MeasurementError, match=r"cannot run the reference layer.*on demand")
    with refusal, reference_monitor(device):
        pass
