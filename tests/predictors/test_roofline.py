"""`roofline` on synthetic cards whose times follow from their data sheets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf import devices
from resperf.devices import DeviceFacts, add_device, device_facts
from resperf.errors import ResperfError
from resperf.features import columns_of, quantities
from resperf.layers import kind_of
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.roofline import Roofline
from resperf.predictors.terms.card import Card, card_terms
from resperf.settings import HOST_DISPATCH, Setting

pytest.importorskip("scipy")
pytest.importorskip("lightgbm")

DISPATCH_MS, SHARE_REACHED = 0.03, 0.8
SETTING = Setting("torch", options={"measured by": "us", "session": "first"})


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, DeviceFacts]]:
    """Cards that differ from the V100 in their peaks: ``x1``, ``x2``, ``x3``, ``x4``."""
    monkeypatch.setattr(devices, "_added", {})
    v100 = device_facts("v100")
    assert v100 is not None
    made = {}
    for times in (1, 2, 3, 4):
        made[f"x{times}"] = replace(
            v100,
            device=f"x{times}",
            name=f"x{times}",
            aliases=(),
            peaks_flops_per_s={name: times * peak for name, peak in v100.peaks_flops_per_s.items()},
            bandwidth_bytes_per_s=times * v100.bandwidth_bytes_per_s,
            boost_mhz=times * v100.boost_mhz,
            board_w=1e6,
        )
        add_device(made[f"x{times}"])
    yield made
    monkeypatch.undo()
    for cached in (devices.devices, devices.device_facts, devices._names):
        cached.cache_clear()


def additions(count: int, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(np.log(1e4), np.log(1e8), count)).astype(int)
    return [
        kind_of("elementwise").from_fields(
            {"batch": 8, "inner": int(size), "function": "add", "second": "same"}
        )
        for size in sizes
    ]


def bytes_ms(moved_bytes: float, card: DeviceFacts) -> float:
    """Bytes at a share of the bandwidth."""
    return 1e3 * moved_bytes / card.bandwidth_bytes_per_s / SHARE_REACHED


def time_ms(layer: Any, card: DeviceFacts, slower: float = 1.0) -> float:
    """The longer of the dispatch, and the bytes at a share of the bandwidth."""
    return max(DISPATCH_MS, slower * bytes_ms(layer.moved_bytes, card))


def examples(
    cards: Mapping[str, DeviceFacts], counts: Mapping[str, int], slower: float = 1.0
) -> Examples:
    """Return rows of some cards; `slower` is only the last one's."""
    layers, times, platforms = [], [], []
    for name, count in counts.items():
        own = additions(count, seed=len(name) + count)
        factor = slower if name == list(counts)[-1] else 1.0
        layers += own
        times += [time_ms(layer, cards[name], factor) for layer in own]
        platforms += [Platform(name)] * count
    return Examples(
        columns_of(layers), "execution_ms", np.array(times), [SETTING] * len(layers), platforms
    )


def fit(rows: Examples) -> Roofline:
    return Roofline("elementwise", trees=20).fit(rows, validation=rows, seed=0)


def estimate(predictor: Roofline, layers: list[Any], device: str) -> Any:
    return predictor.predict(columns_of(layers), SETTING, Platform(device))["execution_ms"]


def predicted(predictor: Roofline, layers: list[Any], device: str) -> Any:
    return estimate(predictor, layers, device).values


def test_a_card_twice_as_fast_takes_half_the_time_without_any_row(
    cards: Mapping[str, DeviceFacts],
) -> None:
    predictor = fit(examples(cards, {"x1": 300, "x2": 300}))
    large = [layer for layer in additions(50, seed=5) if time_ms(layer, cards["x4"]) > 0.1]
    assert len(large) > 5
    slow, fast = predicted(predictor, large, "x2"), predicted(predictor, large, "x4")
    measured = np.array([time_ms(layer, cards["x4"]) for layer in large])
    np.testing.assert_allclose(fast, measured, rtol=0.05)
    np.testing.assert_allclose(slow / fast, 2.0, rtol=0.05)


def test_small_layers_take_the_dispatch_however_small_they_are(
    cards: Mapping[str, DeviceFacts],
) -> None:
    predictor = fit(examples(cards, {"x1": 300, "x2": 300}))
    small = [kind_of("elementwise").from_fields(
        {"batch": 1, "inner": inner, "function": "add", "second": "same"}
    ) for inner in (1, 64, 1024)]  # fmt: skip
    np.testing.assert_allclose(predicted(predictor, small, "x4"), DISPATCH_MS, rtol=0.02)


def test_trees_correct_only_cards_that_were_measured(cards: Mapping[str, DeviceFacts]) -> None:
    """Large tensors take 1.5 times as long on all cards, which no term says."""
    rows = examples(cards, {"x1": 400, "x2": 400})
    wide = rows.columns["inner"] > 1e6
    rows = replace(rows, values=rows.values * np.where(wide, 1.5, 1.0))
    predictor = Roofline("elementwise", trees=200).fit(rows, validation=rows, seed=0)
    layers = [each for each in additions(60, seed=9) if each.inner > 1e6]
    measured_ms = 1.5 * np.array([time_ms(each, cards["x2"]) for each in layers])
    known = predicted(predictor, layers, "x2")
    assert np.mean(np.abs(known / measured_ms - 1)) < 0.05
    assert {each.device for each, costs in predictor.sessions_.items() if costs.trees} == {
        "x1", "x2",
    }  # fmt: skip
    # A forest that is wrong by a factor of e on all rows changes the measured cards alone.
    before = predicted(predictor, layers, "x4")
    predictor._run = lambda inputs: np.ones((len(inputs), 1))
    assert (predicted(predictor, layers, "x4") == before).all()
    assert not np.allclose(predicted(predictor, layers, "x2"), known)


def test_few_rows_move_one_factor_towards_their_card(cards: Mapping[str, DeviceFacts]) -> None:
    """A card that reaches 1.5 times less than the others: ten rows bring most of it."""
    large = [layer for layer in additions(80, seed=5) if time_ms(layer, cards["x3"]) > 0.1]
    measured = np.array([time_ms(layer, cards["x3"], 1.5) for layer in large])
    bias = {}
    for count in (0, 10, 100):
        counts = {"x1": 300, "x2": 300} | ({"x3": count} if count else {})
        predictor = fit(examples(cards, counts, 1.5 if count else 1.0))
        ratios = predicted(predictor, large, "x3") / measured
        bias[count] = float(np.median(ratios))
        assert np.ptp(ratios) < 0.15
    assert bias[0] == pytest.approx(1 / 1.5, rel=0.05)
    assert bias[10] == pytest.approx(1.0, rel=0.1)
    assert bias[100] == pytest.approx(1.0, rel=0.03)


def test_sessions_of_one_card_have_times_of_their_own(cards: Mapping[str, DeviceFacts]) -> None:
    first = examples(cards, {"x1": 300})
    layers = additions(300, seed=8)
    later = replace(SETTING, options={"measured by": "us", "session": "later"})
    rows = Examples(
        {
            name: np.concatenate([first.columns[name], values])
            for name, values in columns_of(layers).items()
        },
        "execution_ms",
        np.concatenate([first.values, [2 * time_ms(each, cards["x1"]) for each in layers]]),
        [SETTING] * 300 + [later] * 300,
        [Platform("x1")] * 600,
    )
    predictor = fit(rows)
    columns = columns_of(additions(20, seed=5))
    once = predictor.predict(columns, SETTING, Platform("x1"))["execution_ms"].values
    twice = predictor.predict(columns, later, Platform("x1"))["execution_ms"].values
    np.testing.assert_allclose(twice / once, 2.0, rtol=0.1)


def with_dispatch(rows: Examples, session: str = "first") -> Examples:
    """Say of rows that their times contain the dispatch."""
    options = {"measured by": "us", "session": session, "contains": "kernels and dispatch"}
    return replace(rows, settings=[replace(SETTING, options=options)] * len(rows))


def test_the_device_works_on_a_layer_for_what_it_takes_without_the_launch(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """Times are 20 us of launch and the bytes, but at least 30 us of dispatch."""
    launch_ms = 0.02
    rows = examples(cards, {"x1": 300, "x2": 300})
    work_ms = np.array([
        bytes_ms(moved, cards[platform.device])
        for moved, platform in zip(
            12.0 * rows.columns["batch"] * rows.columns["inner"], rows.platforms, strict=True
        )
    ])  # fmt: skip
    rows = replace(rows, values=np.maximum(DISPATCH_MS, launch_ms + work_ms))
    alone = fit(with_dispatch(rows))
    layers = additions(50, seed=5)
    for device in ("x2", "x4"):
        shares = alone.gpu_busy_fraction(columns_of(layers), SETTING, Platform(device))
        own_ms = shares * predicted(alone, layers, device)
        expected_ms = np.array([bytes_ms(each.moved_bytes, cards[device]) for each in layers])
        long = expected_ms > launch_ms
        assert 5 < long.sum() < 45
        np.testing.assert_allclose(own_ms[long], expected_ms[long], rtol=0.1)
        assert own_ms[~long].max() < DISPATCH_MS
    # Kernels alone, as of a profiler, take as long in a network.
    kernels = fit(rows)
    assert np.all(kernels.gpu_busy_fraction(columns_of(layers), SETTING, Platform("x2")) == 1)


def test_the_dispatch_is_that_of_the_session_or_of_the_hosts_that_measured(
    cards: Mapping[str, DeviceFacts], tmp_path: Path
) -> None:
    predictor = fit(with_dispatch(examples(cards, {"x1": 300, "x2": 300})))
    predictor = Roofline.load(json.loads(json.dumps(predictor.export(tmp_path, "add"))), tmp_path)
    for device in ("x1", "x4"):
        found_ms = predictor.dispatch_ms(SETTING, Platform(device))
        assert found_ms == pytest.approx(DISPATCH_MS, rel=0.05)
    compiled = replace(SETTING, compiled="dynamo")
    assert math.isnan(predictor.dispatch_ms(compiled, Platform("x1")))
    kernels_alone = fit(examples(cards, {"x1": 300, "x2": 300}))
    assert math.isnan(kernels_alone.dispatch_ms(SETTING, Platform("x1")))


def with_kernels_of_x3(cards: Mapping[str, DeviceFacts]) -> Examples:
    """Rows of x1 and x2 with their dispatch, and of x3 of kernels alone, whose host is known."""
    rows = with_dispatch(examples(cards, {"x1": 300, "x2": 300, "x3": 300}))
    moved_bytes = 12.0 * rows.columns["batch"] * rows.columns["inner"]
    kernels_ms = 0.002 + bytes_ms(moved_bytes, cards["x3"])
    of_x3 = np.repeat([False, True], [600, 300])
    options = {"contains": "kernels", HOST_DISPATCH: "22.4"}
    kernels = [replace(SETTING, options=options)] * 300
    return replace(
        rows,
        values=np.where(of_x3, kernels_ms, rows.values),
        settings=[*rows.settings[:600], *kernels],
    )


def test_kernels_alone_are_no_reason_to_doubt_other_cards(cards: Mapping[str, DeviceFacts]) -> None:
    """Left out, their card was predicted with the others' dispatch: 3 us instead of 30."""
    predictor = fit(with_kernels_of_x3(cards))
    found = estimate(predictor, additions(50, seed=5), "x4")
    assert np.min(found.low / found.values) > 0.3
    layers = [
        each for each in additions(50, seed=5) if bytes_ms(each.moved_bytes, cards["x3"]) < 0.01
    ]
    assert np.max(predicted(predictor, layers, "x3")) < 0.02


def test_the_host_of_kernels_alone_is_the_one_that_networks_showed(
    cards: Mapping[str, DeviceFacts], tmp_path: Path
) -> None:
    predictor = fit(with_kernels_of_x3(cards))
    predictor = Roofline.load(json.loads(json.dumps(predictor.export(tmp_path, "add"))), tmp_path)
    assert predictor.dispatch_ms(SETTING, Platform("x3")) == pytest.approx(0.0224)
    assert predictor.dispatch_ms(SETTING, Platform("x4")) == pytest.approx(DISPATCH_MS, rel=0.05)


def test_an_unknown_session_is_the_one_with_most_layers_alike(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """The larger session has odd numbers of values, the smaller one multiples of 16 alone."""

    def rows_of(count: int, session: str, slower: float, *, odd: bool) -> Examples:
        layers = [
            each.replace(batch=1, inner=each.inner // 16 * 16 + odd)
            for each in additions(count, seed=count)
        ]
        times_ms = [time_ms(each, cards["x1"], slower) for each in layers]
        setting = replace(SETTING, options={"measured by": "us", "session": session})
        return Examples(
            columns_of(layers), "execution_ms", np.array(times_ms), [setting] * count,
            [Platform("x1")] * count,
        )  # fmt: skip

    odd, even = rows_of(300, "odd", 1.0, odd=True), rows_of(250, "even", 2.0, odd=False)
    both = Examples(
        {name: np.concatenate([odd.columns[name], even.columns[name]]) for name in odd.columns},
        "execution_ms", np.concatenate([odd.values, even.values]),
        [*odd.settings, *even.settings], [*odd.platforms, *even.platforms],
    )  # fmt: skip
    predictor = fit(both)
    elementwise = kind_of("elementwise")
    layers = [
        elementwise.from_fields({"batch": 1, "inner": inner, "function": "add", "second": "same"})
        for inner in (16_000_000, 16_000_001)
    ]
    unknown = replace(SETTING, options={})
    values = predictor.predict(columns_of(layers), unknown, Platform("x1"))["execution_ms"].values
    measured = [time_ms(layers[0], cards["x1"], 2.0), time_ms(layers[1], cards["x1"])]
    np.testing.assert_allclose(values, measured, rtol=0.1)


def test_trees_leave_layers_alone_that_differ_from_all_rows(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """All rows add tensors of equal shape; of additions of a number trees know nothing."""
    rows = examples(cards, {"x1": 400})
    wide = rows.columns["inner"] > 1e6
    rows = replace(rows, values=rows.values * np.where(wide, 1.5, 1.0))
    predictor = Roofline("elementwise", trees=200).fit(rows, validation=rows, seed=0)
    fields = {"batch": 8, "inner": 30_000_000, "function": "add"}
    layers = [
        kind_of("elementwise").from_fields({**fields, "second": second})
        for second in ("same", "scalar")
    ]
    before = predicted(predictor, layers, "x1")
    predictor._run = lambda inputs: np.ones((len(inputs), 1))
    changed = predicted(predictor, layers, "x1") / before
    assert changed[0] > 1.5
    assert changed[1] == 1


def test_one_file_serves_all_cards(cards: Mapping[str, DeviceFacts], tmp_path: Path) -> None:
    predictor = fit(of_unlike_cards(cards))
    loaded = Roofline.load(json.loads(json.dumps(predictor.export(tmp_path, "add"))), tmp_path)
    layers = additions(30, seed=5)
    for device in ("x1", "x2", "x4"):
        mine, theirs = estimate(predictor, layers, device), estimate(loaded, layers, device)
        for name in ("values", "low", "high"):
            np.testing.assert_allclose(getattr(theirs, name), getattr(mine, name), rtol=1e-4)


def of_unlike_cards(cards: Mapping[str, DeviceFacts], noise: float = 0.02) -> Examples:
    """Rows of x1, x2 and x3, which take 0.8, 1.0 and 1.25 times what their bandwidth says."""
    random = np.random.default_rng(1)
    rows = examples(cards, {"x1": 300, "x2": 300, "x3": 300})
    slower = np.repeat([0.8, 1.0, 1.25], 300) * np.exp(noise * random.normal(size=900))
    return replace(rows, values=rows.values * slower)


def test_the_interval_of_a_card_without_rows_is_that_of_cards_left_out(
    cards: Mapping[str, DeviceFacts],
) -> None:
    predictor = fit(of_unlike_cards(cards))
    layers = [each for each in additions(200, seed=5) if time_ms(each, cards["x4"]) > DISPATCH_MS]
    assert len(layers) > 50
    found = estimate(predictor, layers, "x4")
    for slower, contained in ((0.8, True), (1.0, True), (1.25, True), (0.2, False), (5.0, False)):
        times_ms = np.array([time_ms(each, cards["x4"], slower) for each in layers])
        inside = (found.low <= times_ms) & (times_ms <= found.high)
        assert (inside.mean() > 0.9) == contained, slower
    # A card with rows is known far better.
    own = estimate(predictor, layers, "x2")
    assert np.median(own.high / own.low) < 1.2 < 1.5 < np.median(found.high / found.low)


def test_two_cards_do_not_say_how_cards_differ(cards: Mapping[str, DeviceFacts]) -> None:
    found = estimate(fit(examples(cards, {"x1": 300, "x2": 300})), additions(20, seed=5), "x4")
    np.testing.assert_allclose(found.low, found.values / 2)
    np.testing.assert_allclose(found.high, found.values * 2)


def test_each_session_has_intervals_of_its_own(cards: Mapping[str, DeviceFacts]) -> None:
    """Times of x3 scatter by 20%, those of the others not at all."""
    rows = examples(cards, {"x1": 300, "x2": 300, "x3": 300})
    scatter = np.exp(0.2 * np.random.default_rng(2).normal(size=900))
    scatter[:600] = 1.0
    rows = replace(rows, values=rows.values * scatter)
    rest = np.arange(900) % 3 == 0
    predictor = Roofline("elementwise", trees=20).fit(
        rows.select(np.flatnonzero(~rest)), validation=rows.select(np.flatnonzero(rest)), seed=0
    )
    layers = additions(40, seed=5)
    quiet, noisy = estimate(predictor, layers, "x1"), estimate(predictor, layers, "x3")
    assert np.max(quiet.high / quiet.low) < 1.1
    assert np.min(noisy.high / noisy.low) > 1.3


def test_another_session_of_a_card_is_as_uncertain_as_those_that_were_left_out(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """Later sessions of x1, x2 and x3 take 0.9, 1.0 and 1.2 times their larger first ones."""
    later = replace(SETTING, options={"measured by": "us", "session": "later"})
    first = examples(cards, {"x1": 300, "x2": 300, "x3": 300})
    second = examples(cards, {"x1": 90, "x2": 90, "x3": 90})
    rows = Examples(
        {name: np.concatenate([first.columns[name], second.columns[name]])
         for name in first.columns},
        "execution_ms",
        np.concatenate([first.values, second.values * np.repeat([0.9, 1.0, 1.2], 90)]),
        [*first.settings, *[later] * 270],
        [*first.platforms, *second.platforms],
    )  # fmt: skip
    predictor = fit(rows)
    columns = columns_of(additions(40, seed=5))

    def width(device: str, session: str) -> Any:
        setting = replace(SETTING, options={"measured by": "us", "session": session})
        found = predictor.predict(columns, setting, Platform(device))["execution_ms"]
        return float(np.median(found.high / found.low))

    assert width("x2", "first") < 1.1
    assert width("x2", "later") < 1.1
    assert width("x2", "not known") > 1.2 / 0.9
    # Three cards at 0.9 to 1.2 times, and Student's t for three: 2.05.
    assert width("x2", "not known") == pytest.approx((1.2 / 0.9) ** 2.05, rel=0.15)


def test_another_session_is_no_more_certain_than_the_one_that_answers(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """Times of the first sessions scatter by 20%, those of the later ones not at all."""
    later = replace(SETTING, options={"measured by": "us", "session": "later"})
    first = examples(cards, {"x1": 300, "x2": 300, "x3": 300})
    second = examples(cards, {"x1": 90, "x2": 90, "x3": 90})
    scatter = np.exp(0.2 * np.random.default_rng(2).normal(size=900))
    rows = Examples(
        {name: np.concatenate([first.columns[name], second.columns[name]])
         for name in first.columns},
        "execution_ms",
        np.concatenate([first.values * scatter, second.values]),
        [*first.settings, *[later] * 270],
        [*first.platforms, *second.platforms],
    )  # fmt: skip
    predictor = fit(rows)
    columns = columns_of(additions(40, seed=5))

    def bounds(session: str) -> Any:
        setting = replace(SETTING, options={"measured by": "us", "session": session})
        return predictor.predict(columns, setting, Platform("x2"))["execution_ms"]

    own, other = bounds("first"), bounds("not known")
    assert np.median(own.high / own.low) > 1.3
    assert np.all(other.low <= own.low)
    assert np.all(other.high >= own.high)


def test_it_knows_which_cards_and_types_its_rows_are_of(cards: Mapping[str, DeviceFacts]) -> None:
    predictor = fit(examples(cards, {"x1": 60, "x2": 60}))
    assert predictor.has_rows_of(Platform("x1"))
    assert predictor.has_rows_of(Platform("X1"), SETTING, "float32")
    assert not predictor.has_rows_of(Platform("x1"), SETTING, "float16")
    assert not predictor.has_rows_of(Platform("x1"), replace(SETTING, precision="tf32"), "float32")
    assert not predictor.has_rows_of(Platform("x3"))


@pytest.mark.parametrize(
    ("device", "published_tflops"), [("rtx4090", 47.6), ("a6000", 23.2), ("a40", 18.9)]
)
def test_large_products_in_float32_are_bounded_by_issue_and_power(
    device: str, published_tflops: float
) -> None:
    """What cuBLAS reached on cards that reach 50 to 60% of their peak, within a quarter."""
    card = Card.of(device, "fp32")
    bound = min(card.matrix_flops_per_ms, card.powered_flops_per_ms) / 1e9
    assert published_tflops == pytest.approx(bound, rel=0.25)
    # Other work is not products.
    facts = device_facts(device)
    assert facts is not None
    assert card.flops_per_ms == facts.peaks_flops_per_s["fp32"] / 1e3


def test_another_devices_name_is_refused(cards: Mapping[str, DeviceFacts]) -> None:
    with pytest.raises(ResperfError, match="'v100' is Tesla V100"):
        add_device(replace(cards["x1"], device="mine", name="mine", aliases=("v100",)))


def convolution(batch: int, size: int, channels_out: int, kernel: int) -> Any:
    return kind_of("conv").from_fields(
        {
            "batch": batch,
            "channels_in": 128,
            "channels_out": channels_out,
            **{f"{name}": size for name in ("height", "width")},
            **{f"kernel_{side}": kernel for side in ("height", "width")},
            **{f"pad_{side}": kernel // 2 for side in ("top", "left", "bottom", "right")},
            "bias": True,
        }
    )


def test_convolutions_of_another_window_are_not_transformed(
    cards: Mapping[str, DeviceFacts],
) -> None:
    """Only 3x3 is computed with 4 multiplications instead of 9 (Winograd, 2x2), or 2.25 (4x4)."""
    layers = [convolution(32, 64, 256, kernel) for kernel in (3, 1, 5)]
    q = quantities("conv", columns_of(layers))
    terms = card_terms("conv", q, Card.of("x1", "fp32"))
    plain_ms = 1e3 * q["flops"] / cards["x1"].peaks_flops_per_s["fp32"]
    bytes_ms = 1e3 * q["moved_bytes"] / cards["x1"].bandwidth_bytes_per_s
    for size, saved in ((2, 4 / 9), (4, 1 / 4)):
        np.testing.assert_allclose(terms[f"winograd {size}"] / plain_ms, [saved, 1, 1], rtol=0.1)
        transforms_ms = terms[f"winograd {size} transforms"]
        np.testing.assert_allclose(transforms_ms[1:], bytes_ms[1:])
        assert transforms_ms[0] > 2 * bytes_ms[0]
    # Tensor cores compute half precision faster than any transform.
    half = card_terms("conv", q, Card.of("x1", "fp16"))
    np.testing.assert_allclose(half["winograd 4"], half["winograd 2"])


def test_sizes_may_be_spread_over_other_fields_than_in_its_rows(
    cards: Mapping[str, DeviceFacts],
) -> None:
    predictor = fit(examples(cards, {"x1": 300}))
    make = kind_of("elementwise").from_fields
    same = [
        make({"batch": batch, "inner": 8_000_000 // batch, "function": "add", "second": "same"})
        for batch in (8, 8000)
    ]
    found = predictor.ranged(columns_of(same))
    assert {name for name in found if len(set(found[name].tolist())) > 1} == set()
    assert {"function", "flops", "moved_bytes"} <= found.keys()


def test_a_normalisation_that_no_row_had_has_no_time(cards: Mapping[str, DeviceFacts]) -> None:
    def norm(function: str, channels: int) -> Any:
        return kind_of("norm").from_fields(
            {"batch": 8, "channels": channels, "pixels": 65536, "function": function}
        )

    layers = [norm("layer", channels) for channels in range(64, 364)]
    times = np.array([time_ms(each, cards["x1"]) for each in layers])
    rows = Examples(
        columns_of(layers), "execution_ms", times, [SETTING], [Platform("x1")] * len(layers)
    )
    predictor = Roofline("norm", trees=20).fit(rows, validation=rows, seed=0)
    values = predicted(predictor, [norm("layer", 100), norm("batch", 100)], "x1")
    assert np.isfinite(values).tolist() == [True, False]
