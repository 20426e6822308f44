"""Layers of several devices together: merged, learnt, stored, judged, each on its own device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from resperf.bundle import Bundle, merge_bundles
from resperf.cli.main import main
from resperf.dataset import (
    Dataset,
    DatasetInfo,
    check_dataset,
    merge_datasets,
    read_dataset,
    read_table,
    summarize,
    write_dataset,
)
from resperf.devices import device_facts
from resperf.errors import BundleError, DatasetError, DeviceError, TrainingError
from resperf.layers import Layer, kind_of
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, weightless
from resperf.platform import Platform
from resperf.prediction.choice import Query, choose, place_of
from resperf.prediction.sum_of_layers import SumOfLayers
from resperf.quantities import Estimator
from resperf.settings import Setting
from resperf.training import ComparisonSettings, compare, evaluate, train
from resperf.training.rows import layer_rows

DISPATCH_MS, SHARE_REACHED = 0.02, 0.8
SESSION = {"measured by": "us", "session": "first"}
FIRST = Setting("torch", precision="fp32", options=SESSION)
LATER = replace(FIRST, options={**SESSION, "session": "later"})
HALF = replace(FIRST, precision="fp16")
SLOWER = {FIRST: 1.0, LATER: 1.5, HALF: 1.0}
"""Setting -> how many times as long its session's work takes."""


def addition(inner: int, dtype: str = "float32") -> Layer:
    return kind_of("elementwise").from_fields(
        {"batch": 8, "inner": inner, "function": "add", "second": "same", "dtype": dtype}
    )


def activation(values: int) -> Layer:
    return kind_of("activation").from_fields(
        {"batch": 8, "values": values, "activation": "relu", "dtype": "float32"}
    )


def additions(count: int, seed: int, dtype: str = "float32") -> list[Layer]:
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(np.log(1e4), np.log(1e7), count)).astype(int)
    return [addition(int(size), dtype) for size in sizes]


def time_ms(layer: Layer, device: str, setting: Setting = FIRST) -> float:
    """The longer of the dispatch, and the bytes at a share of the card's bandwidth."""
    facts = device_facts(device)
    assert facts is not None
    moved_ms = 1e3 * layer.moved_bytes / facts.bandwidth_bytes_per_s / SHARE_REACHED
    return max(DISPATCH_MS, SLOWER.get(setting, 1.0) * moved_ms)


def row(layer: Layer, device: str, setting: Setting = FIRST, **values: Any) -> Measurement:
    estimator = Estimator.MEDIAN if setting is HALF else Estimator.MEAN_OF_BEST_FIVE
    taken = Samples(
        (values.pop("ms", time_ms(layer, device, setting)),), 1, 0, StopReason.BUDGET,
        estimator=estimator,
    )  # fmt: skip
    return Measurement(
        layer, Status.OK, {"execution_ms": taken}, setting=setting, platform=Platform(device),
        isolated_ms=taken.value, started_at=float("nan"), **values,
    )  # fmt: skip


def info_of(device: str, setting: Setting = FIRST, **values: Any) -> DatasetInfo:
    source = {
        "format": f"paper-{device}", "description": "times", "citation": f"the paper on {device}",
        "files": [], "left_out": {},
    }  # fmt: skip
    known: dict[str, Any] = {"quantities": ("execution_ms",), "source": source, **values}
    return DatasetInfo(setting, Platform(device), {"name": "import"}, 0, {}, **known)


def written(path: Path, rows: list[Measurement], **values: Any) -> Path:
    info = info_of(rows[0].platform.device, rows[0].setting, **values)
    write_dataset(path, Dataset(info, tuple(rows)))
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write a T4 in two sessions, a V100 with few activations, and a P4 in half precision."""
    folder = tmp_path_factory.mktemp("parts")
    shared = additions(300, seed=0)
    few = [activation(500_000 * n) for n in range(1, 21)]
    return [
        written(folder / "t4.h5", [
            *(row(each, "t4") for each in shared),
            *(row(each, "t4", LATER) for each in shared[:250]),
        ]),
        written(folder / "v100.h5", [
            *(row(each, "v100") for each in shared), *(row(each, "v100") for each in few),
        ]),
        written(folder / "p4.h5", [
            row(each, "p4", HALF) for each in additions(300, seed=1, dtype="float16")
        ]),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def merged(parts: list[Path]) -> Path:
    path = parts[0].with_name("merged.h5")
    merge_datasets(parts, path)
    return path


@pytest.fixture(scope="module")
def bundle(merged: Path) -> Bundle:
    for package in ("scipy", "lightgbm"):
        pytest.importorskip(package)
    return train(merged, merged.with_name("several"), method="roofline", trees=30)


def off(part: Bundle, layers: list[Layer], device: str, setting: Setting = FIRST) -> float:
    """Return the mean error of a bundle, on a device under a setting, as a fraction."""
    answer = part.for_device(Platform(device), setting)
    wanted = np.array([time_ms(each, device, setting) for each in layers])
    return float(np.mean(np.abs(answer.predict(layers).ms / wanted - 1)))


def test_merged_rows_keep_their_device_and_setting(parts: list[Path], merged: Path) -> None:
    dataset = read_dataset(merged)
    assert check_dataset(merged) == []
    assert len(dataset.measurements) == 300 + 250 + 300 + 20 + 300
    for each in dataset.measurements:
        expected = time_ms(each.layer, each.platform.device, each.setting)
        assert each.value("execution_ms") == pytest.approx(expected)
        # No layer was measured twice on one device, but on the T4 in two sessions.
        assert each.repeat == 0 or (each.setting, each.platform.device) == (LATER, "t4")
        wanted = Estimator.MEDIAN if each.setting == HALF else Estimator.MEAN_OF_BEST_FIVE
        assert each.samples["execution_ms"].estimator is wanted
    assert dataset.info.source["citation"] == "; ".join(
        f"the paper on {device}" for device in ("t4", "v100", "p4")
    )
    again = merge_datasets([merged, parts[0]], merged.with_name("again.h5"))
    assert len(again.measurements) == len(dataset.measurements)
    assert again.info.source["citation"] == dataset.info.source["citation"]


def test_equal_times_on_two_devices_are_two_rows(tmp_path: Path) -> None:
    files = [
        written(tmp_path / f"{device}.h5", [row(addition(9), device, ms=0.5)])
        for device in ("t4", "v100")
    ]
    assert len(merge_datasets(files, tmp_path / "both.h5").measurements) == 2
    assert check_dataset(tmp_path / "both.h5") == []


def test_a_summary_counts_rows_of_each_device(merged: Path) -> None:
    found = summarize(merged)
    assert {each.device: rows for each, rows in found.platforms.items()} == {
        "t4": 550, "v100": 320, "p4": 300,
    }  # fmt: skip
    assert [(each["device"], each["rows"]) for each in found.to_json()["platforms"]] == [
        ("t4", 550), ("v100", 320), ("p4", 300),
    ]  # fmt: skip
    # Sessions and devices are no repeats, whose differences would be noise.
    assert found.groups["elementwise"].quantities["execution_ms"].noise.pairs == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"machine_costs": {"call_ms": 0.1}}, r"has costs of its machine \(call_ms\)"),
        ({"source": {}}, "was measured on one machine"),
    ],
)
def test_campaigns_of_unlike_machines_are_refused(
    tmp_path: Path, parts: list[Path], values: dict[str, Any], words: str
) -> None:
    own = written(tmp_path / "own.h5", [row(addition(9), "a40")], **values)
    with pytest.raises(DatasetError, match=words) as refused:
        merge_datasets([parts[0], own], tmp_path / "c.h5")
    assert "device: t4 here, a40 there" in str(refused.value)
    assert not (tmp_path / "c.h5").exists()


def test_other_frameworks_are_refused_but_not_other_classes_of_devices(
    tmp_path: Path, parts: list[Path]
) -> None:
    other = written(
        tmp_path / "tf.h5", [row(addition(9), "t4", replace(FIRST, framework="tf"), ms=1.0)]
    )
    with pytest.raises(DatasetError, match=r"is of torch, .*tf\.h5 of tf"):
        merge_datasets([parts[0], other], tmp_path / "c.h5")
    rocm = written(tmp_path / "rocm.h5", [row(addition(9), "mi100")])
    assert len(merge_datasets([parts[0], rocm], tmp_path / "c.h5").measurements) == 551


def test_one_row_per_layer_setting_and_device(tmp_path: Path) -> None:
    layer = addition(9)
    rows = [
        row(layer, "t4", ms=1.0), row(layer, "t4", ms=3.0, repeat=1), row(layer, "v100", ms=7.0),
        row(layer, "t4", LATER, ms=9.0), row(layer, "t4", ms=50.0, repeat=2, flags=("busy",)),
    ]  # fmt: skip
    path = written(tmp_path / "a.h5", rows)
    table = read_table(path)["elementwise"]
    info = info_of("t4")
    several = layer_rows(table, info=info, many=True)
    found = dict(
        zip(
            [
                (w.device, s.options["session"])
                for s, w in zip(several.settings, several.platforms, strict=True)
            ],
            several.times_ms["execution_ms"].tolist(),
            strict=True,
        )
    )
    assert found == {("t4", "first"): 2.0, ("v100", "first"): 7.0, ("t4", "later"): 9.0}
    assert several.left_out == {"flagged, measured again": 1, "repeats": 1}
    one = layer_rows(table, info=info)
    assert one.times_ms["execution_ms"].tolist() == [2.0]
    assert one.left_out["another setting"] == 2
    assert [each.device for each in one.platforms] == ["t4"]


def test_each_device_is_predicted_as_itself(bundle: Bundle) -> None:
    assert bundle.device == "t4"
    assert [each.device for each in bundle.platforms] == ["t4", "v100", "p4"]
    assert set(bundle.settings) == {FIRST, LATER, HALF}
    # The first one answers where none is asked for.
    assert bundle.setting == FIRST
    layers = additions(50, seed=7)
    # Taken for the other card, a time would be 2.8 times as long, or 0.36.
    assert off(bundle, layers, "t4") < 0.03
    assert off(bundle, layers, "t4", LATER) < 0.03
    assert off(bundle, layers, "v100") < 0.03
    assert off(bundle, additions(50, seed=8, dtype="float16"), "p4", HALF) < 0.03
    # Nobody measured it.
    assert bundle.for_device(Platform("h100"), FIRST).unseen
    assert off(bundle, layers, "h100") < 0.15
    for split in ("validation", "test"):
        assert bundle.errors[split]["elementwise"]["execution_ms"]["mape"] < 0.03
    split = bundle.part["training"]["rows"]["elementwise"]
    assert split["train"] + split["validation"] + split["test"] == 1150


def test_kinds_with_few_rows_know_devices_too(bundle: Bundle) -> None:
    assert bundle.method_of("activation") == "roofline"
    layer = activation(3_000_000)
    card, other = (
        bundle.for_device(Platform(device), FIRST).predict([layer]).ms[0]
        for device in ("v100", "h100")
    )
    # Rows of one card do not tell all terms apart; one that knows no card gives 1.
    ratio = time_ms(layer, "v100") / time_ms(layer, "h100")
    assert card / other == pytest.approx(ratio, rel=0.3)


def test_golden_layers_are_of_their_own_devices(bundle: Bundle, tmp_path: Path) -> None:
    entries = bundle.part["golden"]["layers"]
    assert len({entry.get("platform", 0) for entry in entries}) > 1
    shutil.copytree(bundle.path, tmp_path / "swapped")
    manifest = json.loads((tmp_path / "swapped" / "bundle.json").read_text())
    part = manifest["parts"][0]
    part["platforms"] = part["platforms"][::-1]
    (tmp_path / "swapped" / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="where it predicted"):
        Bundle.load(tmp_path / "swapped").predict([addition(1000)])


def test_rows_are_judged_on_their_own_device(bundle: Bundle, merged: Path) -> None:
    found = {each.kind: each for each in evaluate(merged, bundle).rows}
    elementwise = found["elementwise"]
    assert elementwise.errors.rows == bundle.part["training"]["rows"]["elementwise"]["test"]
    assert elementwise.errors.mape < 0.03
    compared = compare(merged, ComparisonSettings(("roofline",), kinds=("elementwise",)))
    assert compared.rows[0].errors.rows == elementwise.errors.rows
    assert compared.rows[0].errors.mape < 0.03


def test_methods_of_one_device_learn_that_of_most_rows_and_say_so(
    merged: Path, tmp_path: Path
) -> None:
    one = train(merged, tmp_path / "one", method="baseline")
    assert [each.device for each in one.platforms] == ["t4"]
    assert one.part["training"]["rows"].keys() == {"elementwise"}
    notes = one.part["training"]["notes"]
    assert any(
        "learns one device, t4" in each and "320 of v100, 300 of p4" in each for each in notes
    )
    assert any("250 rows under another setting" in each for each in notes)
    assert off(one, additions(50, seed=7), "t4") < 0.05
    compared = compare(merged, ComparisonSettings(("baseline", "roofline"), kinds=("elementwise",)))
    assert {each.rows_trained for each in compared.rows} == {
        sum(one.part["training"]["rows"]["elementwise"][name] for name in ("train", "validation"))
    }
    assert any("only its rows of t4 are compared" in note for note in compared.notes)
    with pytest.raises(TrainingError, match="one name cannot stand for"):
        train(merged, tmp_path / "x", method="roofline", device="mine")


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    """Write a network of three additions, measured on two cards."""
    shape = [8, 2_000_000]
    nodes = [helper.make_node("Add", [f"x{n}", f"x{n}"], [f"x{n + 1}"], f"a{n}") for n in range(3)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", "x3")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    content = weightless(tmp_path / "net.onnx")
    network = NetworkRef("net", graph_digest(content))
    layer = kind_of("elementwise").from_fields(
        {"batch": 8, "inner": 2_000_000, "function": "add", "second": "same"}
    )

    def run(device: str, setting: Setting) -> Measurement:
        taken = Samples((3 * time_ms(layer, device, setting),), 1, 0, StopReason.BUDGET)
        return Measurement(
            network, Status.OK, {"execution_ms": taken}, setting=replace(setting, batch=8),
            platform=Platform(device),
        )  # fmt: skip

    rows = (run("t4", FIRST), run("v100", FIRST), run("t4", LATER), run("h100", FIRST))
    info = info_of("t4", quantities=())
    write_dataset(tmp_path / "runs.h5", Dataset(info, rows, {network.digest: content}))
    return tmp_path / "runs.h5"


def test_totals_are_those_of_each_rows_own_device(bundle: Bundle, networks: Path) -> None:
    (found,) = evaluate(networks, bundle, "all", SumOfLayers(bundle)).rows
    assert [each.device for each in found.networks] == ["t4", "v100", "t4", "h100"]
    assert [
        abs(each.error) < limit
        for each, limit in zip(found.networks, (0.05, 0.05, 0.05, 0.15), strict=True)
    ] == [True] * 4
    assert len({each.measured for each in found.networks}) == 4


@pytest.fixture
def of_two_classes(bundle: Bundle, tmp_path: Path) -> Path:
    """Merge the bundle with one of AMD's cards."""
    rows = [row(each, card) for card in ("mi100", "mi210") for each in additions(100, seed=3)]
    train(written(tmp_path / "amd.h5", rows), tmp_path / "amd", method="roofline", trees=5)
    merge_bundles([bundle.path, tmp_path / "amd"], tmp_path / "gpus")
    return tmp_path / "gpus"


def test_parts_are_found_by_any_of_their_devices(
    of_two_classes: Path, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = additions(50, seed=7)
    for device in ("v100", "t4", "mi210", "mi100"):
        found = choose(Query(device, bundle=of_two_classes)).bundle
        assert (found.device, found.platform.device, found.unseen) == (device, device, False)
        assert off(found, layers, device) < 0.05
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    shutil.copytree(of_two_classes, tmp_path / "home" / "bundles" / "mine")
    assert place_of("mine") == (tmp_path / "home" / "bundles" / "mine").resolve()
    assert choose(Query("mi210")).bundle.path == place_of("mine")
    with pytest.raises(DeviceError, match=r"which device of .*There is mi100, mi210, p4, t4, v100"):
        choose(Query(None, bundle=of_two_classes))
    amd = written(tmp_path / "mi100.h5", [row(each, "mi100") for each in additions(60, seed=9)])
    both = tmp_path / "both.h5"
    merge_datasets([parts[1], amd], both)
    (judged,) = (
        each for each in evaluate(both, Bundle.load(of_two_classes), "all").rows
        if each.kind == "elementwise"
    )  # fmt: skip
    # All layers of the other file are new.
    assert judged.errors.rows > 60
    assert judged.errors.mape < 0.05


def test_the_command_line_names_devices_and_judges_without_one(
    of_two_classes: Path,
    networks: Path,
    merged: Path,
    cli: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = json.loads(cli("devices", "--bundle", of_two_classes, "--json"))
    folder = {"name": "gpus", "path": str(of_two_classes.resolve())}
    own = [each for each in listed if each["bundle"] == folder]
    mine = [each["device"] for each in own if each["rests_on"] == "measured"]
    # The bundle has rows of a P4 in float16 alone.
    assert mine == ["t4", "v100", "p4", "mi100", "mi210"]
    lines = [line.split() for line in cli("devices", "--bundle", of_two_classes).splitlines()]
    assert [line[0] for line in lines if "gpus" in line and "measured" in line] == mine
    text = cli("evaluate", networks, "--bundle", of_two_classes, "--split", "all")
    assert [line.split()[1] for line in text.splitlines() if line.startswith("net ")] == [
        "t4", "v100", "t4", "h100",
    ]  # fmt: skip
    text = cli("dataset", "info", merged)
    rows = [line.split() for line in text.splitlines()]
    assert main(["train", str(merged)]) == 2
    assert "has rows of t4, v100, p4: name the folder" in capsys.readouterr().err
    assert ["v100", "320"] in [[line[0], line[-1]] for line in rows if line]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run
