from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resperf.backends import backend
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign import Campaign
from resperf.layers import Dense
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.network import graph_digest
from resperf.timing import KNOWN_READINGS

CAMPAIGN = Campaign.from_mapping(
    {"name": "tiny", "kinds": {"dense": {"batch": 1, "features_in": 8, "features_out": 8}}}
)


def test_a_probe_keeps_the_least_usual_time_that_any_process_found(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from resperf.campaign.store import Store

    device = backend("synthetic")

    def opened() -> Store:
        return Store(
            tmp_path / "d.h5",
            CAMPAIGN,
            seed=0,
            setting=device.setting(),
            platform=device.platform(),
            monitor=CpuMonitor(),
        )

    store = opened()
    store.usual["caches_probe_ms"] = (0.1, 7)
    assert store.costs == {"caches_probe_ms": 0.1}
    crashed = Dense(batch=1, features_in=8, features_out=8)
    store.add_row(
        Measurement(crashed, Status.CRASHED, setting=device.setting(), platform=device.platform())
    )
    store.compact()
    store.close(complete=False)
    again = opened()
    assert again.usual == {"caches_probe_ms": (0.1, KNOWN_READINGS)}
    assert again.costs["caches_probe_ms"] == 0.1
    again.close(complete=True)


def test_rows_of_networks_in_a_campaigns_dataset_stay(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from resperf.campaign.store import Store
    from resperf.dataset import append_networks, read_dataset

    device, path = backend("synthetic"), tmp_path / "d.h5"
    where: Any = {"setting": device.setting(), "platform": device.platform()}

    def row(width: int, at: float) -> Measurement:
        layer = Dense(batch=1, features_in=8, features_out=width)
        return Measurement(layer, Status.CRASHED, started_at=at, **where)

    store = Store(path, CAMPAIGN, seed=0, monitor=CpuMonitor(), **where)
    store.add_row(row(1, 1.0))
    store.compact()
    store.close(complete=True)
    run = NetworkRef("net", graph_digest(b"graph"))
    append_networks(path, [Measurement(run, Status.TIMEOUT, **where)], {run.digest: b"graph"})
    store = Store(path, CAMPAIGN, seed=0, monitor=CpuMonitor(), **where)
    store.add_row(row(2, 2.0))
    store.compact()
    store.close(complete=True)
    dataset = read_dataset(path)
    assert [row.subject.key for row in dataset.measurements] == [
        run.key, row(1, 1.0).subject.key, row(2, 2.0).subject.key,
    ]  # fmt: skip
    assert dataset.graphs == {run.digest: b"graph"}


def test_rows_of_networks_that_come_while_a_campaign_runs_stay(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from resperf.campaign.store import Store
    from resperf.dataset import append_networks, read_dataset

    device, path = backend("synthetic"), tmp_path / "d.h5"
    where: Any = {"setting": device.setting(), "platform": device.platform()}
    layer = Dense(batch=1, features_in=8, features_out=8)
    store = Store(path, CAMPAIGN, seed=0, monitor=CpuMonitor(), **where)
    store.add_row(Measurement(layer, Status.CRASHED, started_at=1.0, **where))
    store.compact()
    run = NetworkRef("net", graph_digest(b"graph"))
    append_networks(path, [Measurement(run, Status.TIMEOUT, **where)], {run.digest: b"graph"})
    for _ in range(2):
        store.compact()
    store.close(complete=True)
    dataset = read_dataset(path)
    assert [row.subject.key for row in dataset.measurements] == [run.key, layer.key]
    assert dataset.graphs == {run.digest: b"graph"}
