"""The shipped bundles: found by any name of a device, small, with marked estimates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from resperf.bundle import Bundle, find_bundle
from resperf.devices import devices
from resperf.layers import Activation, Conv, Pool
from resperf.layers.quantized_conv import QuantizedConv
from resperf.measurement import layer_and_optimizer
from resperf.network import Network, read_network
from resperf.platform_facts import CpuFacts
from resperf.prediction import predict_layers, predict_network
from resperf.report.network import network_text
from resperf.settings import OPTIMIZERS

ROOT = Path(__file__).parents[1]
DEVICES = ("1080ti", "k80", "p100", "v100")
CPU_FOLDERS = sorted((ROOT / "models" / "bundles").glob("cpu-*"))
ALL_FOLDERS = sorted(path.parent for path in (ROOT / "models" / "bundles").glob("*/bundle.json"))
TOTALS_MS = json.loads((ROOT / "tests" / "golden" / "totals.json").read_text())
"""Bundle -> network and batch -> predicted total; `tests/golden/make_totals.py` writes it."""
MOST_BYTES = 5e6
MOST_BYTES_OF_A_KIND = 0.1e6
CONV = Conv(
    batch=16, channels_in=64, height=56, width=56, kernel_height=3, kernel_width=3, pad_top=1,
    pad_left=1, pad_bottom=1, pad_right=1, channels_out=64, activation="relu", layout="nhwc",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*DEVICES, "gtx1080ti", "GeForce GTX 1080 Ti", "Tesla V100", "NVIDIA Tesla K80"]
)
def test_a_device_is_found_by_its_names(name: str) -> None:
    bundle = find_bundle(name)
    assert bundle.framework == "tensorflow"
    assert bundle.size_bytes <= MOST_BYTES


@pytest.mark.parametrize("device", DEVICES)
def test_a_shipped_bundle_says_what_it_learnt_and_what_it_estimates(device: str) -> None:
    bundle = find_bundle(device)
    learnt = {"conv", "dense", "conv_step", "dense_step"}
    assert set(bundle.kinds) == {*learnt, "pool", "activation"}
    for kind in learnt:
        assert bundle.errors["test"][kind][bundle.own_quantity(kind)]["rows"] > 500
        assert bundle.errors["test"][kind][bundle.own_quantity(kind)]["mape"] < 0.2
    assert {setting.optimizer for setting in bundle.settings} == {"", *OPTIMIZERS}
    assert "arXiv" in bundle.provenance["datasets"][0]["source"]["citation"]
    alone = bundle.estimates["activation execution"]
    assert alone["source"]["device"] == device
    added, own = (alone[f"errors_{name}"]["conv"]["mape"] for name in ("added", "learnt"))
    assert added < own + 0.03
    others = {name: step for name, step in bundle.estimates.items() if step is not alone}
    assert set(others) == {"pool execution", "preprocess", "postprocess", "reshape_ms"}
    for step in others.values():
        assert step["how"]
        assert ("scaled" in step) == (device != "1080ti")
        assert step.get("fitted", step)["source"]["device"] == "1080ti"
    pool = bundle.estimates["pool execution"]
    assert set(pool.get("fitted", pool)["scaled_to"]) == {"p5000", "p1000"}


@pytest.mark.parametrize("device", DEVICES)
def test_vgg16_is_predicted_as_a_whole_and_above_what_the_device_could_do(device: str) -> None:
    bundle = find_bundle(device)
    network = ROOT / "models" / "networks" / "vgg16.onnx"
    totals = []
    for batch in (1, 8, 32):
        prediction = predict_network(read_network(network, batch=batch), bundle, strict=True)
        totals.append(prediction.total_ms)
        operations = 2 * sum(layer.macs for layer in prediction.layers)
        peak_ms = operations / devices()[device].peak_flops_per_s * 1e3
        assert (prediction.complete, prediction.overheads.overhead_ms) == (True, 0)
        assert prediction.lower_bound_ms < peak_ms < prediction.total_ms < 10 * peak_ms + 10
        assert 0 < prediction.origins["estimated_ms"] < 0.2 * prediction.total_ms
        assert not any(layer.below_bound for layer in prediction.layers)
    assert totals == sorted(totals)


def test_predictions_say_which_parts_are_estimated() -> None:
    bundle = find_bundle("1080ti")
    network = ROOT / "models" / "networks" / "vgg16.onnx"
    prediction = predict_network(read_network(network, batch=8), bundle)
    assert {layer.kind for layer in prediction.layers if layer.estimated} == {"pool"}
    assert {layer.kind for layer in prediction.layers if not layer.estimated} == {"conv", "dense"}
    pools_ms = sum(layer.execution_ms for layer in prediction.layers if layer.kind == "pool")
    outer_ms = prediction.phases.preprocess_ms + prediction.phases.postprocess_ms
    assert prediction.overheads.reshapes_estimated
    assert prediction.overheads.reshapes_ms == bundle.costs["reshape_ms"] > 0
    assert prediction.origins["estimated_ms"] == pytest.approx(
        pools_ms + outer_ms + prediction.overheads.reshapes_ms
    )
    assert f"reshapes {prediction.overheads.reshapes_ms:.4f}, estimated" in network_text(prediction)
    document = prediction.to_json()
    assert {layer["kind"] for layer in document["layers"] if layer["estimated"]} == {"pool"}


def test_a_faster_device_is_predicted_to_be_faster() -> None:
    relu = Activation(batch=16, values=64 * 112 * 112, activation="relu")
    pool = Pool(batch=16, channels_in=64, height=112, width=112, kernel_height=2, kernel_width=2,
                stride_height=2, stride_width=2, layout="nhwc")  # fmt: skip
    times_ms = {
        device: [
            each.execution_ms
            for each in predict_layers(
                [CONV, CONV, pool, relu], find_bundle(device), ["", "adam", "", ""]
            )
        ]
        for device in DEVICES
    }
    for place in range(4):
        assert times_ms["v100"][place] < times_ms["1080ti"][place] < times_ms["k80"][place]
    for conv_ms, step_ms, *_ in times_ms.values():
        assert step_ms > conv_ms


@pytest.mark.parametrize("device", DEVICES)
def test_training_steps_are_predicted_as_when_the_bundles_were_built(device: str) -> None:
    """In and out of range (tests/golden/steps.json)."""
    golden = json.loads((ROOT / "tests" / "golden" / "steps.json").read_text())[device]
    layers, optimizers = zip(*map(layer_and_optimizer, golden), strict=True)
    found = predict_layers(layers, find_bundle(device), optimizers)
    assert [each.key for each in found] == list(golden)
    assert [[each.execution_ms, each.low_ms, each.high_ms] for each in found] == [
        pytest.approx(values, rel=1e-4) for values in golden.values()
    ]


def test_the_command_line_knows_the_devices(cli) -> None:
    listed = {entry["device"] for entry in cli.json("devices")}
    assert set(DEVICES) <= listed
    network = str(ROOT / "models" / "networks" / "vgg16.onnx")
    documents = cli.json("predict", network, "--device", "1080ti", "--batch", "1", "8")
    assert [each["batch"] for each in documents] == [1, 8]
    assert documents[0]["estimated_phases"] == ["preprocess", "postprocess"]
    assert "(estimated)" in cli.text("predict", network, "--device", "1080ti")


def test_every_shipped_bundle_has_its_totals() -> None:
    assert list(TOTALS_MS) == [folder.name for folder in ALL_FOLDERS]


@pytest.mark.parametrize("folder", ALL_FOLDERS, ids=lambda folder: folder.name)
def test_golden_layers_and_totals_of_networks_are_what_they_were(folder: Path) -> None:
    bundle = Bundle.load(folder)
    for part, entry in ((own, each) for own in bundle.parts for each in golden_of(own)):
        layer, optimizer = layer_and_optimizer(entry["key"])
        for name, expected in entry["values"].items():
            chosen_part = part
            if part.many_settings:
                places = entry.get("setting", 0), entry.get("platform", 0)
                chosen_part = part.for_device(part.platforms[places[1]], part.settings[places[0]])
            [found_ms] = chosen_part.predict([layer], name, [optimizer]).ms
            assert found_ms == pytest.approx(expected, rel=1e-3, abs=1e-6)
    predictions = {
        name: predict_network(network_of(name), bundle) for name in TOTALS_MS[folder.name]
    }
    totals_ms = {name: each.total_ms for name, each in predictions.items()}
    assert not any(each.skipped for each in predictions.values() if folder not in CPU_FOLDERS)
    assert len(totals_ms) >= 5
    assert totals_ms == pytest.approx(TOTALS_MS[folder.name], rel=1e-3)


def test_the_version_that_was_asked_is_noted_beside_the_one_measured() -> None:
    shipped = Bundle.load(ROOT / "models" / "bundles" / "cpu-onnxruntime")
    bundle = shipped.for_device(
        shipped.platform, replace(shipped.setting, framework_version="1.0.0")
    )
    network = read_network(ROOT / "models" / "networks" / "lenet5.onnx", batch=1)
    prediction = predict_network(network, bundle)
    assert not any("framework_version" in each for each in prediction.remarks.warnings)
    assert any(
        "1.0.0 there: it may fuse other operators" in each for each in prediction.remarks.warnings
    )
    document = prediction.to_json()
    assert document["framework_version"] == "1.0.0"
    assert document["lowering"].startswith("onnxruntime ")


def golden_of(part: Bundle) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = part.part["golden"]["layers"]
    return found


@cache
def network_of(name: str) -> Network:
    stem, batch = name.split()
    return read_network(ROOT / "models" / "networks" / f"{stem}.onnx", batch=int(batch))


@pytest.mark.parametrize("folder", CPU_FOLDERS, ids=lambda folder: folder.name)
def test_a_processor_gets_the_bundle_measured_on_its_like(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RESPERF_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    machine = Bundle.load(folder).platform
    monkeypatch.setattr("resperf.platform.cpu_facts", lambda: CpuFacts(name=machine.processor))
    monkeypatch.setattr("resperf.platform.instruction_set", lambda: machine.instruction_set)
    monkeypatch.setattr("resperf.platform.usable_cores", lambda: machine.cores)
    found = find_bundle("cpu")
    assert found.path == folder
    assert found.framework == "onnxruntime"
    assert found.size_bytes <= MOST_BYTES_OF_A_KIND * len(found.kinds)
    network = read_network(ROOT / "models" / "networks" / "resnet50.onnx", batch=1)
    prediction = predict_network(network, found, strict=True)
    assert 0 < prediction.low_ms < prediction.total_ms < prediction.high_ms


@pytest.mark.parametrize("groups", [2, 32])
def test_grouped_int8_convolutions_are_out_of_the_range_of_depthwise_ones(groups: int) -> None:
    fields = {"batch": 1, "rank": 2, "channels_in": 256, "height": 28, "width": 28,
              "kernel_height": 3, "kernel_width": 3, "channels_out": 256}  # fmt: skip
    grouped, depthwise = (QuantizedConv(**fields, groups=number) for number in (groups, 256))
    xeon, epyc = (Bundle.load(ROOT / "models" / "bundles" / name)
                  for name in ("cpu-onnxruntime-xeon", "cpu-onnxruntime"))  # fmt: skip
    times = xeon.predict([grouped, depthwise])
    assert list(times.in_range) == [False, True]
    assert times.reason[0] == "grouped_products=True not seen in training"
    assert times.high_ms[0] > 3.9 * times.ms[0] > 15 * times.low_ms[0]
    assert epyc.predict([grouped]).in_range[0]
    # Groups are gathered one by one, which takes nanoseconds per group, window and tap.
    assert times.ms[0] > 2e-6 * groups * 26 * 26 * 9
