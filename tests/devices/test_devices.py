"""Names of devices, and lower bounds of times."""

from __future__ import annotations

import math

import pytest

from resperf.devices import canonical_device, device_facts, devices, lower_bound_ms
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
        assert facts.source
        assert 0 < facts.cache_bytes < facts.memory_bytes
        assert (facts.bus == "") == math.isnan(facts.bus_bytes_per_s)
        assert 1 < facts.peak_flops_per_s / facts.bandwidth_bytes_per_s < 100


def test_no_two_devices_share_a_name() -> None:
    names = [name for facts in devices().values() for name in (facts.device, facts.name)]
    assert [canonical_device(name) for name in names] == [
        device for device in devices() for _ in range(2)
    ]


def test_table_4_of_the_paper() -> None:
    facts = device_facts("gtx1080ti")
    assert facts is not None
    assert (facts.peak_flops_per_s, facts.bandwidth_bytes_per_s) == (11.34e12, 484.4e9)
    assert facts.memory_bytes == 11 << 30
    assert device_facts("My Card") is None


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
