"""Batch sizes and numbers of devices: `resperf predict --devices`, from runs on several devices."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from resperf.bundle import Bundle
from resperf.dataset import Dataset, DatasetInfo, read_dataset, write_dataset
from resperf.devices import device_facts
from resperf.devices.cluster import named_clusters
from resperf.devices.collectives import topologies
from resperf.devices.exchange import Exchange
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import Network, graph_digest, read_graph
from resperf.platform import Platform
from resperf.prediction.result import QuantityPrediction
from resperf.prediction.scaling import Scaled, Scaling, scaling
from resperf.predictors.network_totals import counted
from resperf.settings import Mode, Setting

STEPS = Setting("torch", "2.13.0", threads=1, mode=Mode.TRAINING, optimizer="sgd")
RUNS = dataclasses.replace(STEPS, mode=Mode.INFERENCE, optimizer="")
NETWORKS = Path(__file__).parents[2] / "models" / "networks"
BATCHES, DEVICES = (4, 16), (1, 2, 4)


def graph(seed: int) -> bytes:
    """Return a chain of convolutions without the bytes of its weights."""
    random = np.random.default_rng(seed)
    widths = [3, *(int(each) for each in random.integers(4, 64, int(random.integers(2, 6))))]
    nodes, weights = [], []
    for place, (given, made) in enumerate(pairwise(widths)):
        size = int(random.choice([1, 3, 5]))
        shape = [made, given, size, size]
        values = np.zeros(shape, np.float32).tobytes()
        weights.append(helper.make_tensor(f"w{place}", TensorProto.FLOAT, shape, values, raw=True))
        nodes.append(helper.make_node("Conv", [f"t{place}", f"w{place}"], [f"t{place + 1}"],
                                      f"c{place}", pads=[size // 2] * 4))  # fmt: skip
    inputs = helper.make_tensor_value_info("t0", TensorProto.FLOAT, ["n", 3, 16, 16])
    outputs = helper.make_tensor_value_info(f"t{len(nodes)}", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "g", [inputs], [outputs], weights)
    opsets = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(made, opset_imports=opsets).SerializeToString()
    return content


def step_ms(content: bytes, batch: int, devices: int) -> float:
    """Return a pass in proportion to the FLOPs, and an exchange of all weights."""
    totals = counted(read_graph(content, "n", batch=batch)).totals
    several = devices > 1
    exchange = several * (2e-4 * totals.weights + 20.0 * devices)
    return 1e-6 * totals.flops + 0.5 + 0.1 * totals.layers + exchange


def row(
    name: str, content: bytes, time_ms: float, setting: Setting, platform: Platform
) -> Measurement:
    quantity = "step_ms" if setting.mode is Mode.TRAINING else "execution_ms"
    samples = {quantity: Samples((time_ms,), 1, 0, StopReason.BUDGET)}
    return Measurement(
        NetworkRef(name, graph_digest(content)), Status.OK, samples, setting=setting,
        platform=platform, started_at=1.0,
    )  # fmt: skip


def written(path: Path, platform: Platform, counts=DEVICES) -> Path:
    """Write training steps of 24 networks on so many devices, and runs of them on one."""
    rows, graphs = [], {}
    for seed in range(24):
        content = graph(seed)
        graphs[graph_digest(content)] = content
        for batch in BATCHES:
            how, alone = (dataclasses.replace(each, batch=batch) for each in (STEPS, RUNS))
            rows += [
                row(f"net{seed}", content, step_ms(content, batch, count), how,
                    dataclasses.replace(platform, devices=count))
                for count in counts
            ]  # fmt: skip
            run_ms = step_ms(content, batch, 1) / 3
            rows.append(row(f"net{seed}", content, run_ms, alone, platform))
    info = DatasetInfo(
        STEPS, platform, {"name": "toy"}, 1, {}, "2026-01-02T03:04:05+00:00", {},
        quantities=("execution_ms", "step_ms"),
    )  # fmt: skip
    write_dataset(path, Dataset(info, tuple(rows), graphs))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("runs") / "runs.h5", Platform("cpu", "toy"))


@pytest.fixture
def bundle(runs, tmp_path, cli) -> Path:
    cli.text("train", runs, "--method", "convmeter", "-o", tmp_path / "line")
    return tmp_path / "line"


@pytest.fixture
def new(tmp_path) -> Path:
    path = tmp_path / "new.onnx"
    path.write_bytes(graph(99))
    return path


def test_steps_are_predicted_on_devices_that_were_measured_and_beyond(bundle, new, cli):
    words = ("predict", new, "--bundle", bundle, "--method", "convmeter", "--train")
    scaled = (*words, "--batch", "4", "16", "--devices", "1", "2", "4", "16", "--images", "64000")
    document = cli.json(*scaled)
    assert (document["quantity"], document["method"]) == ("step_ms", "convmeter")
    assert [each["batch"] for each in document["series"]] == [4, 16]
    for series in document["series"]:
        for point in series["points"]:
            exact = step_ms(new.read_bytes(), point["batch"], point["devices"])
            assert point["time_ms"] == pytest.approx(exact, rel=1e-3)
            images = point["batch"] * point["devices"]
            assert point["samples_per_s"] == pytest.approx(images / exact * 1e3, rel=1e-3)
            assert point["epoch_s"] == pytest.approx(64000 / images * exact / 1e3, rel=1e-3)
            far = "devices: 4 times as many" in point["extrapolated"]
            assert far == (point["devices"] == 16)
    assert document["notes"] == ["runs on at most 4 devices were measured: more are extrapolated"]
    # The exchange costs small batches more of what another device adds.
    for series in document["series"]:
        batch = series["batch"]
        alone, two, four, many = (
            count * batch / step_ms(new.read_bytes(), batch, count) for count in (1, 2, 4, 16)
        )
        gains = [(two - alone) / alone, (four - two) / 2 / alone, (many - four) / 12 / alone]
        before = [count for count, gain in zip(DEVICES, gains, strict=True) if gain < 0.5]
        assert series["turning_point"] == (before[0] if before else None)
    assert document["series"][0]["turning_point"] == 4
    text = cli.text(*scaled)
    assert "batch 4: beyond 4 devices, one more adds less than 50%" in text
    assert "extrapolated: devices: 4 times" in text
    [single] = [
        each["value"] for each in cli.document(*words, "--batch", "4")["quantities"].values()
    ]
    assert single == pytest.approx(document["series"][0]["points"][0]["time_ms"])


def test_one_device_is_meant_where_several_were_measured_first(new, tmp_path, cli):
    path = written(tmp_path / "runs.h5", Platform("cpu", "toy"), (2, 1))
    both = read_dataset(path)
    steps = tuple(row for row in both.measurements if row.setting.mode is Mode.TRAINING)
    write_dataset(path, dataclasses.replace(both, measurements=steps))
    cli.text("train", path, "--method", "convmeter", "-o", tmp_path / "line")
    words = ("predict", new, "--bundle", tmp_path / "line", "--train", "--batch", "4")
    alone = cli.document(*words)["quantities"]["step_ms"]["value"]
    assert alone == pytest.approx(step_ms(new.read_bytes(), 4, 1), rel=1e-3)


def test_devices_may_share_each_batch(bundle, new, cli):
    words = ("predict", new, "--bundle", bundle, "--train", "--strong", "--batch", "16")
    [series] = cli.json(*words, "--devices", "1", "2", "4")["series"]
    assert [(each["batch"], each["devices"]) for each in series["points"]] == [
        (16, 1), (8, 2), (4, 4)
    ]  # fmt: skip
    assert "16 cannot be shared equally by 3 devices" in cli.error(*words, "--devices", "3")


def test_runs_on_one_device_say_nothing_about_several(bundle, new, cli):
    words = ("predict", new, "--bundle", bundle, "--batch", "4", "--devices")
    [series] = cli.json(*words, "1")["series"]
    exact = step_ms(new.read_bytes(), 4, 1) / 3
    assert series["points"][0]["time_ms"] == pytest.approx(exact, rel=1e-3)
    assert "learnt from runs on one device only" in cli.error(*words, "1", "2")
    assert "their exchange is in its times" in cli.error(
        "predict", new, "--bundle", bundle, "--train", "--devices", "2", "--cluster", "h100-dgx"
    )
    shipped = ("predict", new, "--device", "cpu", "--batch", "4", "--devices", "1")
    assert "predicts no whole networks, which several devices need" in cli.error(*shipped)


def test_exchanges_of_a_card_that_was_measured_are_composed(tmp_path, cli):
    """Steps on one card, and Vidur's all-reduces between such cards, as fitted."""
    alone = written(tmp_path / "alone.h5", Platform("h100"), (1,))
    cli.text("train", alone, "--method", "convmeter", "-o", tmp_path / "h100")
    words = ("predict", NETWORKS / "vgg16.onnx", "--bundle", tmp_path / "h100", "--train",
             "--batch", "64", "--devices")  # fmt: skip
    document = cli.json(*words, "1", "8", "16")
    alone, eight, sixteen = document["series"][0]["points"]
    fitted = next(each for each in topologies()["h100-dgx"].all_reduces if each.devices == 8)
    size_bytes = 4 * 138_357_544
    whole_ms = fitted.latency_us / 1e3 + size_bytes / fitted.bandwidth_gb_s / 1e6
    pooled = Exchange()
    powers = (pooled.slowdown * alone["time_ms"], whole_ms + 1e3 * pooled.host_s)
    exact = sum(power**pooled.overlap for power in powers) ** (1 / pooled.overlap)
    assert eight["time_ms"] == pytest.approx(exact, rel=1e-3)
    # Wider than that of one device alone, in proportion.
    assert eight["low_ms"] / eight["time_ms"] < alone["low_ms"] / alone["time_ms"]
    assert eight["high_ms"] / eight["time_ms"] > alone["high_ms"] / alone["time_ms"]
    assert sixteen["time_ms"] > eight["time_ms"]
    assert "16 devices were not measured: scaled as a ring" in sixteen["extrapolated"]
    assert "not measured" not in eight["extrapolated"]
    assert document["composed_of"] == [
        "a step on one device", "all-reduce of 8 in 1 node, h100-dgx",
    ]  # fmt: skip
    text = cli.text(*words, "8", "--cluster", "h100-pairwise-nvlink")
    assert "composed, not measured together: a step on one device; all-reduce of 4" in text
    assert "did you mean h100-dgx" in cli.error(*words, "8", "--cluster", "h100-dgxx")


def test_bad_questions_are_one_line(bundle, new, cli):
    words = ("predict", new, "--bundle", bundle, "--batch", "1")
    assert "are about --devices" in cli.error(*words, "--strong")
    for option in (("--threads", "3"), ("--host-dispatch-us", "5"), ("--custom", "my.Op=1ms")):
        error = cli.error(*words, "--devices", "2", *option)
        assert f"{option[0]} is not about --devices" in error
    assert "trained by class-costs, only by convmeter" in cli.error(
        *words, "--method", "class-costs"
    )
    error = cli.error(*words, "--method", "convmeter", "--precision", "bf16")
    assert "has no times of cpu with precision bf16" in error


def test_a_network_is_read_once_for_all_batch_sizes_and_devices(bundle):
    """What a scheduler asks: read and counted once, then only multiplied."""
    part = Bundle.load(bundle)
    steps = part.for_device(part.platform, STEPS)
    asked: list[int] = []

    def read(size: int) -> Network:
        asked.append(size)
        return read_graph(graph(99), "new", batch=size)

    found = scaling(read, steps, range(4, 17), DEVICES)
    assert asked == [4]
    for batch, points in found.series.items():
        exact = [step_ms(graph(99), batch, count) for count in DEVICES]
        np.testing.assert_allclose([each.time_ms for each in points], exact, rtol=1e-3)


def test_a_batch_that_does_not_fit_is_named(bundle, new, cli, monkeypatch):
    few = dataclasses.replace(device_facts("t4"), memory_bytes=float(1 << 20))
    monkeypatch.setattr("resperf.prediction.scaling.device_facts", lambda _: few)
    words = ("predict", new, "--bundle", bundle, "--method", "convmeter", "--train")
    notes = cli.json(*words, "--batch", "1", "64", "--devices", "1", "2")["notes"]
    assert re.search(r"^batch 64 is too large: .* do not fit into 1.0 MiB of cpu", notes[0])


def test_steps_are_composed_over_a_cluster(tmp_path, cli):
    """A card without measured steps, whose exchange was fitted on such cards."""
    words = ("predict", "resnet18", "--train", "--batch", "32")
    scaled = (*words, "--device", "t4", "--cluster", "t4-g4dn", "--devices", "1", "4", "8", "128")
    document = cli.json(*scaled, "--images", "1000", "--epochs", "3")
    [series] = document["series"]
    alone, four, eight, many = series["points"]
    step = cli.document(*words, "--device", "t4")["quantities"]["step_ms"]
    assert [alone[f"{word}_ms"] for word in ("time", "low", "high")] == [
        step["value"], step["low"], step["high"],
    ]  # fmt: skip
    fitted = named_clusters()["t4-g4dn"]
    for point in (four, eight, many):
        sums_ms, exchange, _, beyond = fitted.exchange_of(point["devices"], 4 * 11_689_512)
        exact = exchange.step_ms((step["value"], step["low"], step["high"]), sums_ms)
        assert [point[f"{word}_ms"] for word in ("time", "low", "high")] == pytest.approx(exact)
        assert point["extrapolated"] == beyond
        # The last step of an epoch is smaller, and takes as long.
        steps = -(-1000 // (32 * point["devices"]))
        assert point["epoch_s"] == pytest.approx(steps * exact[0] / 1e3)
        assert point["high_training_s"] == pytest.approx(3 * steps * exact[2] / 1e3)
        rates = [32e3 * point["devices"] / time_ms for time_ms in (exact[2], exact[0], exact[1])]
        names = ("low_samples_per_s", "samples_per_s", "high_samples_per_s")
        assert [point[name] for name in names] == pytest.approx(rates)
    assert many["extrapolated"]
    assert not eight["extrapolated"]
    assert "at most 64 devices were fitted" in cli.text(*scaled)
    other = cli.json(*words, "--device", "p100", "--cluster", "t4-g4dn", "--devices", "2")
    assert other["notes"][-1] == "t4-g4dn has t4; the step on one device is that of p100"


def test_a_cluster_may_be_a_file(tmp_path, cli):
    path = tmp_path / "lab.toml"
    path.write_text('[[node]]\nname = "a"\ndevice = "t4"\ncount = 2\n')
    words = ("predict", "resnet18", "--device", "t4", "--train", "--cluster", path, "--devices")
    assert "does not say what connects 2 nodes" in cli.error(*words, "2")
    assert "3 devices are more than the 2 of cluster lab" in cli.error(*words, "3")
    path.write_text(f"{path.read_text()}[between]\nname = 'x'\nlatency_s = 1e-4\n"
                    "bandwidth_bytes_per_s = 1e9\n")  # fmt: skip
    [series] = cli.json(*words, "1", "2")["series"]
    assert series["points"][1]["time_ms"] > series["points"][0]["time_ms"]
    assert "no steps on lab were fitted" in series["points"][1]["extrapolated"]


def test_bad_clusters_are_one_line(bundle, new, cli):
    steps = ("predict", "resnet18", "--device", "t4", "--train", "--devices", "2")
    assert "did you mean t4-g4dn?" in cli.error(*steps, "--cluster", "t4-g4d")
    assert "say what connects them" in cli.error(*steps)
    assert "--epochs needs --images" in cli.error(*steps, "--epochs", "2")
    assert "are about --devices" in cli.error(*steps[:-2], "--cluster", "t4-g4dn")
    # Runs exchange nothing; devices of other frameworks have no steps.
    runs = ("predict", new, "--bundle", bundle, "--devices", "2", "--cluster", "t4-g4dn")
    assert "only training steps exchange" in cli.error(*runs)
    tensorrt = (*steps, "--framework", "tensorrt", "--cluster", "t4-g4dn")
    assert "training steps" in cli.error(*tensorrt)


def test_the_turning_point_looks_beyond_the_next_number():
    """Between two nodes nothing is gained, but among three: devices pay until the largest."""
    rates = {1: 100.0, 2: 110.0, 3: 300.0, 4: 310.0, 8: 320.0}
    times = {count: QuantityPrediction("step_ms", 1e3 * count / rate, 1.0, 2.0, "m", Mode.TRAINING)
             for count, rate in rates.items()}  # fmt: skip
    points = tuple(Scaled.of(1, count, time, None, None, "") for count, time in times.items())
    found = Scaling("n", "d", "f", "step_ms", "m", False, 0.5, {1: points}, (), ())
    assert found.turning_point(1) == 3
    assert dataclasses.replace(found, series={1: points[:1]}).turning_point(1) is None
