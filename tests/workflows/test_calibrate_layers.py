"""`resperf calibrate` on the simulated device, whose times follow from its formulas."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.backends import backend
from resperf.bundle import GROUPS, Bundle, Calibration, LayerTimes, Source, Speeds
from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.errors import MeasurementError
from resperf.layers import (
    Activation,
    Conv,
    Dense,
    Elementwise,
    Layer,
    Move,
    Pool,
    QuantizedDense,
    QuantizedElementwise,
    Reorder,
    Softmax,
    Transpose,
    layer_from_key,
)
from resperf.layers.matmul import MatMul
from resperf.layers.quantized_conv import QuantizedConv
from resperf.lowering import lower_layers
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.network import read_network
from resperf.platform import this_platform
from resperf.prediction import predict_network
from resperf.prediction.calibrated import STATE_WIDTH
from resperf.prediction.choice import Query, choose
from resperf.prediction.rules import layers_behind_each_other
from resperf.quantities import PHASES
from resperf.settings import NCHWC_BLOCK
from resperf.testing.synthetic import NODE_MS, SESSION_MS, closed_form_ms
from resperf.training import train
from resperf.workflows import calibrate_layers as module
from resperf.workflows.calibrate_layers import (
    CALIBRATION_LAYERS,
    calibrate_by_layers,
    fitted,
    measure_layers,
    other_kernels,
    times_there,
)

LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
THERE = {"gflops": 50.0, "gb_per_s": 5.0}
HERE = {"gflops": 25.0, "gb_per_s": 10.0}
"""Computing takes twice as long here as there, moving bytes half as long, a node the same."""
COUNT = sum(each.kind != "reorder" for each in CALIBRATION_LAYERS)
"""Layers of a turn."""
SMALL = Conv(
    batch=1, channels_in=3, channels_out=3, height=9, width=9, kernel_height=3, kernel_width=3
)


def drawn() -> list[Layer]:
    """Return the calibration layers that the device runs, and layers of about their sizes."""
    draw = random.Random(5)

    def size(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    layers = [each for each in CALIBRATION_LAYERS if each.kind != "reorder"]
    for _ in range(50):
        channels, pixels, kernel = size(3, 512), size(7, 224), draw.choice([1, 3, 7])
        window = {
            "batch": 1, "channels_in": channels, "height": pixels, "width": pixels,
            "kernel_height": kernel, "kernel_width": kernel,
        }  # fmt: skip
        layers += [
            Conv(**window, channels_out=size(4, 512)),
            Pool(**window),
            Dense(batch=1, features_in=size(8, 4096), features_out=size(8, 4096)),
            Activation(batch=1, values=size(64, 2_500_000), activation="relu"),
        ]
    return list({each.key: each for each in layers}.values())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """Learn the times of a device there, under the setting of the one here."""
    folder = tmp_path_factory.mktemp("calibrated")
    setting, platform = backend("synthetic", **HERE).setting(), this_platform("synthetic")

    def samples(layer: Layer, phase: str) -> Samples:
        return Samples((closed_form_ms(layer, phase, **THERE),) * 5, 5, 1, StopReason.PRECISE)

    rows = tuple(
        Measurement(
            layer, Status.OK, {phase: samples(layer, phase) for phase in PHASES},
            setting=setting, platform=platform, started_at=float(place),
        )
        for place, layer in enumerate(drawn())
    )  # fmt: skip
    costs = {
        "call_ms": SESSION_MS,
        "reshape_ms": 0.0,
        "overhead_ms_per_layer": 0.0,
        "overhead_ms_per_mb": 0.0,
    }
    info = DatasetInfo(
        setting, platform, {"name": "by hand"}, 0, {}, "2026-01-01T00:00:00+00:00", costs
    )
    write_dataset(folder / "rows.h5", Dataset(info, rows))
    train(folder / "rows.h5", folder / "there", method="baseline", device="synthetic")
    return Bundle.load(folder / "there")


@pytest.fixture(scope="module")
def run(bundle) -> Calibration:
    return measure_layers(bundle, how=HERE)


def timed(run: Calibration) -> Mapping[str, float]:
    """Return the times of a run over the layers, by their keys."""
    return run.times[-1].times_ms


def scaled_run(run: Calibration, factor: float, processor: str = "", **more: Any) -> Calibration:
    """Return a run whose layers take so many times as long, on another processor if it is named."""
    times_ms = {key: factor * ms for key, ms in timed(run).items()}
    platform = replace(run.platform, processor=processor or run.platform.processor)
    return replace(
        run, platform=platform, times=(replace(run.times[-1], times_ms=times_ms, **more),)
    )


def test_a_machine_of_known_speeds_is_found_again(bundle, run):
    assert run.remarks == ()
    assert len(timed(run)) == COUNT
    found = fitted(bundle, run)
    assert found.predicted_reference
    # Of the layers that the device runs, a product of one row reads memory most nearly alone.
    reading = Dense(batch=1, features_in=4096, features_out=4096)
    here_ms, there_ms = (closed_form_ms(reading, "execution_ms", **each) for each in (HERE, THERE))
    assert here_ms / there_ms == pytest.approx(0.57, abs=0.01)
    expected = {
        "convolutions": 2.0, "products": 2.0, "memory": here_ms / there_ms, "caches": 0.5,
        "node": 1.0,
    }  # fmt: skip
    for group, factor in expected.items():
        assert found.factor(group) == pytest.approx(factor, rel=0.12), group
    assert all(found.factor_ci[group] < 0.05 for group in ("convolutions", "memory", "caches"))
    # One layer of the device is a node and nothing else; none computes in integers.
    assert 0.05 < found.factor_ci["node"] < found.factor_ci["int8"]
    assert found.factor_ci["int8"] == max(found.factor_ci.values())
    assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_networks_are_then_predicted_as_they_run_here(bundle, run):
    network = read_network(LENET, batch=16)
    before = predict_network(network, bundle)
    after = predict_network(network, bundle.for_machine(fitted(bundle, run)))
    layers = [node.layer for node in before.parts.nodes if node.layer is not None]
    there_ms, here_ms = (
        SESSION_MS + sum(closed_form_ms(each, "execution_ms", **speeds) for each in layers)
        for speeds in (THERE, HERE)
    )
    assert before.phases.execution_ms == pytest.approx(there_ms, rel=0.1)
    assert after.phases.execution_ms == pytest.approx(here_ms, rel=0.1)
    assert abs(here_ms / there_ms - 1) > 0.2
    assert after.low_ms < after.total_ms < after.high_ms
    assert after.high_ms / after.total_ms > before.high_ms / before.total_ms


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ((COUNT + 1, 10_000, 1.5), "a later turn took 1.50 times as long as the first"),
        ((8, 2 * COUNT + 4, 1.5), "the machine changed its speed"),
    ],
)
def test_a_machine_that_changes_its_speed_is_said_to(bundle, slow, said):
    disturbed = measure_layers(bundle, how={**HERE, "slow": slow})
    assert said in "; ".join(disturbed.remarks)
    [times] = disturbed.times
    assert not times.steady
    found = fitted(bundle, disturbed)
    assert found.summary()["remarks"] == list(disturbed.remarks)
    assert found.drift == times.drift > 0.1
    # What is common to all layers is in doubt, however many groups they are of.
    some = drawn()[:4]
    steady = replace(found, drift=0.0).sum_ci(some, [1.0] * len(some))
    assert found.sum_ci(some, [1.0] * len(some)) == pytest.approx(
        math.hypot(steady, times.drift / 2)
    )


def test_disturbed_layers_are_measured_again(bundle, monkeypatch):
    # A third of the layers is slow in two turns of three: it is measured once more.
    turn, disturbed = module._Turns._turn, COUNT // 3

    def slowed(row: Measurement) -> Measurement:
        samples = {
            name: replace(each, values=tuple(1.4 * value for value in each.values))
            for name, each in row.samples.items()
        }
        return replace(row, samples=samples, flags=("caches",))

    def with_flags(self, layers, repeat):
        rows = turn(self, layers, repeat)
        known = self.rows[0] if self.rows else rows
        slow = [row.layer for row in known if row.status is Status.OK][:disturbed]
        return [slowed(row) if repeat < 2 and row.layer in slow else row for row in rows]

    monkeypatch.setattr(module._Turns, "_turn", with_flags)
    seen = []
    run = measure_layers(bundle, how=HERE, progress=lambda *words: seen.append(words))
    assert len(seen) == len(CALIBRATION_LAYERS) + 2 * COUNT + disturbed
    # The fourth turn, of these layers alone, is no drift from the first.
    assert (run.remarks, run.times[-1].drift) == ((), 0.0)
    assert all(done <= planned for done, planned, _ in seen)


def test_a_factor_that_its_doubt_explains_is_dropped_on_the_same_processor(bundle, run, tmp_path):
    made, *_ = calibrate_by_layers(bundle, tmp_path / "kept", how=HERE)

    def scaled(factor: float, processor: str = "") -> float:
        return fitted(made, scaled_run(run, factor, processor, drift=0.1)).factor("convolutions")

    assert scaled(1.06) == 1.0
    assert scaled(1.06, "another one") == pytest.approx(1.06, rel=0.01)
    assert 1.3 < scaled(1.5) < scaled(1.5, "another one") == pytest.approx(1.5, rel=0.01)


def test_known_hardware_keeps_its_factors_unless_layers_are_sure_of_others(bundle, run):
    usual = fitted(bundle, scaled_run(run, 1.5, "third"))
    known = bundle.with_calibrations([usual], "by hand")

    def scaled(factor: float, processor: str, **how) -> tuple[float, float]:
        learnt = fitted(known, scaled_run(run, factor, processor, drift=0.1), **how)
        return learnt.factor("convolutions"), learnt.others

    assert scaled(1.6, "third") == (usual.factor("convolutions"), usual.others)
    anew = scaled(1.6, "third", anew=True)
    another = scaled(1.6, "fourth")
    assert another == anew == pytest.approx([each * 1.6 / 1.5 for each in (
        usual.factor("convolutions"), usual.others)], rel=0.02)  # fmt: skip
    # Twice as long is beyond all doubt, and nearly what is kept.
    surely, _ = scaled(3.0, "third")
    assert 1.8 < surely / usual.factor("convolutions") < 2.0


def test_a_longer_time_takes_more_turns_of_which_the_median_counts(bundle, run):
    count = len(timed(run))
    slow = {**HERE, "slow": (count, 3 * count - 1, 1.5)}
    seen = []
    longer = measure_layers(
        bundle, seconds=2 * module.SECONDS, how=slow, progress=lambda *words: seen.append(words)
    )
    assert len(seen) > 5 * count
    assert timed(longer) == pytest.approx(timed(run), rel=0.01)
    # In a minute the same time is two turns of three for many.
    short = timed(measure_layers(bundle, how=slow))
    assert sum(short[each] > 1.2 * ms for each, ms in timed(run).items()) > count // 3


def test_runs_are_joined_by_the_median_of_each_layer(bundle, run):
    def times(factor: float, at: str) -> LayerTimes:
        costs = {"overhead_ms_per_layer": factor, "overhead_ms_per_mb": factor}
        return scaled_run(run, factor, at=at, costs=costs).times[-1]

    # Of other hardware than the bundle's, whose factors nothing keeps.
    slow = replace(scaled_run(run, 1.0, "third"), times=(times(1.2, "now"),))
    alone, joined = fitted(bundle, slow), fitted(bundle, slow, (times(1, "a"), times(3, "b")))
    assert joined.factors == pytest.approx(alone.factors)
    assert joined.factor_ci == pytest.approx(alone.factor_ci)
    assert [each.at for each in joined.times] == ["a", "b", "now"]
    assert joined.costs == pytest.approx({"overhead_ms_per_layer": 1.1, "overhead_ms_per_mb": 1.1})
    # The state of the host meanwhile is a doubt that all layers share.
    assert (alone.drift, joined.drift) == (run.times[-1].drift, pytest.approx(math.log(3)))
    # Layers of another version of this package tell nothing.
    other = LayerTimes("c", {SMALL.key: 5.0})
    assert fitted(bundle, slow, (other,)).factors == alone.factors
    # The latest runs count, on the same hardware with the same framework.
    many = replace(joined, times=tuple(times(1, str(place)) for place in range(9)))
    newer = replace(many, setting=replace(many.setting, framework_version="99"))
    elsewhere = replace(many, platform=replace(many.platform, processor="another"))
    assert module._earlier([newer, elsewhere], slow) == ()
    assert [each.at for each in module._earlier([newer, many], slow)] == list("45678")
    assert Calibration.from_json(json.loads(json.dumps(many.to_json()))) == many


def test_an_unsteady_run_counts_only_until_there_is_a_steady_one(bundle, run):
    def times(factor: float, *, steady: bool) -> Calibration:
        return scaled_run(run, factor, "third", steady=steady, drift=0.01)

    noisy, clean, later = (times(3, steady=False), times(1, steady=True), times(5, steady=False))
    first = fitted(bundle, noisy)
    then = fitted(bundle, clean, first.times)
    alone = fitted(bundle, clean)
    assert then.factors == pytest.approx(alone.factors)
    assert then.drift == alone.drift == 0.01
    # Nor does a noisy run after it change what it taught; both stay in the file.
    last = fitted(bundle, later, then.times)
    assert last.factors == pytest.approx(alone.factors)
    assert [each.steady for each in last.times] == [False, True, False]
    assert last.summary()["runs"] == [then.at]
    assert len(last.summary()["unsteady_runs"]) == 2
    # Two noisy ones are joined as before, and noisy ones are the first to be dropped.
    both = fitted(bundle, later, first.times)
    assert both.drift == pytest.approx(math.log(5 / 3))
    steady = tuple(replace(then.times[1], at=str(place)) for place in range(5))
    kept = module._earlier([replace(last, times=(*steady, *first.times))], clean)
    assert [each.at for each in kept] == list("01234")
    assert Calibration.from_json(json.loads(json.dumps(last.to_json()))) == last


def test_a_minute_that_is_too_short_says_so(bundle):
    # Each build sleeps: three layers or so.
    short = measure_layers(bundle, seconds=4.0, how={**HERE, "real_ms": 400.0})
    assert 0 < len(timed(short)) < 10
    assert "the time was over after" in short.remarks[0]
    assert "one turn only" in short.remarks[-1]
    said = r"only \d calibration layers have a time here .* --seconds"
    with pytest.raises(MeasurementError, match=said):
        fitted(bundle, short)


def test_nothing_is_kept_of_a_machine_at_other_work(bundle, run, monkeypatch):
    kept = []
    monkeypatch.setattr(module, "save_calibration", lambda *words: kept.append(words))
    monkeypatch.setattr(module, "measure_layers", lambda *_, **__: scaled_run(run, 1.0, busy=0.6))
    with pytest.raises(MeasurementError, match="busy with other programs during 60%"):
        calibrate_by_layers(bundle)
    assert kept == []
    monkeypatch.setattr(module, "measure_layers", lambda *_, **__: scaled_run(run, 1.0, busy=0.4))
    calibrate_by_layers(bundle)
    assert len(kept) == 1


def test_layers_that_end_the_process_are_named(bundle):
    ended = measure_layers(bundle, how={**HERE, "fail": {"crash": "features_in=1024"}})
    assert any("SIGSEGV" in remark for remark in ended.remarks)


def test_a_bundle_keeps_the_times_of_its_own_machine(bundle, run, tmp_path):
    made, reference, _ = calibrate_by_layers(bundle, tmp_path / "kept", how=HERE)
    assert made.calibrations == (reference,)
    layers = [layer_from_key(key) for key in timed(run)]
    assert timed(reference) == pytest.approx(
        {each.key: closed_form_ms(each, "execution_ms", **HERE) for each in layers}, rel=1e-3
    )
    network = read_network(LENET, batch=2)
    assert predict_network(network, made).total_ms == predict_network(network, bundle).total_ms
    times, predicted_reference = times_there(made, layers)
    assert not predicted_reference
    assert len(times) == len(layers)
    same = fitted(made, run)
    for group in ("convolutions", "products", "memory", "caches", "node"):
        assert same.factor(group) == pytest.approx(1.0, rel=0.01)
    # Nothing is written where the machine was disturbed.
    with pytest.raises(MeasurementError, match="a later turn took"):
        calibrate_by_layers(bundle, tmp_path / "no", how={**HERE, "slow": (COUNT + 1, 10_000, 1.5)})
    assert not (tmp_path / "no").exists()


def test_bundles_of_other_layers_are_refused(bundle):
    with pytest.raises(MeasurementError, match=r"gflops: .* there\); name a bundle of a similar"):
        measure_layers(bundle, how=THERE)
    many = bundle.for_device(bundle.platform, replace(bundle.setting, threads=10_000))
    with pytest.raises(MeasurementError, match="is of 10000 threads"):
        measure_layers(many)


def test_a_bundle_is_calibrated_for_a_processor_with_shorter_vectors():
    """ONNX Runtime stores channels in blocks of 8 there, of 16 on the bundle's machine."""
    bundle = choose(Query("cpu-onnxruntime")).bundle
    assert bundle.setting.options[NCHWC_BLOCK] == "16"
    options = {**bundle.setting.options, NCHWC_BLOCK: "8"}
    setting = replace(bundle.setting, options=options)
    platform = replace(bundle.platform, instruction_set="avx2", machine_checks={})
    assert other_kernels(setting, bundle.setting) == []
    assert other_kernels(replace(setting, options={}), bundle.setting) != []
    lowered = zip(
        lower_layers(CALIBRATION_LAYERS, setting, platform),
        lower_layers(CALIBRATION_LAYERS, bundle.setting, bundle.platform),
        strict=True,
    )
    pairs = dict(lowered)
    there_ms, predicted_reference = times_there(bundle, list(pairs.values()))
    assert not predicted_reference
    times_ms = {here.key: 2 * there_ms[there] for here, there in pairs.items()}
    assert sum("nchwc8" in each for each in times_ms) > 10
    times = LayerTimes("2026-01-01", times_ms)
    found = fitted(bundle, Calibration(Source.LAYERS, setting, platform, times=(times,)))
    assert found.count == len(times_ms)
    assert not found.predicted_reference
    assert all(found.factor(group) == pytest.approx(2, rel=0.05) for group in GROUPS)
    network = read_network(LENET.with_name("resnet18.onnx"), batch=1)
    there, here = (predict_network(network, each) for each in (bundle, bundle.for_machine(found)))
    assert any("nchwc8" in layer.key for layer in here.layers)
    assert all(layer.in_range for layer in here.layers)
    assert here.phases.execution_ms == pytest.approx(2 * there.phases.execution_ms, rel=0.05)


def by_groups(speeds: Speeds, layer: Layer, ms: float) -> dict[str, float]:
    """Return the shares of the groups that a layer's time is of."""
    shares = zip(GROUPS, speeds.shares([layer], [ms])[0].tolist(), strict=True)
    return {group: share for group, share in shares if share}


def test_a_layers_time_is_divided_by_the_speeds_of_its_machine():
    # A node takes 1 us, caches 1 MB in 10 us, memory 1 MB in 100 us.
    speeds = Speeds(0.001, 1e8, 1e7)
    tiny = Activation(batch=1, values=16, activation="relu")
    # 4 MB of weights in memory: 0.4 of 1 ms; 8 KB of values in the caches.
    dense = Dense(batch=1, features_in=1000, features_out=1000, bias=False)
    image = {"batch": 1, "channels_in": 64, "height": 50, "width": 50}
    # 1.28 MB in the caches: 0.0128 ms of 0.1 ms.
    pool = Pool(**image, kernel_height=1, kernel_width=1)
    turned = Transpose(batch=1, dim1=400, dim2=400, order="21")
    blocked = Reorder(batch=1, channels_in=16, height=100, width=100)
    assert by_groups(speeds, blocked, 0.1) == pytest.approx({"node": 0.01, "reorders": 0.99})
    # 0.59 MB of weights in memory, 0.06 of 1 ms, and 0.49 MB in the caches.
    sums = QuantizedDense(batch=128, features_in=768, features_out=768)
    layers, times_ms = [tiny, dense, pool, turned, sums], [0.0005, 1.0, 0.1, 0.1, 1.0]
    shares = speeds.shares(layers, times_ms)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    by_group = dict(zip(GROUPS, shares.T, strict=True))
    memory, caches, node = (by_group[name] for name in ("memory", "caches", "node"))
    assert node == pytest.approx([1.0, 0.001, 0.01, 0.01, 0.001])
    assert memory[:4] == pytest.approx([0.0, 0.4, 0.0, 0.0])
    assert caches[1:4] == pytest.approx([0.00008, 0.128, 0.0])
    assert by_group["copies"] == pytest.approx([0.0, 0.0, 0.0, 0.99, 0.0])
    assert by_group["products"] == pytest.approx([0.0, 1 - 0.401 - 0.00008, 0.0, 0.0, 0.0])
    assert by_group["functions"] == pytest.approx([0.0, 0.0, 1 - 0.01 - 0.128, 0.0, 0.0])
    assert by_group["int8_sums"][4] == pytest.approx(1 - memory[4] - caches[4] - 0.001)
    assert by_group["int8_sums"][4] > 0.9
    others = {"convolutions", "depthwise", "activations", "rows", "int8", "int8_depthwise"}
    assert not any(by_group[name].any() for name in others)


def test_layers_are_grouped_by_what_they_compute():
    speeds = Speeds(1e-6, 1e12, 1e12)
    image = {
        "batch": 1, "channels_in": 8, "height": 9, "width": 9, "rank": 2, "kernel_width": 1,
    }  # fmt: skip
    depthwise = Conv(
        batch=1, channels_in=16, channels_out=16, height=9, width=9, kernel_height=3,
        kernel_width=3, pad_top=1, pad_bottom=1, groups=16, layout="nchwc8",
    )  # fmt: skip
    layers = {
        "convolutions": depthwise.replace(groups=1, layout="nchw"),
        "thin_convolutions": SMALL,
        "plain_grouped": depthwise.replace(layout="nchw"),
        "blocked_convolutions": depthwise.replace(groups=1),
        "blocked_grouped": depthwise.replace(groups=2),
        "depthwise": depthwise,
        "wide_depthwise": depthwise.replace(kernel_height=5, pad_top=2, pad_bottom=2),
        "products": MatMul(batch=1, rows=8, depth=8, columns=8),
        "activations": Activation(batch=1, values=64, activation="gelu"),
        "rows": Softmax(batch=1, values=64),
        "int8": QuantizedConv(**image, channels_out=16),
        "int8_sums": QuantizedDense(batch=8, features_in=8, features_out=8, function="dynamic"),
        "int8_conv_sums": QuantizedConv(
            **image, channels_out=16, function="integer", layout="nchw", bias=False
        ),
        "int8_depthwise": QuantizedConv(**image, channels_out=8, groups=8),
        "functions": QuantizedElementwise(batch=1, inner=64),
        "copies": Move(batch=1, length=64, length_out=32, inner=1, function="slice"),
        "single_values": Move(batch=1, length=64, length_out=32, inner=1, step=2, function="slice"),
    }
    shares = speeds.shares([*layers.values()], [1.0] * len(layers))
    assert [GROUPS[row.argmax()] for row in shares] == [*layers]
    # Those of one value are scalings, and windows that skip places have the kernel of small ones.
    scaling = depthwise.replace(kernel_height=1, kernel_width=1, pad_top=0, pad_bottom=0)
    strided = layers["wide_depthwise"].replace(stride_height=2, stride_width=2)
    for group, each in {"blocked_convolutions": scaling, "depthwise": strided}.items():
        assert GROUPS[speeds.shares([each], [1.0])[0].argmax()] == group


def test_rows_that_convolutions_copy_are_a_part_of_their_own():
    # 32 channels, a window of 25 places, 7 and 28 rows of the output.
    narrow, wide = (
        Conv(
            batch=1, channels_in=32, channels_out=32, height=size, width=size, kernel_height=5,
            kernel_width=5, pad_top=2, pad_bottom=2, pad_left=2, pad_right=2, groups=32,
        )
        for size in (7, 28)
    )  # fmt: skip
    product = wide.replace(groups=1)
    tiny = Activation(batch=1, values=16, activation="relu")
    copy = Elementwise(batch=1, inner=200_000)
    speeds = Speeds.of([tiny, copy, narrow, wide], [1e-6, 1e-3, 0.1, 1.0])
    assert speeds.row_ms == pytest.approx(0.1 / (32 * 25 * 7))
    shares = speeds.shares([narrow, wide, product], [0.1, 1.0, 4.0])
    unfolding = shares[:, GROUPS.index("unfolding")]
    assert unfolding == pytest.approx([1.0, 0.4, 0.1], abs=0.01)
    assert shares[1, GROUPS.index("plain_grouped")] == pytest.approx(0.6, abs=0.01)
    assert shares[2, GROUPS.index("convolutions")] == pytest.approx(0.9, abs=0.01)
    several = speeds.shares([wide.replace(batch=8)], [8.0])[0]
    assert several[GROUPS.index("unfolding")] == pytest.approx(0.4, abs=0.01)
    # In blocks nothing is copied, and without such layers nothing is known of it.
    blocked = product.replace(layout="nchwc8")
    assert not speeds.shares([blocked], [4.0])[0, GROUPS.index("unfolding")]
    assert Speeds.of([tiny, copy], [1e-6, 1e-3]).row_ms == 0.0


def test_costs_of_weights_are_smoothed(by_hand):
    there = {
        "weights_4mb_ms_per_mb": 0.0, "weights_32mb_ms_per_mb": 0.01,
        "weights_64mb_ms_per_mb": 0.02, "weights_128mb_ms_per_mb": 0.03,
        "weights_256mb_ms_per_mb": 0.03,
    }  # fmt: skip
    here = {
        "weights_4mb_ms_per_mb": 0.002, "weights_32mb_ms_per_mb": 0.5,
        "weights_64mb_ms_per_mb": 0.01, "weights_128mb_ms_per_mb": 0.018,
        "weights_256mb_ms_per_mb": 0.1,
    }  # fmt: skip
    found = replace(by_hand({}, {}), costs=here).of_costs(there, is_alike=True)
    # 0.6 of the cost there is the median of 0.5, 0.6 and 3.3; one reading above 0 tells nothing.
    lost = {**here, "weights_64mb_ms_per_mb": 0.0, "weights_128mb_ms_per_mb": 0.0}
    assert replace(by_hand({}, {}), costs=lost).of_costs(there, is_alike=True) == lost
    assert found == pytest.approx({
        "weights_4mb_ms_per_mb": 0.002, "weights_32mb_ms_per_mb": 0.012,
        "weights_64mb_ms_per_mb": 0.012, "weights_128mb_ms_per_mb": 0.018,
        "weights_256mb_ms_per_mb": 0.018,
    })  # fmt: skip


@pytest.fixture
def by_hand(bundle) -> Callable[..., Calibration]:
    """Make a calibration of the bundle with given factors and factor_ci."""

    def make(factors: dict[str, float], factor_ci: dict[str, float], **more: Any) -> Calibration:
        return Calibration(
            Source.LAYERS, bundle.setting, bundle.platform, factors, log_width=0.1,
            speeds=Speeds(NODE_MS, 5e6, 5e6), factor_ci=factor_ci, **more,
        )  # fmt: skip

    return make


def test_the_doubt_of_a_sum_is_that_of_its_groups(by_hand):
    made = by_hand({"node": 2.0, "convolutions": 3.0}, {"node": 0.3, "convolutions": 0.1})
    # All of a tiny layer is the node's; 0.005 of 1 ms of a product in the caches.
    tiny = Activation(batch=1, values=16, activation="relu")
    assert made.scaled([tiny], [NODE_MS])[0] == pytest.approx([2.0])
    assert made.sum_ci([tiny], [NODE_MS]) == pytest.approx(0.3)
    assert made.sum_ci([tiny], [math.nan]) == 0.3
    share = made.speeds.shares([SMALL], [1.0])[0]
    factors, factor_ci = np.ones(len(GROUPS)), np.zeros(len(GROUPS))
    known = [GROUPS.index("convolutions"), GROUPS.index("node")]
    factors[known], factor_ci[known] = [3.0, 2.0], [0.1, 0.3]
    assert made.scaled([SMALL], [1.0])[0] == pytest.approx([share @ factors])
    # Doubts of different groups err independently.
    assert made.sum_ci([SMALL], [1.0]) == pytest.approx(math.hypot(*(share * factor_ci)))


def test_a_single_layer_is_as_uncertain_as_layers_of_its_groups(by_hand):
    layer_ci = {"node": 0.4, "convolutions": 0.2}
    made = by_hand({"node": 2.0, "convolutions": 1.0}, {"node": 0.3}, layer_ci=layer_ci)
    tiny = Activation(batch=1, values=16, activation="relu")
    there_ms = [NODE_MS, 2 * NODE_MS]
    share = made.speeds.shares([SMALL], there_ms[1:])[0][GROUPS.index("node")]
    assert share == pytest.approx(0.5)
    # A node for half of its time there is one for two thirds of it here.
    widths = made.scaled([tiny, SMALL], there_ms)[1]
    assert widths == pytest.approx([0.4, math.hypot(0.4 * 2 / 3, 0.2 / 3)], abs=0.01)
    apart = replace(made, host_ci=0.3).scaled([tiny, SMALL], there_ms)[1]
    assert apart == pytest.approx(np.hypot(widths, 0.3))
    # Of a group without a spread of its own, that of all layers is known.
    assert replace(made, layer_ci={}).scaled([tiny], [NODE_MS])[1] == pytest.approx([0.1])


def test_the_state_of_a_host_is_a_doubt_that_all_layers_share(bundle, by_hand):
    network = read_network(LENET, batch=1)
    sure, unsure = by_hand({}, {}), by_hand({}, {}, drift=0.2)
    widths = [
        predict_network(network, bundle.for_machine(each)).interval.common_width
        for each in (sure, unsure)
    ]
    assert widths == pytest.approx([STATE_WIDTH, math.hypot(STATE_WIDTH, 0.1)])


def test_what_is_kept_by_the_identity_of_a_machine_is_found_again(bundle, by_hand):
    """Such as lowered networks."""
    made = by_hand({"node": 2.0}, {"node": 0.3})
    one, again = (bundle.for_machine(made) for _ in range(2))
    assert one.platform is again.platform
    assert one.setting is again.setting


COSTS = {
    "call_ms": 0.01, "overhead_ms_per_layer": 0.002, "overhead_ms_per_mb": 0.1,
    "weights_64mb_ms_per_mb": 0.02,
    "caches_check_ms": 0.2,
}  # fmt: skip


def test_costs_take_the_factor_of_their_group_or_are_not_known(by_hand):
    made = by_hand({"node": 2.0, "memory": 0.5, "caches": 3.0}, {"node": 0.1})
    scaled = {
        "call_ms": 0.02, "overhead_ms_per_layer": 0.004, "overhead_ms_per_mb": 0.3,
        "weights_64mb_ms_per_mb": 0.01,
    }  # fmt: skip
    assert made.of_costs(COSTS, is_alike=True) == pytest.approx(scaled)
    # What passing values on costs is of the caches of both, and not scaled elsewhere.
    elsewhere = {**scaled, "overhead_ms_per_mb": 0.1}
    assert made.of_costs(COSTS, is_alike=False) == pytest.approx(elsewhere)


def test_costs_that_were_measured_here_replace_scaled_ones(by_hand):
    measured = {
        "call_ms": 0.05, "overhead_ms_per_layer": 0.006, "overhead_ms_per_mb": 0.06,
        "check_call_us": 3.0,
    }  # fmt: skip
    made = replace(by_hand({"caches": 3.0}, {"node": 0.1}), costs=measured)
    expected = {
        "call_ms": 0.05, "overhead_ms_per_layer": 0.006, "overhead_ms_per_mb": 0.3,
        "weights_64mb_ms_per_mb": 0.02,
    }  # fmt: skip
    assert made.of_costs(COSTS, is_alike=True) == pytest.approx(expected)


def test_what_networks_taught_is_left_out_on_other_hardware(bundle, by_hand):
    bundle = bundle.isolated()
    bundle.platform = replace(bundle.platform, processor="one")
    costs = {"overhead_ms_per_layer": 0.001, "overhead_ms_per_mb": 0.1}
    learnt = Calibration(
        Source.NETWORKS, bundle.setting, bundle.platform, {"conv": 1.5}, costs=costs, log_width=0.2
    )
    bundle.calibrations = (learnt,)
    bundle.costs = {**bundle.costs, **COSTS}
    same, other = (
        bundle.for_machine(replace(by_hand({}, {}), platform=replace(bundle.platform, processor=p)))
        for p in ("one", "other")
    )
    assert (same.network_calibrations, other.network_calibrations) == ((learnt,), ())
    network = read_network(LENET, batch=1)
    before, after = (predict_network(network, each) for each in (same, other))
    count = len(layers_behind_each_other(after.parts.nodes))
    # Passing values on costs the same as on the bundle's machine.
    there = predict_network(network, bundle.isolated())
    assert after.overheads.overhead_ms == pytest.approx(there.overheads.overhead_ms)
    assert after.overheads.overhead_ms > 0.002 * count
    assert before.overheads.overhead_ms > 0.001 * count
    assert before.layers[0].execution_ms == pytest.approx(1.5 * after.layers[0].execution_ms)


def test_cores_that_were_far_apart_all_the_time_are_said_to_be(bundle, run):
    costs = run.times[-1].costs
    far, near = (
        fitted(bundle, scaled_run(run, 1.0, costs={**costs, "overhead_ms_per_mb": ms}))
        for ms in (0.17, 0.04)
    )
    assert "cost 0.17 ms, as on a host whose cores are far apart" in far.remarks[-1]
    assert near.remarks == ()
    assert costs["call_ms"] == pytest.approx(SESSION_MS)
