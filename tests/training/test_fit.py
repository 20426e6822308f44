"""From a dataset to a bundle."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import helper

from resperf.bundle import Bundle, Calibration, Source
from resperf.dataset import checksum, read_dataset, read_table, write_dataset
from resperf.errors import DatasetError, OutputError, TrainingError
from resperf.layers import layer_from_key
from resperf.predictors import DEFAULT_METHOD
from resperf.splits import split_of_keys, was_packed
from resperf.training import Evaluated, evaluate, keys_of_networks, train


@pytest.fixture(scope="module")
def baseline(toy_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return train(toy_dataset, tmp_path_factory.mktemp("b") / "toy-baseline", method="baseline")


def content(folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = {file.name: file.read_bytes() for file in folder.iterdir()}
    files["bundle.json"] = json.loads(files["bundle.json"])
    del files["bundle.json"]["created"]
    return files


def keys_of(dataset: Path, kind: str) -> frozenset[str]:
    return frozenset(map(str, read_table(dataset)[kind].key))


def test_a_bundle_says_where_it_comes_from(baseline: Bundle, toy_dataset: Path) -> None:
    assert (baseline.device, baseline.framework, baseline.method) == (
        "toy", "synthetic", "baseline",
    )  # fmt: skip
    assert set(baseline.kinds) == {"conv", "pool", "dense"}
    assert baseline.costs == {"call_ms": 0.01, "reshape_ms": 0.001}
    assert baseline.provenance["datasets"][0]["checksum"] == checksum(toy_dataset)
    rows = baseline.part["training"]["rows"]["conv"]
    assert rows["train"] + rows["validation"] + rows["test"] == 80
    assert rows["left_out"] == {"repeats": 10}


def test_errors_are_those_of_the_toy(baseline: Bundle) -> None:
    # Times have 1% noise: a perfect predictor has 0.8% mean error.
    for kind in baseline.kinds:
        assert baseline.validation[kind] < 0.05
        assert baseline.errors["test"][kind]["execution_ms"]["mape"] < 0.05
        assert baseline.errors["test"][kind]["preprocess_ms"]["mape"] < 0.01


def test_transfers_are_learnt_from_all_kinds(baseline: Bundle) -> None:
    # 2 us and 8 GB/s in, 3 us and 5 GB/s out.
    assert baseline.transfers["preprocess_ms"].predict([800_000])[0] == pytest.approx(
        0.102, rel=0.02
    )
    assert baseline.transfers["postprocess_ms"].predict([500_000])[0] == pytest.approx(
        0.103, rel=0.02
    )


def test_test_rows_are_neither_trained_on_nor_chosen_by(
    baseline: Bundle, toy_dataset: Path
) -> None:
    seen = baseline.part["training"]["seen"]
    for table in read_table(toy_dataset).values():
        keys = [str(key) for key in table.key]
        np.testing.assert_array_equal(was_packed(keys, seen), ~split_of_keys(keys).test)


def test_the_same_seed_gives_the_same_bytes(toy_dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    others = keys_of(toy_dataset, "pool") | keys_of(toy_dataset, "dense")
    for name in ("a", "b"):
        train(toy_dataset, tmp_path / name, seed=3, exclude_keys=others)
    train(toy_dataset, tmp_path / "c", seed=4, exclude_keys=others)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert (tmp_path / "a" / "conv-execution.onnx").read_bytes() != (
        tmp_path / "c" / "conv-execution.onnx"
    ).read_bytes()


def test_the_papers_methods_learn_every_phase(toy_dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    told: list[tuple[str, str, int, int]] = []
    others = keys_of(toy_dataset, "conv") | keys_of(toy_dataset, "pool")
    bundle = train(
        toy_dataset, tmp_path / "p", method="perfnet", epochs=1, device="mine",
        exclude_keys=others,
        progress=lambda kind, phase, done, epochs, error: told.append((kind, phase, done, epochs)),
    )  # fmt: skip
    assert bundle.device == bundle.platform.device == "mine"
    for phase in ("preprocess_ms", "execution_ms", "postprocess_ms"):
        assert bundle.method_of("dense", phase) == "perfnet"
        assert ("dense", phase, 1, 1) in told


@pytest.mark.parametrize(
    "method", ["boosted", "gianniti", "polynomial", "svr", "xgboost", "xgboost-log"]
)
def test_every_method_makes_a_bundle(method: str, toy_dataset: Path, tmp_path: Path) -> None:
    for package in ("lightgbm", "xgboost", "sklearn"):
        pytest.importorskip(package)
    bundle = train(toy_dataset, tmp_path / "m", method=method)
    assert bundle.method == bundle.method_of("conv") == method
    assert bundle.size_bytes < 3e6
    for found in evaluate(toy_dataset, bundle).rows:
        assert found.method == (method if found.phase == "execution_ms" else "transfers")
        assert np.isfinite(found.errors.mape)


def test_excluded_layers_are_left_out(toy_dataset: Path, tmp_path: Path) -> None:
    keys = frozenset(str(key) for key in read_table(toy_dataset)["dense"].key[:20])
    bundle = train(toy_dataset, tmp_path / "x", method="baseline", exclude_keys=keys)
    rows = bundle.part["training"]["rows"]["dense"]
    assert rows["left_out"]["excluded"] == 30  # ten of the twenty were measured twice
    assert not was_packed(sorted(keys), bundle.part["training"]["seen"]).any()
    unseen = {row.kind: row.errors.rows for row in evaluate(toy_dataset, bundle, "all").rows}
    assert unseen["dense"] == rows["test"] + 20


def test_a_kind_with_few_rows_gets_the_baseline_or_nothing(
    toy_dataset: Path, tmp_path: Path
) -> None:
    tables = read_table(toy_dataset)
    few = frozenset(map(str, tables["dense"].key[20:])) - frozenset(
        map(str, tables["dense"].key[:20])
    )
    none = frozenset(map(str, tables["pool"].key[4:])) - frozenset(map(str, tables["pool"].key[:4]))
    bundle = train(toy_dataset, tmp_path / "few", exclude_keys=few | none)
    assert bundle.method_of("dense") == "baseline"
    assert bundle.method_of("conv") == DEFAULT_METHOD
    assert "pool" not in bundle.kinds
    assert len(bundle.part["training"]["notes"]) == 2


def test_nothing_to_learn_from_is_one_clear_line(toy_dataset: Path, tmp_path: Path) -> None:
    keys = {str(key) for table in read_table(toy_dataset).values() for key in table.key}
    with pytest.raises(TrainingError, match="too few rows to learn from"):
        train(toy_dataset, tmp_path / "n", exclude_keys=keys)
    with pytest.raises(TrainingError, match="no method 'magic'"):
        train(toy_dataset, tmp_path / "n", method="magic")
    with pytest.raises(DatasetError):
        train(tmp_path / "absent.h5", tmp_path / "n")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_training_leaves_the_old_bundle(
    baseline: Bundle, toy_dataset: Path, tmp_path: Path
) -> None:
    train(toy_dataset, tmp_path / "b", method="baseline")
    before = content(tmp_path / "b")
    keys = {str(key) for table in read_table(toy_dataset).values() for key in table.key}
    with pytest.raises(TrainingError):
        train(toy_dataset, tmp_path / "b", exclude_keys=keys)
    assert content(tmp_path / "b") == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_other_peoples_folders_are_not_replaced(toy_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with pytest.raises(OutputError, match="exists and is no bundle"):
        train(toy_dataset, tmp_path / "photos", method="baseline")
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "meow"


def test_an_interval_is_about_single_measurements_not_about_their_median(
    baseline: Bundle, toy_dataset: Path, tmp_path: Path
) -> None:
    def execution_of_dense(path: Path) -> Evaluated:
        rows = {(row.kind, row.phase): row for row in evaluate(path, baseline).rows}
        return rows["dense", "execution_ms"]

    before = execution_of_dense(toy_dataset)
    assert before.in_interval == 1.0
    dataset = read_dataset(toy_dataset)
    dense = [row for row in dataset.measurements if row.layer.kind == "dense"]
    is_test = split_of_keys([row.layer.key for row in dense], 0).test
    count = Counter(row.layer.key for row in dense)
    chosen = next(
        row for row, test in zip(dense, is_test, strict=True) if test and count[row.layer.key] == 1
    )
    more = []
    for repeat, factor in ((7, 3.0), (8, 1 / 3)):
        phases = {
            name: replace(each, values=tuple(factor * ms for ms in each.values))
            for name, each in chosen.samples.items()
        }
        more.append(replace(chosen, samples=phases, repeat=repeat))
    changed = replace(dataset, measurements=(*dataset.measurements, *more))
    write_dataset(tmp_path / "changed.h5", changed)
    after = execution_of_dense(tmp_path / "changed.h5")
    assert after.errors.mape == pytest.approx(before.errors.mape)
    # One of the layer's three measurements is within a factor of two of the prediction.
    layers = after.errors.rows
    assert after.in_interval == pytest.approx((layers - 1 + 1 / 3) / layers)


def test_evaluation_judges_test_rows_alone(baseline: Bundle, toy_dataset: Path) -> None:
    found = {(row.kind, row.phase): row for row in evaluate(toy_dataset, baseline).rows}
    conv = found["conv", "execution_ms"]
    assert conv.errors.rows == baseline.part["training"]["rows"]["conv"]["test"]
    assert conv.errors.mape == pytest.approx(
        baseline.errors["test"]["conv"]["execution_ms"]["mape"]
    )
    # Every repeat is 2% off: |1 - 1.02| / 1.01 / sqrt(2).
    assert conv.noise_floor == pytest.approx(0.02 / 1.01 / np.sqrt(2), rel=1e-3)
    assert set(conv.to_json()) >= {
        "kind", "phase", "method", "rows", "mape", "rmse_ms", "mae_ms", "within_10",
    }  # fmt: skip
    assert found["conv", "preprocess_ms"].method == "transfers"


def test_a_kind_that_a_method_does_not_know_gets_the_baseline(
    toy_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    from resperf.predictors import _paper

    monkeypatch.delitem(dict_of(_paper), "pool")
    bundle = train(toy_dataset, tmp_path / "p", method="polynomial")
    assert {kind: bundle.method_of(kind) for kind in bundle.kinds} == {
        "conv": "polynomial", "pool": "baseline", "dense": "polynomial",
    }  # fmt: skip
    # The toy's convolutions have groups and strides that Table 3 does not contain.
    blind, note = bundle.part["training"]["notes"]
    assert blind.startswith("conv: the paper's features ignore groups")
    assert note.startswith("pool: baseline only (")


def dict_of(module: Any) -> dict[str, Any]:
    features: dict[str, Any] = module._FEATURES
    return features


def test_training_again_says_that_a_calibration_is_gone(toy_dataset: Path, tmp_path: Path) -> None:
    target = tmp_path / "b"
    assert train(toy_dataset, target, method="baseline").part["training"]["notes"] == []
    bundle = Bundle.load(target)
    learnt = Calibration(Source.NETWORKS, bundle.setting, bundle.platform, {"conv": 1.25})
    calibrated = bundle.with_calibrations([learnt], "by hand")
    (target / "bundle.json").write_text(json.dumps(calibrated.manifest))
    assert Bundle.load(target).network_calibrations == (learnt,)
    [note] = train(toy_dataset, target, method="baseline").part["training"]["notes"]
    assert note.endswith(f"resperf calibrate {target}")


def test_layers_of_a_network_are_found_at_batches_that_name_them_otherwise(
    toy_dataset: Path, tmp_path: Path
) -> None:
    shapes = {"x": ["batch", 16, 24], "z": None}
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    node = helper.make_node("Add", ["x", "y"], ["z"], "add")
    weight = onnx.numpy_helper.from_array(np.ones((1, 16, 24), np.float32), "y")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    layers = [
        layer_from_key(f"elementwise:batch={batch},inner=384,second={second}")
        for batch, second in ((1, "same"), (5, "inner"), (5, "scalar"))
    ]
    toy = read_dataset(toy_dataset)
    rows = [replace(toy.measurements[0], subject=layer) for layer in layers]
    write_dataset(tmp_path / "d.h5", replace(toy, measurements=tuple(rows)))
    assert keys_of_networks([toy_dataset], [tmp_path / "n.onnx"]) == frozenset()
    found = keys_of_networks([toy_dataset, tmp_path / "d.h5"], [tmp_path / "n.onnx"])
    assert found == {layer.key for layer in layers[:2]}


def test_kinds_of_few_validation_rows_have_intervals_by_their_own_errors(
    toy_rows: Any, toy_dataset: Path, tmp_path: Path
) -> None:
    dataset = read_dataset(toy_dataset)
    some = dataset.measurements[0]
    rows = []
    for kind, noise in (("conv", 0.2), ("pool", 0.02), ("dense", 0.02)):
        for layer, time_ms in zip(*toy_rows(kind, 200, seed=3, noise=noise), strict=True):
            execution = replace(some.samples["execution_ms"], values=(float(time_ms),) * 5)
            phases = {**some.samples, "execution_ms": execution}
            rows.append(replace(some, subject=layer, repeat=0, samples=phases))
    write_dataset(tmp_path / "noisy.h5", replace(dataset, measurements=tuple(rows)))
    bundle = train(tmp_path / "noisy.h5", tmp_path / "noisy", method="baseline")
    counts = [each["validation"] for each in bundle.part["training"]["rows"].values()]
    assert max(counts) < 40 < sum(counts)
    intervals = bundle.part["intervals"]
    assert set(intervals) == {"conv", "pool", "dense"}
    for phases in intervals.values():
        assert set(phases) == {"preprocess_ms", "execution_ms", "postprocess_ms"}
    wide, narrow = (intervals[kind]["execution_ms"]["high"][0] for kind in ("conv", "dense"))
    assert wide > 3 * narrow > 0.05
    rows = [
        row for row in evaluate(tmp_path / "noisy.h5", bundle).rows if row.phase == "execution_ms"
    ]
    layers = [row.errors.rows for row in rows]
    assert 0.85 < np.average([row.in_interval for row in rows], weights=layers) < 0.97


def test_fewer_trees_make_a_smaller_bundle(toy_rows, toy_dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    toy = read_dataset(toy_dataset)
    layers, times_ms = toy_rows("dense", 300, noise=0.01)
    # A step that no physical term models, for trees to learn.
    stepped = {each: ms * (3 if each.features_out % 16 < 8 else 1) * (2 if each.batch > 4 else 1)
               for each, ms in zip(layers, map(float, times_ms), strict=True)}  # fmt: skip
    samples = toy.measurements[0].samples["execution_ms"]
    rows = tuple(
        replace(
            toy.measurements[0], subject=layer,
            samples={"execution_ms": replace(samples, values=(ms,) * len(samples.values))},
        )
        for layer, ms in stepped.items()
    )  # fmt: skip
    write_dataset(tmp_path / "s.h5", replace(toy, measurements=rows))
    sizes = [
        train(tmp_path / "s.h5", tmp_path / str(trees), method="boosted", trees=trees).size_bytes
        for trees in (5, 50)
    ]
    assert sizes[0] + 2000 < sizes[1]
    with pytest.raises(TrainingError, match="svr has no number of trees"):
        train(toy_dataset, tmp_path / "s", method="svr", trees=5)


def test_what_a_card_says_of_itself_is_no_cost_of_the_bundle(
    toy_dataset: Path, tmp_path: Path
) -> None:
    toy = read_dataset(toy_dataset)
    state = {"used_memory_bytes": 1.4e9, "sm_clock_mhz": 1980.0, "dispatch_ms": 0.01}
    info = replace(toy.info, machine_costs={**toy.info.machine_costs, **state})
    write_dataset(tmp_path / "card.h5", replace(toy, info=info))
    train(tmp_path / "card.h5", tmp_path / "card", method="baseline")
    costs = Bundle.load(tmp_path / "card").check().costs
    assert costs == {**toy.info.machine_costs, "dispatch_ms": 0.01}
