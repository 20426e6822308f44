"""How a lowered network and a bundle become a prediction; all numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.bundle import Calibration, Source, Times
from resperf.copies import StoredCopies, weights_cost
from resperf.devices import estimated_ms
from resperf.devices.estimate import LAUNCH_MS, PROCESSORS
from resperf.errors import UnsupportedError
from resperf.layers import Conv, Dense, Layer, Pool, Reorder
from resperf.lowering import LoweredNetwork, LoweredNode, Work, tensor_bytes
from resperf.network import Network, Node, Tensor
from resperf.platform import Accelerator, this_platform
from resperf.prediction import WHOLE_NETWORK, predict_layers, predict_network
from resperf.prediction import network as module
from resperf.prediction.calibrated import STATE_WIDTH
from resperf.prediction.choice import Query, choose
from resperf.prediction.data_sheet import limits_of
from resperf.prediction.rules import bound
from resperf.prediction.times import times_by_key
from resperf.predictors.transfers import Transfers
from resperf.settings import Setting

CONV = Conv(batch=1, channels_in=3, height=4, width=4, kernel_height=3, kernel_width=3,
            channels_out=8)  # fmt: skip
POOL = Pool(batch=1, channels_in=8, height=2, width=2, kernel_height=2, kernel_width=2)
DENSE = Dense(batch=1, features_in=8, features_out=10)
INWARD = Reorder(batch=1, channels_in=16, height=4, width=4, layout="nchw", layout_out="nchwc16")
OUTWARD = Reorder(batch=1, channels_in=16, height=4, width=4, layout="nchwc16", layout_out="nchw")
TIMES_MS = {
    ("conv", "preprocess_ms"): 0.7,
    ("conv", "execution_ms"): 2.0,
    ("pool", "execution_ms"): 0.5,
    ("dense", "execution_ms"): 1.0,
    ("dense", "postprocess_ms"): 0.9,
    ("reorder", "execution_ms"): 0.3,
}


COSTS = {
    "call_ms": 0.05,
    "reshape_ms": 0.002,
    "overhead_ms_per_layer": 0.0,
    "overhead_ms_per_mb": 0.0,
}


class FakeBundle:
    """A bundle of one time per kind and phase, and 1 ns per transferred byte."""

    device = "elsewhere"
    framework = "synthetic"
    layer_quantity = "execution_ms"
    layer_quantities = ("execution_ms",)
    parts = ()
    kinds = ("conv", "pool", "dense", "reorder")
    stored_copies: Mapping[str, StoredCopies] = {}
    estimates: Mapping[str, object] = {}
    network_calibrations: tuple[Calibration, ...] = ()
    layer_calibrations: tuple[Calibration, ...] = ()
    calibrated_by = None
    path = Path("bundles/fake")
    largest_bytes = 1000
    serves_unseen = False
    part: Mapping[str, Any] = {"ranges": {}}

    def __init__(
        self,
        method: str = "boosted",
        times_ms: Mapping[tuple[str, str], float] = TIMES_MS,
        costs: Mapping[str, float] | None = None,
        far: Sequence[str] = (),
    ) -> None:
        self.method = method
        self.costs = COSTS if costs is None else costs
        self.asked: list[list[str]] = []
        self.shares: Mapping[str, float] = {}
        self.dispatch_ms = math.nan
        self._times_ms, self._far = times_ms, far
        self.setting = Setting(
            framework=self.framework, framework_version="1", provider="closed-form", threads=2
        )
        self.platform = this_platform(self.device)  # fmt: skip

    @property
    def machine(self) -> str:
        return self.platform.machine

    def learn(
        self, factors: Mapping[str, float], layer_ms: float, mb_ms: float, log_width: float
    ) -> None:
        """Let networks have taught this."""
        costs = {"overhead_ms_per_layer": layer_ms, "overhead_ms_per_mb": mb_ms}
        self.network_calibrations = (
            Calibration(
                Source.NETWORKS, self.setting, self.platform, factors, costs=costs,
                log_width=log_width,
            ),
        )  # fmt: skip

    def own_quantity(self, _kind: str) -> str:
        return self.layer_quantity

    def infers(self, _kind: str, _dtype: str) -> bool:
        return False

    def without_session(self) -> FakeBundle:
        return self

    def gpu_busy_fraction(self, layers: Sequence[Layer]) -> np.ndarray:
        return np.array([self.shares.get(layer.kind, 1.0) for layer in layers])

    def predict(
        self, layers: Sequence[Layer], quantity: str, _optimizers: Sequence[str] = ()
    ) -> Times:
        self.asked.append([layer.key for layer in layers])
        far = [layer.kind in self._far for layer in layers]
        ms = np.array([self._times_ms.get((layer.kind, quantity), math.nan) for layer in layers])
        return Times(
            ms=ms,
            low_ms=0.9 * ms,
            high_ms=1.25 * ms,
            in_range=~np.array(far, dtype=bool),
            reason=tuple("height=4 below 8" if each else "" for each in far),
        )

    @property
    def transfers(self) -> dict[str, Transfers]:
        copies = Transfers(0.0, (0.0,), (1.0,), self.largest_bytes)
        return {"preprocess_ms": copies, "postprocess_ms": copies}


IMAGE = Tensor("image", (1, 3, 4, 4), "float32")  # 48 values, 192 bytes
MASK = Tensor("mask", (2,), "int64")  # 16 bytes
SCORES = Tensor("scores", (1, 10), "float32")  # 40 bytes

NODES = (
    LoweredNode("in", "ReorderInput", INWARD, "preprocess"),
    LoweredNode("conv1", "Conv", CONV, "execution", sources=("c", "relu")),
    LoweredNode("pool1", "MaxPool", POOL, "execution"),
    LoweredNode("flat", "Flatten", None, "view"),
    LoweredNode("fc", "Gemm", DENSE, "execution"),
    LoweredNode("out", "ReorderOutput", OUTWARD, "postprocess"),
)
LRN = LoweredNode("norm", "LRN", None, "unknown", reason="no layer kind for LRN")


@pytest.fixture
def predict_nodes(monkeypatch):
    """Predict a network that is lowered to given nodes."""

    def predict(nodes, bundle=None, *, outputs=(SCORES,), unsized=(), **options):
        lowered = LoweredNetwork(
            tuple(nodes), (IMAGE, MASK), outputs, "by hand", ("a note",), unsized
        )
        monkeypatch.setattr(module, "lower", lambda *args, **kwargs: lowered)
        network = Network(
            "net", (), {}, ("image", "mask"), ("scores",), {"": 17}, 1, ("batch set",)
        )
        return predict_network(network, bundle or FakeBundle(), **options)

    return predict


def test_three_phases_add_up_transfers_layers_views_and_one_session_call(predict_nodes):
    prediction = predict_nodes(NODES)
    assert prediction.phases.preprocess_ms == pytest.approx(208e-6 + 0.3)
    assert prediction.phases.execution_ms == pytest.approx(2.0 + 0.5 + 1.0 + 0.002 + 0.05)
    assert prediction.phases.postprocess_ms == pytest.approx(40e-6 + 0.3)
    assert prediction.total_ms == pytest.approx(0.300208 + 3.552 + 0.30004)
    assert (prediction.overheads.call_ms, prediction.overheads.reshapes_ms) == (0.05, 0.002)
    assert prediction.skipped == ()
    assert prediction.total.rule == "three_phase"


def test_layers_behind_each_other_cost_what_was_calibrated(predict_nodes):
    plain = predict_nodes(NODES)
    bundle = FakeBundle()
    bundle.costs = {**bundle.costs, "overhead_ms_per_layer": 0.5, "overhead_ms_per_mb": 2.0}
    layers = [node.layer for node in NODES if node.role == "execution"]
    read_mb = sum(layer.input_bytes for layer in layers[1:]) / 1e6
    charged = predict_nodes(NODES, bundle)
    assert charged.overheads.overhead_ms == pytest.approx(0.5 * len(layers) + 2.0 * read_mb)
    assert charged.total_ms == pytest.approx(plain.total_ms + charged.overheads.overhead_ms)
    assert plain.overheads.overhead_ms == 0.0


WIDE = Dense(batch=1, features_in=2048, features_out=2048)
WIDE_MB = WIDE.weight_bytes / 1e6


def with_weights_costs(ms_per_mb: float, **changes: Any) -> FakeBundle:
    """A bundle with a cost of weights at 256 MB, none at 2 MB, and a share in between."""
    bundle = FakeBundle(**changes)
    far = {weights_cost(2): 0.0, weights_cost(256): ms_per_mb}
    bundle.costs = {**bundle.costs, **far}
    return bundle


def test_weights_of_a_small_network_lie_nearer_than_alone(predict_nodes):
    nodes = (NODES[1], LoweredNode("fc", "Gemm", WIDE, "execution"))
    prediction = predict_nodes(nodes, with_weights_costs(0.007))
    # In isolation, ten copies of a millisecond were measured; the network reads the weights once.
    nearer_ms = 0.007 * math.log(10) / math.log(256 / 2) * WIDE_MB
    conv, fc = prediction.layers
    assert conv.execution_ms == pytest.approx(2.0, rel=1e-4)
    assert fc.execution_ms == pytest.approx(1.0 - nearer_ms, rel=1e-3)
    assert fc.low_ms == pytest.approx(0.9 - nearer_ms, rel=1e-3)
    assert fc.high_ms == pytest.approx(1.25 - nearer_ms, rel=1e-3)
    assert prediction.overheads.overhead_ms == 0
    # The published rule adds up isolated layers.
    paper = predict_nodes(nodes, with_weights_costs(0.007, method="resperfnet"))
    assert paper.layers[-1].execution_ms == 1.0


def test_nearer_weights_leave_a_share_of_every_layer(predict_nodes):
    nodes = (LoweredNode("fc", "Gemm", WIDE, "execution"),)
    bundle = with_weights_costs(7.0)
    bundle.learn({"dense": 2.0}, 0.0, 0.0, math.inf)
    (fc,) = predict_nodes(nodes, bundle).layers
    assert fc.execution_ms == pytest.approx(2.0 * 0.4)
    assert fc.low_ms == pytest.approx(2.0 * 0.4 * 0.9)


def test_layers_take_their_share_on_the_device_in_a_network(predict_nodes):
    bundle = FakeBundle()
    bundle.shares = {"conv": 0.75, "pool": 0.1}
    prediction = predict_nodes(NODES, bundle)
    conv, pool, dense = (layer for layer in prediction.layers if layer.phase == "execution")
    assert conv.execution_ms == pytest.approx(0.75 * 2.0)
    assert (conv.low_ms, conv.high_ms) == pytest.approx((0.9 * 1.5, 1.25 * 1.5))
    assert (pool.execution_ms, dense.execution_ms) == pytest.approx((0.05, 1.0))
    assert prediction.phases.execution_ms == pytest.approx(1.5 + 0.05 + 1.0 + 0.002 + 0.05)
    assert math.isnan(prediction.overheads.host_dispatch_us)
    assert prediction.overheads.host_dispatch_source == ""


@pytest.mark.parametrize("method", ["resperfnet", "perfnet"])
def test_the_papers_rule_is_equation_2(predict_nodes, method):
    prediction = predict_nodes(NODES, FakeBundle(method))
    assert prediction.phases.preprocess_ms == pytest.approx(0.7 + 0.3)  # conv1 is first
    assert prediction.phases.execution_ms == pytest.approx(2.0 + 0.5 + 1.0)
    assert prediction.phases.postprocess_ms == pytest.approx(0.9 + 0.3)  # fc is last
    assert (prediction.overheads.call_ms, prediction.overheads.reshapes_ms) == (0.0, 0.0)
    assert prediction.total.rule == "resperfnet"


def test_the_papers_rule_lists_an_outer_phase_that_it_cannot_predict(predict_nodes):
    prediction = predict_nodes(NODES[:3], FakeBundle("resperfnet"))
    assert [(each.name, each.op) for each in prediction.skipped] == [
        ("pool1", "postprocess of MaxPool")
    ]


def test_what_has_no_time_is_listed_and_never_zero(predict_nodes):
    times_ms = {key: value for key, value in TIMES_MS.items() if key[0] != "pool"}
    prediction = predict_nodes((*NODES, LRN), FakeBundle(times_ms=times_ms))
    assert [(each.name, each.op, each.reason) for each in prediction.skipped] == [
        ("pool1", "MaxPool", "the bundle has no predictor for pool"),
        ("norm", "LRN", "no layer kind for LRN"),
    ]
    assert "pool1" not in [layer.name for layer in prediction.layers]
    assert prediction.phases.execution_ms == pytest.approx(2.0 + 1.0 + 0.002 + 0.05)


def test_unknown_costs_are_listed_too(predict_nodes):
    prediction = predict_nodes(NODES, FakeBundle(costs={}))
    assert [(each.name, each.op) for each in prediction.skipped] == [
        ("flat", "Flatten"),
        ("the whole network", "call"),
    ]
    why = prediction.skipped[0].reason
    assert why.startswith("not measured with ")
    assert why.endswith("resperf bench")
    assert [(each.name, each.reason) for each in prediction.overheads.missing_costs] == [
        ("overhead_ms_per_layer", why),
        ("overhead_ms_per_mb", why),
    ]
    document = prediction.to_json()
    assert document["complete"] is False
    assert document["call_ms"] is document["reshapes_ms"] is document["overhead_ms"] is None
    assert [each["name"] for each in document["missing_costs"]] == [
        "overhead_ms_per_layer", "overhead_ms_per_mb",
    ]  # fmt: skip
    # Known costs are still added up.
    assert prediction.phases.execution_ms == pytest.approx(2.0 + 0.5 + 1.0)


def test_a_cost_between_layers_that_is_half_known_is_added_and_half_listed(predict_nodes):
    costs = {"call_ms": 0.05, "reshape_ms": 0.002, "overhead_ms_per_layer": 0.5}
    prediction = predict_nodes(NODES, FakeBundle(costs=costs))
    assert prediction.overheads.overhead_ms == pytest.approx(3 * 0.5)
    assert [each.name for each in prediction.overheads.missing_costs] == ["overhead_ms_per_mb"]
    assert not prediction.complete
    # The in-network correction replaces both.
    bundle = FakeBundle(costs=costs)
    bundle.learn({}, 0.01, 0.0, math.inf)
    assert predict_nodes(NODES, bundle).overheads.missing_costs == ()
    # The published rule needs neither.
    assert predict_nodes(NODES, FakeBundle("resperfnet", costs={})).complete


def test_one_layer_alone_reads_nothing_of_another(predict_nodes):
    bundle = FakeBundle(costs={"call_ms": 0.05, "overhead_ms_per_layer": 0.5})
    prediction = predict_nodes([NODES[1]], bundle)
    assert prediction.complete
    assert prediction.overheads.overhead_ms == 0.5


def test_a_phase_of_which_nothing_is_known_is_unknown_and_not_zero(predict_nodes):
    inside = NODES[1:-1]
    lost = predict_nodes(inside, outputs=(), unsized=("scores",))
    assert math.isnan(lost.phases.postprocess_ms)
    assert lost.to_json()["phases"]["postprocess_ms"] is None
    assert lost.total_ms == pytest.approx(208e-6 + 3.552)
    (skipped,) = lost.skipped
    assert (skipped.name, skipped.op, skipped.reason) == (
        "scores", "transfer", "its shape is not known",
    )  # fmt: skip
    # One of two copies is known, and so is a re-layout.
    half = predict_nodes(inside, unsized=("other",))
    assert half.phases.postprocess_ms == pytest.approx(40e-6)
    assert not half.complete
    assert predict_nodes(NODES, outputs=(), unsized=("scores",)).phases.postprocess_ms == 0.3
    # Without tensors, copies take no time.
    assert predict_nodes(inside, outputs=()).phases.postprocess_ms == 0
    unknown = predict_nodes([LRN], FakeBundle("resperfnet"))
    assert math.isnan(unknown.phases.execution_ms)


def test_an_incomplete_total_says_what_share_of_the_work_it_covers(predict_nodes):
    times_ms = {key: value for key, value in TIMES_MS.items() if key[0] != "dense"}
    prediction = predict_nodes(NODES[1:-1], FakeBundle(times_ms=times_ms))
    # 8 channels of 2 x 2 values of 27 products each; 8 of 1 value of 4; 10 values of 8.
    coverage = prediction.coverage
    assert coverage["macs"] == pytest.approx((864 + 32) / (864 + 32 + 80))
    # Values read and written, weights, biases, of four bytes each.
    conv, pool, dense = 4 * (48 + 32 + 216 + 8), 4 * (32 + 8), 4 * (8 + 10 + 80 + 10)
    assert coverage["moved_bytes"] == pytest.approx((conv + pool) / (conv + pool + dense))
    assert coverage["unsized"] == 0
    document = prediction.to_json()
    assert document["coverage"]["macs"] == coverage["macs"]
    assert document["skipped"] == [
        {"name": "fc", "op": "Gemm", "reason": "the bundle has no predictor for dense",
         "macs": 80.0, "moved_bytes": 432.0},
    ]  # fmt: skip
    assert predict_nodes(NODES).complete
    assert predict_nodes(NODES).to_json()["complete"] is True


def test_strict_about_the_range_names_what_is_outside(predict_nodes):
    bundle = FakeBundle(far=["pool", "dense"])
    assert predict_nodes(NODES, bundle, strict=True).skipped == ()
    with pytest.raises(UnsupportedError, match=r"net: 2 layers .*pool1: height=4 below 8; fc: h"):
        predict_nodes(NODES, bundle, strict="range")
    assert predict_nodes(NODES, strict="range").complete
    with pytest.raises(UnsupportedError, match=r"1 operators have no predictor.*norm \(LRN\)"):
        predict_nodes((*NODES, LRN), strict="range")
    far = FakeBundle()
    far.largest_bytes = 100
    with pytest.raises(
        UnsupportedError, match=r"1 layers and copies .*copy of image: tensor of 192 B above 100"
    ):
        predict_nodes(NODES, far, strict="range")


def test_strict_names_the_first_and_counts_all(predict_nodes):
    with pytest.raises(UnsupportedError, match=r"net: 5 operators .*norm \(LRN\).*and 2 more"):
        predict_nodes((*NODES, LRN, LRN, LRN, LRN, LRN), strict=True)
    assert predict_nodes(NODES, strict=True).skipped == ()


def test_a_layer_out_of_range_is_flagged_with_its_reason(predict_nodes):
    prediction = predict_nodes(NODES, FakeBundle(far=["pool"]))
    flags = {layer.name: (layer.in_range, layer.reason) for layer in prediction.layers}
    assert flags["pool1"] == (False, "height=4 below 8")
    assert flags["conv1"] == (True, "")
    assert prediction.remarks.warnings[-1] == (
        "1 of 5 layers are outside the trained range, first pool1 (height=4 below 8)"
    )


def test_notes_of_reading_and_lowering_reach_the_user(predict_nodes):
    assert predict_nodes(NODES).remarks.warnings == ("batch set", "a note")


def test_other_threads_bring_a_warning(predict_nodes):
    assert predict_nodes(NODES, threads=2).remarks.warnings == ("batch set", "a note")
    assert "2 threads, not 4" in predict_nodes(NODES, threads=4).remarks.warnings[0]


def test_the_json_form_has_the_promised_keys_first(predict_nodes):
    document = predict_nodes((*NODES, LRN)).to_json()
    assert list(document)[:8] == [
        "network", "device", "framework", "batch", "total_ms", "phases", "layers", "skipped",
    ]  # fmt: skip
    assert list(document["phases"]) == ["preprocess_ms", "execution_ms", "postprocess_ms"]
    assert list(document["layers"][0])[:4] == ["name", "kind", "execution_ms", "in_range"]
    assert document["layers"][1]["sources"] == ["c", "relu"]
    assert document["layers"][0]["phase"] == "preprocess"
    assert document["skipped"] == [
        {"name": "norm", "op": "LRN", "reason": "no layer kind for LRN", "macs": 0.0,
         "moved_bytes": 0.0},
    ]  # fmt: skip


def test_equal_layers_are_predicted_once():
    bundle = FakeBundle()
    times = times_by_key(bundle, [POOL, CONV, POOL, DENSE, POOL])
    assert bundle.asked == [[POOL.key, CONV.key, DENSE.key]]
    assert {key: time.ms for key, (time, _) in times.items()} == {
        POOL.key: 0.5, CONV.key: 2.0, DENSE.key: 1.0,
    }  # fmt: skip


def test_layers_without_a_network_are_lowered_first(monkeypatch):
    lowered = CONV.replace(layout="nhwc")
    monkeypatch.setattr("resperf.prediction.times.lower_layers", lambda layers, *_: [lowered])
    [prediction] = predict_layers([CONV], FakeBundle())
    assert (prediction.key, prediction.execution_ms) == (lowered.key, 2.0)


def test_tensor_bytes_follow_the_element_type():
    assert tensor_bytes(MASK) == 16
    assert tensor_bytes(Tensor("x", (3, 5), "float16")) == 30
    assert tensor_bytes(Tensor("x", (3,), "uint16")) == 6


def test_a_time_that_the_device_cannot_reach_is_flagged(predict_nodes):
    dense = Dense(batch=1, features_in=4096, features_out=4096)
    node = LoweredNode("fc", "Gemm", dense, "execution")
    bundle = FakeBundle(times_ms={("dense", "execution_ms"): 0.05})
    unknown = predict_nodes([node], bundle)
    assert unknown.layers[0].below_bound is None
    assert math.isnan(unknown.lower_bound_ms)
    assert unknown.to_json()["lower_bound_ms"] is None
    bundle.device = "GTX 1080 Ti"
    flagged = predict_nodes([node], bundle)
    # 64 MiB of weights less 2.75 MiB of cache at 484.4 GB/s.
    assert flagged.lower_bound_ms == pytest.approx(0.1327, rel=0.01)
    assert flagged.to_json()["layers"][0]["below_bound"] is True
    assert any("1 of 1 layers are predicted faster than the device's peak, first fc (0.05 ms, at "
               "least 0.133 ms)" in warning for warning in flagged.remarks.warnings)  # fmt: skip
    bundle = FakeBundle(times_ms={("dense", "execution_ms"): 0.15})
    bundle.device = "1080ti"
    assert not predict_nodes([node], bundle).layers[0].below_bound
    assert [layer.below_bound for layer in predict_layers([dense], bundle)] == [False]
    # What was not measured is at least the bound, in the total as well.
    far = FakeBundle(times_ms={("dense", "execution_ms"): 0.05}, far=["dense"])
    far.device = "1080ti"
    floored = predict_nodes([node], far)
    (layer,) = floored.layers
    assert layer.execution_ms == layer.low_ms == layer.lower_bound_ms == flagged.lower_bound_ms
    assert layer.high_ms >= 2 * layer.execution_ms
    assert floored.total_ms == pytest.approx(flagged.total_ms + layer.execution_ms - 0.05)


def test_different_layers_of_a_processor_err_independently(predict_nodes) -> None:
    bundle = FakeBundle()
    prediction = predict_nodes(NODES, bundle)
    each_ms = [layer.execution_ms for layer in prediction.layers]
    for bound_ms, off in ((prediction.low_ms, -0.1), (prediction.high_ms, 0.25)):
        own = math.log1p(off * math.hypot(*each_ms) / sum(each_ms))
        width = math.copysign(math.hypot(own, STATE_WIDTH), own)
        assert bound_ms == pytest.approx(prediction.total_ms * math.exp(width))
    # Repeats of one layer err alike.
    pools = [LoweredNode(f"pool{place}", "MaxPool", POOL, "execution") for place in range(4)]
    four = predict_nodes(pools, bundle)
    values = four.parts, four.overheads, four.total
    assert bound(*values, common_width=0.0).high_ms == pytest.approx(1.25 * four.total_ms)
    # So do layers of one kind that are out of range: one trend goes on.
    layers = tuple(replace(pool, key=f"{place}") for place, pool in enumerate(four.layers))
    for inside, off in ((True, 0.25 / 2), (False, 0.25)):
        parts = replace(four.parts, layers=tuple(replace(each, in_range=inside) for each in layers))
        found = bound(parts, *values[1:], common_width=0.0)
        assert found.high_ms == pytest.approx((1 + off) * four.total_ms)
    # Where a bound leaves nothing of the layers, it leaves nothing of the total.
    (pool,) = predict_nodes(pools[:1], bundle).layers
    none = replace(four.parts, layers=(replace(pool, low_ms=0.0),))
    assert bound(none, *values[1:], common_width=0.0).low_ms == 0.0


@pytest.fixture
def with_additions() -> FakeBundle:
    """A processor's bundle that moves 76.8 MB of an addition in 2 ms, and has no pooling."""
    times_ms = {key: ms for key, ms in TIMES_MS.items() if key[0] != "pool"}
    bundle = FakeBundle(times_ms={**times_ms, ("elementwise", "execution_ms"): 2.0})
    bundle.kinds = ("conv", "dense", "reorder", "elementwise")
    return bundle


def test_a_processor_estimates_what_has_no_predictor(predict_nodes, with_additions, monkeypatch):
    moved = 7_680_000
    monkeypatch.setattr("resperf.prediction.times.work_of", lambda *_: Work(0.0, moved))
    prediction = predict_nodes((*NODES, LRN), with_additions)
    assert prediction.skipped == ()
    by_name = {layer.name: layer for layer in prediction.layers}
    lrn, pool = by_name["norm"], by_name["pool1"]
    # A tenth of the addition's bytes, six times as slowly, and a launch.
    assert lrn.execution_ms == pytest.approx(PROCESSORS.memory * 0.2 + LAUNCH_MS)
    assert (lrn.low_ms, lrn.high_ms) == pytest.approx(
        (PROCESSORS.low * lrn.execution_ms, PROCESSORS.high * lrn.execution_ms)
    )
    assert (lrn.estimated, lrn.in_range, lrn.below_bound) == (True, False, None)
    assert lrn.reason == "no predictor for LRN"
    expected = estimated_ms(POOL.flops, POOL.moved_bytes, limits_of(with_additions)())
    assert pool.execution_ms == pytest.approx(expected.ms)
    assert pool.estimated
    with pytest.raises(UnsupportedError, match="norm"):
        predict_nodes((*NODES, LRN), with_additions, strict=True)


def test_what_cannot_be_estimated_is_skipped(predict_nodes, with_additions, monkeypatch):
    monkeypatch.setattr("resperf.prediction.times.work_of", lambda *_: Work(math.nan, math.nan))
    assert [each.name for each in predict_nodes((*NODES, LRN), with_additions).skipped] == ["norm"]
    # A predictor that says nothing of a large addition says nothing of the speed of memory.
    with_additions._times_ms = {
        **with_additions._times_ms,
        ("elementwise", "execution_ms"): math.nan,
    }
    found = predict_nodes((*NODES, LRN), with_additions).skipped
    assert [each.name for each in found] == ["pool1", "norm"]


def test_estimates_of_one_kind_err_alike(predict_nodes, with_additions, monkeypatch):
    monkeypatch.setattr("resperf.prediction.times.work_of", lambda *_: Work(0.0, 7_680_000))
    one = predict_nodes([replace(LRN, name="norm0")], with_additions)
    many = [replace(LRN, name=f"norm{place}") for place in range(9)]
    nine = predict_nodes(many, with_additions)
    assert nine.high_ms / nine.total_ms == pytest.approx(one.high_ms / one.total_ms, rel=0.01)


def test_bounds_of_a_cards_layers_add_up_and_stretch_to_what_is_no_layer(predict_nodes) -> None:
    bundle = FakeBundle(far=["pool"])
    bundle.platform = replace(bundle.platform, accelerators=(Accelerator("card", 1),))
    prediction = predict_nodes(NODES, bundle)
    layers_ms = sum(layer.execution_ms for layer in prediction.layers)
    assert prediction.low_ms == pytest.approx(0.9 * prediction.total_ms)
    assert prediction.high_ms == pytest.approx(1.25 * prediction.total_ms)
    assert prediction.coverage["out_of_range_ms"] == pytest.approx(0.5)
    assert prediction.coverage["in_range_ms"] == pytest.approx(layers_ms - 0.5)
    assert prediction.coverage["unknown"] == len(prediction.skipped)


def test_the_in_network_correction_changes_layers_costs_and_interval(predict_nodes):
    bundle = FakeBundle(costs={**COSTS, "overhead_ms_per_layer": 9.0})
    bundle.learn({"conv": 1.5, "reorder": 3.0}, 0.01, 100.0, math.log(1.3))
    prediction = predict_nodes(NODES, bundle)
    by_name = {layer.name: layer for layer in prediction.layers}
    assert by_name["conv1"].execution_ms == pytest.approx(3.0)
    assert by_name["conv1"].high_ms == pytest.approx(1.25 * 3.0)
    assert by_name["pool1"].execution_ms == pytest.approx(0.5)
    # A re-layout at the network's edge does not run inside it.
    assert by_name["in"].execution_ms == pytest.approx(0.3)
    mb_between_layers = (POOL.input_bytes + DENSE.input_bytes) / 1e6
    assert prediction.overheads.overhead_ms == pytest.approx(3 * 0.01 + 100.0 * mb_between_layers)
    assert prediction.low_ms == pytest.approx(prediction.total_ms / 1.3)
    assert prediction.high_ms == pytest.approx(prediction.total_ms * 1.3)


def test_a_total_that_networks_were_measured_for_is_no_more_certain_than_its_layers(predict_nodes):
    bundle = FakeBundle()
    bundle.learn({}, 0.0, 0.0, math.log(1.05))
    pools = [LoweredNode(f"pool{place}", "MaxPool", POOL, "execution") for place in range(4)]
    prediction = predict_nodes(pools, bundle)
    # Equal layers err alike.
    assert prediction.low_ms == pytest.approx(0.9 * prediction.total_ms)
    assert prediction.high_ms == pytest.approx(1.25 * prediction.total_ms)
    values = prediction.parts, prediction.overheads, prediction.total
    # A user's own runs have shown how far off such layers are.
    told = bound(*values, log_width=math.log(1.05), calibrated_with=3)
    assert told.high_ms == pytest.approx(1.05 * prediction.total_ms)


def test_layers_out_of_range_widen_a_total_that_networks_were_measured_for(predict_nodes):
    bundle = FakeBundle(far=["dense"])
    bundle.learn({}, 0.0, 0.0, math.log(1.11))
    prediction = predict_nodes(NODES, bundle)
    inside_ms = prediction.total_ms - 1.0
    assert prediction.high_ms == pytest.approx(1.11 * inside_ms + 1.25)
    assert prediction.low_ms == pytest.approx(inside_ms / 1.11 + 0.9)
    # A layer with a narrower interval than networks does not narrow the total's.
    bundle.learn({}, 0.0, 0.0, math.log(1.5))
    prediction = predict_nodes(NODES, bundle)
    assert prediction.low_ms == pytest.approx(prediction.total_ms / 1.5)
    assert prediction.high_ms == pytest.approx(prediction.total_ms * 1.5)


def test_a_copy_beyond_all_that_were_measured_is_told(predict_nodes):
    bundle = FakeBundle()
    assert not [each for each in predict_nodes(NODES, bundle).remarks.warnings if "copies" in each]
    bundle.largest_bytes = 100
    (warning,) = (
        each for each in predict_nodes(NODES, bundle).remarks.warnings if "copies" in each
    )
    assert warning.startswith("copies outside the measured range: image (tensor of 192 B")


def test_copies_of_many_inputs_are_one_warning(predict_nodes):
    bundle = FakeBundle()
    bundle.largest_bytes = 1
    (warning,) = (
        each for each in predict_nodes(NODES, bundle).remarks.warnings if "copies" in each
    )
    assert " (tensor of 192 B" in warning
    assert "image, " in warning


def test_custom_operators_are_named_where_networks_are_predicted_as_a_whole() -> None:
    nodes = (
        Node("conv", "Conv", "", ("x", "w"), ("a",), {"kernel_shape": (1, 1)}),
        Node("warp", "Warp", "my.ops", ("a",), ("b",), {}),
        Node("lost", "Warp", "my.ops", ("b",), ("c",), {}),
    )
    tensors = {name: Tensor(name, (8, 16, 32, 32), "float32") for name in "xab"}
    tensors["w"] = Tensor("w", (16, 16, 1, 1), "float32", is_weight=True)
    network = Network("n", nodes, tensors, ("x",), ("b",), {"": 17, "my.ops": 1}, 8)
    bundle = choose(Query("rtx4090", None, None, "amp", False)).bundle
    prediction = predict_network(network, bundle)
    assert prediction.total.rule == WHOLE_NETWORK
    assert not prediction.complete
    (warp,) = [each for each in prediction.skipped if each.name == "warp"]
    assert warp.op == "my.ops.Warp"
    assert warp.reason == "no layer kind for operator my.ops.Warp"
    assert warp.moved_bytes == 2 * 4 * math.prod(tensors["a"].shape)
