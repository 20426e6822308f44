"""How users ask for a card: by name, by its facts, with a precision, with a host's dispatch."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx.helper import make_node

import resperf
from resperf.errors import UnsupportedError
from resperf.prediction.choice import Query, choose
from resperf.predictors import METHODS
from tests.toy_card_method import DEVICE_SHARE, DISPATCH_MS


@pytest.fixture
def network(dense_network) -> Path:
    return dense_network(16)


def by_name(document: dict) -> dict:
    return {layer["name"]: layer for layer in document["layers"]}


def test_what_a_bundle_has_no_predictor_for_is_estimated_and_the_shares_are_said(
    card_bundle, network, cli
):
    card_bundle("mine", "v100")
    document = cli.document("predict", network, "--device", "v100")
    layers = by_name(document)
    assert not layers["fc"]["estimated"]
    # 16 x 128 values in and out: 16,384 bytes at 900 GB/s, 1.4 times, and a launch of 5 us.
    act = layers["act"]
    assert act["estimated"]
    assert act["execution_ms"] == pytest.approx(0.005 + 1.4 * 16384 / 900e6, rel=1e-3)
    assert act["low_ms"] == pytest.approx(0.5 * act["execution_ms"])
    assert (document["complete"], document["skipped"]) == (True, [])
    origins = document["origins"]
    assert origins["measured_ms"] == pytest.approx(layers["fc"]["execution_ms"])
    # The copies of 16 x 256 and 16 x 128 values are estimated as well.
    copies_ms = sum(0.01 + 1.25 * 4 * 16 * n / 15.75e6 for n in (256, 128))
    assert origins["estimated_ms"] == pytest.approx(act["execution_ms"] + copies_ms, rel=1e-3)
    assert origins["measured"] + origins["estimated"] == pytest.approx(1)
    text = cli.text("predict", network, "--device", "v100")
    assert "rests on      " in text
    assert "% measured with torch" in text
    assert "0% inferred" not in text
    assert "INCOMPLETE" not in text
    line = cli.error("predict", network, "--device", "v100", "--strict")
    assert "act (relu): the bundle has no predictor for activation" in line


def test_training_steps_that_were_not_measured_are_added_up_from_runs(card_bundle, network, cli):
    card_bundle("mine", "v100")
    words = ("predict", network, "--device", "v100", "--framework", "torch")
    layers = by_name(cli.document(*words))
    [step] = cli.json(*words, "--train")
    value = step["quantities"]["step_ms"]
    # The product three times, relu, its gradient (16 x 128 values), and the update of 256 x 128
    # weights and 128 biases: both read two tensors and write one.
    moved_ms = sum(0.005 + 1.4 * 3 * 4 * n / 900e6 for n in (16 * 128, 256 * 128 + 128))
    expected_ms = 3 * layers["fc"]["execution_ms"] + layers["act"]["execution_ms"] + moved_ms
    assert value["value"] == pytest.approx(expected_ms, rel=1e-3)
    assert value["low"] < value["value"] < value["high"]
    assert (value["method"], step["rests_on"]) == ("sum of operators", "operators of runs")
    assert step["complete"]
    text = cli.text(*words, "--train")
    assert "training step" in text
    assert "no training steps were measured: forward, backward and update" in text
    error = cli.error(*words, "--train", "--batch", "4", "--devices", "2")
    assert "say what connects them: --train --cluster" in error
    assert "no predictions for v100 with tensorflow" in cli.error(
        "predict", network, "--device", "v100", "--framework", "tensorflow", "--train"
    )


def test_a_card_without_a_bundle_is_answered_by_its_data_sheet(home, network, cli):
    document = cli.document("predict", network, "--device", "NVIDIA H100 SXM")
    assert (document["device"], document["framework"], document["precision"]) == (
        "h100", "torch", "fp32",
    )  # fmt: skip
    assert [layer["estimated"] for layer in document["layers"]] == [True, True]
    assert document["origins"]["estimated"] == pytest.approx(1)
    text = cli.text("predict", network, "--device", "h100")
    note = "note: no bundle has times of this card: every time is estimated from its data sheet"
    assert text.splitlines()[-1] == note
    [layer] = cli.json("predict-layer", "dense", "batch=16", "features_in=256", "features_out=128",
                       "--device", "h100")  # fmt: skip
    assert layer["execution_ms"] == pytest.approx(document["layers"][0]["execution_ms"])


def test_a_data_sheet_does_not_answer_for_types_that_layers_do_not_tell():
    assert choose(Query("h100", "tensorflow", precision="fp16")).bundle.framework == "tensorflow"
    for precision in ("int8", "tf32"):
        with pytest.raises(UnsupportedError, match=r"tensorflow \(fp32, fp16, bf16\)"):
            choose(Query("h100", "tensorflow", precision=precision))


def test_devices_lists_every_card_with_what_its_times_rest_on(card_bundle, cli, monkeypatch):
    monkeypatch.setitem(METHODS, "toy-of-any-card", "tests.toy_card_method:ToyOfAnyCard")
    mine = card_bundle("mine", "h100", precision="amp")
    listed = {each["device"]: each for each in cli.json("devices")}
    assert len(listed) == len(cli.json("devices"))
    assert "a100" in listed
    h100, l4 = listed["h100"], listed["l4"]
    assert h100["bundle"] == {"name": "mine", "path": str(mine)}
    assert (h100["precisions"], h100["rests_on"]) == (["amp"], "measured")
    assert l4["bundle"] is None
    assert l4["rests_on"] == "estimated from the data sheet"
    assert {"fp32", "fp16"} <= set(l4["precisions"])
    # Its units have no float16.
    assert listed["k80"]["precisions"] == ["fp32"]
    other = card_bundle("any", "v100", "t4", method="toy-of-any-card")
    listed = {each["device"]: each for each in cli.json("devices")}
    assert listed["l4"]["bundle"] == {"name": "any", "path": str(other)}
    assert listed["l4"]["rests_on"] == listed["t4"]["rests_on"] == "inferred from other devices"
    assert listed["v100"]["rests_on"] == "measured"
    # It is of another class of devices.
    assert listed["mi210"]["rests_on"] == "estimated from the data sheet"
    assert len(cli.text("devices").splitlines()) == 2 + len(listed)


def test_a_card_of_ones_own_is_a_file(my_card, card_bundle, network, cli):
    mine = by_name(cli.document("predict", network, "--device", my_card()))
    same = by_name(cli.document("predict", network, "--device", "v100"))
    assert mine["fc"]["execution_ms"] == pytest.approx(same["fc"]["execution_ms"], rel=1e-2)
    # Twice the bandwidth takes half of what is not the launch.
    faster = by_name(cli.document("predict", network, "--device", my_card(bandwidth_gb_s="1800.0")))
    assert faster["act"]["execution_ms"] - 0.005 == pytest.approx(
        (mine["act"]["execution_ms"] - 0.005) / 2
    )


def test_a_bundle_whose_predictors_serve_any_card_answers_before_the_data_sheet(
    my_card, card_bundle, network, cli, monkeypatch
):
    monkeypatch.setitem(METHODS, "toy-of-any-card", "tests.toy_card_method:ToyOfAnyCard")
    card_bundle("one", "v100", method="toy-of-any-card", date="2025-01-01")
    # Rows of one card do not say how cards differ.
    assert cli.document("predict", network, "--device", "h100")["origins"]["inferred"] == 0
    card_bundle("any", "v100", "t4", method="toy-of-any-card")
    own = cli.document("predict", network, "--device", "v100")
    assert own["origins"]["inferred"] == 0
    # The bundle has rows of the T4, but not of this kind of layers.
    other = cli.document("predict", network, "--device", "t4")
    assert other["origins"]["inferred_ms"] == by_name(other)["fc"]["execution_ms"]
    document = cli.document("predict", network, "--device", "h100")
    fc, act = document["layers"]
    assert (fc["inferred"], act["inferred"], act["estimated"]) == (True, False, True)
    ratio = 15.7 / 66.9
    assert fc["execution_ms"] == pytest.approx(ratio * own["layers"][0]["execution_ms"], rel=1e-2)
    assert document["origins"]["inferred_ms"] == pytest.approx(fc["execution_ms"])
    assert document["notes"] == [
        "no bundle has times of this card: any infers them from those of v100 and the facts of all"
    ]
    assert other["notes"] == document["notes"]
    half = my_card(peak_tflops="{ fp32 = 7.85 }")
    slower = cli.document("predict", network, "--device", half)["layers"][0]
    assert slower["execution_ms"] == pytest.approx(2 * own["layers"][0]["execution_ms"], rel=1e-3)
    # Its rows are of another class of devices than AMD's.
    assert cli.document("predict", network, "--device", "mi210")["origins"]["inferred"] == 0


def test_measured_cards_of_the_same_series_are_named_and_do_not_answer(card_bundle, network, cli):
    card_bundle("mine", "v100-pcie", "h100")
    document = cli.document("predict", network, "--device", "v100")
    assert document["device"] == "v100"
    assert document["origins"]["measured"] == pytest.approx(0, abs=1e-9)
    assert document["notes"][-1] == (
        "v100 is Tesla V100; measured are also v100-pcie (Tesla V100 PCIe, torch): choose by "
        "--device"
    )
    # Nothing was measured in this precision.
    half = cli.document("predict", network, "--device", "v100", "--precision", "fp16")
    assert not any("measured are also" in note for note in half["notes"])
    # The bundle that answers knows both, or there is no other of the series.
    for card in ("v100-pcie", "h100"):
        assert cli.document("predict", network, "--device", card)["notes"] == []
    everywhere = cli.json("predict", network, "--device", "all")
    assert not any("measured are also" in note for each in everywhere for note in each["notes"])


def test_all_devices_are_asked_as_each_alone(card_bundle, network, cli):
    card_bundle("mine", "k80", "h100", precision="fp16")
    documents = cli.json("predict", network, "--device", "all", "--precision", "fp16")
    found = {each["device"]: each for each in documents}
    assert found["h100"]["origins"]["measured"] > 0
    # Its units have no float16, whatever rows say.
    assert found["k80"]["error"] == "no fp16, which precision fp16 needs"


def test_a_bundle_of_several_cards_is_found_by_each(card_bundle, network, cli):
    card_bundle("both", "v100", "h100")
    for card in ("v100", "h100"):
        document = cli.document("predict", network, "--device", card)
        assert (document["device"], document["layers"][0]["estimated"]) == (card, False)
    devices = [each["device"] for each in cli.json("predict", network, "--device", "all")]
    assert devices.count("h100") == devices.count("v100") == 1


def test_of_several_bundles_one_answers_by_a_stated_rule_and_the_others_are_named(
    card_bundle, network, cli
):
    card_bundle("older", "h100")
    card_bundle("half", "h100", date="2026-03-01", precision="amp")
    newer = card_bundle("newer", "h100", date="2026-02-01")
    document = cli.document("predict", network, "--device", "h100")
    assert document["bundle"] == str(newer)
    [note] = document["notes"]
    assert note.startswith("newer (torch) answers: ")
    assert "there is also half (torch, amp); older (torch)" in note
    assert cli.document("predict", network, "--device", "h100", "--bundle", "older")["notes"] == []
    amp = cli.document("predict", network, "--device", "h100", "--precision", "amp")
    assert (Path(amp["bundle"]).name, amp["precision"]) == ("half", "amp")


def test_a_bundle_that_is_named_answers_under_its_own_setting_or_not_at_all(
    card_bundle, network, cli, monkeypatch
):
    monkeypatch.setitem(METHODS, "toy-of-any-card", "tests.toy_card_method:ToyOfAnyCard")
    card_bundle("half", "v100", "t4", method="toy-of-any-card", precision="amp")
    words = ["predict", network, "--bundle", "half", "--device"]
    # Also for a card that it has no rows of.
    assert [cli.document(*words, card)["precision"] for card in ("v100", "h100")] == ["amp", "amp"]
    line = cli.error(*words, "v100", "--precision", "fp32", "--compiled")
    assert (
        "has no times of v100 with precision fp32, compiled, only torch (amp); leave out "
        "--precision fp32 and" in line
    )
    assert "is for device v100 or t4" in cli.error(*words, "h100", "--compiled")


def test_threads_of_the_host_change_nothing_on_a_card(card_bundle, network, cli):
    card_bundle("mine", "v100", "h100")
    words = ["predict", network, "--device", "h100"]
    alone, asked = cli.document(*words), cli.document(*words, "--threads", "4")
    assert (asked["device"], asked["total_ms"]) == ("h100", alone["total_ms"])


def test_copies_of_a_card_without_a_bus_are_unknown_and_the_text_says_why(my_card, network, cli):
    text = cli.text("predict", network, "--device", my_card(bus_gb_s=None))
    assert "preprocess transfers; give bus_gb_s of mycard" in text


def test_precision_and_compiled_are_the_setting(card_bundle, network, cli):
    card_bundle("mine", "h100")
    words = ["predict", network, "--device", "h100"]
    assert cli.document(*words, "--precision", "fp32")["origins"]["measured"] > 0
    half = cli.document(*words, "--precision", "fp16", "--compiled")
    assert (half["precision"], half["compiled"]) == ("fp16", "dynamo")
    assert all("dtype=float16" in layer["key"] for layer in half["layers"])
    assert half["origins"]["measured"] == pytest.approx(0, abs=1e-9)
    [note] = half["notes"]
    assert "no bundle has times of this card with precision fp16, compiled, only mine" in note
    assert ", fp16, compiled: " in cli.text(*words, "--precision", "fp16", "--compiled")


def test_execution_takes_at_least_as_long_as_the_host_dispatches(card_bundle, network, cli):
    card_bundle("mine", "v100")
    words = ["predict", network, "--device", "v100"]
    free = cli.document(*words)
    slow = cli.document(*words, "--host-dispatch-us", "5000")
    assert (slow["kernels"], slow["phases"]["execution_ms"]) == (2, pytest.approx(10))
    assert slow["waiting_ms"] == pytest.approx(10 - free["phases"]["execution_ms"])
    assert slow["low_ms"] == pytest.approx(slow["total_ms"])
    fast = cli.document(*words, "--host-dispatch-us", "0.001")
    assert (fast["total_ms"], fast["waiting_ms"]) == (pytest.approx(free["total_ms"]), 0)
    text = cli.text(*words, "--host-dispatch-us", "5000")
    assert "host            10.00 ms  (2 launches x 5000 us)\n" in text
    assert "waiting for the host" in text


def test_a_dispatch_that_layers_show_is_theirs_alone_and_the_hosts_in_a_network(
    card_bundle, network, cli, monkeypatch
):
    monkeypatch.setitem(METHODS, "toy-with-dispatch", "tests.toy_card_method:ToyWithDispatch")
    card_bundle("mine", "v100", method="toy-with-dispatch", options={"session": "first"})
    words = ["predict", network, "--device", "v100"]
    learnt = cli.document(*words)
    layer = ["predict-layer", "dense", "batch=16", "features_in=256", "features_out=128"]
    alone = cli.json(*layer, "--device", "v100")[0]["execution_ms"]
    fc, act = learnt["layers"]
    assert fc["execution_ms"] == pytest.approx(DEVICE_SHARE * alone)
    assert (learnt["host_dispatch_us"], learnt["host_dispatch_source"]) == (
        pytest.approx(1e3 * DISPATCH_MS), "layers",
    )  # fmt: skip
    assert learnt["phases"]["execution_ms"] == pytest.approx(2 * DISPATCH_MS)
    device_ms = fc["execution_ms"] + act["execution_ms"]
    assert learnt["waiting_ms"] == pytest.approx(2 * DISPATCH_MS - device_ms)
    # Another host may need 5 us for each of the 2 kernels, or twice as long as those that measured.
    copies_ms = learnt["total_ms"] - learnt["phases"]["execution_ms"]
    assert copies_ms + 0.01 <= learnt["low_ms"] < 0.9 * learnt["total_ms"]
    assert learnt["high_ms"] == pytest.approx(copies_ms + 4 * DISPATCH_MS)
    text = cli.text(*words)
    assert "2 launches x 500 us on the hosts that measured, 5 to 20 are usual; set yours " in text
    own = cli.document(*words, "--host-dispatch-us", "0.001")
    assert (own["host_dispatch_source"], own["waiting_ms"]) == ("given", 0)
    assert own["phases"]["execution_ms"] == pytest.approx(device_ms)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"board_w": None}, "mycard.toml: mycard: board_w must be given"),
        (
            {"bandwidth_gb_s": "1e9"},
            "bandwidth_gb_s=1000000000.0 must be plausible: between 5 and 30000 GB/s",
        ),
        ({"peak_tflops": "{ fp24 = 1 }"}, "peak_tflops has no fp24; it has bf16, fp16, fp32"),
        ({"colour": '"red"'}, "mycard has no colour; it has "),
        ({"class": '"abacus"'}, "class = 'abacus'; it must be one of"),
        ({"class": '"cpu"'}, "describes a processor, and no bundle has times of 'mycard'"),
    ],
)
def test_a_file_with_a_missing_or_absurd_fact_is_one_line(my_card, network, cli, changed, part):
    assert part in cli.error("predict", network, "--device", my_card(**changed))


def test_a_card_in_the_hosts_memory_copies_nothing(my_card, network, cli):
    apart = cli.document("predict", network, "--device", my_card(bus=None, bus_gb_s=None))
    assert [entry["op"] for entry in apart["skipped"]] == ["transfer"] * 2
    text = cli.text("predict", network, "--device", my_card(bus=None, bus_gb_s=None))
    assert "does not include 2 transfers, listed below" in text
    assert "; give bus_gb_s of mycard, or bus = 'unified' without copies (" in text
    words = ["predict", network, "--device", my_card(bus='"Unified"', bus_gb_s=None)]
    document = cli.document(*words)
    phases = document["phases"]
    assert (phases["preprocess_ms"], phases["postprocess_ms"]) == (0, 0)
    assert phases["execution_ms"] == apart["phases"]["execution_ms"] == document["total_ms"]
    assert not document["skipped"]
    assert not document["estimated_phases"]
    line = cli.error("predict", network, "--device", my_card(bus='"unified"', bus_gb_s="31.5"))
    assert 'bus = "unified" says that nothing is copied; leave out bus_gb_s' in line


def test_a_wrong_card_or_a_precision_that_it_lacks_is_one_line(home, network, cli):
    line = cli.error("predict", network, "--device", "rtx4900")
    assert "no device or bundle 'rtx4900'; did you mean rtx4090, " in line
    assert line.rstrip().endswith(
        "See: resperf devices; for another GPU write mycard.toml (docs/importing.md)"
    )
    assert len(line) < 180
    assert "has an empty name" in cli.error("predict", network, "--device", "")
    for word in ("nan", "inf", "-1", "0"):
        line = cli.error("predict", network, "--device", "h100", "--host-dispatch-us", word)
        assert "Invalid value for '--host-dispatch-us'" in line
    line = cli.error("predict", network, "--device", home / "none.toml")
    assert "none.toml cannot be read" in line
    line = cli.error("predict", network, "--device", "k80", "--precision", "amp")
    assert "k80 (Tesla K80) has no fp16, which precision amp needs" in line
    line = cli.error("predict", network, "--device", "t4", "--precision", "bf16")
    assert "t4 (Tesla T4) has no bf16" in line
    line = cli.error("predict", network, "--device", "h100", "--framework", "synthetic")
    assert "no predictions for h100 with synthetic; it has torch (fp32, " in line
    line = cli.error("predict", network, "--device", "h100", "--framework", "tensorflow",
                     "--precision", "amp")  # fmt: skip
    assert line.endswith("h100 with tensorflow in amp; it has tensorflow (fp32, fp16, bf16)\n")


def test_a_processor_has_no_data_sheet_and_its_bundle_no_other_precision(
    bundle, network, network_file, cli
):
    line = cli.error("predict", network, "--bundle", bundle, "--precision", "amp")
    assert "has no times of cpu with precision amp" in line
    node, ends = make_node("Softmax", ["x"], ["y"], "s"), ({"x": [2, 3]}, {"y": [2, 3]})
    path = network_file("s.onnx", [node], *ends)
    document = cli.document("predict", path, "--bundle", bundle)
    assert document["origins"]["estimated"] == 0
    assert [each["name"] for each in document["skipped"]] == ["s"]


def test_without_tensorrt_each_way_to_ask_for_it_says_what_to_install(network, cli, monkeypatch):
    monkeypatch.setattr("resperf.lowering._trt_kernels.BINDINGS", "not_there")
    install = "pip install 'resperf[tensorrt-rtx]'"
    for words in (
        ("predict", network, "--device", "t4", "--framework", "tensorrt"),
        ("predict", network, "--device", "h100", "--precision", "int8"),
        ("compare", network, "--device", "t4", "h100", "--precision", "int8"),
        # A bundle, or a method, of one framework names that.
        ("predict", network, "--device", "t4", "--precision", "fp16", "--bundle", "gpus-tensorrt"),
        ("predict", network, "--device", "h100", "--bundle", "gpus-tensorrt"),
        ("predict", network, "--device", "t4", "--method", "kernel-costs"),
    ):
        assert cli.error(*words).rstrip().endswith(install)
    everywhere = cli.run("predict", network, "--device", "all", "--framework", "tensorrt", code=2)
    assert everywhere.out.count(install) == 1
    with pytest.raises(UnsupportedError, match=r"\[tensorrt-rtx\]'$"):
        resperf.predict(network, device="t4", framework="tensorrt")
    # Other frameworks answer for the same cards.
    assert cli.document("predict", network, "--device", "t4")["framework"] == "torch"
