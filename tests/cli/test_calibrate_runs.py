"""`resperf calibrate --runs`: a user's own list of networks and times; nothing is measured."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf import devices
from resperf.bundle import Bundle
from resperf.network import read_network
from resperf.prediction import predict_network
from resperf.prediction.choice import Query, choose

SLOWER = 1.3
PLACES = range(12)
BATCH = 64


@pytest.fixture
def chain(network_file):
    """Write a network of dense layers of one width, which share their weights."""

    def write(name: str, width: int, layers: int, end: str = "") -> Path:
        nodes = [
            make_node("Gemm", [f"t{place}", "w"], [f"t{place + 1}"], f"fc{place}")
            for place in range(layers)
        ]
        nodes += [make_node(end, [f"t{layers}"], ["y"], "end")] if end else []
        weights = {"w": np.zeros((width, width), np.float32)}
        return network_file(
            name, nodes, {"t0": ["n", width]}, {nodes[-1].output[0]: ["n", width]}, weights
        )

    return write


@pytest.fixture
def networks(chain) -> list[Path]:
    """Write networks of dense layers and an activation, of unlike sizes."""
    return [chain(f"net{place}.onnx", 256 + 32 * place, 16, "Relu") for place in PLACES]


@pytest.fixture
def runs(tmp_path, cli):
    """Import a list whose times are so many times those that a bundle predicts."""

    def write(networks, bundle, *, device, times=SLOWER, name="runs", extra=(), **setting) -> Path:
        header = ["network", "batch", "time_ms", "device", *setting]
        lines = [",".join(header)]
        for network in networks:
            predicted = predict_network(read_network(network, batch=BATCH), bundle)
            time_ms = predicted.total_ms + (times - 1) * predicted.phases.execution_ms
            lines.append(
                ",".join([str(network), str(BATCH), repr(time_ms), device, *setting.values()])
            )
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([*lines, *extra]) + "\n")
        cli.text("dataset", "import", path, "--format", "list", "-o", path.with_suffix(".h5"))
        return path.with_suffix(".h5")

    return write


def total_ms(cli, network, *words) -> float:
    return cli.document("predict", network, "--batch", str(BATCH), *words)["total_ms"]


@pytest.fixture
def sheet(home) -> Bundle:
    return choose(Query("h100")).bundle


def test_a_card_known_by_its_data_sheet_gets_a_bundle(sheet, networks, runs, home, tmp_path, cli):
    judged, *known = networks
    file = runs(known, sheet, device="h100", framework="torch")
    before = cli.document("predict", judged, "--batch", str(BATCH), "--device", "h100")
    document = cli.json("calibrate", "--device", "h100", "--runs", file)
    folder = Path(document["path"])
    assert folder == home / "bundles" / "h100-torch"
    assert (document["networks"], document["quantity"], document["notes"]) == (11, "latency_ms", [])
    # It answers for the card from now on, by its name and by its folder.
    for words in (["--device", "h100"], ["--bundle", folder]):
        after = cli.document("predict", judged, "--batch", str(BATCH), *words)
        assert after["calibrated_with"] == 11
        measured_ms = before["total_ms"] + (SLOWER - 1) * before["phases"]["execution_ms"]
        assert after["total_ms"] == pytest.approx(measured_ms, rel=0.02)
        assert after["low_ms"] < measured_ms < after["high_ms"]
        ratio = math.exp(document["log_width"])
        assert after["high_ms"] == pytest.approx(after["total_ms"] * ratio)
        assert after["high_ms"] / after["low_ms"] < before["high_ms"] / before["low_ms"] / 2
    text = cli.text("predict", judged, "--batch", str(BATCH), "--bundle", folder)
    assert "\ncalibrated with 11 networks\n" in text
    # Provenance names the file by what it holds.
    [change] = Bundle.load(folder).provenance["changes"]
    assert document["evidence"]["dataset"]["checksum"] in change["reason"]
    assert "calibrated for h100 with 11 networks of runs.h5" in change["reason"]
    # Other precisions and cards are answered as before.
    words = ["--device", "h100", "--precision", "amp"]
    assert cli.document("predict", judged, "--batch", str(BATCH), *words)["calibrated_with"] == 0
    assert (
        cli.document("predict", judged, "--batch", str(BATCH), "--device", "t4")["calibrated_with"]
        == 0
    )
    # One's own bundle is written again, by its device or its folder; what else is there is not.
    for word in ("h100", folder):
        again = cli.json("calibrate", word, "--runs", file)
        assert again["path"] == document["path"]
        assert again["factors"] == pytest.approx(document["factors"])
    elsewhere = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    assert cli.json("calibrate", elsewhere, "--runs", file)["path"] == str(elsewhere)
    assert len(Bundle.load(folder).calibrations) == 1
    shown = cli.text("calibrate", folder, "--runs", file, "-o", tmp_path / "copy")
    assert "11 runs of 11 networks (latency_ms): mean error " in shown
    assert "predictions for h100 are now calibrated with 11 networks" in shown


def test_a_card_of_ones_own_needs_its_file(my_card, networks, runs, tmp_path, cli):
    file = runs(networks[:2], choose(Query(str(my_card()))).bundle, device="mycard")
    made = tmp_path / "made"
    document = cli.json("calibrate", "--device", my_card(), "--runs", file, "-o", made)
    assert document["platform"]["device"] == "mycard"
    words = ["--bundle", made, "--device", my_card()]
    assert cli.document("predict", networks[3], "--batch", "8", *words)["calibrated_with"] == 2
    # As a process does that was not told of the card.
    devices._added.clear()
    for cached in (devices.devices, devices.device_facts, devices._names):
        cached.cache_clear()
    line = cli.error("predict", networks[3], "--batch", "8", "--bundle", made)
    assert "the data sheet of mycard, which is not known here" in line


def test_few_networks_move_totals_a_part_of_the_way(sheet, networks, runs, tmp_path, cli):
    judged, *known = networks
    before = total_ms(cli, judged, "--device", "h100")
    aims = predict_network(read_network(judged, batch=BATCH), sheet)
    aim = aims.total_ms + (SLOWER - 1) * aims.phases.execution_ms
    errors, widths = [abs(before / aim - 1)], [aims.high_ms / aims.low_ms]
    for count in (1, 3, 10):
        file = runs(known[:count], sheet, device="h100", name=f"runs{count}")
        words = ["--runs", file, "-o", tmp_path / f"made{count}"]
        document = cli.json("calibrate", "--device", "h100", *words)
        found = cli.document("predict", judged, "--batch", str(BATCH), "--bundle", document["path"])
        assert before < found["total_ms"] < aim
        errors.append(abs(found["total_ms"] / aim - 1))
        widths.append(found["high_ms"] / found["low_ms"])
    assert errors == sorted(errors, reverse=True)
    assert widths[0] >= widths[1] > widths[2] > widths[3]


def test_layers_of_a_cpu_bundle_are_corrected_by_runs(bundle, perceptron, runs, tmp_path, cli):
    networks = [perceptron(f"mlp{n}.onnx", 64 + 30 * n, 400, 90 + n, 10) for n in PLACES]
    loaded = Bundle.load(bundle)
    unknown = perceptron("unknown.onnx", 64, 10, end="Softmax")
    extra = [
        f"{unknown},64,1,cpu,onnxruntime,1", f"{networks[1]},64,9,cpu,torch,1",
        f"{networks[2]},64,9,cpu,torch,1", f"{networks[3]},64,9,cpu,onnxruntime,64",
        f"{networks[4]},64,9,my laptop,onnxruntime,1",
    ]  # fmt: skip
    setting = {"framework": "onnxruntime", "threads": "1"}
    file = runs(networks[1:], loaded, device="cpu", extra=extra, **setting)
    document = cli.json("calibrate", bundle, "--runs", file, "-o", tmp_path / "made")
    assert document["networks"] == 11
    assert document["factors"]["dense"] == pytest.approx(SLOWER, rel=0.03)
    assert document["notes"] == [
        "left out: 2 of framework torch, not onnxruntime, first mlp1",
        "left out: 1 of 64 threads, not 1, first mlp3",
        "left out: 1 of device my laptop, not cpu, first mlp4",
        "unknown: the bundle has no predictor for its Softmax",
    ]
    made = Bundle.load(tmp_path / "made")
    before, after = (
        predict_network(read_network(networks[0], batch=BATCH), each) for each in (loaded, made)
    )
    assert after.remarks.calibrated_with == 11
    assert after.layers[0].execution_ms == pytest.approx(
        SLOWER * before.layers[0].execution_ms, rel=0.03
    )
    # The bundle in place is as it was; the runs' own networks do not judge the new one.
    assert Bundle.load(bundle).calibrations == ()
    notes = cli.run("evaluate", file, "--bundle", tmp_path / "made").err
    assert "networks to which the in-network correction was fitted are left out" in notes


def test_a_predictor_of_networks_is_corrected_by_groups_of_operators(chain, tmp_path, home, cli):
    """Dense layers take the data sheet's time in training, and twice that in the runs."""

    def listed(name: str, chosen, **times_of) -> Path:
        path = tmp_path / f"{name}.csv"
        rows = [
            f"{each},65536,{ms},{compiled},torch,amp,execution_ms,rtx3090"
            for compiled, times in times_of.items()
            for each, ms in zip(chosen, times, strict=True)
        ]
        header = "network,batch,time_ms,compiled,framework,precision,quantity,device"
        path.write_text("\n".join([header, *rows]) + "\n")
        file = path.with_suffix(".h5")
        cli.text("dataset", "import", path, "--format", "list", "-o", file)
        return file

    widths = [256 + 32 * place for place in range(24)]
    chosen = [chain(f"dense{width}.onnx", width, 8) for width in widths]
    times = [8 * 2 * 65536 * width**2 / 71.2e9 for width in widths]
    words = ["--method", "class-costs", "-o", tmp_path / "costs"]
    cli.text("train", listed("rows", chosen, dynamo=[ms / 2 for ms in times], eager=times), *words)
    file = listed("runs", chosen[1:12], eager=[2 * each for each in times[1:12]])
    document = cli.json("calibrate", tmp_path / "costs", "--runs", file, "-o", tmp_path / "made")
    assert (document["networks"], document["quantity"]) == (11, "execution_ms")
    # Casts hardly count in these times: what products teach of all is what is known of them.
    factors = document["factors"]
    assert factors["products with normalisation and activation"] == pytest.approx(2, rel=0.1)
    assert 1.2 < factors["other operators"] < 2

    def predicted(bundle: str, *more: str) -> dict:
        words = ["--batch", "65536", "--bundle", tmp_path / bundle, *more]
        return cli.document("predict", chosen[0], *words)["quantities"]["execution_ms"]

    # Without a setting, that of the runs is meant; compiled, networks take what they did.
    after, compiled = predicted("made"), predicted("made", "--precision", "amp", "--compiled")
    assert compiled == predicted("costs", "--precision", "amp", "--compiled")
    assert compiled["value"] == pytest.approx(times[0] / 2, rel=0.05)
    assert after["value"] == pytest.approx(2 * times[0], rel=0.1)
    assert after["low"] < 2 * times[0] < after["high"]
    # What is smaller than all that was measured is as uncertain as without the runs.
    words = ["predict", chosen[0], "--batch", "64", "--precision", "amp", "--bundle"]
    for name in ("costs", "made"):
        document = cli.document(*words, tmp_path / name)
        assert document["extrapolated"].startswith("the smallest batch size")
        found = document["quantities"]["execution_ms"]
        assert found["low"] <= found["value"] / 2
        assert found["high"] >= found["value"] * 2
    text = cli.text("predict", chosen[0], "--batch", "65536", "--bundle", tmp_path / "made")
    assert "calibrated with 11 networks" in text.splitlines()
    # Its golden networks are what they were without the runs.
    Bundle.load(tmp_path / "made").predict_networks([read_network(chosen[5], batch=65536)])


def test_a_bundle_of_several_cards_is_corrected_for_the_runs_card_alone(
    card_bundle, networks, runs, tmp_path, monkeypatch, cli
):
    from resperf.predictors import METHODS

    monkeypatch.setitem(METHODS, "toy-of-any-card", "tests.toy_card_method:ToyOfAnyCard")
    folder = card_bundle("any", "v100", "t4", method="toy-of-any-card")
    judged, *known = networks
    words = ["--bundle", folder, "--device"]
    before = {each: total_ms(cli, judged, *words, each) for each in ("h100", "v100", "t4")}
    base = choose(Query("h100", bundle=folder)).bundle
    file = runs(known, base, device="h100", framework="torch")
    made = cli.json("calibrate", folder, "--runs", file, "-o", tmp_path / "made")
    assert made["platform"]["device"] == "h100"
    words = ["--bundle", tmp_path / "made"]
    after = {each: total_ms(cli, judged, *words, "--device", each) for each in before}
    assert (after["v100"], after["t4"]) == (before["v100"], before["t4"])
    assert after["h100"] > 1.15 * before["h100"]
    # Without a device, the one that it was calibrated for is meant.
    assert total_ms(cli, judged, *words) == after["h100"]
    # The runs do not judge what they taught of a card that is not the bundle's first.
    with monkeypatch.context() as patch:
        patch.setattr("tests.toy_card_method.ToyOfAnyCard.many_settings", True)
        line = cli.error("evaluate", file, *words, "--split", "all")
    assert "networks to which the in-network correction was fitted are left out" in line
    # Another card is calibrated beside it.
    v100 = runs(known, Bundle.load(folder), device="v100", name="more", framework="torch")
    cli.json("calibrate", tmp_path / "made", "--runs", v100, "-o", tmp_path / "made")
    assert [each.platform.device for each in Bundle.load(tmp_path / "made").calibrations] == [
        "h100",
        "v100",
    ]
    assert total_ms(cli, judged, *words, "--device", "h100") == after["h100"]


def test_what_the_host_takes_is_not_taken_for_layers(
    card_bundle, networks, tmp_path, monkeypatch, cli
):
    from resperf.predictors import METHODS

    monkeypatch.setitem(METHODS, "toy-with-dispatch", "tests.toy_card_method:ToyWithDispatch")
    options = {"session": "first"}
    folder = card_bundle("dispatched", "v100", method="toy-with-dispatch", options=options)
    bundle = choose(Query("v100", bundle=folder)).bundle
    chosen = networks[4:9]
    found = [predict_network(read_network(each, batch=BATCH), bundle) for each in chosen]
    device_ms = [each.phases.execution_ms - each.total.waiting_ms for each in found]
    # All wait for the host, which needs 0.5 ms for each of 17 kernels.
    assert all(each.total.waiting_ms > 1 for each in found)
    # The first one had a faster host; the others' devices need twice as long, more than the host.
    times_ms = [8.0, *(2 * each for each in device_ms[1:])]
    lines = [
        f"{each},{BATCH},{ms},v100,torch,execution_ms"
        for each, ms in zip(chosen, times_ms, strict=True)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["network,batch,time_ms,device,framework,quantity", *lines]))
    cli.text("dataset", "import", path, "--format", "list", "-o", tmp_path / "runs.h5")
    words = ["--runs", tmp_path / "runs.h5", "-o", tmp_path / "made"]
    document = cli.json("calibrate", folder, *words)
    assert document["networks"] == len(chosen) - 1
    [note] = document["notes"]
    assert "the host's dispatch of its 17 kernels alone 8.5 ms" in note
    assert 1.6 < document["factors"]["dense"] < 2


def test_what_cannot_be_used_is_one_line(sheet, bundle, networks, runs, toy_dataset, tmp_path, cli):
    output = ["-o", tmp_path / "made"]
    line = cli.error("calibrate", "--device", "h100", "--runs", toy_dataset, *output)
    assert "has no rows of whole networks; list yours in a CSV" in line
    (tmp_path / "empty.h5").write_bytes(b"")
    assert "empty.h5" in cli.error("calibrate", bundle, "--runs", tmp_path / "empty.h5", *output)
    assert "none.h5" in cli.error("calibrate", bundle, "--runs", tmp_path / "none.h5", *output)
    file = runs(networks[:2], sheet, device="h100", framework="torch")
    line = cli.error("calibrate", "--device", "t4", "--runs", file, *output)
    assert "has no rows of t4, only of h100" in line
    line = cli.error("calibrate", bundle, "--runs", file, *output)
    assert "1 network is needed" in line
    assert "left out: 2 of device h100, not cpu, first net0" in line
    other = runs(networks[:2], sheet, device="h100", name="other", framework="synthetic")
    assert "no predictions for h100 with synthetic" in cli.error(
        "calibrate", "--device", "h100", "--runs", other, *output
    )
    steps = runs(networks[:2], sheet, device="h100", name="steps", quantity="step_ms")
    line = cli.error("calibrate", "--device", "h100", "--runs", steps, *output)
    assert "holds step_ms of networks" in line
    assert "the list's column 'quantity'" in line
    # Microseconds that were written as milliseconds.
    long = runs(networks, sheet, device="h100", name="long", times=1e3)
    line = cli.error("calibrate", "--device", "h100", "--runs", long, *output)
    assert "check the units of the times" in line
    assert not (tmp_path / "made").exists()
