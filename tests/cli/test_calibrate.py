"""`resperf calibrate`: real networks and bundle; runs take computed times, not the clock's."""

from __future__ import annotations

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import helper

from resperf.backends import backend
from resperf.bundle import Bundle
from resperf.campaign import runner
from resperf.campaign.process import Interrupted, WorkerDied
from resperf.cli.main import main
from resperf.dataset import read_networks
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.network import read_network
from resperf.prediction import predict_network
from resperf.targets import target
from resperf.workflows import calibrate as module

SLOWER = 1.2


def perceptron(path: Path, widths: tuple[int, ...], *, end: str = "") -> None:
    """Write a network of dense layers, with an operator after the last."""
    nodes, weights = [], []
    for place, (before, after) in enumerate(pairwise(widths)):
        name = f"w{place}"
        weights.append(onnx.numpy_helper.from_array(np.ones((before, after), np.float32), name))
        nodes.append(helper.make_node("Gemm", [f"t{place}", name], [f"t{place + 1}"], f"n{place}"))
    if end:
        nodes.append(helper.make_node(end, [f"t{len(nodes)}"], [f"t{len(nodes) + 1}"], "end"))
    last = f"t{len(nodes)}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    folder = tmp_path / "networks"
    folder.mkdir()
    for place in range(11):
        perceptron(folder / f"mlp{place}.onnx", (64 + 30 * place, 100, 90 + place, 10))
    perceptron(folder / "unknown.onnx", (64, 10), end="Softmax")
    return folder


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
            return {"session_ms": 0.01}

        def measure_network(self, run, repeat, seconds, timeout_s):
            assert (self._settings.settings["threads"], seconds) == (1, 0.5)
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
            return {"row": row.to_json(), "reading": None, "usual": {}}

    monkeypatch.setattr("resperf.campaign.bench.WorkerProcess", ByLaw)
    monkeypatch.setattr("resperf.campaign.runner.WorkerProcess", ByLaw)
    return asked


def test_a_bundle_learns_from_networks_and_predicts_by_it(
    bundle, networks, measured, tmp_path, capsys
):
    target = tmp_path / "calibrated"
    words = ["calibrate", str(bundle), "--networks", str(networks), "--batch", "2", "4"]
    words += ["--exclude", str(networks / "mlp0.onnx"), "--seconds", "0.5", "-o", str(target)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
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
    assert Bundle.load(bundle).correction is None
    again = ["calibrate", str(target), "--networks", str(networks), "--batch", "2",
             "--seconds", "0.5"]  # fmt: skip
    assert main(again) == 0
    assert "dense" in capsys.readouterr().out
    learnt = Bundle.load(target).correction
    assert learnt is not None
    assert learnt.factors == pytest.approx({"dense": SLOWER}, rel=0.02)


def test_a_bundle_that_ships_is_calibrated_into_ones_own_folder(
    bundle, networks, measured, home, monkeypatch, capsys
):
    shipped = home / "shipped" / "some-name"
    shutil.copytree(bundle, shipped)
    monkeypatch.setattr(
        "resperf.bundle._search._places",
        lambda extra: filter(None, [extra, home / "bundles", home / "shipped"]),
    )
    words = ["--networks", str(networks), "--batch", "2", "--seconds", "0.5", "--json"]
    assert main(["calibrate", "some-name", *words]) == 0
    made = Path(json.loads(capsys.readouterr().out)["path"])
    assert made == home / "bundles" / "cpu-onnxruntime-1threads"
    assert Bundle.load(shipped).correction is None
    # Now it is the device's own bundle, and is calibrated in its folder.
    assert main(["calibrate", "cpu", *words]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(made)
    # No other bundle is overwritten.
    assert main(["calibrate", "some-name", *words]) == 2
    assert "another bundle than" in capsys.readouterr().err
    assert main(["calibrate", str(shipped), *words]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(shipped)


def test_what_cannot_be_calibrated_is_one_line(bundle, networks, measured, tmp_path, capsys):
    assert main(["calibrate", str(bundle), "--networks", str(tmp_path / "none")]) == 2
    assert "no ONNX file at" in capsys.readouterr().err
    few = tmp_path / "few"
    few.mkdir()
    perceptron(few / "only.onnx", (64, 32, 10))
    words = ["calibrate", str(bundle), "--networks", str(few), "--seconds", "0.5"]
    assert main(words) == 2
    assert "1 networks are too few" in capsys.readouterr().err
    published = Path(__file__).parents[2] / "models" / "bundles" / "1080ti-tensorflow"
    assert main(["calibrate", str(published), "--networks", str(networks)]) == 2
    assert "that others published" in capsys.readouterr().err
    elsewhere = json.loads((bundle / "bundle.json").read_text())
    elsewhere["platforms"]["1"]["processor"] = "another"
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in bundle.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "bundle.json").write_text(json.dumps(elsewhere))
    assert main(["calibrate", str(copy), "--networks", str(networks)]) == 2
    error = capsys.readouterr().err
    assert "another machine" in error
    assert "--adapt" in error
    # Its own folder is not overwritten.
    assert main(["calibrate", str(copy), "--networks", str(networks), "--adapt"]) == 2
    assert "name another folder (-o)" in capsys.readouterr().err
    elsewhere["settings"]["1"]["options"]["nchwc_block"] = "4"
    (copy / "bundle.json").write_text(json.dumps(elsewhere))
    words = ["calibrate", str(copy), "--networks", str(networks), "--adapt"]
    assert main([*words, "-o", str(tmp_path / "made")]) == 2
    error = capsys.readouterr().err
    assert "nchwc_block" in error
    assert "--adapt" not in error


def test_a_bundle_of_another_machine_is_transferred(
    bundle, networks, measured, tmp_path, monkeypatch, capsys
):
    faster, there, here = 0.3, tmp_path / "there", tmp_path / "here"
    monkeypatch.setattr(sys.modules[__name__], "SLOWER", faster)
    costs = {"session_ms": 0.0201, "view_ms": 0.001}
    monkeypatch.setattr(module, "_measured_costs", lambda *_: costs)
    shutil.copytree(bundle, there)
    manifest = json.loads((there / "bundle.json").read_text())
    manifest["platforms"]["1"] |= {"processor": "another", "instruction_set": "other"}
    (there / "bundle.json").write_text(json.dumps(manifest))
    words = ["calibrate", str(there), "--networks", str(networks), "--batch", "2", "4"]
    words += ["--seconds", "0.5", "--adapt", "-o", str(here)]
    assert main(words) == 0
    assert "layer times of another" in capsys.readouterr().out
    made, alone = Bundle.load(here), Bundle.load(there)
    assert alone.transferred is None
    assert made.transferred is not None
    assert made.transferred.origin == alone.platform
    assert made.platform == Bundle.load(bundle).platform
    assert made.correction is not None
    slower = made.transferred.factor * made.correction.factors["dense"]
    assert slower == pytest.approx(faster, rel=0.05)
    # The cost of a call is measured, and isolated layers are scaled to this machine as well.
    assert made.costs == costs
    layer = Dense(batch=2, features_in=64, features_out=100)
    one, other = (float(each.predict([layer]).ms[0]) for each in (made, alone))
    assert one == pytest.approx(made.transferred.factor * other)
    prediction = predict_network(read_network(networks / "mlp0.onnx", batch=2), made)
    assert any("measured on another machine (another" in each for each in prediction.warnings)
    # It is a bundle of this machine, which is calibrated as any other.
    again = ["calibrate", str(here), "--networks", str(networks), "--batch", "2"]
    assert main([*again, "--seconds", "0.5"]) == 0
    assert Bundle.load(here).transferred == made.transferred


def test_what_calls_cost_here_is_measured_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(module, "COST_READINGS", 1)
    costs = module._measured_costs(target("onnxruntime"), 1)
    assert {"session_ms", "view_ms", "node_ms", "handover_ms_per_mb"} < set(costs)
    assert min(costs.values()) >= 0


def test_networks_that_may_be_excluded_ones_are_left_out_and_named(
    bundle, networks, measured, tmp_path, capsys
):
    excluded = tmp_path / "excluded"
    excluded.mkdir()
    # One excluded file has the content of a network, another has its name.
    (excluded / "other.onnx").write_bytes((networks / "mlp1.onnx").read_bytes())
    perceptron(excluded / "mlp2.onnx", (7, 8, 9))
    words = ["calibrate", str(bundle), "--networks", str(networks), "--batch", "2"]
    words += ["--exclude", str(excluded), "--seconds", "0.5", "-o", str(tmp_path / "made")]
    assert main([*words, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert [Path(note.split(" is left out")[0]).stem for note in notes[:2]] == ["mlp1", "mlp2"]
    assert not {"mlp1", "mlp2"} & {name for name, _ in measured}


def test_networks_of_one_name_in_several_folders_are_several_networks(
    bundle, measured, tmp_path, capsys
):
    for place in range(6):
        (tmp_path / f"net{place}").mkdir()
        perceptron(tmp_path / f"net{place}" / "model.onnx", (64 + 30 * place, 100, 10))
    words = ["calibrate", str(bundle), "--batch", "2", "--seconds", "0.5"]
    words += ["-o", str(tmp_path / "made"), "--json"]
    for place in range(6):
        words += ["--networks", str(tmp_path / f"net{place}" / "model.onnx")]
    assert main(words) == 0
    names = {
        each["network"] for each in json.loads(capsys.readouterr().out)["evidence"]["networks"]
    }
    assert names == {str(tmp_path / f"net{place}" / "model") for place in range(6)}


def test_a_calibration_that_was_interrupted_goes_on(
    bundle, networks, measured, tmp_path, monkeypatch, capsys
):
    target = tmp_path / "made"
    measure = runner.WorkerProcess.measure_network

    def interrupted(process, *words):
        if len(measured) == 5:
            raise Interrupted("as by Ctrl-C")
        return measure(process, *words)

    words = ["calibrate", str(bundle), "--networks", str(networks), "--batch", "2"]
    words += ["--seconds", "0.5", "-o", str(target)]
    monkeypatch.setattr(runner.WorkerProcess, "measure_network", interrupted)
    assert main(words) == 130
    assert not target.exists()
    first = list(measured)
    monkeypatch.setattr(runner.WorkerProcess, "measure_network", measure)
    assert main(words) == 0
    # Only networks without a steady measurement are repeated.
    assert set(measured[5:]) & set(first) <= {("mlp3", 2)}
    assert len(Bundle.load(target).correction.evidence["networks"]) == 10
    assert sorted(path.name for path in tmp_path.glob("made*")) == ["made", "made.networks.h5"]
    rows = read_networks(tmp_path / "made.networks.h5").measurements
    assert len({row.subject.digest for row in rows}) == len(rows) == 11
    assert [row.subject.name for row in rows if row.flags] == ["mlp3"]
    # Once the bundle is written, the same call measures anew, and what was measured stays.
    count = len(measured)
    assert main(words) == 0
    assert len(set(measured[count:])) == 11
    rows = read_networks(tmp_path / "made.networks.h5").measurements
    assert sorted(row.repeat for row in rows) == [0] * 11 + [1] * 11


def test_networks_that_the_framework_cannot_run_are_named(
    bundle, networks, measured, tmp_path, monkeypatch, capsys
):
    measure = runner.WorkerProcess.measure_network

    def refusing(process, run, *words):
        if run.path.stem == "mlp5":
            raise WorkerDied(Status.TIMEOUT, "no answer within 9 s")
        return measure(process, run, *words)

    monkeypatch.setattr(runner.WorkerProcess, "measure_network", refusing)
    words = ["calibrate", str(bundle), "--networks", str(networks), "--batch", "2"]
    words += ["--seconds", "0.5", "-o", str(tmp_path / "made"), "--json"]
    assert main(words) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[1] == "mlp5 at batch 2: no answer within 9 s"
