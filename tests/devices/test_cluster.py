"""Clusters as TOML files, and their capabilities by equations 1-2 of PredictDDL."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.devices import cluster
from resperf.devices.cluster import Cluster, Link, Node, Total, cluster_of, read_cluster
from resperf.errors import ResperfError

FILE = """
name = "lab"
[[node]]
name = "old"
count = 2
cores = 8
cores_available = 6
load = 0.5
ram_bytes = 8e9
flops_per_s = 1e12
[[node]]
name = "new"
devices = 4
device = "Tesla V100-SXM2-16GB"
cores = 16
ram_bytes = 64e9
[between]
name = "Ethernet"
latency_s = 3e-5
bandwidth_bytes_per_s = 1.25e9
devices_per_nic = 4
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "lab.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_and_written_again(tmp_path: Path) -> None:
    lab = read_cluster(written(tmp_path))
    assert (lab.name, lab.servers, lab.devices, lab.devices_per_node) == ("lab", 3, 6, None)
    old, new = lab.nodes
    assert (old.count, old.cores, old.device, old.disk_bytes_per_s) == (2, 8, None, None)
    assert (new.device, new.gpu_memory_bytes) == ("v100", 16 << 30)
    assert lab.inside is None
    assert lab.between == Link(
        name="Ethernet", latency_s=3e-5, bandwidth_bytes_per_s=1.25e9, devices_per_nic=4
    )
    again = tmp_path / "again.toml"
    again.write_text(lab.to_toml(), encoding="utf-8")
    assert read_cluster(again) == lab


def test_strange_names_survive(tmp_path: Path) -> None:
    odd = Cluster(name='a "b"\\\n\x7f😀', nodes=(Node(name="é\t"),))
    (tmp_path / "odd.toml").write_text(odd.to_toml(), encoding="utf-8")
    assert read_cluster(tmp_path / "odd.toml") == odd


def test_totals_by_hand(tmp_path: Path) -> None:
    totals = read_cluster(written(tmp_path)).totals()
    # Old: 6 of 8 cores, half of their time: 3/8 of everything; twice. New: everything.
    assert totals["cores"] == Total(2 * 3 + 16, 3, 13 / 16)
    assert totals["ram_bytes"] == Total(2 * 3e9 + 64e9, 3e9, 61 / 64)
    assert totals["flops_per_s"] is not None
    # Processors of 1e12 have 3/8 of it; four V100 all of their data sheet's 15.7e12.
    assert totals["flops_per_s"].minimum == 3 / 8 * 1e12
    assert totals["flops_per_s"].sum == pytest.approx(2 * 3 / 8 * 1e12 + 4 * 15.7e12, rel=0.01)
    assert totals["devices"] == Total(6, 1, 3 / 4)
    for name in ("gpu_memory_bytes", "disk_bytes_per_s", "sockets"):
        assert totals[name] is None


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    old, new = read_cluster(written(tmp_path)).nodes
    assert old.unknown == ("sockets", "ram_available_bytes", "disk_bytes_per_s")
    # The data sheet knows the GPU's memory and its peak.
    assert new.unknown == (
        "sockets", "cores_available", "ram_available_bytes", "disk_bytes_per_s", "load",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("latency_s = 3e-5", "", "between: latency_s must be given"),
        ("1.25e9", "0", "between: bandwidth_bytes_per_s=0 must be plausible: between 100000"),
        ("cores = 8", "cores = -8", "node 1: cores=-8 must be plausible: between 1 and 8192"),
        ("cores = 8", "cores = 4", "node 1: cores_available=6 is more than cores=4"),
        ("load = 0.5", "load = 50", "node 1: load=50 must be a share"),
        ("count = 2", "count = 0", "node 1: count=0 must be a number of at least 1"),
        ("count = 2", "count = true", "node 1: count=True must be of type int"),
        ("64e9", "64", "node 2: ram_bytes=64 must be plausible"),
        ("64e9", "nan", "node 2: ram_bytes=nan must be plausible"),
        ("64e9", '"64 GB"', "node 2: ram_bytes='64 GB' must be of type float"),
        ("Tesla V100-SXM2-16GB", "v1000", "device='v1000' is not known (did you mean v100"),
        ('name = "new"', "", "node 2: name must be given"),
        ('name = "new"', 'name = "old"', "two nodes are called old"),
        ("[between]", "[beetween]", "no beetween in a cluster"),
        ("devices = 4", "gpus = 4", "node 2 has no gpus; it has "),
        ('name = "lab"', "name = 1", "name=1 must be of type str"),
        ('device = "Tesla V100-SXM2-16GB"', "gpu_memory_bytes = 1e9", "given without a device"),
        (FILE, "[node]\nname = 'a'", "[[node]], with two brackets"),
        (FILE, "name = 'a'", "at least one [[node]]"),
        (FILE, "node = [", "is not a TOML file"),
    ],
)
def test_a_missing_or_absurd_fact_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = written(tmp_path, (old, new))
    with pytest.raises(ResperfError) as error:
        read_cluster(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_clusters_are_named_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_FOLDER", tmp_path)
    cluster.named_clusters.cache_clear()
    path = written(tmp_path)
    try:
        assert cluster_of("lab") == cluster_of(str(path))
        with pytest.raises(ResperfError, match=r"no cluster 'lap' \(did you mean lab\?\)"):
            cluster_of("lap")
    finally:
        cluster.named_clusters.cache_clear()


def test_the_shipped_clusters_are_read() -> None:
    for name, shipped in cluster.named_clusters().items():
        assert cluster_of(name) == shipped
        assert shipped.source
