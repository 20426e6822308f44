"""Bundles: complete, safe, found, and the same numbers in every version."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.bundle import (
    Bundle,
    Calibration,
    Source,
    Speeds,
    bundle_folders,
    find_bundles,
    group_of,
    machines_of,
    nearest_machine,
    ranges_of,
    replaced_folder,
    user_folder,
)
from resperf.bundle._ranges import in_known_blocks, outside
from resperf.errors import BundleError, DeviceError, OutputError, ResperfError, UnsupportedError
from resperf.features import columns_of
from resperf.layers import Conv, ConvNd, Dense, Layer, Norm, Reorder, layer_from_key
from resperf.platform import CpuFacts, Platform
from resperf.prediction.choice import Query, choose, named_target, place_of
from resperf.predictors import Estimate
from resperf.settings import Setting

GOLDEN = Path(__file__).parent / "golden" / "bundle"
SHIPPED = Path(__file__).parents[1] / "models" / "bundles" / "cpu-onnxruntime"

DENSE = Dense(batch=2, features_in=256, features_out=100)


@pytest.fixture
def bundle_copy(tmp_path: Path) -> Path:
    """The first of the golden bundle's parts."""
    return place(tmp_path / "copy", "toy")


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def edit_part(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(folder, lambda manifest: change(manifest["parts"][0]))


def place(folder: Path, device: str, framework: str = "synthetic") -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(GOLDEN, folder)
    edit(folder, lambda manifest: manifest.update(parts=manifest["parts"][:1]))
    edit_part(folder, lambda part: part.update(device=device, framework=framework))
    return folder


def golden_layers(bundle: Bundle) -> list[Layer]:
    return [layer_from_key(entry["key"]) for entry in bundle.part["golden"]["layers"]]


def test_the_golden_bundle_answers_for_two_devices() -> None:
    toy, fast = Bundle.load(GOLDEN).parts
    assert [toy.device, fast.device] == ["toy", "fast"]
    assert [set(toy.kinds), set(fast.kinds)] == [{"conv", "pool", "dense"}, {"dense"}]
    assert [toy.method_of("pool"), fast.method_of("dense")] == ["boosted", "gianniti"]
    for part in (toy, fast):
        layers = golden_layers(part)
        assert len(layers) >= 10
        times = part.predict(layers)
        stored = [each["values"]["execution_ms"] for each in part.part["golden"]["layers"]]
        np.testing.assert_allclose(times.ms, stored, rtol=1e-4)
        assert times.in_range.all()
    dense = ("dense", "execution_ms")
    assert fast.part_for(*dense, toy.setting, toy.platform) is toy
    assert toy.part_for(*dense, fast.setting, fast.platform) is fast
    # The nearest: four cores as in fast, a processor that neither has.
    near = dataclasses.replace(fast.platform, processor="R")
    assert toy.part_for(*dense, toy.setting, near) is fast
    # A part that has the kind comes before a nearer one without it.
    assert toy.part_for("conv", "execution_ms", fast.setting, fast.platform) is toy
    with pytest.raises(BundleError, match=r"no forward_ms of dense for synthetic, inference; it "):
        toy.part_for("dense", "forward_ms", toy.setting, toy.platform)
    assert choose(Query("FAST", bundle=GOLDEN)).bundle.kinds == ("dense",)
    with pytest.raises(DeviceError, match="There is fast, toy; name one by --device"):
        choose(Query(None, bundle=GOLDEN))
    with pytest.raises(DeviceError, match="device toy and framework synthetic, and device fast"):
        choose(Query("box", bundle=GOLDEN))


def store_calibrations(folder: Path, *calibrations: Calibration) -> None:
    """Put them into a bundle's manifest."""
    written = [each.to_json() for each in calibrations]
    edit_part(folder, lambda part: part.update(calibrations=written))


def edit_calibration(folder: Path, **values: Any) -> None:
    """Change the first one in a bundle's manifest."""
    edit_part(folder, lambda part: part["calibrations"][0].update(values))


def test_a_bundle_knows_what_networks_taught(bundle_copy: Path) -> None:
    before = Bundle.load(bundle_copy)
    costs = {"overhead_ms_per_layer": 0.004, "overhead_ms_per_mb": 0.0}
    learnt = Calibration(
        Source.NETWORKS, before.setting, before.platform, {"conv": 1.25}, costs=costs,
        log_width=0.08,
    )  # fmt: skip
    store_calibrations(bundle_copy, learnt)
    bundle = Bundle.load(bundle_copy)
    assert bundle.network_calibrations == (learnt,)
    assert (learnt.factor("conv"), learnt.factor("pool")) == (1.25, 1.0)
    # Isolated layers are those of the bundle without it.
    layers = golden_layers(bundle)
    alone = bundle.isolated()
    assert alone.network_calibrations == ()
    np.testing.assert_array_equal(bundle.predict(layers).ms, alone.predict(layers).ms)
    edit_calibration(bundle_copy, costs={"overhead_ms_per_layer": "many"})
    with pytest.raises(BundleError, match="is not a valid bundle"):
        Bundle.load(bundle_copy)


def test_a_bundle_may_be_of_another_machine_than_its_layers(bundle_copy: Path) -> None:
    before = Bundle.load(bundle_copy)
    here = dataclasses.replace(before.platform, processor="another processor")
    layers, networks = (
        Calibration(source, before.setting, here, others=others)
        for source, others in ((Source.LAYERS, 0.5), (Source.NETWORKS, 1.0))
    )
    store_calibrations(bundle_copy, layers, networks)
    bundle = Bundle.load(bundle_copy)
    assert bundle.platform == here
    assert bundle.origin == before.platform
    assert "another processor" in bundle.machine
    assert f"layers measured on {before.platform.processor}" in bundle.machine
    golden = golden_layers(bundle)
    for each in (bundle, bundle.isolated()):
        np.testing.assert_allclose(each.predict(golden).ms, 0.5 * before.predict(golden).ms)
    # Copies between host and device are not those of layers.
    assert bundle.transfers == before.transfers
    for damaged in (0.0, -1.0, "half", None):
        edit_calibration(bundle_copy, others=damaged)
        with pytest.raises(BundleError, match="is not a valid bundle"):
            Bundle.load(bundle_copy)


def test_provenance_says_what_a_bundle_is_of_and_what_is_unknown() -> None:
    old = Bundle.load(SHIPPED.with_name("cpu-onnxruntime-xeon")).provenance
    assert {old["commit"], old["packages"], old["rebuildable"]["answer"]} == {"unknown"}
    assert old["changes"][0] == {"date": "unknown", "reason": "unknown"}
    assert old["datasets"][0]["checksum"]
    new = Bundle.load(GOLDEN)
    made, later = new.provenance["pieces"]
    assert set(made["packages"]) >= {"numpy", "lightgbm", "onnxruntime"}
    assert made["seeds"] == {"training": 0, "split": 0}
    assert later["excluded"] == {"networks": [], "layers": 160}
    assert [each["reason"] for each in later["changes"]] == [
        "made of another machine, for the tests"
    ]
    assert new.provenance["rebuildable"]["answer"] == "no"
    changed = new.with_calibrations((), "tried")
    assert [each["reason"] for each in changed.provenance["changes"]] == ["tried"]
    assert changed.parts[1].part == new.parts[1].part


def test_a_dispatch_that_was_measured_beside_layers_counts_where_they_show_none() -> None:
    bundle = Bundle.load(GOLDEN)
    bundle.costs = {"call_ms": 1.0}
    assert math.isnan(bundle.dispatch_ms)
    bundle.costs = {"dispatch_ms": 0.007}
    assert bundle.dispatch_ms == 0.007


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(parts=[]), "has no parts"),
        (lambda m: m.pop("provenance"), "lacks 'provenance'"),
        (lambda m: m["provenance"].pop("commit"), "lacks 'commit' in its provenance"),
        (lambda m: m["provenance"]["rebuildable"].pop("why"), "lacks 'why' in its provenance"),
        (lambda m: m["provenance"].update(datasets=["x"]), "lacks 'name' in its provenance"),
        (lambda m: m["provenance"].update(changes=[{"date": "today"}]), "lacks 'reason' in its"),
        (lambda m: m["provenance"].update(packages=["numpy"]), "has the packages damaged in its"),
        (lambda m: m["parts"][1].pop("golden"), "lacks 'golden'"),
        (lambda m: m["parts"][1].update(platforms=["9"]), "the platforms of a part"),
        (lambda m: m["parts"][0]["predictors"]["conv"]["execution_ms"].update(network="x.onnx"),
         "without a checksum"),
        (lambda m: m["parts"][0].update(copies={"conv": 1}), "is not a valid bundle"),
    ],
)  # fmt: skip
def test_damage_of_one_of_two_parts_is_one_clear_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "copy"))
    edit(folder, change)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.load(folder)
    assert "\n" not in str(caught.value)


def test_layers_of_a_kind_may_run_unlike_each_other_inside_networks() -> None:
    tokens = Norm(batch=1, channels=64, pixels=9, function="layer")
    assert group_of(tokens) == "norm layer"
    assert group_of(DENSE) == "dense"
    factors = {"norm layer": 1.5, "norm": 1.2, "dense": 0.9}
    learnt = Calibration(Source.NETWORKS, Setting("onnxruntime"), Platform("cpu"), factors)
    responses = tokens.replace(function="local_response", window=3)
    factors = [learnt.factor(group_of(each)) for each in (tokens, responses, DENSE)]
    assert factors == [1.5, 1.2, 0.9]


def test_mixed_kinds_come_back_in_order() -> None:
    bundle = Bundle.load(GOLDEN)
    conv, dense = (
        next(
            layer_from_key(e["key"])
            for e in bundle.part["golden"]["layers"]
            if e["key"].startswith(k)
        )
        for k in ("conv", "dense")
    )
    mixed = bundle.predict([dense, conv, dense]).ms
    assert mixed[0] == mixed[2] == pytest.approx(bundle.predict([dense]).ms[0])
    assert mixed[1] == pytest.approx(bundle.predict([conv]).ms[0])
    assert bundle.predict([]).ms.shape == (0,)


def test_a_kind_without_predictor_is_unknown_and_not_zero() -> None:
    reorder = Reorder(batch=1, channels_in=16, height=8, width=8)
    times = Bundle.load(GOLDEN).predict([DENSE, reorder])
    assert np.isnan(times.ms).tolist() == [False, True]
    assert not times.in_range[1]
    assert times.reason[1] == "no predictor for reorder"


def test_layers_outside_the_training_rows_are_named() -> None:
    bundle = Bundle.load(GOLDEN)
    low, high = bundle.part["ranges"]["dense"]["features_in"]
    large, small = DENSE.replace(features_in=high + 1), DENSE.replace(features_in=low - 1)
    unseen = DENSE.replace(activation="gelu")
    times = bundle.predict([DENSE, large, small, unseen])
    assert times.in_range.tolist() == [True, False, False, False]
    assert times.reason == (
        "", f"features_in={high + 1} above {high}", f"features_in={low - 1} below {low}",
        "activation=gelu not seen in training",
    )  # fmt: skip
    both = large.replace(activation="gelu")
    assert bundle.predict([both]).reason == (f"{times.reason[1]}, {times.reason[3]}",)
    assert np.isfinite(times.ms).all()


def test_a_predictors_own_bounds_come_before_the_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.load(GOLDEN)
    _, high = bundle.part["ranges"]["dense"]["features_in"]
    layers = [DENSE, DENSE.replace(features_in=high + 1), DENSE.replace(batch=DENSE.batch + 1)]
    # Without an interval of its kind, bounds are from half to twice the time.
    assert bundle.part["intervals"] == {}
    before = bundle.predict(layers)
    predictor = bundle._predictors["dense", "execution_ms"]

    def own(*_: object) -> dict[str, Estimate]:
        some = np.array([1.0, 1.0, np.nan])
        return {"execution_ms": Estimate(before.ms, 0.9 * some * before.ms, 1.2 * some * before.ms)}

    monkeypatch.setattr(predictor, "predict", own)
    after = bundle.predict(layers)
    assert after.in_range.tolist() == [True, False, True]
    # Outside the trained range they are twice as wide, in logarithms.
    np.testing.assert_allclose(after.low_ms / before.ms, [0.9, 0.81, 0.5])
    np.testing.assert_allclose(after.high_ms / before.ms, [1.2, 1.44, 2.0])


def test_flags_and_dilations_have_ranges() -> None:
    plain = ConvNd(batch=1, channels_in=8, rank=1, width=99, kernel_width=3, channels_out=8)
    ranges = ranges_of("conv_nd", columns_of([plain, plain.replace(dilation_width=2)]))
    far, biased = plain.replace(dilation_width=9), plain.replace(bias=not plain.bias)
    _, wide, other = outside("conv_nd", columns_of([plain, far, biased]), ranges)
    # 99 - 2 x 9 windows of 8 x 3 products for 8 channels, where there were 99 - 2 x 2 and 97.
    assert wide == (
        "dilation_width=9 above 2, windows=81 below 95, flops=31104 below 36480, "
        "columns_bytes=7776 below 9120, out_bytes=2592 below 3040"
    )
    assert outside("conv_nd", columns_of([plain]), ranges) == [""]
    assert other.split(", ")[0] == ("bias=1 above 0" if biased.bias else "bias=0 below 1")


def test_work_beyond_all_rows_is_out_of_range_though_every_field_is_inside() -> None:
    long, wide = (Dense(batch=1, features_in=n, features_out=m) for n, m in ((8, 64), (64, 8)))
    ranges = ranges_of("dense", columns_of([long, wide]))
    both = Dense(batch=1, features_in=64, features_out=64)
    (reason,) = outside("dense", columns_of([both]), ranges)
    assert reason == "flops=8192 above 1024, moved_bytes=17152 above 2592"
    assert outside("dense", columns_of([long, wide]), ranges) == ["", ""]


def test_a_folder_of_bundles_stands_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    mine = tmp_path / "mine"
    place(tmp_path / "home" / "bundles" / "a", "box")
    broken = place(mine / "a", "box")
    (broken / "bundle.json").write_text("{")
    with pytest.raises(BundleError, match="cannot be read"):
        choose(Query(None, bundle=mine))
    # Nor may the user's own one replace one of the same name in the folder searched first.
    with pytest.raises(BundleError, match="cannot be read"):
        choose(Query("box", bundle=mine))
    other = place(mine / "b", "cube")
    assert choose(Query(None, bundle=mine)).bundle.path == other
    place(mine / "c", "ball")
    with pytest.raises(DeviceError, match="There is ball, cube; name one by --device"):
        choose(Query(None, bundle=mine))
    this = place(mine / "d", "cpu")
    assert choose(Query(None, bundle=mine)).bundle.path == this
    # A method chooses between the same bundles, and the name of a device means the device.
    method = Bundle.load(this).method
    assert choose(Query(None, bundle=mine, method=method)).bundle.path == this
    with pytest.raises(DeviceError, match=f"no bundle of {mine} was trained by svr, only by"):
        choose(Query(None, bundle=mine, method="svr"))
    assert choose(Query(None, bundle="v100", precision="fp16")).bundle.path.name == "gpus-torch"
    with pytest.raises(DeviceError, match=r"use --framework synthetic$"):
        choose(Query("cpu", "abacus", bundle=this))


def test_users_without_a_home_have_the_shipped_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("RESPERF_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert choose(Query("1080ti")).bundle.framework == "tensorflow"
    with pytest.raises(BundleError, match="set RESPERF_HOME"):
        user_folder()


def test_other_phases_come_from_transfers() -> None:
    bundle = Bundle.load(GOLDEN)
    predicted = bundle.predict([DENSE], "preprocess_ms").ms
    assert predicted == bundle.transfers["preprocess_ms"].predict([2 * 256 * 4])


@pytest.mark.parametrize("name", ["../evil.onnx", "/etc/passwd", "a/b.onnx", "..", "a\\b.onnx"])
def test_files_outside_the_folder_are_refused(bundle_copy: Path, name: str) -> None:
    edit(bundle_copy, lambda m: m["files"].update({name: "0" * 64}))
    with pytest.raises(BundleError, match="outside its folder"):
        Bundle.load(bundle_copy)


def test_a_network_that_is_not_listed_is_refused(bundle_copy: Path) -> None:
    edit_part(
        bundle_copy,
        lambda p: p["predictors"]["conv"]["execution_ms"].update(network="../x.onnx"),
    )
    with pytest.raises(BundleError, match="without a checksum"):
        Bundle.load(bundle_copy)


OF_THE_MANIFEST: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "newer schema": (lambda m: m.update(schema_version=5), "schema 5, this resperf reads 1; train"),
    "no schema": (lambda m: m.pop("schema_version"), "bundle schema None, this resperf reads 1"),
    "no parts": (lambda m: m.update(parts=[]), "has no parts"),
    "parts of another type": (lambda m: m.update(parts={}), "lacks 'parts'"),
    "no setting": (lambda m: m["parts"][0].update(settings=[]), "the settings of a part damaged"),
    "settings of another type": (lambda m: m.update(settings=None), "lacks 'settings'"),
    "threads": (
        lambda m: m["settings"][m["parts"][0]["settings"][0]].update(threads="two"),
        "not a valid bundle .TypeError: threads='two'",
    ),
    "caches": (
        lambda m: m["platforms"][m["parts"][0]["platforms"][0]].update(caches=3),
        "not a valid bundle .TypeError: caches=3",
    ),
}


@pytest.mark.parametrize(("change", "message"), OF_THE_MANIFEST.values(), ids=list(OF_THE_MANIFEST))
def test_a_damaged_manifest_is_refused_before_a_part_is_chosen(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "copy"))
    assert choose(Query("toy", bundle=folder)).bundle.device == "toy"
    edit(folder, change)
    with pytest.raises(BundleError, match=message):
        choose(Query("toy", bundle=folder))


def test_links_are_refused(bundle_copy: Path, tmp_path: Path) -> None:
    file = bundle_copy / "0-conv-execution.onnx"
    file.rename(tmp_path / "moved.onnx")
    file.symlink_to(tmp_path / "moved.onnx")
    with pytest.raises(BundleError, match="is a link"):
        Bundle.load(bundle_copy)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "is not a bundle"),
    "no manifest": (lambda b: (b / "bundle.json").unlink(), "is not a bundle"),
    "empty manifest": (lambda b: (b / "bundle.json").write_text(""), "cannot be read"),
    "a list": (lambda b: (b / "bundle.json").write_text("[]"), "does not hold a bundle"),
    "no JSON": (lambda b: (b / "bundle.json").write_bytes(b"\xff\x00"), "cannot be read"),
    "cut manifest": (
        lambda b: (b / "bundle.json").write_text((b / "bundle.json").read_text()[:-200]),
        "cannot be read",
    ),
    "no network": (lambda b: (b / "0-conv-execution.onnx").unlink(), "is missing"),
    "cut network": (
        lambda b: (b / "0-conv-execution.onnx").write_bytes(b"abc"), "checksum differs",
    ),
    "newer schema": (lambda b: edit(b, lambda m: m.update(schema_version=99)), "bundle schema 99"),
    "other features": (
        lambda b: edit(b, lambda m: m.update(feature_set_version=99)), "feature set 99",
    ),
    "no ranges": (lambda b: edit_part(b, lambda p: p.pop("ranges")), "lacks 'ranges'"),
    "no copies": (lambda b: edit_part(b, lambda p: p.pop("copies")), "lacks 'copies'"),
    "no intervals": (lambda b: edit_part(b, lambda p: p.pop("intervals")), "lacks 'intervals'"),
    "unknown method": (
        lambda b: edit_part(
            b, lambda p: p["predictors"]["pool"]["execution_ms"].update(method="os")
        ),
        "no method 'os'",
    ),
    "features that are no list": (
        lambda b: edit_part(
            b,
            lambda p: p["predictors"]["pool"]["execution_ms"].update(
                features=dict.fromkeys(p["predictors"]["pool"]["execution_ms"]["features"])
            ),
        ),
        "lacks 'features'",
    ),
    "a manifest nested too deeply": (
        lambda b: (b / "bundle.json").write_text("[" * 100_000), "it is nested too deeply",
    ),
    "no baseline": (
        lambda b: edit_part(b, lambda p: p["predictors"]["pool"]["execution_ms"].pop("baseline")),
        "lacks 'baseline'",
    ),
    **{
        f"no {name}": (
            lambda b, name=name: edit_part(
                b, lambda p: p["predictors"]["pool"]["execution_ms"]["baseline"].pop(name)
            ),
            f"lacks '{name}'",
        )
        for name in ("terms", "quantity", "device_class", "factors")
    },
    "changed features": (
        lambda b: edit_part(b, lambda p: p["golden"]["layers"][0]["features"].__setitem__(0, 7.5)),
        "features of .* are not those",
    ),
    "no golden layers": (
        lambda b: edit_part(b, lambda p: p["golden"].update(layers=[])), "no golden layer",
    ),
    "no predictor": (
        lambda b: edit_part(b, lambda p: p["predictors"].update(conv=None)),
        "is not a valid bundle",
    ),
    "a cost of nothing": (
        lambda b: edit_part(b, lambda p: p["costs"].update(call_ms=None)),
        "the cost call_ms",
    ),
    **{
        f"a cost of {cost}": (
            lambda b, cost=cost: edit_part(b, lambda p: p["costs"].update(call_ms=cost)),
            "the cost call_ms",
        )
        for cost in (-0.1, 1e308, float("nan"), True)
    },
    **{
        f"copies with {name} {value!r}"[:60]: (
            lambda b, name=name, value=value: edit_part(
                b, lambda p: p["transfers"]["preprocess_ms"].update({name: value})
            ),
            "is not a valid bundle",
        )
        for name, value in (
            ("constant_ms", 1e308), ("constant_ms", -1), ("ms_per_mb", []), ("ms_per_mb", ["1"]),
            ("ms_per_mb", [float("inf")]), ("ms_per_mb", [True]), ("constant_ms", True),
            ("constant_ms", 10**400),
        )
    },
    "a predictor of another quantity": (
        lambda b: edit_part(
            b, lambda p: p["predictors"]["pool"]["execution_ms"].update(quantity=7)
        ),
        "the predictor of pool execution_ms damaged",
    ),
    "no ranges of a kind": (
        lambda b: edit_part(b, lambda p: p["ranges"].pop("conv")), "ranges of conv",
    ),
    "a range without an end": (
        lambda b: edit_part(b, lambda p: p["ranges"]["conv"].update(batch=[None, 8])),
        "ranges of conv",
    ),
    "a range of words and numbers": (
        lambda b: edit_part(b, lambda p: p["ranges"]["conv"].update(batch=["x", 8])),
        "ranges of conv",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clear_line(bundle_copy: Path, damage: str) -> None:
    harm, message = DAMAGE[damage]
    harm(bundle_copy)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.load(bundle_copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: p["predictors"]["dense"]["execution_ms"]["baseline"].update(terms=["nonsense"]),
        lambda p: p["ranges"]["dense"].update(batch=[1]),
        lambda p: p["ranges"]["dense"].update(batch=["one", "two"]),
    ],
)
def test_what_only_a_prediction_notices_is_one_clear_line(bundle_copy: Path, harm) -> None:
    edit_part(bundle_copy, harm)
    with pytest.raises(BundleError, match=r"is not a valid bundle .*; restore it"):
        choose(Query(None, None, bundle_copy)).bundle.predict([DENSE])


def test_changed_features_hinder_their_own_kind_alone(bundle_copy: Path) -> None:
    place, conv = next(
        (place, layer)
        for place, layer in enumerate(golden_layers(Bundle.load(bundle_copy)))
        if layer.kind == "conv"
    )
    edit_part(
        bundle_copy,
        lambda p: p["golden"]["layers"][place]["features"].__setitem__(0, 7.5),
    )
    bundle = choose(Query(None, None, bundle_copy)).bundle
    assert bundle.predict([DENSE]).ms[0] > 0
    for number in (
        lambda: bundle.predict([conv]),
        lambda: bundle.gpu_busy_fraction([DENSE, conv]),
        bundle.check,
    ):
        with pytest.raises(BundleError, match="features of conv are not those it was trained with"):
            number()
    _, damaged = find_bundles(bundle_copy, alone=True, checked=True)
    assert list(damaged) == [bundle_copy]


def test_a_network_that_computes_something_else_is_noticed(bundle_copy: Path) -> None:
    source, target = (bundle_copy / f"0-{kind}-execution.onnx" for kind in ("dense", "conv"))
    shutil.copy(source, target)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    edit(bundle_copy, lambda m: m["files"].update({target.name: digest}))
    conv = next(e for e in golden_layers(Bundle.load(bundle_copy)) if e.kind == "conv")
    with pytest.raises(BundleError, match=r"does not fit its bundle|predicts .* when stored"):
        Bundle.load(bundle_copy).predict([conv])


def test_predicting_loads_numpy_and_onnxruntime_alone() -> None:
    code = (
        "import sys; from pathlib import Path; from resperf.bundle import Bundle; "
        "from resperf.layers import Dense; "
        f"b = Bundle.load(Path({str(GOLDEN)!r})); "
        "b.predict([Dense(batch=2, features_in=256, features_out=100)]); "
        "heavy = {'scipy', 'h5py', 'keras', 'tensorflow', 'sklearn', 'pandas', 'torch', "
        "'lightgbm', 'xgboost'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bundles_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    in_data = place(tmp_path / "data" / "resperf" / "bundles" / "a", "Box")
    in_home = place(tmp_path / "home" / "bundles" / "b", "box")
    other = place(tmp_path / "home" / "bundles" / "c", "box", "tensorflow")
    extra = place(tmp_path / "extra", "box")
    assert bundle_folders(extra)[:4] == [extra, in_home, other, in_data]
    assert choose(Query("BOX")).bundle.path == in_home
    assert choose(Query("box", "tensorflow")).bundle.path == other
    assert choose(Query("box", bundle=extra)).bundle.path == extra
    assert choose(Query(None, bundle=extra)).bundle.path == extra
    assert choose(Query("box", "tensorflow", tmp_path / "home" / "bundles")).bundle.path == other


def test_a_bundle_is_found_by_its_folder_then_by_its_name_then_by_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    of_device = place(tmp_path / "home" / "bundles" / "a", "box")
    named = place(tmp_path / "home" / "bundles" / "b", "box", "tensorflow")
    assert choose(Query("b")).bundle.path == named
    assert choose(Query("box")).bundle.path == of_device
    # A name takes precedence over a device, and a folder over both.
    called_box = place(tmp_path / "home" / "bundles" / "box", "cube")
    assert choose(Query("box")).bundle.path == called_box
    folder = place(tmp_path / "box", "ball")
    assert choose(Query("box")).bundle.path == choose(Query(str(folder))).bundle.path == folder
    # Other options must agree with it.
    with pytest.raises(DeviceError, match=r"use --framework tensorflow$"):
        choose(Query("b", "synthetic"))
    with pytest.raises(DeviceError, match="is for device box"):
        choose(Query("ball", bundle=place_of("b")))
    assert choose(Query("b", bundle=place_of("b"))).bundle.path == named
    assert place_of("cube") == called_box
    assert place_of(tmp_path) == tmp_path
    assert place_of(None) is None


def test_a_damaged_bundle_is_named_by_its_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    place(tmp_path / "bundles" / "bad", "box").joinpath("bundle.json").write_text("{")
    with pytest.raises(BundleError, match=r"bad.*cannot be read"):
        choose(Query("bad"))


def test_a_device_or_a_bundle_names_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    place(tmp_path / "bundles" / "of-tf", "cpu", "tensorflow")
    assert named_target(None).name == "onnxruntime/cpu"
    assert named_target("cpu").name == "onnxruntime/cpu"
    assert named_target("cpu", "tensorflow").name == named_target("of-tf").name == "tensorflow/cpu"
    assert named_target(None, "synthetic").name == "synthetic/synthetic"
    # A name means the same bundle as in predictions, never another device's backend.
    card = place(tmp_path / "bundles" / "card", "mi210", "onnxruntime")
    with pytest.raises(ResperfError, match="no target onnxruntime/rocm"):
        named_target("card")
    shutil.rmtree(card)
    place(tmp_path / "cpu", "cpu", "synthetic")
    with pytest.raises(ResperfError, match="no target synthetic/cpu"):
        named_target("cpu")
    shutil.rmtree(tmp_path / "cpu")
    with pytest.raises(DeviceError, match="use --framework tensorflow; targets"):
        named_target("of-tf", "onnxruntime")
    with pytest.raises(ResperfError, match=r"no target onnxruntime/rocm; .*: onnxruntime/cpu"):
        named_target("mi210", "onnxruntime")
    with pytest.raises(
        DeviceError, match=r"'mars'; devices: .*; bundles: of-tf.*; targets .*: onnx"
    ):
        named_target("mars")


def test_of_several_processors_the_one_most_like_this_machine_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    mine = CpuFacts(name="Red 5", flags=frozenset({"avx2"}))
    monkeypatch.setattr("resperf.platform.cpu_facts", lambda: mine)
    monkeypatch.setattr("resperf.platform.usable_cores", lambda: 4)

    def measured_on(name: str, processor: str, instructions: str, cores: int) -> Path:
        folder = place(tmp_path / "bundles" / name, "cpu")
        machine = {"processor": processor, "instruction_set": instructions, "cores": cores}
        edit(folder, lambda m: m["platforms"][m["parts"][0]["platforms"][0]].update(machine))
        return folder

    first = measured_on("a", "Blue 7", "avx512f", 2)
    assert choose(Query("cpu")).bundle.path == first
    same_cores = measured_on("b", "Blue 7", "avx512f", 4)
    assert choose(Query("cpu")).bundle.path == same_cores
    same_instructions = measured_on("c", "Blue 7", "avx2", 4)
    assert choose(Query("cpu")).bundle.path == same_instructions
    same = measured_on("d", "Red 5", "avx2", 4)
    assert choose(Query("cpu")).bundle.path == same
    assert choose(Query("cpu")).bundle.platform.machine == "Red 5, 4 cores"
    # A processor of this name with more instructions is not this one; one with most of them is.
    more = measured_on("e", "Red 5", "avx2+avx_vnni+avx512_bf16", 4)
    assert choose(Query("cpu")).bundle.path == same
    flags = CpuFacts("Red 5", frozenset({"avx2", "avx_vnni", "avx512_bf16", "avx512_fp16"}))
    with monkeypatch.context() as newer:
        newer.setattr("resperf.platform.cpu_facts", lambda: flags)
        assert choose(Query("cpu")).bundle.path == more
    # Another framework is another question, and an earlier place is the user's choice.
    edit_part(same, lambda p: p.update(framework="tensorflow"))
    assert choose(Query("cpu")).bundle.path == more
    assert choose(Query("cpu", "tensorflow")).bundle.path == same
    # Nor do times of another processor answer because they are of the precision.
    edit(first, lambda m: m["settings"][m["parts"][0]["settings"][0]].update(precision="fp16"))
    assert choose(Query("cpu", bundle=first, precision="fp16")).bundle.path == first
    with pytest.raises(UnsupportedError, match=r"e has no times of cpu with precision fp16, only"):
        choose(Query("cpu", precision="fp16"))
    elsewhere = place(tmp_path / "elsewhere" / "a", "cpu")
    assert choose(Query("cpu", bundle=elsewhere.parent)).bundle.path == elsewhere


def test_unknown_devices_are_told_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    good = place(tmp_path / "bundles" / "good", "box")
    place(tmp_path / "bundles" / "bad", "broken").joinpath("bundle.json").write_text("{}")
    bundles, damaged = find_bundles()
    assert good in [bundle.path for bundle in bundles]
    assert [folder.name for folder in damaged] == ["bad"]
    with pytest.raises(DeviceError, match=r"'abacus'; devices: box \(synth.*; bundles: good, "):
        choose(Query("abacus"))
    with pytest.raises(DeviceError, match=r"damaged: .*bad"):
        choose(Query("abacus"))
    with pytest.raises(DeviceError, match="is for device box"):
        choose(Query("abacus", bundle=good))
    with pytest.raises(DeviceError, match=r"no device or bundle '.*nowhere'"):
        choose(Query("box", bundle=tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match="holds no bundle"):
        choose(Query("box", bundle=tmp_path / "empty"))


def test_a_killed_replacement_is_mended(tmp_path: Path) -> None:
    old = place(tmp_path / ".b.resperf-old", "box")
    (tmp_path / ".b.resperf-new").mkdir()
    with replaced_folder(tmp_path / "b") as folder:
        assert (tmp_path / "b" / "bundle.json").exists()
        (folder / "bundle.json").write_text("new")
    assert not old.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "bundle.json").read_text() == "new"


def test_what_a_user_keeps_beside_or_in_a_bundle_is_not_lost(tmp_path: Path) -> None:
    place(tmp_path / "b", "box")
    bundles = [place(tmp_path / f"b.{word}", "box") for word in ("old", "tmp")]
    with replaced_folder(tmp_path / "b") as folder:
        (folder / "bundle.json").write_text("{}")
    assert all((folder / "bundle.json").exists() for folder in bundles)
    data = tmp_path / "b" / "data.h5"
    data.write_text("a night's work")
    with (
        pytest.raises(OutputError, match=r"contains 'data.h5', which is not part of the bundle"),
        replaced_folder(tmp_path / "b"),
    ):
        pass
    assert data.read_text() == "a night's work"


def test_an_interrupted_replacement_leaves_the_old(tmp_path: Path) -> None:
    place(tmp_path / "b", "box")

    def interrupted() -> None:
        with replaced_folder(tmp_path / "b") as folder:
            (folder / "bundle.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert Bundle.load(tmp_path / "b").device == "box"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="cannot be written"),
        replaced_folder(tmp_path / "file" / "b"),
    ):
        pass


def test_layers_may_be_of_any_shape() -> None:
    flat = Conv(
        batch=1, channels_in=8, channels_out=8, height=9, width=30, kernel_height=1,
        kernel_width=3, stride_height=1, stride_width=2,
    )  # fmt: skip
    assert Bundle.load(GOLDEN).predict([flat]).ms[0] > 0


def other_machine(bundle: Bundle, **facts: Any) -> Calibration:
    """Return what `resperf calibrate -o` adds to a bundle on a machine with other facts."""
    return Calibration(
        Source.LAYERS, bundle.setting, dataclasses.replace(bundle.platform, **facts), others=2.0,
        speeds=Speeds(0.001, 1e8, 1e7), factor_ci={"node": 0.1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("vectors", "cores", "processor", "nearest"),
    [
        ("avx2+fma", 2, "C", "C"),
        ("avx2", 8, "D", "B"),
        # Its own machine is as similar, or nothing has such vectors.
        ("avx512f", 2, "own", None),
        ("avx512f", 8, "A", None),
        ("sse4_2", 2, "A", None),
    ],
)
def test_the_nearest_machine_has_the_same_vectors(
    vectors: str, cores: int, processor: str, nearest: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Bundle.read_only_manifest(SHIPPED)
    own = dataclasses.replace(shipped.platform, processor="own", instruction_set="avx512f", cores=2)
    machines = [
        other_machine(shipped, processor=name, instruction_set=known, cores=count)
        for name, known, count in (("A", "avx2", 2), ("B", "avx2", 8), ("C", "avx2", 2))
    ]
    bundle = shipped.with_calibrations(machines, "machines")
    bundle.platform = own
    assert machines_of(bundle) == tuple(machines)
    for name in ("resperf.platform", "resperf.bundle._search"):
        monkeypatch.setattr(f"{name}.instruction_set", lambda: vectors)
    monkeypatch.setattr("resperf.platform.usable_cores", lambda: cores)
    monkeypatch.setattr("resperf.platform._processor", lambda: processor)
    found = nearest_machine(bundle)
    assert (None if found is None else found.platform.processor) == nearest


def test_blocks_of_another_size_are_read_as_those_that_are_known() -> None:
    layers = [
        Reorder(batch=1, channels_in=8, height=4, width=4, layout=one, layout_out=other)
        for one, other in (("nchw", "nchwc8"), ("nchwc8", "nhwc"), ("nchwc16", "nchw"))
    ]
    columns = columns_of(layers)

    def read(known: list[str]) -> list[tuple[str, str]]:
        found = in_known_blocks(columns, {"layout": known, "layout_out": known})
        return [*zip(found["layout"].tolist(), found["layout_out"].tolist(), strict=True)]

    as_they_are = [("nchw", "nchwc8"), ("nchwc8", "nhwc"), ("nchwc16", "nchw")]
    assert read(["nchw", "nchwc16", "nhwc"]) == [
        ("nchw", "nchwc16"), ("nchwc16", "nhwc"), ("nchwc16", "nchw")
    ]  # fmt: skip
    assert read(["nchw", "nchwc16", "nchwc8"]) == as_they_are
    assert read(["nchw"]) == as_they_are
