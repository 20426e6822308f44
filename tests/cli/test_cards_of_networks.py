"""Cards whose bundle was learnt from whole networks: what is answered, how, and what is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.bundle import provenance, write_manifest
from resperf.devices import device_facts
from resperf.errors import DeviceError
from resperf.platform import Platform
from resperf.prediction.choice import Query, choose
from resperf.predictors import METHODS, Examples
from resperf.predictors.class_costs import ClassCosts
from resperf.predictors.operator_classes import (
    Cost,
    RunNetwork,
    RunOperator,
    RunTensor,
    class_terms,
)
from resperf.settings import Mode, Setting

pytest.importorskip("scipy")

EAGER = Setting("torch", "2.9.1", precision="amp", layout="nchw", compiled="eager", batch=64)
COMPILED = replace(EAGER, compiled="dynamo")
STEPS = replace(EAGER, mode=Mode.TRAINING, optimizer="sgd")
CARDS = {"rtx3090": 1.0, "rtx4090": 1.3, "rtx5090": 0.8}
"""Card -> how many times its time is what the same costs let expect."""
WITH_COMPILED = ("rtx4090", "rtx5090")


def networks() -> list[RunNetwork]:
    """Products and activations in several sizes, the first one next to nothing."""
    random = np.random.default_rng(0)
    found = []
    for number in range(60):
        rows, width = (int(2 ** random.integers(6, 12)) if number else 2 for _ in range(2))
        weights = RunTensor((width, width), "float16", is_weight=True)
        data, sums = (RunTensor((rows, width), each) for each in ("float16", "float32"))
        counts = [int(each) for each in random.integers(1, 9, 3)]
        found.append(
            RunNetwork(
                f"net{number}",
                (
                    RunOperator("mm", (data, weights), (data,), count=counts[0]),
                    RunOperator("relu", (data,), (data,), count=counts[1]),
                    RunOperator("_to_copy", (sums,), (data,), count=counts[2]),
                ),
                batch=(64, 4096)[number % 2],
            )
        )
    return found


def time_ms(network: RunNetwork, card: str) -> float:
    """Twice the flops of products, 1.5 times all bytes, and times the card's factor."""
    facts = device_facts(card)
    assert facts is not None
    terms = class_terms(network, facts)
    bytes_ms = (
        sum(time for cost, time in terms.items() if cost.term == "bytes")
        - terms[Cost("update of weights", "bytes")]
    )
    return CARDS[card] * (2 * terms[Cost("product", "flops")] + 1.5 * bytes_ms)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """Learn from networks on three cards eager, on two of them compiled in half the time.

    Training steps, eager on one card, take three times as long.
    """
    some = networks()
    runs = [(card, EAGER, 1.0) for card in CARDS]
    runs += [(card, COMPILED, 0.5) for card in WITH_COMPILED]
    rows = Examples(
        [each for _ in runs for each in some],
        "execution_ms",
        np.array([part * time_ms(each, card) for card, _, part in runs for each in some]),
        [replace(setting, batch=each.batch) for _, setting, _ in runs for each in some],
        [Platform(card) for card, _, _ in runs for _ in some],
    )
    folder = tmp_path_factory.mktemp("stored") / "networks"
    folder.mkdir()
    learnt = ClassCosts("network").fit(rows, validation=rows, seed=0)
    values = {"method": "class-costs", **learnt.export(folder, "network-execution")}
    times_ms = np.array([3 * time_ms(each, "rtx3090") for each in some])
    steps = Examples(some, "step_ms", times_ms, [STEPS], [Platform("rtx3090")])
    of_steps = ClassCosts("network").fit(steps, validation=steps, seed=0)
    of_steps_values = {"method": "class-costs", **of_steps.export(folder, "network-step")}
    settings = [EAGER, COMPILED, STEPS]
    write_manifest(
        folder,
        {
            "created": "2026-01-01T00:00:00+00:00",
            "settings": {str(n): s.without_batch().to_json() for n, s in enumerate(settings)},
            "platforms": {card: Platform(card).to_json() for card in CARDS},
            "parts": [
                {
                    "device": "rtx3090", "framework": "torch", "method": "class-costs",
                    "settings": ["2", "1", "0"], "platforms": list(CARDS), "costs": {},
                    "predictors": {
                        "network": {"execution_ms": values, "step_ms": of_steps_values}
                    },
                    "copies": {}, "transfers": {}, "ranges": {}, "errors": {}, "intervals": {},
                    "golden": {}, "training": {},
                }
            ],
            "provenance": provenance([], seeds={"training": 0}, excluded={}),
        },
    )  # fmt: skip
    return folder


@pytest.fixture
def bundle(home: Path, stored: Path) -> Path:
    return Path(shutil.copytree(stored, home / "bundles" / "networks"))


@pytest.fixture
def network(dense_network) -> Path:
    return dense_network("n")


def amp(network: Path, device: str | Path, *words: str, batch: int = 4096) -> list[object]:
    precise = () if "--precision" in words else ("--precision", "amp")
    return ["predict", network, "--device", device, "--batch", str(batch), *precise, *words]


def test_a_whole_network_is_a_full_answer(bundle, network, cli):
    document = cli.document(*amp(network, "rtx4090"))
    assert (document["precision"], document["compiled"]) == ("amp", "eager")
    value, phases = document["quantities"]["execution_ms"]["value"], document["phases"]
    assert phases["execution_ms"] == pytest.approx(value)
    # 4096 x 256 and 4096 x 128 values of 4 bytes at 31.5 GB/s, 1.25 times, and 10 us.
    assert phases["preprocess_ms"] == pytest.approx(0.01 + 1.25 * 4 * 4096 * 256 / 31.5e6)
    assert phases["postprocess_ms"] == pytest.approx(0.01 + 1.25 * 4 * 4096 * 128 / 31.5e6)
    assert document["total_ms"] == pytest.approx(sum(phases.values()))
    assert (document["complete"], document["skipped"], document["extrapolated"]) == (True, [], "")
    origins = document["origins"]
    assert origins["inferred_ms"] == pytest.approx(value)
    assert origins["inferred"] + origins["estimated"] == pytest.approx(1)
    ratio = document["low_ms"] / document["total_ms"]
    assert ratio == pytest.approx(document["quantities"]["execution_ms"]["low"] / value)
    groups = {each["name"]: each for each in document["groups"]}
    assert sum(each["ms"] for each in groups.values()) == pytest.approx(value)
    assert "products with normalisation and activation" in groups
    for each in (*document["groups"], *document["classes"]):
        assert each["low"] <= each["ms"] <= each["high"]
    assert "product" in {each["name"] for each in document["classes"]}
    text = cli.text(*amp(network, "rtx4090"))
    assert "inferred from whole networks on this device" in text
    assert "attributed from the times of whole networks, not measured" in text
    assert "products with normalisation and activation" in text
    assert "\nproduct " not in text
    assert "\nproduct " in cli.text(*amp(network, "rtx4090", "--all"))


def test_compiled_networks_have_no_groups_and_cards_without_them_are_inferred(bundle, network, cli):
    eager = cli.document(*amp(network, "rtx4090"))
    own = cli.document(*amp(network, "rtx4090", "--compiled"))
    assert (own["compiled"], own["groups"], own["classes"]) == ("dynamo", [], [])
    assert own["phases"]["execution_ms"] < eager["phases"]["execution_ms"]
    other = cli.document(*amp(network, "rtx3090", "--compiled"))
    assert other["inferred_from"] == "whole networks on other devices"
    assert any("inferred from rtx4090, rtx5090 and data sheets" in w for w in other["warnings"])


def test_a_card_that_nobody_measured_is_inferred_from_the_others(bundle, network, cli):
    document = cli.document(*amp(network, "h100"))
    assert document["device"] == "h100"
    [note] = document["notes"]
    assert note.startswith("no bundle has times of this card: networks infers them from those of")
    assert document["inferred_from"] == "whole networks on other devices"
    # Factors of 0.8 to 1.3 of three cards: the next may be as far off.
    assert document["high_ms"] > 1.3 * document["total_ms"]
    assert "inferred from whole networks on other devices" in cli.text(*amp(network, "h100"))


def test_without_a_precision_float32_is_meant(bundle, network, cli):
    document = cli.document("predict", network, "--device", "rtx4090", "--batch", "8")
    assert document["precision"] == "fp32"
    assert document["origins"]["estimated"] == pytest.approx(1)
    [note] = document["notes"]
    assert "no bundle has times of this card with precision fp32, only networks (torch" in note
    assert "(for its measurements: --precision amp): every time is estimated" in note
    line = cli.error("predict", network, "--device", "cpu", "--batch", "8", "--framework", "torch")
    assert "no device or bundle 'cpu' with framework 'torch'" in line
    named = cli.document(
        "predict", network, "--device", "rtx4090", "--bundle", bundle, "--batch", "8"
    )
    assert named["precision"] == "amp"


def test_half_precision_is_answered_by_rows_of_autocast(bundle, network, cli):
    for precision in ("fp16", "bf16"):
        document = cli.document(*amp(network, "rtx4090", "--precision", precision))
        assert document["precision"] == precision
        assert any(f"no network was measured in {precision}" in w for w in document["warnings"])
        # No casts of weights and of the input.
        under_amp = cli.document(*amp(network, "rtx4090"))
        assert document["phases"]["execution_ms"] < under_amp["phases"]["execution_ms"]


def test_a_training_step_is_shown_beside_what_runs_in_the_same_way_only(bundle, network, cli):
    under_amp = cli.document(*amp(network, "rtx3090"))["quantities"]
    assert under_amp["step_ms"]["mode"] == "training"
    assert under_amp["step_ms"]["value"] > 2 * under_amp["execution_ms"]["value"]
    half = cli.document(*amp(network, "rtx3090", "--precision", "fp16"))["quantities"]
    assert half["step_ms"]["value"] < under_amp["step_ms"]["value"]
    for device, *words in (("rtx3090", "--compiled"), ("rtx4090",)):
        assert "step_ms" not in cli.document(*amp(network, device, *words))["quantities"]


def test_networks_with_graphs_teach_inference_and_steps_and_judge_both(
    network_file, home, tmp_path, cli
):
    rows = ["network,batch,time_ms,quantity,mode,framework,device"]
    for width in range(256, 1280, 16):
        nodes = [make_node("Gemm", ["x", "w"], ["y"], "fc")]
        weights = {"w": np.zeros((width, width), np.float32)}
        ends = {"x": ["n", width]}, {"y": ["n", width]}
        path = network_file(f"dense{width}.onnx", nodes, *ends, weights)
        ms = 2 * 65536 * width**2 / 71.2e9
        rows += [
            f"{path},65536,{ms},execution_ms,inference,torch,rtx3090",
            f"{path},65536,{3 * ms},step_ms,training,torch,rtx3090",
        ]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    file, made = tmp_path / "runs.h5", tmp_path / "made"
    cli.text("dataset", "import", tmp_path / "runs.csv", "--format", "list", "-o", file)
    cli.text("train", file, "--method", "class-costs", "-o", made)
    found = cli.json("evaluate", file, "--bundle", made)
    assert {each["phase"] for each in found} == {"execution_ms", "step_ms"}
    assert all(each["mape"] < 0.1 for each in found)


def test_a_bundle_of_several_cards_is_found_by_its_name_and_one_of_them(bundle):
    for device in CARDS:
        found = choose(Query(device, None, "networks")).bundle
        assert (found.path, found.device) == (bundle, device)
        # Its files are checked once, and each device keeps its own answer.
        assert found.checked.device == device
    assert choose(Query(None, None, "rtx4090")).bundle.device == "rtx4090"
    with pytest.raises(DeviceError, match="name one by --device"):
        choose(Query(None, None, "networks"))


def test_an_operator_of_unknown_shape_is_left_out_and_refused_if_strict(bundle, network_file, cli):
    nodes = [
        make_node("Gemm", ["x", "w", "b"], ["h"], "fc"),
        make_node("Sparkle", ["h"], ["y"], "odd", domain="com.example"),
    ]
    weights = {"w": np.zeros((256, 128), np.float32), "b": np.zeros(128, np.float32)}
    path = network_file("odd.onnx", nodes, {"x": ["n", 256]}, {"y": None}, weights)
    document = cli.document(*amp(path, "rtx4090"))
    [why] = {each["reason"] for each in document["skipped"] if each["op"] == "operator"}
    assert why == "com.example.sparkle 'odd': the shape of its output is not known"
    assert not document["complete"]
    assert "the shape of its output is not known" in cli.error(*amp(path, "rtx4090", "--strict"))
    nothing = network_file("nothing.onnx", [make_node("Sparkle", ["x"], ["y"], "odd",
                           domain="com.example")], {"x": ["n", 2]}, {"y": None})  # fmt: skip
    line = cli.error(*amp(nothing, "rtx4090"))
    assert "nothing: there is no predictor for any operator (com.example.sparkle 'odd'" in line


def test_above_the_largest_batch_the_time_is_extrapolated(bundle, network, cli):
    document = cli.document(*amp(network, "rtx4090", batch=8192))
    assert document["extrapolated"] == "the largest batch size of the data is 4096"
    # At least half to twice the time.
    assert document["high_ms"] / document["low_ms"] >= 3.999
    inside = cli.document(*amp(network, "rtx4090"))
    assert not inside["extrapolated"]


def test_below_the_smallest_batch_the_host_may_decide(bundle, network, cli):
    words = amp(network, "rtx4090", batch=1)
    document = cli.document(*words)
    assert document["extrapolated"] == "the smallest batch size of the data is 64"
    assert document["coverage"]["out_of_range_ms"] == document["phases"]["execution_ms"]
    starts = 3  # of five operators two are casts, which take the host a quarter of the time
    warning = document["warnings"][-1]
    assert f"{starts} x 5 to 20 us = " in warning
    high = document["quantities"]["execution_ms"]["high"]
    assert high == pytest.approx(0.02 * starts)
    assert "extrapolated: the smallest batch size" in cli.text(*words)
    slow = cli.document(*words, "--host-dispatch-us", "50")
    assert slow["phases"]["execution_ms"] == pytest.approx(0.05 * starts)
    assert slow["origins"]["host"] > 0.5
    assert not any("--host-dispatch-us" in each for each in slow["warnings"])
    line = cli.error(*words, "--strict")
    assert "has no predictor for preprocess transfers" in line


def _read(path: Path):
    from resperf.network import read_network

    return read_network(path, batch=1)


def test_of_two_bundles_of_cards_the_setting_decides_which_one_answers(
    bundle, card_bundle, network, cli, monkeypatch
):
    monkeypatch.setitem(METHODS, "toy-of-any-card", "tests.toy_card_method:ToyOfAnyCard")
    card_bundle("layers", "v100", "t4", method="toy-of-any-card")

    def asked(device: str, *words: str) -> tuple[str, str, float]:
        document = cli.document("predict", network, "--device", device, "--batch", "64", *words)
        origins = document["origins"]
        found = "measured" if origins["measured"] > 1e-6 else "inferred"
        return Path(document["bundle"]).name, found, origins[found]

    for device, words, name, found in (
        ("rtx4090", (), "layers", "inferred"),
        ("rtx4090", ("--precision", "amp"), "networks", "inferred"),
        ("h100", (), "layers", "inferred"),
        ("h100", ("--precision", "amp"), "networks", "inferred"),
        ("v100", (), "layers", "measured"),
        ("v100", ("--precision", "amp", "--compiled"), "networks", "inferred"),
    ):
        answer = asked(device, *words)
        assert answer[:2] == (name, found)
        assert answer[2] > 0
    words = ["predict", network, "--device", "t4", "--batch", "64"]
    of_t4 = cli.document(*words)
    assert of_t4["device"] == "t4"
    # Threads of the host do not make it another card.
    threaded = cli.document(*words, "--threads", "4")
    assert (threaded["device"], threaded["total_ms"]) == ("t4", of_t4["total_ms"])
    [note] = cli.document("predict", network, "--device", "rtx4090", "--batch", "64")["notes"]
    assert "only networks (torch" in note
    assert "(for its measurements: --precision amp): layers infers them from" in note


def test_all_devices_are_one_table(bundle, network, cli):
    found = cli.json("predict", network, "--device", "all", "--batch", "64", "--precision", "amp")
    by_device = {each["device"]: each for each in found if "phases" in each}
    assert by_device["rtx5090"]["inferred_from"] == "whole networks on this device"
    assert by_device["h100"]["inferred_from"] == "whole networks on other devices"
    assert by_device["mi210"]["origins"]["estimated"] == pytest.approx(1)
    text = cli.text(
        "predict", network, "--device", "all", "--batch", "1", "--precision", "amp",
        "--framework", "torch",
    )  # fmt: skip
    [row] = [line for line in text.splitlines() if line.startswith("rtx5090 ")]
    assert row.rstrip().endswith("network")
