"""`resperf calibrate`: real networks and bundle; runs take computed times, not the clock's."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from resperf.backends import backend
from resperf.bundle import Bundle, Calibration, LayerTimes, Source, Speeds, machines_of
from resperf.campaign import runner
from resperf.campaign.process import Interrupted, Taken, WorkerDied
from resperf.dataset import read_networks
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.network import read_network
from resperf.platform import Platform
from resperf.prediction import predict_network
from resperf.targets import target
from resperf.workflows import calibrate_networks as module
from resperf.workflows.calibrate_layers import CALIBRATION_LAYERS

SLOWER = 1.2


@pytest.fixture
def networks(perceptron) -> Path:
    for place in range(11):
        perceptron(f"networks/mlp{place}.onnx", 64 + 30 * place, 100, 90 + place, 10)
    return perceptron("networks/unknown.onnx", 64, 10, end="Softmax").parent


@pytest.fixture
def words(bundle, networks, tmp_path) -> list[object]:
    """Calibrate the bundle by the networks at batch 2 into the folder ``made``."""
    return [
        "calibrate", bundle, "--networks", networks, "--batch", "2", "--seconds", "0.5",
        "-o", tmp_path / "made",
    ]  # fmt: skip


@pytest.fixture
def measured(bundle, monkeypatch) -> list[tuple[str, int]]:
    """Let every network take `SLOWER` times its prediction; one is never measured steadily."""
    asked = []
    loaded = Bundle.load(bundle)

    class ByLaw:
        """A measuring process that answers at once."""

        def __init__(self, settings, **_):
            self._settings = settings
            device = backend("onnxruntime", **settings.settings)
            self.setting, self.platform = device.setting(), device.platform()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

        def close(self):
            pass

        def costs(self):
            return {"call_ms": 0.01}

        def measure_network(self, run, repeat, seconds, timeout_s):
            assert (self._settings.settings["threads"], seconds) in ((1, 0.5),)
            assert self._settings.networks
            batch = run.setting.batch
            asked.append((run.path.stem, batch))
            predicted = predict_network(read_network(run.path, batch=batch), loaded)
            total_ms = predicted.total_ms + (SLOWER - 1) * sum(
                layer.execution_ms for layer in predicted.layers
            )
            samples = {"latency_ms": Samples((total_ms,), 1, 0, StopReason.BUDGET)}
            row = Measurement(
                run.network, Status.OK, samples, setting=self.setting, platform=self.platform,
                started_at=float(len(asked)), repeat=repeat,
                flags=("busy",) if run.path.stem == "mlp3" else (),
            )  # fmt: skip
            return Taken(row, None, {})

    monkeypatch.setattr("resperf.campaign.bench.WorkerProcess", ByLaw)
    monkeypatch.setattr("resperf.campaign.runner.WorkerProcess", ByLaw)
    return asked


def test_a_bundle_learns_from_networks_and_predicts_by_it(
    bundle, networks, measured, tmp_path, cli
):
    target = tmp_path / "calibrated"
    words = ["calibrate", str(bundle), "--networks", str(networks), "--batch", "2", "4"]
    words += ["--exclude", str(networks / "mlp0.onnx"), "--seconds", "0.5", "-o", str(target)]
    document = cli.json(*words)
    assert document["factors"] == pytest.approx({"dense": SLOWER}, rel=0.02)
    assert [note.split(":")[0] for note in document["notes"]] == [
        "mlp3 at batch 2", "mlp3 at batch 4", "unknown at batch 2", "unknown at batch 4",
    ]  # fmt: skip
    assert document["notes"][-1].endswith("the bundle has no predictor for its Softmax")
    assert ("mlp0", 2) not in measured
    assert ("mlp1", 4) in measured
    before, after = (
        predict_network(read_network(networks / "mlp0.onnx", batch=8), Bundle.load(path))
        for path in (bundle, target)
    )
    assert after.layers[0].execution_ms == pytest.approx(
        SLOWER * before.layers[0].execution_ms, rel=0.02
    )
    # The bundle that was read is unchanged, and calibrating again starts from isolated times.
    assert Bundle.load(bundle).calibrations == ()
    again = ["calibrate", target, "--networks", networks, "--batch", "2", "--seconds", "0.5"]
    assert "dense" in cli.text(*again)
    [learnt] = Bundle.load(target).calibrations
    assert learnt.factors == pytest.approx({"dense": SLOWER}, rel=0.02)


def test_a_part_of_a_merged_bundle_is_calibrated(bundle, words, measured, tmp_path, cli):
    v100 = Path(__file__).parents[2] / "models" / "bundles" / "v100-tensorflow"
    cli.text("bundle", "merge", v100, bundle, "-o", tmp_path / "both")
    words[1] = tmp_path / "both"
    assert cli.json(*words, "--device", "cpu")["factors"] == pytest.approx(
        {"dense": SLOWER}, rel=0.02
    )
    v100, own = Bundle.load(tmp_path / "made").parts
    assert v100.calibrations == ()
    assert len(own.calibrations) == 1


def test_a_bundle_that_ships_is_calibrated_into_ones_own_folder(
    bundle, networks, measured, home, monkeypatch, cli
):
    shipped = home / "shipped" / "some-name"
    shutil.copytree(bundle, shipped)
    monkeypatch.setattr("resperf.bundle._search._SHIPPED", (home / "shipped",))
    words = ["--networks", str(networks), "--batch", "2", "--seconds", "0.5"]
    made = Path(cli.json("calibrate", "some-name", *words)["path"])
    assert made == home / "bundles" / "cpu-onnxruntime-1threads"
    assert Bundle.load(shipped).calibrations == ()
    # Now it is the device's own bundle, and is calibrated in its folder.
    assert cli.json("calibrate", "cpu", *words)["path"] == str(made)
    # No other bundle is overwritten.
    assert "another bundle than" in cli.error("calibrate", "some-name", *words)
    assert cli.json("calibrate", shipped, *words)["path"] == str(shipped)


def test_what_cannot_be_calibrated_is_one_line(
    bundle, networks, measured, tmp_path, perceptron, cli
):
    assert "no ONNX file at" in cli.error("calibrate", bundle, "--networks", tmp_path / "none")
    few = perceptron("few/only.onnx", 64, 32, 10)
    words = ["calibrate", bundle, "--networks", few, "--seconds", "0.5"]
    assert "1 networks are too few" in cli.error(*words)
    published = Path(__file__).parents[2] / "models" / "bundles" / "1080ti-tensorflow"
    assert "that others published" in cli.error("calibrate", published, "--networks", networks)
    copy = shutil.copytree(bundle, tmp_path / "copy")
    elsewhere = json.loads((copy / "bundle.json").read_text())
    elsewhere["platforms"]["1"]["processor"] = "another"
    (copy / "bundle.json").write_text(json.dumps(elsewhere))
    # Its own folder is not overwritten.
    error = cli.error("calibrate", copy, "--networks", networks)
    assert "of another machine" in error
    assert "name another folder (-o)" in error
    elsewhere["settings"]["1"]["options"]["nchwc_block"] = "0"
    (copy / "bundle.json").write_text(json.dumps(elsewhere))
    words = ["calibrate", str(copy), "--networks", str(networks)]
    assert "nchwc_block" in cli.error(*words, "-o", tmp_path / "made")
    assert "not both" in cli.error(*words, "--runs", tmp_path / "runs.h5")
    assert "--forget only deletes" in cli.error(*words, "--forget")


@pytest.fixture
def elsewhere(bundle, tmp_path) -> Path:
    """Copy the bundle as one of another machine, with times of calibration layers there: 1 ms."""
    there = shutil.copytree(bundle, tmp_path / "there")
    manifest = json.loads((there / "bundle.json").read_text())
    manifest["platforms"]["1"] |= {"processor": "another", "instruction_set": "other"}
    (there / "bundle.json").write_text(json.dumps(manifest))
    own = Bundle.load(there)
    times = LayerTimes("2026-01-01", dict.fromkeys((each.key for each in CALIBRATION_LAYERS), 1.0))
    reference = Calibration(Source.LAYERS, own.setting, own.platform, times=(times,))
    known = Calibration(
        Source.LAYERS, backend("onnxruntime", threads=1).setting(),
        Platform("cpu", processor="a third one", instruction_set="none", cores=1),
        others=3.0, log_width=0.1, speeds=Speeds(0.001, 1e8, 1e7), factor_ci={"node": 0.1},
    )  # fmt: skip
    manifest = own.with_calibrations([reference, known], "by hand").manifest
    (there / "bundle.json").write_text(json.dumps(manifest))
    return there


@pytest.fixture
def moving(elsewhere, networks, tmp_path) -> list[object]:
    """Calibrate that bundle on this machine into the folder ``here``."""
    return [
        "calibrate", elsewhere, "--networks", networks, "--batch", "2", "4", "--seconds", "0.5",
        "-o", tmp_path / "here",
    ]  # fmt: skip


def layers_take(monkeypatch, bundle: Path, ms: float, count: int) -> None:
    """Let so many calibration layers take so long here."""
    loaded = Bundle.load(bundle)
    times_ms = dict.fromkeys((each.key for each in CALIBRATION_LAYERS[:count]), ms)
    costs = {"call_ms": 0.0201, "reshape_ms": 0.001, "check_call_us": 3.0}
    times = LayerTimes("2026-01-01", times_ms, costs)
    run = Calibration(Source.LAYERS, loaded.setting, loaded.platform, times=(times,))
    monkeypatch.setattr(module.calibrate_layers, "measure_layers", lambda *_, **__: run)


def test_a_bundle_of_another_machine_is_scaled_by_layers_and_then_by_networks(
    bundle, elsewhere, networks, moving, measured, tmp_path, monkeypatch, cli
):
    faster = 0.3
    monkeypatch.setattr(sys.modules[__name__], "SLOWER", faster)
    layers_take(monkeypatch, bundle, faster, len(CALIBRATION_LAYERS))
    assert "layer times of another" in (text := cli.text(*moving))
    assert f"scaled by {len(CALIBRATION_LAYERS)} calibration layers here" in text
    made, alone = Bundle.load(tmp_path / "here"), Bundle.load(elsewhere)
    assert made.origin == alone.origin == alone.platform
    [layers, learnt] = made.calibrations
    assert (made.layer_calibrations, made.network_calibrations) == ((layers,), (learnt,))
    assert made.platform == Bundle.load(bundle).platform
    # Factors of further machines were those of its layers there, as were their times.
    assert (len(machines_of(alone)), machines_of(made)) == (1, ())
    assert [each.is_reference for each in alone.calibrations] == [True, False]
    # Layers are as these say; the networks agree, so that nothing is left for them to teach.
    layer = Dense(batch=2, features_in=64, features_out=100)
    one, other = (float(each.predict([layer]).ms[0]) for each in (made, alone))
    assert one == pytest.approx(faster * other, rel=0.01)
    assert learnt.factors["dense"] == pytest.approx(1.0, rel=0.05)
    # What was measured here replaces the costs of the other machine.
    assert made.costs["call_ms"] == 0.0201
    assert "check_call_us" not in made.costs
    prediction = predict_network(read_network(networks / "mlp0.onnx", batch=2), made)
    assert any(
        "measured on another machine (another" in each for each in prediction.remarks.warnings
    )
    # It is a bundle of this machine, which is calibrated as any other.
    again = ["calibrate", tmp_path / "here", "--networks", networks, "--batch", "2"]
    cli.text(*again, "--seconds", "0.5")
    assert Bundle.load(tmp_path / "here").layer_calibrations == (layers,)


def test_where_layers_say_nothing_networks_give_the_common_factor(
    bundle, elsewhere, moving, measured, tmp_path, monkeypatch, cli
):
    faster = 0.3
    monkeypatch.setattr(sys.modules[__name__], "SLOWER", faster)
    layers_take(monkeypatch, bundle, faster, 3)
    costs = {"call_ms": 0.0201, "reshape_ms": 0.001}
    monkeypatch.setattr(module, "_measured_costs", lambda *_: costs)
    document = cli.json(*moving)
    assert "only 3 calibration layers have a time here" in document["notes"][0]
    made, alone = Bundle.load(tmp_path / "here"), Bundle.load(elsewhere)
    [layers, learnt] = made.calibrations
    assert layers.speeds is None
    assert learnt.others == 1.0
    slower = layers.others * learnt.factors["dense"]
    assert slower == pytest.approx(faster, rel=0.05)
    # The cost of a call is measured, and isolated layers are scaled to this machine as well.
    assert made.costs == costs
    layer = Dense(batch=2, features_in=64, features_out=100)
    one, other = (float(each.predict([layer]).ms[0]) for each in (made, alone))
    assert one == pytest.approx(layers.others * other)


def test_what_calls_cost_here_is_measured_in_a_process_of_its_own():
    # The simulated device's constants; test_bench.py has the names of a real one's costs.
    costs = module._measured_costs(target("synthetic"), 1)
    assert costs == {"call_ms": 0.02, "reshape_ms": 0.0}


def test_networks_that_may_be_excluded_ones_are_left_out_and_named(
    words, networks, measured, perceptron, cli
):
    # One excluded file has the content of a network, another has its name.
    excluded = perceptron("excluded/mlp2.onnx", 7, 8, 9).parent
    (excluded / "other.onnx").write_bytes((networks / "mlp1.onnx").read_bytes())
    notes = cli.json(*words, "--exclude", excluded)["notes"]
    assert [Path(note.split(" is left out")[0]).stem for note in notes[:2]] == ["mlp1", "mlp2"]
    assert not {"mlp1", "mlp2"} & {name for name, _ in measured}


def test_networks_of_one_name_in_several_folders_are_several_networks(
    bundle, measured, tmp_path, perceptron, cli
):
    words = ["calibrate", bundle, "--batch", "2", "--seconds", "0.5", "-o", tmp_path / "made"]
    for place in range(6):
        words += ["--networks", perceptron(f"net{place}/model.onnx", 64 + 30 * place, 100, 10)]
    names = {each["network"] for each in cli.json(*words)["evidence"]["networks"]}
    assert names == {str(tmp_path / f"net{place}" / "model") for place in range(6)}


def test_a_calibration_that_was_interrupted_goes_on(words, measured, tmp_path, monkeypatch, cli):
    target = tmp_path / "made"
    measure = runner.WorkerProcess.measure_network

    def interrupted(process, *words):
        if len(measured) == 5:
            raise Interrupted("as by Ctrl-C")
        return measure(process, *words)

    monkeypatch.setattr(runner.WorkerProcess, "measure_network", interrupted)
    cli.run(*words, code=130)
    assert not target.exists()
    first = list(measured)
    monkeypatch.setattr(runner.WorkerProcess, "measure_network", measure)
    cli.text(*words)
    # Only networks without a steady measurement are measured again.
    counts = Counter(measured)
    assert counts.pop(("mlp3", 2)) > 1
    assert set(counts.values()) == {1}
    assert measured[:5] == first
    assert len(Bundle.load(target).calibrations[-1].evidence["networks"]) == 10
    assert sorted(path.name for path in tmp_path.glob("made*")) == ["made", "made.networks.h5"]
    rows = read_networks(tmp_path / "made.networks.h5").measurements
    assert len({row.subject.digest for row in rows}) == 11
    assert len(rows) == 11
    assert [row.subject.name for row in rows if row.flags] == ["mlp3"]
    # Once the bundle is written, the same call measures anew, and what was measured stays.
    count = len(measured)
    cli.text(*words)
    assert len(set(measured[count:])) == 11
    rows = read_networks(tmp_path / "made.networks.h5").measurements
    assert Counter(row.repeat for row in rows) == dict.fromkeys(range(2), 11)


def test_networks_that_the_framework_cannot_run_are_named(words, measured, monkeypatch, cli):
    measure = runner.WorkerProcess.measure_network

    def refusing(process, run, *words):
        if run.path.stem == "mlp5":
            raise WorkerDied(Status.TIMEOUT, "no answer within 9 s")
        return measure(process, run, *words)

    monkeypatch.setattr(runner.WorkerProcess, "measure_network", refusing)
    notes = cli.json(*words)["notes"]
    assert notes[1] == "mlp5 at batch 2: no answer within 9 s"
