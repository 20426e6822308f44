"""`resperf calibrate` and what `predict` says before and after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from resperf.backends import backend
from resperf.bundle import (
    GROUPS,
    Bundle,
    Calibration,
    LayerTimes,
    Source,
    Speeds,
    machines_of,
    save_calibration,
)
from resperf.layers import Conv, Dense, Pool
from resperf.lowering import lower_layers
from resperf.platform import this_platform
from resperf.timing import SamplingProtocol
from resperf.workflows import calibrate_layers as module

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
LENET = str(NETWORKS / "lenet5.onnx")
SMALL = tuple(
    layer
    for size in (8, 12, 16, 20, 24, 30)
    for layer in (
        Conv(batch=4, channels_in=16, channels_out=32, height=size, width=size, kernel_height=5,
             kernel_width=5, activation="relu"),
        Pool(batch=4, channels_in=16, height=size, width=size, kernel_height=2, kernel_width=2,
             stride_height=2, stride_width=2),
        Dense(batch=4, features_in=16 * size, features_out=100, activation="relu"),
    )
)  # fmt: skip


@pytest.fixture
def elsewhere(bundle, tmp_path) -> Path:
    """Return a bundle of another machine."""
    folder = shutil.copytree(bundle, tmp_path / "theirs")
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["platforms"]["1"]["processor"] = "another"
    (folder / "bundle.json").write_text(json.dumps(manifest))
    return folder


def kept(folder: Path, factor: float, **more) -> Path:
    """Store that all of a bundle's times take so many times as long here."""
    bundle = Bundle.load(folder)
    found = Calibration(
        Source.LAYERS, backend("onnxruntime", threads=1).setting(), this_platform("cpu"),
        others=factor, log_width=0.2, evidence={"networks": [{"network": n} for n in range(21)]},
        times=(LayerTimes("2026-02-03T04:05:06+00:00", {}),), speeds=Speeds(0.001, 1e8, 1e7),
        factor_ci={"products": 0.1, "node": 0.1}, predicted_reference=True, **more,
    )  # fmt: skip
    return save_calibration(bundle, found)


def test_predictions_say_what_it_costs_not_to_calibrate(bundle, elsewhere, cli):
    shown = cli.run("predict", LENET, "--bundle", elsewhere)
    [line] = shown.err.splitlines()
    assert line.startswith("resperf: Using timings of another, ")
    assert "`resperf calibrate` (1 min)" in line
    assert cli.document("predict", LENET, "--bundle", elsewhere)["calibrated_by"] is None
    # A bundle of this machine needs nothing.
    assert cli.run("predict", LENET, "--bundle", bundle).err == ""


def test_a_calibration_is_used_and_named_from_then_on_until_it_is_forgotten(elsewhere, cli):
    words = ["predict", LENET, "--bundle", str(elsewhere), "--batch", "4"]
    before = cli.document(*words)
    path = kept(elsewhere, 2.0)
    after = cli.document(*words)
    assert cli.run(*words).err == ""
    for one, other in zip(before["layers"], after["layers"], strict=True):
        assert other["execution_ms"] == pytest.approx(2 * one["execution_ms"])
        assert other["high_ms"] / other["low_ms"] > one["high_ms"] / one["low_ms"]
    assert after["call_ms"] == pytest.approx(2 * before["call_ms"])
    assert after["calibrated_by"]["factors"] == {"products": 2.0, "node": 2.0}
    assert after["calibrated_by"]["layers"] == 21
    assert "(layers measured on another, " in after["machine"]
    assert any("scaled by 21 calibration layers here" in each for each in after["warnings"])
    text = cli.text(*words)
    by = "by 21 calibration layers on 2026-02-03: products 2.00 (within a"
    assert f"calibrated for this machine {by}" in text
    layer = ["predict-layer", "dense", "batch=4", "features_in=100", "features_out=50"]
    calibrated_ms = cli.json(*layer, "--bundle", elsewhere)[0]["execution_ms"]
    found = cli.json("calibrate", elsewhere, "--forget")
    assert (found["path"], found["forgotten"]) == (str(path), True)
    assert cli.json(*layer, "--bundle", elsewhere)[0]["execution_ms"] == pytest.approx(
        calibrated_ms / 2
    )
    assert cli.document(*words) == before
    assert "was not calibrated" in cli.text("calibrate", elsewhere, "--forget")


def test_disturbances_are_said_in_every_prediction(elsewhere, cli):
    kept(elsewhere, 1.1, remarks=("the machine changed its speed",))
    assert "; the machine changed its speed" in cli.text("predict", LENET, "--bundle", elsewhere)


def test_a_calibration_is_of_one_bundle_and_one_machine(bundle, elsewhere, cli, monkeypatch):
    path = kept(elsewhere, 2.0)
    assert cli.document("predict", LENET, "--bundle", bundle)["calibrated_by"] is None
    with monkeypatch.context() as patched:
        patched.setattr("resperf.platform._processor", lambda: "a third one")
        assert cli.document("predict", LENET, "--bundle", elsewhere)["calibrated_by"] is None
    path.write_text("{}")
    error = cli.error("predict", LENET, "--bundle", elsewhere)
    assert "no valid calibration" in error
    assert "resperf calibrate --forget" in error


def test_a_minute_of_onnx_runtime_scales_a_bundle(elsewhere, cli, monkeypatch):
    """Real layers, fewer and shorter ones than in a minute."""
    monkeypatch.setattr(module, "CALIBRATION_LAYERS", SMALL)
    monkeypatch.setattr(module, "TURNS", 1)
    monkeypatch.setattr(module, "SECONDS", 300.0)
    monkeypatch.setattr(module, "MOST_BUSY", 1.0)  # tests run beside each other
    monkeypatch.setattr(
        module, "_QUICK", SamplingProtocol(min_time_s=0.0, budget_s=0.02, warmup_s=0.01)
    )
    found = cli.json("calibrate", elsewhere, "--seconds", "300")  # ends before: one short turn
    assert 10 <= found["layers"] <= len(SMALL)
    assert found["predicted_reference"]
    assert set(found["factor_ci"]) == set(GROUPS)
    assert all(factor > 0 for factor in found["factors"].values())
    document = cli.document("predict", LENET, "--bundle", elsewhere)
    assert document["calibrated_by"]["at"] == found["at"]
    assert f"by {found['layers']} calibration layers on" in cli.text(
        "predict", LENET, "--bundle", elsewhere
    )


@pytest.fixture
def half_as_fast(monkeypatch) -> list[str]:
    """Let layers take twice as long here as on any bundle's machine; return the remarks on that."""
    monkeypatch.setattr(module, "CALIBRATION_LAYERS", SMALL)
    remarks: list[str] = []
    asked: list[str] = []

    def measured(bundle, **_more) -> Calibration:
        setting, platform = backend("onnxruntime", threads=1).setting(), this_platform("cpu")
        lowered = lower_layers(SMALL, bundle.setting, bundle.platform)
        there_ms, _ = module.times_there(bundle, lowered)
        here = lower_layers(SMALL, setting, platform)
        times_ms = {
            mine.key: 2 * there_ms[theirs]
            for mine, theirs in zip(here, lowered, strict=True)
            if theirs in there_ms
        }
        times = LayerTimes(f"2026-01-01T00:{len(asked):02}:00+00:00", times_ms)
        asked.append(times.at)
        return Calibration(Source.LAYERS, setting, platform, remarks=tuple(remarks), times=(times,))

    monkeypatch.setattr(module, "measure_layers", measured)
    return remarks


def test_a_bundle_begins_with_what_a_machine_like_this_one_takes(
    bundle, elsewhere, half_as_fast, tmp_path, cli, monkeypatch
):
    made = tmp_path / "made"
    words = ["predict", LENET, "--batch", "4", "--bundle"]
    before = cli.document(*words, elsewhere)
    assert "on similar machines begin with this" in cli.text("calibrate", elsewhere, "-o", made)
    assert cli.document(*words, elsewhere) == before
    surer = cli.document(*words, made)
    assert not surer["calibrated_by"]["from_bundle"]
    cli.text("calibrate", made, "--forget")
    after = cli.document(*words, made)
    assert after["total_ms"] == pytest.approx(2 * before["total_ms"], rel=0.05)
    assert after["calibrated_by"]["from_bundle"]
    assert "scaled as on " in after["advice"]
    assert "`resperf calibrate` (1 min)" in after["advice"]
    assert "calibrated for a machine more like this one than the bundle's" in cli.text(*words, made)
    # Where the bundle's own machine is more like this one, its times are not scaled.
    with monkeypatch.context() as patched:
        patched.setattr("resperf.platform._processor", lambda: "another")
        assert cli.document(*words, made)["calibrated_by"] is None
    # What was measured on this machine itself comes first, and is surer.
    found = cli.json("calibrate", made)
    assert found["runs"] == [found["at"]]
    own = cli.document(*words, made)
    assert not own["calibrated_by"]["from_bundle"]
    assert own["advice"] == ""
    assert own["calibrated_by"]["factor_ci"] == pytest.approx(found["factor_ci"])
    assert after["calibrated_by"]["factor_ci"] == pytest.approx(found["factor_ci"])
    assert after["high_ms"] / after["total_ms"] > 1.02 * own["high_ms"] / own["total_ms"]
    assert own["high_ms"] == pytest.approx(surer["high_ms"])
    # A further time is joined with the first.
    cli.text("calibrate", made, "-o", made)
    [machine] = machines_of(Bundle.load(made))
    assert len(machine.times) == 2
    cli.text("calibrate", made, "--forget")
    assert "medians of" not in cli.text("calibrate", made)
    assert f"medians of 2 of 2 runs count: {found['at'][:10]}" in cli.text("calibrate", made)
    half_as_fast.append("the machine changed its speed")
    assert "run this again on a quiet machine" in cli.error("calibrate", made, "-o", made)
    notes = cli.run("calibrate", made).err.splitlines()
    assert notes[0] == "note: the machine changed its speed"
    assert "--seconds 300" in notes[1]
    assert cli.run("calibrate", made, "--seconds", "300").err.splitlines() == notes[:1]
    half_as_fast.clear()
    # On the bundle's own machine their times become part of it, to compare with on others.
    own = cli.json("calibrate", bundle, "-o", tmp_path / "own")
    [reference] = Bundle.load(tmp_path / "own").calibrations
    assert reference.times[-1].times_ms == own["reference_times_ms"]
    assert "holds the times of" in cli.text("calibrate", bundle, "-o", tmp_path / "again")


def test_what_layers_cannot_calibrate_is_one_line(bundle, elsewhere, tmp_path, cli):
    published = Path(__file__).parents[2] / "models" / "bundles" / "1080ti-tensorflow"
    assert "resperf does not measure here" in cli.error("calibrate", published)
