"""Times from data sheets, by hand; and devices that users describe themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from resperf.devices import (
    add_device,
    canonical_device,
    device_facts,
    devices,
    estimated_layer_ms,
    estimated_ms,
    names_like,
)
from resperf.errors import ResperfError
from resperf.layers import Dense, Resize
from resperf.layers.recurrent import Recurrent

CARD = devices()["v100"]
"""900 GB/s; 15.7 TFLOP/s in float32, 125 in float16, as everyone in bfloat16."""


def test_a_time_is_a_launch_and_the_larger_of_operations_and_bytes() -> None:
    # 15.7e9 operations take 1 ms at the peak, 1.6 as estimated; 9e8 bytes take 1 ms, then 1.4.
    assert estimated_ms(15.7e9, 1e3, CARD).ms == pytest.approx(1.6 + 0.005, rel=1e-3)
    assert estimated_ms(15.7e9, 1.8e9, CARD).ms == pytest.approx(2.8 + 0.005, rel=1e-3)
    assert estimated_ms(0, 0, CARD).ms == 0.005


def test_the_peak_is_that_of_the_type() -> None:
    assert estimated_ms(125e9, 0, CARD, "float16").ms == pytest.approx(1.605, rel=1e-3)
    assert estimated_ms(7.8e9, 0, CARD, "float64").ms == pytest.approx(1.605, rel=1e-3)
    # How much more FLOP/s in float32 than in float64, by the data sheets.
    for device, ratio in (
        ("v100", 2), ("p100", 2), ("k80", 3), ("p4", 32), ("2080ti", 32), ("t4", 32), ("a10", 64),
        ("rtx3090", 64), ("rtx4090", 64), ("l4", 64), ("rtx5090", 64), ("a100", 1), ("h200", 1),
        ("mi100", 2), ("mi210", 0.5), ("b200", 2),
    ):  # fmt: skip
        facts = devices()[device]
        peak = facts.peak_of("float64")
        assert facts.peaks_flops_per_s["fp32"] / peak == pytest.approx(ratio, rel=0.02)
        assert facts.largest_peak_of("float64") == peak
    # Of a type that a card has no units for, nothing is known; int8 is at least as fast as float32.
    for dtype in ("bfloat16", "int32", "int64"):
        assert math.isnan(estimated_ms(15.7e9, 0, CARD, dtype).ms)
    assert estimated_ms(4.37e9, 0, devices()["k80"], "int8").ms == pytest.approx(1.605, rel=1e-3)
    # AMD's matrix cores take float32 without being asked.
    assert estimated_ms(45.3e9, 0, devices()["mi210"]).ms == pytest.approx(1.605, rel=1e-2)


def test_the_interval_is_wide_and_unknown_work_has_no_time() -> None:
    found = estimated_ms(15.7e9, 0, CARD)
    assert (found.low_ms, found.high_ms) == pytest.approx((0.5 * found.ms, 3 * found.ms))
    for work in ((math.nan, 1.0), (1.0, math.nan)):
        assert all(map(math.isnan, estimated_ms(*work, CARD)))


def test_kernels_of_a_processor_that_run_value_by_value_are_slower() -> None:
    processor = replace(CARD, device_class="cpu")
    plain, transform, packed = (
        estimated_ms(15.7e9, 0, processor, op=op).ms - 0.005 for op in ("Any", "DFT", "MatMulNBits")
    )
    assert (plain, transform, packed) == pytest.approx((6.0, 40.0, 0.7), rel=1e-3)
    assert estimated_ms(15.7e9, 0, CARD, op="DFT") == estimated_ms(15.7e9, 0, CARD)


def test_a_layer_has_its_own_work_and_type() -> None:
    layer = Dense(batch=4096, features_in=4096, features_out=4096, dtype="float16", bias=False)
    assert layer.flops == 2 * 4096**3
    once_ms = 1.6 * 2 * 4096**3 / CARD.peaks_flops_per_s["fp16"] * 1e3
    assert estimated_layer_ms(layer, CARD).ms == pytest.approx(once_ms + 0.005)


def test_steps_of_a_recurrent_layer_wait_for_one_another() -> None:
    layer = Recurrent(batch=1, steps=400, features=512, hidden=512, cell="gru")
    # Each step reads 3 x 512 x 512 weights; gates are written and read twice.
    values = 400 * 2 * 512 + 3 * 512 * (512 + 2) + 400 * 3 * 512 * 512 + 4 * 400 * 3 * 512
    expected_ms = 2 * 400 * 0.005 + 1.4 * 4 * values / 900e9 * 1e3
    assert estimated_layer_ms(layer, CARD).ms == pytest.approx(expected_ms, rel=1e-3)
    longer = Recurrent(batch=1, steps=800, features=512, hidden=512, cell="gru")
    assert estimated_layer_ms(longer, CARD).ms == pytest.approx(2 * expected_ms, rel=0.01)


def test_planes_of_a_resize_may_wait_for_one_another() -> None:
    tiny = Resize(batch=2, channels=512, height=1, width=1, height_out=8, width_out=8)
    linear = tiny.replace(mode="linear")
    together, apart = (estimated_layer_ms(linear, CARD, by_plane=given) for given in (False, True))
    # 1024 planes of 4 input pixels, 45 ns for each; the interval holds both.
    assert apart.ms == pytest.approx(0.005 + 1024 * 4 * 45e-6)
    assert apart.low_ms == together.low_ms < together.ms < apart.ms
    assert apart.high_ms == pytest.approx(3 * apart.ms)
    assert estimated_layer_ms(tiny, CARD, by_plane=True) == estimated_layer_ms(tiny, CARD)
    large = linear.replace(height_out=512, width_out=512)
    assert estimated_layer_ms(large, CARD, by_plane=True) == estimated_layer_ms(large, CARD)


def test_a_users_own_device_is_known_once_it_is_added(no_own_cards: None) -> None:
    mine = replace(CARD, device="my card", name="Mine", aliases=())
    assert device_facts("MyCard") is None
    assert add_device(mine) is mine
    assert canonical_device("MyCard") == "my card"
    assert device_facts("mine") is mine
    larger = replace(mine, memory_bytes=2 << 30)
    add_device(larger)
    assert devices()["my card"] is larger
    with pytest.raises(ResperfError, match="'mine' is Mine already; give the device another name"):
        add_device(replace(larger, device="other", name="mine", memory_bytes=3 << 30))
    with pytest.raises(ResperfError, match="'Tesla V100' is Tesla V100"):
        add_device(replace(mine, device="Tesla V100"))


def test_names_like_a_word() -> None:
    assert names_like("rtx4900")[0] == "rtx4090"
    assert "h100" in names_like("h10")
    assert names_like("mars") == []
