"""Published methods that are shipped beside the bundles: they answer where they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import resperf
from resperf.bundle import bundle_folders, find_bundles
from resperf.errors import DeviceError, UnsupportedError
from resperf.prediction import predict_everywhere
from resperf.prediction.choice import Query, choose

CARDS = ("1080ti", "k80", "p100", "v100")
SHIPPED = Path(__file__).parents[2] / "models" / "methods"


@pytest.mark.parametrize("device", ["rtx3090", "4090", "RTX 5090"])
@pytest.mark.parametrize("compiled", [False, True])
def test_convmeter_answers_for_the_cards_of_timm(device: str, compiled: bool) -> None:
    if compiled and device == "rtx3090":
        pytest.skip("timm compiled no network on it")
    prediction = resperf.predict(
        "resnet50", device=device, batch=256, method="convmeter", compiled=compiled
    )
    assert prediction.to_json()["method"] == "convmeter"
    assert prediction.parts.quantity("execution_ms").value == prediction.phases.execution_ms
    assert prediction.low_ms < prediction.total_ms < prediction.high_ms
    assert not prediction.skipped


def test_convmeter_answers_for_training_steps_where_timm_has_them() -> None:
    words = {"device": "rtx3090", "method": "convmeter", "training": True}
    small, large = resperf.predict("resnet50", batch=[64, 128], **words)
    step, twice = (one.parts.quantity("step_ms").value for one in (small, large))
    run = resperf.predict("resnet50", batch=64, device="rtx3090", method="convmeter").total_ms
    assert run < step < twice < 2.5 * step
    with pytest.raises(UnsupportedError, match="no times of rtx4090 with training steps"):
        resperf.predict("resnet50", batch=64, **{**words, "device": "rtx4090"})


@pytest.mark.parametrize("device", CARDS)
def test_gianniti_predicts_a_line_over_operations(device: str) -> None:
    prediction = resperf.predict("vgg11", device=device, batch=8, method="gianniti")
    assert not prediction.skipped
    manifest = json.loads((SHIPPED / "gpus-tensorflow-gianniti" / "bundle.json").read_text())
    (part,) = [part for part in manifest["parts"] if part["device"] == device]
    line = part["predictors"]["conv"]["execution_ms"]
    convolutions = [layer for layer in prediction.layers if layer.kind == "conv"]
    assert len(convolutions) == 8
    for layer in convolutions:
        expected = line["constant_ms"] + line["ms_per_giga"] * 2 * layer.macs / 1e9
        assert layer.execution_ms == pytest.approx(expected)


@pytest.mark.parametrize("device", [*CARDS, "rtx3090", "rtx4090", "rtx5090"])
def test_they_only_answer_where_they_are_asked_for(device: str) -> None:
    assert choose(Query(device)).bundle.method not in ("convmeter", "gianniti")
    parts, _ = find_bundles()
    assert not [part for part in parts if part.path.parent == SHIPPED]
    assert {path.parent for path in bundle_folders(methods=True)} >= {SHIPPED}


@pytest.mark.parametrize("name", ["gpus-torch-convmeter", "gpus-tensorflow-gianniti"])
def test_they_are_bundles_that_a_name_chooses(name: str) -> None:
    device = "v100" if "gianniti" in name else "rtx4090"
    by_name = resperf.predict("vgg11", device=device, batch=64, bundle=name)
    by_method = resperf.predict("vgg11", device=device, batch=64, method=name.split("-")[-1])
    assert by_name.total_ms == by_method.total_ms


@pytest.mark.parametrize("device", ["h100", "cpu"])
def test_without_a_bundle_of_the_method_the_devices_that_have_one_are_named(device: str) -> None:
    with pytest.raises(DeviceError, match="rtx3090, rtx4090, rtx5090 have one"):
        resperf.predict("vgg11", device=device, method="convmeter")
    with pytest.raises(DeviceError, match="1080ti, k80, p100, v100 have one"):
        resperf.predict("vgg11", device=device, method="gianniti")
    with pytest.raises(DeviceError, match=f"no bundle of {device} with tensorflow was trained by"):
        resperf.predict("vgg11", device=device, method="convmeter", framework="tensorflow")


def test_a_method_is_asked_of_all_devices_that_have_it() -> None:
    for method, expected in (("convmeter", {"rtx3090", "rtx4090", "rtx5090"}),
                             ("gianniti", {"1080ti", "k80", "p100", "v100"})):  # fmt: skip
        predictions, _ = predict_everywhere("vgg11", batch=64, method=method)
        assert {prediction.subject.device for prediction in predictions} == expected
        assert {prediction.subject.method for prediction in predictions} == {method}


def test_they_take_kilobytes() -> None:
    sizes = [path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()]
    assert len(sizes) == 4  # coefficients in JSON, neither trees nor rows
    assert max(sizes) < 130_000
