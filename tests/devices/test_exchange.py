"""What a training step takes on several devices: equations by hand, and what physics demands."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from resperf.devices.cluster import Cluster, Link, Node, cluster_of, named_clusters, read_cluster
from resperf.devices.exchange import Exchange, exchange_s, ring_s
from resperf.errors import ResperfError

LINKS = {
    "inside": Link(name="PCIe", latency_s=1e-4, bandwidth_bytes_per_s=4e9),
    "between": Link(name="Ethernet", latency_s=1e-3, bandwidth_bytes_per_s=1e9),
}
PLAIN = Exchange(
    slowdown=1.1, overlap=2.0, contention=0.0, contention_of_two=1.0, host_s=0.0, low=0.8, high=1.5,
    most_devices=8,
)  # fmt: skip


def cluster(**values) -> Cluster:
    nodes = (Node(name="worker", count=4, device="t4", devices=4),)
    return Cluster(**{"name": "lab", "nodes": nodes, "exchange": PLAIN, **LINKS, **values})


def test_a_ring_by_hand():
    # 100 MB are four buckets of 25 MiB; 2 * 3 / 4 of the bytes; log2(4) = 2 latencies each.
    assert ring_s(1e8, 4, 1e-3, 1e9) == pytest.approx(0.15 + 4 * 2e-3)
    assert ring_s(1e8, 4, 1e-3, 1e9, 3.0) == pytest.approx(0.45 + 4 * 2e-3)
    assert ring_s(1e8, 1, 1e-3, 1e9) == 0


def test_two_nodes_share_their_one_connection():
    # Inside: 2 * 3 / 4 * 1e8 / 4e9 + 4 * 2 * 1e-4; between: 1e8 / 1e9, times 4 between two nodes.
    inside = 0.0375 + 8e-4
    for nodes, share, sent, latency in ((2, 4, 0.1, 4e-3), (4, 1, 0.15, 8e-3)):
        exact = inside + share * sent + latency
        found = exchange_s(1e8, nodes, 4, (1e-4, 4e9), (1e-3, 1e9), PLAIN)
        assert float(found) == pytest.approx(exact)
    assert cluster().exchange_of(16, 1e8).sums_ms[0] == pytest.approx(1e3 * exact)
    two_cards = dataclasses.replace(LINKS["between"], devices_per_nic=2)
    sums_ms, *_ = cluster(between=two_cards).exchange_of(8, 1e8)
    assert sums_ms[0] == pytest.approx(1e3 * (inside + 2 * 0.1 + 4e-3))


def test_a_step_overlaps_its_exchange():
    assert PLAIN.step_s(0.3 / 1.1, 0.4) == pytest.approx(0.5)
    assert dataclasses.replace(PLAIN, overlap=1.0).step_s(0.3 / 1.1, 0.4) == pytest.approx(0.7)
    # Nothing to exchange but the host's share: a floor for small networks.
    assert dataclasses.replace(PLAIN, host_s=0.02).step_s(1e-9, 0.0) == pytest.approx(0.02)
    value, low, high = PLAIN.step_ms((100.0, 100.0, 100.0), (0.0, 0.0, 0.0))
    assert (value, low, high) == pytest.approx((110.0, 0.8 * 110, 1.5 * 110))
    # Where the step on one device is all, its interval and that of the fit are joined.
    _, low, high = PLAIN.step_ms((100.0, 50.0, 200.0), (0.0, 0.0, 0.0))
    assert low == pytest.approx(110 * np.exp(-np.hypot(np.log(2), np.log(1 / 0.8))))
    assert high == pytest.approx(110 * np.exp(np.hypot(np.log(2), np.log(1.5))))


def test_more_work_never_takes_less():
    random = np.random.default_rng(0)
    for fitted in (cluster(), *named_clusters().values()):
        for _ in range(50):
            devices = int(random.integers(2, min(fitted.devices, 16) + 1))
            size, alone = 10 ** random.uniform(5, 9), random.uniform(1, 1000)
            sums, exchange, *_ = fitted.exchange_of(devices, size)
            larger = fitted.exchange_of(devices, 1.5 * size).sums_ms
            step_ms, low_ms, high_ms = exchange.step_ms((alone,) * 3, sums)
            assert exchange.step_ms((alone,) * 3, larger)[0] > step_ms
            assert exchange.step_ms((1.1 * alone,) * 3, sums)[0] > step_ms
            assert low_ms <= step_ms <= high_ms
            assert step_ms >= max(alone, sums[0])
            faster = dataclasses.replace(
                fitted, **{
                    word: dataclasses.replace(link, bandwidth_bytes_per_s=2e12)
                    for word in ("inside", "between") if (link := getattr(fitted, word))
                }
            )  # fmt: skip
            assert faster.exchange_of(devices, size).sums_ms[0] < sums[0]


def test_devices_fill_one_node_after_the_other():
    unlike = cluster(nodes=(
        Node(name="large", count=2, device="t4", devices=4), Node(name="small", device="t4"),
    ))  # fmt: skip
    assert [unlike.placed(count) for count in (1, 3, 4, 5, 8, 9)] == [
        (1, 1), (1, 3), (1, 4), (2, 4), (2, 4), (3, 4),
    ]  # fmt: skip
    with pytest.raises(ResperfError, match="10 devices are more than the 9 of cluster lab"):
        unlike.placed(10)


def test_what_was_not_fitted_is_said():
    assert cluster().exchange_of(8, 1e6).beyond == ""
    further = cluster().exchange_of(9, 1e6)
    assert "at most 8 devices" in further.beyond
    # Twice as wide in logarithms, and 20% at least.
    assert (further.exchange.low, further.exchange.high) == pytest.approx((0.8**2, 1.5**2))
    narrow = dataclasses.replace(PLAIN, low=0.99, high=1.01).beyond()
    assert (narrow.low, narrow.high) == pytest.approx((0.8, 1.2))
    assert "no steps on lab were fitted" in cluster(exchange=Exchange()).exchange_of(2, 1e6).beyond
    with pytest.raises(ResperfError, match=r"does not say what connects 2 nodes: add \[between\]"):
        cluster(between=None).exchange_of(8, 1e6)
    assert cluster(between=None).exchange_of(4, 1e6).sums_ms[0] > 0
    with pytest.raises(ResperfError, match="what connects 2 devices of a node"):
        cluster(inside=None).exchange_of(2, 1e6)


def test_coefficients_are_written_and_read(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(cluster().to_toml())
    assert read_cluster(path) == cluster()
    path.write_text(cluster(exchange=Exchange()).to_toml())
    assert "[exchange]" not in path.read_text()
    assert read_cluster(path).exchange == Exchange()
    path.write_text(cluster().to_toml().replace("overlap = 2.0", "overlap = 0.5"))
    with pytest.raises(ResperfError, match=r"exchange: overlap=0.5 must be a number of at least 1"):
        read_cluster(path)


def test_shipped_clusters_are_whole():
    assert {"t4-g4dn", "k80-infiniband-mpi", "p100-gavel"} <= set(named_clusters())
    for name in named_clusters():
        fitted = cluster_of(name)
        assert fitted.name == name
        assert fitted.source
        assert fitted.exchange.most_devices <= fitted.devices
        assert fitted.exchange.low < 1 < fitted.exchange.high
