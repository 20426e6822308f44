"""An external predictor of whole networks, from rows to a printed prediction."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resperf
from resperf.bundle import Bundle, merge_bundles, replaced_folder, write_manifest
from resperf.cli.main import main
from resperf.dataset import Dataset, DatasetInfo, read_dataset, write_dataset
from resperf.errors import BundleError, DeviceError, TrainingError
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, read_graph, read_network
from resperf.platform import this_platform
from resperf.predictors import METHODS, layer_predictor_class, methods_of, register
from resperf.quantities import Level
from resperf.settings import Mode, Setting
from resperf.training import train

METHOD = "toy-peak-memory"
SETTING = Setting("synthetic", "1", "none", threads=2)
RATIO = 1.5
"""Bytes at the peak for each byte of the largest activation."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register the toy as another package would: one row of the table."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    register(METHOD, "toy_peak_memory:ToyPeakMemory")
    yield
    del METHODS[METHOD]
    sys.modules.pop("toy_peak_memory", None)


def graph(width: int) -> bytes:
    """Return a dense layer without weights' bytes: its largest tensor is its output."""
    from onnx import TensorProto, helper

    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 8), ("y", width))
    )
    w = helper.make_tensor("w", TensorProto.FLOAT, [8, width], np.zeros(8 * width, np.float32))
    made = helper.make_graph([node], "g", [x], [y], [w])
    content: bytes = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()
    return content


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """400 networks at batch 2, whose peaks are within 10% of 1.5 times their largest activation."""
    random = np.random.default_rng(0)
    platform = this_platform("cpu")
    rows, graphs = [], {}
    for width in range(100, 500):
        content = graph(width)
        graphs[graph_digest(content)] = content
        peak = RATIO * 4 * 2 * width * random.uniform(0.9, 1.1)
        samples = {"peak_memory_bytes": Samples((peak,), 1, 0, StopReason.BUDGET)}
        setting = Setting("synthetic", "1", "none", threads=2, batch=2)
        rows.append(
            Measurement(
                NetworkRef(f"net{width}", graph_digest(content)), Status.OK, samples,
                setting=setting, platform=platform, started_at=float(width),
            )
        )  # fmt: skip
    info = DatasetInfo(
        SETTING, platform, {"name": "toy"}, 1, {}, "2026-01-02T03:04:05+00:00", {},
        quantities=("peak_memory_bytes",),
    )  # fmt: skip
    path = tmp_path / "networks.h5"
    write_dataset(path, Dataset(info, tuple(rows), graphs))
    return path


def test_a_network_predictor_goes_all_the_way(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "peak"
    assert main(["train", str(dataset), "--method", METHOD, "-o", str(target)]) == 0
    assert "peak_memory_bytes" in capsys.readouterr().out
    bundle = Bundle.load(target)
    assert (bundle.kinds, bundle.network_quantities) == ((), ("peak_memory_bytes",))
    assert bundle.errors["test"]["network"]["peak_memory_bytes"]["mape"] < 0.1
    assert [each["name"][:3] for each in bundle.part["golden"]["networks"]] == ["net"] * 3
    path = tmp_path / "wide.onnx"
    path.write_bytes(graph(1000))
    # 4 bytes x batch 4 x 1000 values x 1.5 are 24,000; errors are even within 10%.
    prediction = resperf.predict(path, bundle=target, batch=4)
    assert not isinstance(prediction, list)
    [found] = prediction.parts.quantities
    assert (found.name, found.unit, found.method) == ("peak_memory_bytes", "bytes", METHOD)
    assert found.value == pytest.approx(24_000, rel=0.02)
    assert found.low == pytest.approx(0.92 * 24_000, rel=0.04)
    assert found.high == pytest.approx(1.08 * 24_000, rel=0.04)
    assert np.isnan(prediction.total_ms)
    words = ["predict", str(path), "--bundle", str(target), "--batch", "4"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "peak_memory   23." in shown
    assert "KiB  (90% interval 2" in shown
    assert main([*words, "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["quantities"]["peak_memory_bytes"]["value"] == pytest.approx(found.value)
    assert document["total_ms"] is None
    assert main(["evaluate", str(dataset), "--bundle", str(target), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["phase"], row["method"]) == ("network", "peak_memory_bytes", METHOD)
    assert 0.03 < row["mape"] < 0.07
    assert row["in_interval"] > 0.8
    assert main(["evaluate", str(dataset), "--bundle", str(target)]) == 0
    assert "peak_memory_bytes" in capsys.readouterr().out


def test_no_file_of_resperf_names_the_toy() -> None:
    package = Path(resperf.__file__).parent
    assert not [file for file in package.rglob("*.py") if METHOD in file.read_text()]
    assert METHOD in methods_of(Level.NETWORK)
    with pytest.raises(TrainingError, match="is for whole networks; methods for layers: base"):
        layer_predictor_class(METHOD)
    with pytest.raises(TrainingError, match="there is a method 'gianniti' already"):
        register("gianniti", "elsewhere:Other")


def test_networks_that_are_excluded_are_not_learnt_from(dataset: Path, tmp_path: Path) -> None:
    names = [f"net{width}.onnx" for width in range(100, 450)]
    bundle = train(dataset, tmp_path / "b", method=METHOD, excluded=names)
    rows = bundle.part["training"]["rows"]["network"]["peak_memory_bytes"]
    assert rows["left_out"] == {"excluded": 350}
    assert sum(rows[name] for name in ("train", "validation", "test")) == 50
    assert bundle.provenance["excluded"]["networks"] == names


def test_a_golden_network_that_comes_out_otherwise_is_noticed(
    dataset: Path, tmp_path: Path
) -> None:
    target = train(dataset, tmp_path / "b", method=METHOD).path
    manifest = json.loads((target / "bundle.json").read_text())
    manifest["parts"][0]["predictors"]["network"]["peak_memory_bytes"]["slope"] = 3.0
    (target / "bundle.json").write_text(json.dumps(manifest))
    golden = manifest["parts"][0]["golden"]["networks"][1]
    width = int(golden["name"].removeprefix("net"))
    bundle = Bundle.load(target)
    with pytest.raises(BundleError, match=r"network peak_memory_bytes predicts .* when stored"):
        bundle.predict_networks([read_graph(graph(width), golden["name"], batch=2)])


def test_training_on_noisy_rows_of_networks_says_so(dataset: Path, tmp_path: Path) -> None:
    whole = read_dataset(dataset)
    rows = tuple(
        dataclasses.replace(row, flags=("busy",) if place % 4 == 0 else ())
        for place, row in enumerate(whole.measurements)
    )
    write_dataset(tmp_path / "noisy.h5", dataclasses.replace(whole, measurements=rows))
    (note,) = train(tmp_path / "noisy.h5", tmp_path / "b", method=METHOD).part["training"]["notes"]
    assert note.startswith("100 of 400 measured rows (25%) are noisy")


def manifest_with(bundle: Bundle, setting: Setting, **values: Any) -> dict[str, Any]:
    """Return the manifest of a bundle of one part with another setting and other values."""
    part = {**bundle.part, "settings": ["0"], **values}
    return {**bundle.manifest, "settings": {"0": setting.to_json()}, "parts": [part]}


def test_the_part_for_as_many_threads_answers(toy_dataset: Path, tmp_path: Path) -> None:
    two = train(toy_dataset, tmp_path / "two", method="baseline")
    setting = dataclasses.replace(two.setting, threads=4)
    with replaced_folder(tmp_path / "four") as folder:
        faster = {"call_ms": 0.001, "reshape_ms": 0.0001}
        write_manifest(folder, manifest_with(two, setting, costs=faster))
    parts = map(str, (two.path, tmp_path / "four"))
    assert main(["bundle", "merge", *parts, "-o", str(tmp_path / "both")]) == 0
    file = tmp_path / "n.onnx"
    file.write_bytes(graph(300))
    found = [
        resperf.predict(file, bundle=tmp_path / "both", batch=2, threads=threads)
        for threads in (None, 2, 4)
    ]
    call_ms = [each.overheads.call_ms for each in found if not isinstance(each, list)]
    assert call_ms == pytest.approx([0.01, 0.01, 0.001])


def test_layers_and_networks_in_one_bundle_answer_together(
    toy_dataset: Path, dataset: Path, tmp_path: Path
) -> None:
    """The predictor of networks is in another part, of another platform."""
    layers = train(toy_dataset, tmp_path / "layers", method="baseline").path
    networks = train(dataset, tmp_path / "networks", method=METHOD).path
    merge_bundles([layers, networks], tmp_path / "both")
    both = Bundle.load(tmp_path / "both")
    assert [set(each.kinds) for each in both.parts] == [{"conv", "pool", "dense"}, set()]
    asked = ("peak_memory_bytes", SETTING, both.parts[1].platform)
    assert both.part_for("network", *asked) is both.parts[1]
    with pytest.raises(BundleError, match=r"no peak_memory_bytes of conv for synthetic, infer"):
        both.part_for("conv", *asked)
    training = Setting("synthetic", mode=Mode.TRAINING)
    with pytest.raises(BundleError, match=r"for synthetic, training; it has conv\.execution_ms"):
        both.part_for("network", "peak_memory_bytes", training, asked[2])
    # Predictions are those of the merged bundles.
    file = tmp_path / "n.onnx"
    file.write_bytes(graph(300))
    network = read_network(file, batch=2)
    [found] = Bundle.load(networks).predict_networks([network]).values()
    [merged] = both.parts[1].predict_networks([network]).values()
    np.testing.assert_array_equal(found.values, merged.values)
    prediction = resperf.predict(file, bundle=both.path, device="toy", batch=2)
    assert not isinstance(prediction, list)
    alone = resperf.predict(file, bundle=layers, batch=2)
    assert not isinstance(alone, list)
    assert prediction.total_ms == alone.total_ms > 0
    assert [each.value for each in prediction.parts.quantities] == found.values.tolist()
    with pytest.raises(DeviceError, match=r"is for device toy .*, and device cpu"):
        resperf.predict(file, bundle=both.path, device="elsewhere", batch=2)


def test_quantities_of_training_are_shown_beside_the_inference_of_layers(
    toy_dataset: Path, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = train(toy_dataset, tmp_path / "layers", method="baseline")
    networks = train(dataset, tmp_path / "networks", method=METHOD)
    for place, (framework, precision, shown) in enumerate((
        (layers.framework, "fp32", ["training"]),
        (layers.framework, "amp", []),
        ("abacus", "fp32", []),
    )):  # fmt: skip
        setting = dataclasses.replace(
            SETTING.with_optimizer("adam"), framework=framework, precision=precision
        )
        steps, both = (tmp_path / f"{name}-{place}" for name in ("steps", "both"))
        with replaced_folder(steps) as folder:
            write_manifest(folder, manifest_with(networks, setting, framework=framework))
            shutil.copytree(networks.path, folder, dirs_exist_ok=True, ignore=_manifests)
        merge_bundles([layers.path, steps], both)
        file = tmp_path / "n.onnx"
        file.write_bytes(graph(300))
        words = ("predict", str(file), "--bundle", str(both), "--device", "toy", "--batch", "2")
        assert main([*words, "--json"]) == 0
        [document] = json.loads(capsys.readouterr().out)
        found = document["quantities"].values()
        assert [each["mode"] for each in found] == shown
        assert main([*words]) == 0
        assert capsys.readouterr().out.count("(training, ") == len(shown)


def _manifests(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "bundle.json"]
