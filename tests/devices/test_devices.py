"""Names of devices, and lower bounds of times."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from resperf import targets
from resperf.devices import UNIFIED, canonical_device, device_facts, devices, lower_bound_ms
from resperf.layers import Conv, Dense


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("1080ti", "1080ti"),
        ("gtx1080ti", "1080ti"),
        ("GeForce GTX 1080 Ti", "1080ti"),
        ("NVIDIA GeForce GTX 1080 Ti", "1080ti"),
        ("GTX-1080Ti", "1080ti"),
        ("Quadro P5000", "p5000"),
        ("Tesla V100", "v100"),
        ("My Card", "My Card"),
    ],
)
def test_a_device_has_several_names(name: str, device: str) -> None:
    assert canonical_device(name) == device


def test_the_devices_of_the_public_data_and_of_the_papers_table_4_are_known() -> None:
    assert set(devices()) >= {
        "1080ti", "k80", "p100", "v100", "i3", "p1000", "p5000", "p2000",
    }  # fmt: skip
    for facts in devices().values():
        assert len(facts.sources) >= 1 + (facts.device_class != "cpu")
        assert 0 < facts.cache_bytes < facts.memory_bytes
        assert (facts.bus in ("", UNIFIED)) == math.isnan(facts.bus_bytes_per_s)
        assert 1 < facts.peaks_flops_per_s["fp32"] / facts.bandwidth_bytes_per_s < 200


def test_no_two_devices_share_a_name() -> None:
    names = [name for facts in devices().values() for name in (facts.device, facts.name)]
    assert [canonical_device(name) for name in names] == [
        device for device in devices() for _ in range(2)
    ]


def test_table_4_of_the_paper() -> None:
    facts = device_facts("gtx1080ti")
    assert facts is not None
    assert (facts.peaks_flops_per_s["fp32"], facts.bandwidth_bytes_per_s) == (11.34e12, 484.4e9)
    assert facts.memory_bytes == 11 << 30
    assert device_facts("My Card") is None


def test_the_figures_of_every_gpu_agree_with_each_other() -> None:
    gpus = [facts for facts in devices().values() if facts.device_class != "cpu"]
    assert len(gpus) >= 30
    for facts in gpus:
        cores = facts.multiprocessors * facts.cores_per_multiprocessor
        assert facts.peaks_flops_per_s["fp32"] == pytest.approx(
            2e6 * cores * facts.boost_mhz, rel=0.015
        )
        pins_bytes_per_s = facts.memory_bus_bits * facts.memory_gbit_s_per_pin * 1e9 / 8
        assert facts.bandwidth_bytes_per_s == pytest.approx(pins_bytes_per_s, rel=0.015)
        peaks = facts.peaks_flops_per_s
        assert peaks.get("fp16", math.inf) >= peaks["fp32"]
        # Tensor cores compute bfloat16 like float16, and int8 twice or four times as fast.
        if facts.device_class == "cuda":
            assert peaks.get("bf16", peaks.get("fp16")) == peaks.get("fp16")
            assert "tf32" not in peaks or 1.99 < peaks["int8"] / peaks["bf16"] < 4.01
            assert ("bf16" in peaks) == (float(facts.compute_capability) >= 8)
        assert facts.compute_capability


def test_every_device_has_a_class_with_targets() -> None:
    known = {row.device_class for row in targets.targets()}
    assert {facts.device_class for facts in devices().values()} <= known


def test_the_figures_agree_with_those_of_the_public_data() -> None:
    here = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("RESPERF_PUBLIC_DATA", here)) / "neusight" / "devices"
    if not folder.is_dir():
        pytest.skip(f"no public data in {folder}; set RESPERF_PUBLIC_DATA")
    sheets = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert len(sheets) == 12
    for sheet in sheets:
        facts = device_facts(sheet["Device"])
        assert facts is not None, sheet["Device"]
        flops = 1e9 * sheet.get("SingleFLOPs", sheet.get("SingleFLOPsVEC", 0))
        assert facts.peaks_flops_per_s["fp32"] == pytest.approx(flops, rel=0.04)
        assert facts.bandwidth_bytes_per_s == pytest.approx(1e9 * sheet["Mem_Bw"], rel=0.025)
        assert facts.memory_bytes == pytest.approx(sheet["Dev_Mem"] * 2**30, rel=0.07)
        # Slips of these files: multiprocessors of half the size on the P4, two too many on the L4.
        if facts.device not in ("p4", "l4"):
            assert facts.multiprocessors == sheet["Num_Sm"]
        # 16 MB are those of both dies of an MI250.
        if facts.device not in ("mi210", "mi250"):
            assert facts.cache_bytes == sheet["L2Cache"] * 2**20


def figures(table: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a table of facts; a peak is called by its type."""
    numbers = {**table, **table.get("peak_tflops", {})}
    return {fact: value for fact, value in numbers.items() if isinstance(value, int | float)}


def agree(fact: str, found: float, expected: float) -> bool:
    """Return whether two figures are the same but for rounding."""
    if fact in ("multiprocessors", "memory_bus_bits", "board_w"):
        return found == expected
    return found == pytest.approx(expected, rel=0.01 if fact == "boost_mhz" else 0.02)


def tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``devices.toml``, and what other sources say: device -> sources."""
    shipped = Path(__file__).parents[2] / "resperf" / "devices" / "devices.toml"
    second = Path(__file__).with_name("second_sources.toml")
    return tomllib.loads(shipped.read_text("utf-8")), tomllib.loads(second.read_text("utf-8"))


@pytest.mark.parametrize("device", tables()[1])
def test_the_figures_agree_with_those_of_other_sources(device: str) -> None:
    shipped, second = tables()
    ours = figures(shipped[device])
    for source in second[device]:
        differs = source.get("differs", {})
        for fact, value in figures(source).items():
            assert agree(fact, ours[fact], value), (source["source"], fact)
        for fact, value in figures(differs).items():
            assert not agree(fact, ours[fact], value), (source["source"], fact)
        named = [name for name in shipped[device]["sources"] if source["source"] in name]
        assert named, source["source"]
        for value in figures(differs).values():
            assert f"{value:g}" in named[0] or source["source"] == "NeuSight's device file"


def test_the_main_figures_of_23_devices_are_in_two_sources() -> None:
    """As docs/importing.md says."""
    main = {"fp32", "bandwidth_gb_s", "memory_gib", "cache_mib", "multiprocessors", "boost_mhz",
            "board_w"}  # fmt: skip
    sources = {
        device: Counter(fact for source in second for fact in figures(source))
        for device, second in tables()[1].items()
    }
    assert sum(all(count[fact] >= 2 for fact in main) for count in sources.values()) == 23
    assert sum(all(count[fact] >= 1 for fact in main) for count in sources.values()) == 28


@pytest.mark.parametrize(
    ("layer_type", "peak"), [("float32", "tf32"), ("float16", "fp16"), ("bfloat16", "bf16")]
)
def test_a_lower_bound_is_that_of_the_fastest_units_for_a_type(layer_type: str, peak: str) -> None:
    facts = device_facts("a100")
    assert facts is not None
    dense = Dense(batch=4096, features_in=4096, features_out=4096, dtype=layer_type)
    expected_ms = 2 * 4096**3 / facts.peaks_flops_per_s[peak] * 1e3
    assert lower_bound_ms(dense, facts) == pytest.approx(expected_ms)


def test_lower_bounds_by_hand() -> None:
    facts = device_facts("1080ti")
    assert facts is not None
    # 4096 x 4096 floats are 64 MiB of weights; 2.75 MiB may be in the cache.
    dense = Dense(batch=1, features_in=4096, features_out=4096, bias=False)
    moved_bytes = (64 << 20) + 2 * 16384 - 2.75 * (1 << 20)
    assert lower_bound_ms(dense, facts) == pytest.approx(moved_bytes / 484.4e9 * 1e3)
    # Batch 4096: 137 GFLOP over 11.34 TFLOP/s.
    large = dense.replace(batch=4096)
    assert lower_bound_ms(large, facts) == pytest.approx(2 * 4096**3 / 11.34e12 * 1e3)
    # Fast algorithms may save all but one multiplication of a window.
    conv = Conv(batch=64, channels_in=512, height=32, width=32, kernel_height=3, kernel_width=3,
                channels_out=512)  # fmt: skip
    assert lower_bound_ms(conv, facts) == pytest.approx(2 * conv.macs / 9 / 11.34e12 * 1e3)
    # A pointwise window that moves by four pixels reads a sixteenth of them.
    strided = Conv(batch=1, channels_in=64, height=512, width=512, kernel_height=1, kernel_width=1,
                   stride_height=4, stride_width=4, channels_out=1, bias=False)  # fmt: skip
    read_bytes = 64 * 128 * 128 * 4 + 128 * 128 * 4 + 64 * 4 - 2.75 * (1 << 20)
    assert lower_bound_ms(strided, facts) == pytest.approx(read_bytes / 484.4e9 * 1e3)
