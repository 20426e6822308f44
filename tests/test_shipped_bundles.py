"""The shipped bundles: found by any name of a device, small, with marked estimates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import resperf
from resperf.bundle import Bundle
from resperf.devices import add_device, devices
from resperf.errors import ResperfError
from resperf.layers import Activation, Conv, Dense, Pool
from resperf.layers.quantized_conv import QuantizedConv
from resperf.measurement import layer_and_optimizer
from resperf.network import Network, read_network
from resperf.platform import CpuFacts
from resperf.prediction import predict_everywhere, predict_layers, predict_network
from resperf.prediction.choice import Query, choose
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
    bundle = choose(Query(name)).bundle
    assert bundle.framework == "tensorflow"
    assert bundle.size_bytes <= MOST_BYTES


@pytest.mark.parametrize("device", DEVICES)
def test_a_shipped_bundle_says_what_it_learnt_and_what_it_estimates(device: str) -> None:
    bundle = choose(Query(device)).bundle
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
    bundle = choose(Query(device)).bundle
    network = ROOT / "models" / "networks" / "vgg16.onnx"
    totals = []
    for batch in (1, 8, 32):
        prediction = predict_network(read_network(network, batch=batch), bundle, strict=True)
        totals.append(prediction.total_ms)
        operations = 2 * sum(layer.macs for layer in prediction.layers)
        peak_ms = operations / devices()[device].peaks_flops_per_s["fp32"] * 1e3
        assert (prediction.complete, prediction.overheads.overhead_ms) == (True, 0)
        assert prediction.lower_bound_ms < peak_ms < prediction.total_ms < 10 * peak_ms + 10
        assert 0 < prediction.origins["estimated_ms"] < 0.2 * prediction.total_ms
        assert not any(layer.below_bound for layer in prediction.layers)
    assert totals == sorted(totals)


def test_predictions_say_which_parts_are_estimated() -> None:
    bundle = choose(Query("1080ti")).bundle
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
                [CONV, CONV, pool, relu], choose(Query(device)).bundle, ["", "adam", "", ""]
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
    found = predict_layers(layers, choose(Query(device)).bundle, optimizers)
    assert [each.key for each in found] == list(golden)
    assert [[each.execution_ms, each.low_ms, each.high_ms] for each in found] == [
        pytest.approx(values, rel=1e-4) for values in golden.values()
    ]


def test_a_type_that_no_row_of_a_card_has_is_priced_by_the_data_sheet() -> None:
    bundle = choose(Query("v100")).bundle
    plain = Dense(batch=64, features_in=4095, features_out=4095)
    half, tiny = plain.replace(dtype="float16"), Dense(batch=1, features_in=32, features_out=32)
    layers = [half, plain, tiny.replace(dtype="float16"), tiny, half]
    found, measured, small, of_float32, step = predict_layers(layers, bundle, [*[""] * 4, "adam"])
    # 2 GFLOP take 0.14 ms at 15.7 TFLOP/s; halves need 34 MB of weights in 0.038 ms.
    sheet_ms = [1.4 * half.moved_bytes / 900e6, 1.6 * plain.flops / 15.7e9]
    ratio = (sheet_ms[0] + 0.005) / (sheet_ms[1] + 0.005)
    assert found.execution_ms == pytest.approx(ratio * measured.execution_ms)
    assert found.low_ms < found.execution_ms < found.high_ms
    assert (found.estimated, measured.estimated) == (True, False)
    assert "dtype=float16 not seen in training" in found.reason
    # What the host adds to a small layer does not depend on the type.
    assert small.execution_ms == pytest.approx(of_float32.execution_ms, rel=0.01)
    # What a step takes beside its passes is not known from a data sheet.
    assert math.isnan(step.execution_ms)


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
def test_golden_layers_and_totals_of_networks_are_what_they_were(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    if folder.name == "gpus-tensorrt":
        request.getfixturevalue("tensorrt_rtx")
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
    found = choose(Query("cpu")).bundle
    assert found.path == folder
    assert found.framework == "onnxruntime"
    assert found.size_bytes <= MOST_BYTES_OF_A_KIND * len(found.kinds)
    network = read_network(ROOT / "models" / "networks" / "resnet50.onnx", batch=1)
    prediction = predict_network(network, found, strict=True)
    assert 0 < prediction.low_ms < prediction.total_ms < prediction.high_ms


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {"framework": "onnxruntime"}), ("v100", {"framework": "tensorflow"}),
        ("k80", {"bundle": "k80-tensorflow"}), ("i9-10940x", {"compiled": True}),
    ],
)  # fmt: skip
def test_training_steps_are_refused_where_none_were_measured(
    device: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ResperfError, match=r"training steps.*leave out --train"):
        resperf.predict("lenet5", device=device, training=True, **options)
    with pytest.raises(ResperfError, match="training steps"):
        resperf.predict_many(["lenet5"], device=device, training=True, **options)


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("2080ti", {"framework": "torch"}), ("p1000", {}), ("a100", {}), ("rtx3090", {}),
        ("mi210", {"precision": "amp"}),
        ("rtx4090", {"precision": "amp"}), ("t4", {"precision": "amp"}), ("1080ti", {}),
    ],
)  # fmt: skip
def test_steps_that_were_not_measured_are_added_up(device: str, options: dict[str, Any]) -> None:
    run = resperf.predict("vgg16", device=device, batch=32, **{"framework": "torch", **options})
    step = resperf.predict("vgg16", device=device, batch=32, training=True, **options)
    assert step.rests_on == "operators of runs"
    assert any("no training steps were measured" in note for note in step.remarks.notes)
    assert step.parts.quantities[0].mode.value == "training"
    assert 2 < step.time_ms / run.device_ms < 4
    question = {"devices": [1, 2], "device": device, "batch": [32], "training": True, **options}
    if device != "a100":  # whose connections are known
        with pytest.raises(ResperfError, match="say what connects them: --train --cluster"):
            resperf.predict_scaling("vgg16", **question)
    one, two = resperf.predict_scaling("vgg16", cluster="t4-g4dn", **question).series[32]
    assert step.time_ms == one.time_ms < two.time_ms < two.high_ms
    adam = resperf.predict_scaling("vgg16", cluster="t4-g4dn", optimizer="adam", **question)
    assert adam.series[32][0].time_ms > one.time_ms
    assert any("update by adam" in note for note in adam.notes)


@pytest.mark.parametrize("device", ["2080ti", "h100", "a100-40gb", "rtx3090"])
def test_the_memory_of_a_step_stands_beside_its_time(device: str) -> None:
    prediction = resperf.predict("resnet18", device=device, batch=32, training=True)
    sizes = {quantity.name: quantity for quantity in prediction.parts.quantities}
    process = sizes["process_memory_bytes"]
    allocated, reserved = (
        sizes[name].value for name in ("peak_memory_bytes", "peak_reserved_bytes")
    )
    assert 4 * 2 * 11_689_512 < allocated <= reserved < process.low < process.value < process.high
    is_other = any("a100-40gb in fp32" in note for note in prediction.remarks.notes)
    assert is_other == (device != "a100-40gb")
    adam = resperf.predict(
        "resnet18", device=device, batch=32, training=True, optimizer="adam"
    ).parts.quantity("peak_memory_bytes")
    assert adam is not None
    assert adam.value - allocated == pytest.approx(8 * 11_689_512, rel=0.02)


@pytest.mark.parametrize(
    ("name", "precision", "lacks"),
    [("vgg16", None, True), ("vgg16", "fp16", False), ("lenet5", "tf32", False)],
)
def test_what_cudnn_takes_for_convolutions_is_said_to_lack(
    name: str, precision: str | None, lacks: bool
) -> None:
    found = resperf.predict(name, device="h200", framework="torch", precision=precision)
    assert any("lacks what cuDNN takes" in note for note in found.remarks.notes) == lacks


@pytest.mark.parametrize(("device", "by_layers"), [("h200", True), ("t4", False), ("a40", False)])
def test_mixed_precision_is_answered_by_halves_where_most_kinds_were_measured_in_them(
    device: str, by_layers: bool
) -> None:
    found = resperf.predict("resnet18", device=device, framework="torch", precision="amp")
    assert (", amp, " in str(found), bool(found.layers)) == (True, by_layers)


def test_a_step_that_does_not_fit_into_memory_says_so() -> None:
    options = {"device": "a100-40gb", "training": True}
    assert not resperf.predict("resnet50", batch=64, **options).remarks.too_large
    large = resperf.predict("resnet50", batch=1024, **options)
    assert "does not fit into 40.0 GiB of a100-40gb" in large.remarks.too_large
    with pytest.raises(ResperfError, match="'lion' is not known"):
        resperf.predict("resnet50", optimizer="lion", **options)


def test_of_all_devices_those_with_training_steps_answer_with_a_step() -> None:
    steps, failures = predict_everywhere("lenet5", precision="amp", training=True)
    rests_on = {step.subject.device: step.rests_on for step in steps}
    assert [name for name, what in rests_on.items() if what != "operators of runs"] == ["rtx3090"]
    assert {"rtx4090", "t4", "b200", "mi210"} <= {*rests_on}
    assert {step.asked.name for step in steps} == {"step_ms"}
    reasons = {failure.device: failure.error for failure in failures}
    assert reasons["cpu"] == "no times with training steps, precision amp"
    assert "no fp16, which precision amp needs" in reasons["k80"]
    none, _ = predict_everywhere("lenet5", method="nothing")
    assert none == []


def typed_network(tmp_path: Path, dtype: int, op: str = "MatMul", size: int = 512) -> Path:
    """Write two products or two convolutions in one type of values."""
    conv = op == "Conv"
    shapes = [[2, 16, 28, 28], [16, 16, 3, 3]] if conv else [[size, size], [size, size]]
    attributes = {"pads": [1, 1, 1, 1]} if conv else {}
    weight = TensorProto(name="w", data_type=dtype, dims=shapes[1])
    weight.raw_data = bytes(helper.tensor_dtype_to_np_dtype(dtype).itemsize * math.prod(shapes[1]))
    ends = [helper.make_tensor_value_info(name, dtype, shapes[0]) for name in ("x", "y")]
    nodes = [helper.make_node(op, [first, "w"], [last], name=last, **attributes)
             for first, last in (("x", "mid"), ("mid", "y"))]  # fmt: skip
    graph = helper.make_graph(nodes, "typed", ends[:1], ends[1:], [weight])
    path = tmp_path / f"{op}-{dtype}.onnx"
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    return path


def test_doubles_are_priced_by_their_peak_also_under_autocast(tmp_path: Path) -> None:
    for op in ("MatMul", "Conv"):
        plain, path = (
            typed_network(tmp_path, dtype, op, 4096)
            for dtype in (TensorProto.FLOAT, TensorProto.DOUBLE)
        )
        of = (("rtx4090", "torch"), ("v100", "tensorflow"), ("t4", "tensorflow"))
        for device, framework in of:
            options: dict[str, Any] = {"device": device, "framework": framework}
            found = resperf.predict(path, **options)
            layers = [layer for layer in found.layers if layer.macs]
            flops = 2 * sum(layer.macs for layer in layers)
            peak_ms = flops / devices()[device].peaks_flops_per_s["fp64"] * 1e3
            assert sum(layer.execution_ms for layer in layers) > peak_ms
            # Fast convolutions save at most the pixels of a window.
            least_ms = peak_ms / (9 if op == "Conv" else 1)
            assert sum(layer.lower_bound_ms for layer in layers) >= 0.999 * least_ms
            in_float32 = resperf.predict(plain, **options).total_ms
            assert op == "Conv" or found.total_ms > in_float32
            assert found.subject.precision == found.to_json()["precision"] == "fp64"
    found, under_amp = (
        resperf.predict(path, device="rtx4090", precision=precision) for precision in (None, "amp")
    )
    assert under_amp.total_ms == found.total_ms
    assert under_amp.subject.precision == "fp64"
    with pytest.raises(ResperfError, match="values of float64, which --precision fp16 does not"):
        resperf.predict(path, device="rtx4090", precision="fp16")


def test_a_type_without_a_peak_has_no_time(tmp_path: Path, no_own_cards: None) -> None:
    whole = typed_network(tmp_path, TensorProto.INT64)
    found = resperf.predict(whole, device="h100")
    assert [skipped.reason for skipped in found.skipped] == ["h100 has no peak of int64"] * 2
    # ONNX Runtime runs them on a CPU, one value at a time.
    on_cpu, in_float32 = (
        resperf.predict(path, device="cpu")
        for path in (whole, typed_network(tmp_path, TensorProto.FLOAT))
    )
    assert on_cpu.total_ms > 10 * in_float32.total_ms
    add_device(replace(devices()["v100"], device="mine", name="Mine", aliases=(),
                       peaks_flops_per_s={"fp32": 1.57e13}))  # fmt: skip
    for dtype, peak in (("DOUBLE", "fp64"), ("FLOAT16", "fp16"), ("BFLOAT16", "bf16")):
        path = typed_network(tmp_path, getattr(TensorProto, dtype))
        with pytest.raises(ResperfError, match=f"mine .Mine. has no {peak}"):
            resperf.predict(path, device="mine")
    (layer,) = predict_layers([Dense(batch=8, features_in=64, features_out=64, dtype="bfloat16")],
                              choose(Query("t4")).bundle)  # fmt: skip
    assert (math.isnan(layer.execution_ms), layer.reason) == (True, "t4 has no peak of bfloat16")


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("device", ["h100", "a100", "rtx4090", "l4"])
def test_a_files_own_type_is_answered_as_that_precision(
    device: str, dtype: str, tmp_path: Path
) -> None:
    path = typed_network(tmp_path, getattr(TensorProto, dtype))
    precision = {"FLOAT16": "fp16", "BFLOAT16": "bf16"}[dtype]
    own, asked = (
        resperf.predict(path, device=device, precision=word) for word in (None, precision)
    )
    assert own == asked
    assert own.subject.precision == precision
    (many,) = resperf.predict_many([path], device=device)
    assert many == own
    everywhere, failures = predict_everywhere(path)
    assert own.total_ms in [each.total_ms for each in everywhere if each.subject.device == device]
    assert f"no {precision}" in {x.device: x.error for x in failures}["k80"]
    assert {each.subject.precision for each in everywhere} == {precision}


def test_a_named_bundle_refuses_a_type_that_its_card_lacks(tmp_path: Path) -> None:
    path = typed_network(tmp_path, TensorProto.FLOAT16)
    with pytest.raises(ResperfError, match=r"k80 .Tesla K80. has no fp16"):
        resperf.predict(path, bundle="k80-tensorflow")
    found = resperf.predict(path, bundle="v100-tensorflow")
    assert (found.subject.framework, found.subject.precision) == ("tensorflow", "fp16")


def test_a_half_file_on_a_processor_says_its_type(tmp_path: Path) -> None:
    path = typed_network(tmp_path, TensorProto.FLOAT16)
    found = resperf.predict(path, device="cpu")
    assert found.subject.precision == "fp16"
    assert resperf.predict(path, device="cpu", precision="fp16").total_ms == found.total_ms


def test_single_half_layers_are_as_short_as_their_kernels() -> None:
    """No row is of so little work: the shortest read 13 MB of weights in 11 us and more."""
    small = Dense(batch=16, features_in=256, features_out=256, bias=False)
    for device in ("h100", "a100", "a40"):
        bundle = choose(Query(device)).bundle
        half, brain, plain = predict_layers(
            [small.replace(dtype=dtype) for dtype in ("float16", "bfloat16", "float32")], bundle
        )
        assert 0.003 < half.execution_ms < 0.008
        assert 0.002 < brain.execution_ms < 0.008
        assert half.in_range
        assert brain.high_ms / brain.low_ms < 10
        # Those of float32 contain the host's dispatch.
        assert plain.execution_ms > 0.03


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


@pytest.mark.parametrize(
    ("op", "weights", "attributes"),
    [
        ("ReduceMax", {}, {"axes": [1]}),
        ("ReduceL1", {}, {"axes": [1]}),
        ("CumSum", {"a": np.array(1)}, {}),
        ("ScatterND", {"i": np.zeros((1, 2), int), "u": np.ones(1, "f")}, {"reduction": "add"}),
    ],
)
def test_kernels_of_values_whose_number_is_not_known_are_left_out(
    network_file: Callable[..., Path], op: str, weights: dict[str, Any], attributes: dict[str, Any]
) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node(op, ["f", *weights], ["y"], "one", **attributes),
    ]
    path = network_file("n.onnx", nodes, {"x": [4, 4]}, {"y": None}, weights)
    assert "one" in [operator.name for operator in resperf.predict(path, device="cpu").skipped]


def test_slow_kernels_are_estimated_instead_of_what_layers_of_their_kind_take(
    network_file: Callable[..., Path],
) -> None:
    scales = {"s": np.ones(512, np.float32), "z": np.zeros(512, np.uint8)}
    times_ms, estimated = [], []
    for axis in (0, 1):
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
        path = network_file("n.onnx", [node], {"x": [512, 512]}, {"y": None}, scales)
        [layer] = resperf.predict(path, device="cpu").layers
        times_ms.append(layer.execution_ms)
        estimated.append(layer.from_limits)
    # Each value by itself; 100 to 200 times as long in ONNX Runtime.
    assert estimated == [False, True]
    assert times_ms[1] > 30 * times_ms[0]


@pytest.mark.parametrize("bundle", ["cpu-onnxruntime", "cpu-onnxruntime-xeon"])
def test_random_values_and_quotients_of_integers_are_drawn_and_divided_one_by_one(
    network_file: Callable[..., Path], bundle: str
) -> None:
    def total_ms(op: str, inputs: str, dtype: int = TensorProto.FLOAT) -> float:
        node = helper.make_node(op, list(inputs), ["y"])
        shapes = {name: [512, 512] for name in inputs}
        path = network_file("n.onnx", [node], shapes, {"y": [512, 512]}, dtype=dtype)
        return resperf.predict(path, device=bundle).total_ms

    # 20 and 11 times as long in ONNX Runtime on an EPYC.
    assert 10 < total_ms("Bernoulli", "x") / total_ms("Div", "xd") < 40
    assert 5 < total_ms("Div", "xd", TensorProto.INT64) / total_ms("Div", "xd") < 22


def test_the_largest_batch_that_fits_into_memory(cli) -> None:
    words = ["predict", "resnet18", "--device", "t4", "--train"]
    largest = cli.document(*words, "--batch", "max")
    size = largest["batch"]
    assert largest["quantities"]["process_memory_bytes"]["value"] <= 16 * 2**30
    assert cli.document(*words, "--batch", str(size))["too_large"] == ""
    assert (
        "does not fit into 16.0 GiB" in cli.document(*words, "--batch", str(size + 1))["too_large"]
    )
    text = cli.text(*words, "--batch", "max")
    assert text.startswith(f"within the device's memory: batch {size} at most, ")
    # More state of the optimizer leaves less room.
    of_vgg = ["predict", "vgg16", "--device", "t4", "--train", "--batch", "max"]
    sgd, adam = (cli.document(*of_vgg, "--optimizer", name)["batch"] for name in ("sgd", "adam"))
    assert adam < sgd
    for device, reason in (("cpu", "memory of cpu is not known"),
                           ("mi210", "only of PyTorch's on NVIDIA's cards")):  # fmt: skip
        words[3] = device
        assert reason in cli.error(*words[: 4 if device == "cpu" else 5], "--batch", "max")
    many = ("--device", "all"), ("--device", "t4", "--devices", "2")
    for more in (*many, ("--device", "t4", "--within", "9ms"), ("--device", "t4", "--batch", "8")):
        cli.error("predict", "resnet18", *more, "--batch", "max")
