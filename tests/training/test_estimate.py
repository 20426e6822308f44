"""What a dataset lacks is estimated from whole calls, or scaled from another device's bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resperf.bundle import Bundle
from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.devices import device_facts, devices
from resperf.errors import TrainingError
from resperf.layers import Activation, Conv, Dense, Layer, Pool
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.network import read_network
from resperf.platform import Platform
from resperf.prediction import predict_layers, predict_network
from resperf.report.network import network_text
from resperf.settings import Setting
from resperf.training import estimate, train

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
SESSION_MS, CALL_MS, COPY_MS_PER_MB, LAUNCH_MS = 0.09, 0.25, 0.08, 0.03
POOL = Pool(batch=8, channels_in=64, height=56, width=56, kernel_height=2, kernel_width=2,
            stride_height=2, stride_width=2, layout="nhwc")  # fmt: skip

ToyRows = Callable[..., tuple[list[Layer], np.ndarray]]


def pool_ms(layer: Layer, times_slower: float = 1.0) -> float:
    """Closed form: a launch, bytes at a bandwidth, windows."""
    bytes_ms = 0.002 * layer.input_bytes / 1e6 + 0.004 * layer.output_bytes / 1e6
    return LAUNCH_MS + bytes_ms * times_slower + 3 * 2 * layer.macs / 1e9


def dataset(
    path: Path,
    device: str,
    phase: str,
    times_ms: Mapping[Layer, float],
    framework: str = "tensorflow",
    costs: Mapping[str, float] | None = None,
) -> Path:
    """Write layers with one phase each."""
    setting = Setting(threads=0, framework=framework, framework_version="1", provider="cuda")
    platform = Platform(device=device)
    if costs is None:
        costs = {"session_ms": SESSION_MS} if phase == "execution_ms" else {}
    info = DatasetInfo(
        setting, platform, {"name": "made up"}, 0, {}, "2026-01-02T03:04:05+00:00", costs,
        quantities=(phase,),
    )  # fmt: skip
    rows = [
        Measurement(
            layer,
            Status.OK,
            {phase: Samples((time_ms,) * 5, 5, 1, StopReason.PRECISE)},
            setting=setting,
            platform=platform,
            started_at=place,
        )
        for place, (layer, time_ms) in enumerate(times_ms.items())
    ]
    write_dataset(path, Dataset(info, tuple(rows)))
    return path


def whole_call_ms(layer: Layer, execution_ms: float) -> float:
    return CALL_MS + execution_ms + COPY_MS_PER_MB * layer.output_bytes / 1e6


def nhwc(layers: Sequence[Layer]) -> list[Layer]:
    return [each.replace(layout="nhwc") if isinstance(each, Conv | Pool) else each
            for each in layers]  # fmt: skip


@pytest.fixture(scope="module")
def layers(toy_rows: ToyRows) -> dict[str, dict[Layer, float]]:
    """Execution of each kind's layers on a 1080 Ti; of poolings on a P5000 as well."""
    found: dict[str, dict[Layer, float]] = {}
    for kind in ("conv", "dense"):
        drawn, times_ms = toy_rows(kind, 300, noise=0.01)
        found[kind] = dict(zip(nhwc(drawn), map(float, times_ms), strict=True))
    drawn, _ = toy_rows("pool", 300)
    # Large enough for their bytes to matter beside the launch.
    pools = [each.replace(batch=64, channels_in=256) for each in nhwc(drawn)]
    found["pool"] = {each: pool_ms(each) for each in pools}
    found["p5000"] = {each: pool_ms(each, 484.4 / 288.5) for each in pools}
    return found


@pytest.fixture(scope="module")
def files(
    layers: dict[str, dict[Layer, float]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("estimate")
    execution = layers["conv"] | layers["dense"]
    calls = {layer: whole_call_ms(layer, ms) for layer, ms in (execution | layers["pool"]).items()}
    other = {layer: whole_call_ms(layer, ms) for layer, ms in layers["p5000"].items()}
    pools = {layer: ms for layer, ms in calls.items() if isinstance(layer, Pool)}
    return {
        "execution_ms": dataset(folder / "e.h5", "1080ti", "execution_ms", execution),
        "calls": dataset(folder / "c.h5", "gtx1080ti", "whole_call_ms", calls),
        "p5000": dataset(folder / "p5000.h5", "p5000", "whole_call_ms", other),
        "only pools": dataset(folder / "d.h5", "1080ti", "whole_call_ms", pools),
        "other framework": dataset(
            folder / "f.h5", "1080ti", "whole_call_ms", calls, framework="onnxruntime"
        ),
    }


@pytest.fixture(scope="module")
def bundle(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return train(
        files["execution_ms"], tmp_path_factory.mktemp("b") / "1080ti-tensorflow",
        method="baseline", estimate_from=[files["calls"], files["p5000"]],
    )  # fmt: skip


def test_coefficients_are_found_in_whole_calls(bundle: Bundle) -> None:
    assert bundle.kinds == ("conv", "dense", "pool", "activation")
    assert bundle.predict([POOL]).ms[0] == pytest.approx(pool_ms(POOL), rel=0.1)
    for phase in ("preprocess_ms", "postprocess_ms"):
        copies = bundle.transfer_ms(phase, [0, 10_000_000])
        assert copies[1] - copies[0] == pytest.approx(10 * COPY_MS_PER_MB, rel=0.03)
        assert copies[0] == pytest.approx((CALL_MS - SESSION_MS) / 2, rel=0.1)
    assert bundle.costs["view_ms"] == pytest.approx(LAUNCH_MS, rel=0.3)


def test_activations_cost_what_they_add_to_convolutions(bundle: Bundle) -> None:
    # The toy device's relu takes 0.2 ms a megabyte, in a convolution and as a layer.
    relu = Activation(batch=4, values=250_000, activation="relu")
    assert bundle.predict([relu]).ms[0] == pytest.approx(4 * 0.2, rel=0.1)
    step = bundle.estimates["activation execution"]
    added, learnt = (step[f"errors_{name}"]["conv"]["mape"] for name in ("added", "learnt"))
    assert 0 < added < learnt + 0.02
    assert predict_layers([relu], bundle)[0].estimated


def test_without_any_activation_none_is_estimated(
    layers: dict[str, dict[Layer, float]], files: dict[str, Path], tmp_path: Path
) -> None:
    plain = {layer: ms for layer, ms in layers["conv"].items()
             if layer.fields()["activation"] == "none"}  # fmt: skip
    found = train(
        dataset(tmp_path / "plain.h5", "1080ti", "execution_ms", plain), tmp_path / "b",
        method="baseline", estimate_from=[files["calls"]],
    )  # fmt: skip
    assert found.kinds == ("conv", "pool")
    assert "activation execution" not in found.estimates


def test_a_method_that_ignores_activations_estimates_none(
    files: dict[str, Path], tmp_path: Path
) -> None:
    found = train(files["execution_ms"], tmp_path / "b", method="gianniti",
                  estimate_from=[files["calls"]])  # fmt: skip
    assert "activation" not in found.kinds
    assert "activation execution" not in found.estimates


def test_a_network_of_one_layer_costs_a_whole_call_and_its_inputs_copy(bundle: Bundle) -> None:
    network = read_network(NETWORKS / "vgg16.onnx", batch=1)
    prediction = predict_network(network, bundle)
    around_ms = prediction.total_ms - sum(layer.execution_ms for layer in prediction.layers)
    copied_mb = (4 * 3 * 224 * 224 + 4 * 1000) / 1e6
    expected_ms = CALL_MS + COPY_MS_PER_MB * copied_mb + bundle.costs["view_ms"]
    assert around_ms == pytest.approx(expected_ms, rel=0.05)


def test_each_estimate_has_its_source_and_errors(bundle: Bundle) -> None:
    steps = {"pool execution", "preprocess", "postprocess", "view_ms"}
    assert set(bundle.estimates) == {*steps, "activation execution"}
    assert all(step["how"] for step in bundle.estimates.values())
    for name in steps:
        source = bundle.estimates[name]["source"]
        assert (source["device"], source["name"]) == ("1080ti", "c.h5")
    # Activations are estimated from the layers themselves.
    assert bundle.estimates["activation execution"]["source"]["name"] == "e.h5"
    assert set(bundle.estimates["postprocess"]["whole_call_errors"]) == {"conv", "dense", "pool"}
    for found in bundle.estimates["postprocess"]["whole_call_errors"].values():
        assert 0 < found["mape"] < 0.05
    assert bundle.estimates["postprocess"]["execution_factors"]["conv"] == pytest.approx(1, abs=0.1)
    scaled = bundle.estimates["pool execution"]["scaled_to"]["p5000"]
    assert scaled["execution_factor"] == pytest.approx(1, abs=0.15)
    assert 0 <= scaled["whole_call_mape"] < 0.05


def test_another_devices_estimates_are_scaled(
    bundle: Bundle,
    layers: dict[str, dict[Layer, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All cards of the table have the same bus.
    slow = replace(devices()["v100"], bus_bytes_per_s=devices()["1080ti"].bus_bytes_per_s / 2)
    monkeypatch.setattr(
        estimate, "device_facts", lambda name: slow if name == "v100" else device_facts(name)
    )
    execution = dataset(tmp_path / "v.h5", "v100", "execution_ms", layers["conv"])
    scaled = train(execution, tmp_path / "v", method="baseline", estimate_from=[bundle.path])
    ours, theirs = device_facts("1080ti"), device_facts("v100")
    assert ours is not None
    assert theirs is not None
    ratio = ours.bandwidth_bytes_per_s / theirs.bandwidth_bytes_per_s
    assert scaled.predict([POOL]).ms[0] == pytest.approx(pool_ms(POOL, ratio), rel=0.1)
    none_ms, theirs_ms = scaled.transfer_ms("preprocess_ms", [0, 8_000_000])
    assert none_ms == bundle.transfer_ms("preprocess_ms", [0])[0]
    ours_ms = bundle.transfer_ms("preprocess_ms", [8_000_000])[0]
    assert theirs_ms - none_ms == pytest.approx(2 * (ours_ms - none_ms))
    assert scaled.costs["view_ms"] == bundle.costs["view_ms"]
    # Activations are estimated from its own convolutions, not scaled.
    own = scaled.estimates["activation execution"]
    assert "scaled" not in own
    steps = [step for step in scaled.estimates if step != "activation execution"]
    applied = {step: scaled.estimates[step]["scaled"] for step in steps}
    assert applied == {
        "pool execution": {"from": "1080ti", "bytes_times_longer": pytest.approx(ratio)},
        "preprocess": {"from": "1080ti", "bytes_times_longer": 2.0},
        "postprocess": {"from": "1080ti", "bytes_times_longer": 2.0},
        "view_ms": {"from": "1080ti"},
    }
    assert scaled.estimates["postprocess"]["fitted"] == bundle.estimates["postprocess"]
    with pytest.raises(TrainingError, match="are already scaled"):
        train(execution, tmp_path / "w", method="baseline", estimate_from=[scaled.path])


def test_predictions_say_which_parts_are_estimated(bundle: Bundle) -> None:
    prediction = predict_network(read_network(NETWORKS / "vgg16.onnx", batch=8), bundle)
    assert not prediction.skipped
    assert prediction.estimated_phases == ("preprocess", "postprocess")
    assert {layer.kind for layer in prediction.layers if layer.estimated} == {"pool"}
    assert {layer.kind for layer in prediction.layers if not layer.estimated} == {"conv", "dense"}
    pools_ms = sum(layer.execution_ms for layer in prediction.layers if layer.kind == "pool")
    outer_ms = prediction.phases.preprocess_ms + prediction.phases.postprocess_ms
    assert prediction.views_estimated
    assert prediction.views_ms == bundle.costs["view_ms"] > 0
    assert prediction.estimated_ms == pytest.approx(pools_ms + outer_ms + prediction.views_ms)
    assert f"shape-only operators {prediction.views_ms:.4f}, estimated" in network_text(prediction)
    document = prediction.to_json()
    assert document["estimated_phases"] == ["preprocess", "postprocess"]
    assert {layer["kind"] for layer in document["layers"] if layer["estimated"]} == {"pool"}
    # 15.5 billion multiply-accumulates an image, a ninth of them at 11.34 TFLOP/s, at least.
    assert 8 * 2 * 15.5e9 / 9 / 11.34e12 * 1e3 < document["lower_bound_ms"] < prediction.total_ms
    alone = predict_layers([POOL, Dense(batch=1, features_in=64, features_out=64)], bundle)
    assert [layer.estimated for layer in alone] == [True, False]


def test_what_was_measured_is_not_estimated(files: dict[str, Path], tmp_path: Path) -> None:
    execution = dataset(tmp_path / "e.h5", "1080ti", "execution_ms",
                        {POOL.replace(batch=n): 7.0 for n in range(1, 60)})  # fmt: skip
    found = train(execution, tmp_path / "b", method="baseline", estimate_from=[files["calls"]])
    # Poolings are then a kind with known execution, which separates calls from copies.
    assert set(found.estimates) == {"preprocess", "postprocess"}
    assert found.predict([POOL]).ms[0] == pytest.approx(7.0, rel=0.01)
    assert "view_ms" not in found.costs


@pytest.mark.parametrize(
    ("device", "given", "message"),
    [
        ("k80", "calls", "is of device 1080ti, the layers are of k80"),
        ("1080ti", "execution_ms", "holds execution_ms, not whole calls"),
        ("1080ti", "only pools", "has no kind of layer that was trained here .conv, dense."),
        ("1080ti", "other framework", "was measured with onnxruntime, the layers with tensorflow"),
        ("my card", "bundle", "bandwidth and bus of device 'my card' are unknown"),
        ("i3", "bundle", "bandwidth and bus of device 'i3' are unknown"),
        ("k80", "plain bundle", "has no estimate of pool execution, postprocess"),
    ],
)
def test_unusable_sources_are_refused(
    device: str, given: str, message: str, files: dict[str, Path], bundle: Bundle, tmp_path: Path
) -> None:
    plain = train(files["execution_ms"], tmp_path / "plain", method="baseline").path
    source = {**files, "bundle": bundle.path, "plain bundle": plain}[given]
    with pytest.raises(TrainingError, match=message):
        train(
            files["execution_ms"], tmp_path / "b", method="baseline", device=device,
            estimate_from=[source],
        )  # fmt: skip
    assert not (tmp_path / "b").exists()


def test_one_bundle_is_enough(files: dict[str, Path], bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="one bundle or from files of whole calls"):
        train(files["execution_ms"], tmp_path / "b", method="baseline",
              estimate_from=[bundle.path, files["calls"]])  # fmt: skip


def test_without_a_session_call_whole_calls_cannot_be_separated(
    files: dict[str, Path], tmp_path: Path
) -> None:
    execution = dataset(tmp_path / "e.h5", "1080ti", "execution_ms",
                        {POOL.replace(batch=n): 7.0 for n in range(1, 60)}, costs={})  # fmt: skip
    with pytest.raises(TrainingError, match="the cost of a session call was not measured"):
        train(execution, tmp_path / "b", method="baseline", estimate_from=[files["calls"]])


def test_excluded_layers_are_not_estimated_from(
    files: dict[str, Path], layers: dict[str, dict[Layer, float]], tmp_path: Path
) -> None:
    keys = frozenset(layer.key for layer in layers["pool"])
    found = train(files["execution_ms"], tmp_path / "b", method="baseline", exclude_keys=keys,
                  estimate_from=[files["calls"]])  # fmt: skip
    assert set(found.estimates) == {"preprocess", "postprocess", "activation execution"}


def test_whole_calls_are_not_combined_with_estimates(
    files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="a bundle of whole calls needs no estimates"):
        train(files["calls"], tmp_path / "b", method="baseline", estimate_from=[files["calls"]])


def test_fewer_trees_make_a_smaller_bundle(
    files: dict[str, Path], layers: dict[str, dict[Layer, float]], tmp_path: Path
) -> None:
    pytest.importorskip("lightgbm")
    # A step that no physical term models, for trees to learn.
    stepped = {each: ms * (3 if each.features_out % 16 < 8 else 1) * (2 if each.batch > 4 else 1)
               for each, ms in layers["dense"].items()}  # fmt: skip
    rows = dataset(tmp_path / "s.h5", "1080ti", "execution_ms", stepped)
    sizes = [
        train(rows, tmp_path / str(trees), method="boosted", trees=trees).size_bytes
        for trees in (5, 50)
    ]
    assert sizes[0] + 2000 < sizes[1]
    with pytest.raises(TrainingError, match="svr has no number of trees"):
        train(files["execution_ms"], tmp_path / "s", method="svr", trees=5)
