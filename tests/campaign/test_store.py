from __future__ import annotations

from pathlib import Path
from typing import Any

from resperf.backends import backend
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign import Campaign
from resperf.campaign.store import Store
from resperf.dataset import append_networks, read_dataset
from resperf.layers import Dense
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.network import graph_digest
from resperf.timing import KNOWN_READINGS

CAMPAIGN = Campaign.from_mapping(
    {"name": "tiny", "kinds": {"dense": {"batch": 1, "features_in": 8, "features_out": 8}}}
)


DEVICE = backend("synthetic")
WHERE: Any = {"setting": DEVICE.setting(), "platform": DEVICE.platform()}


def opened(folder: Path) -> Store:
    return Store(folder / "d.h5", CAMPAIGN, monitor=CpuMonitor(), **WHERE)


def test_a_machine_check_keeps_the_least_usual_time_that_any_process_found(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.usual["caches_check_ms"] = (0.1, 7)
    assert store.costs == {"caches_check_ms": 0.1}
    crashed = Dense(batch=1, features_in=8, features_out=8)
    store.add_row(Measurement(crashed, Status.CRASHED, **WHERE))
    store.compact()
    store.close(complete=False)
    again = opened(tmp_path)
    assert again.usual == {"caches_check_ms": (0.1, KNOWN_READINGS)}
    assert again.costs["caches_check_ms"] == 0.1
    again.close(complete=True)


def test_rows_of_networks_in_a_campaigns_dataset_stay(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"

    def row(width: int, at: float) -> Measurement:
        layer = Dense(batch=1, features_in=8, features_out=width)
        return Measurement(layer, Status.CRASHED, started_at=at, **WHERE)

    store = opened(tmp_path)
    store.add_row(row(1, 1.0))
    store.compact()
    store.close(complete=True)
    run = NetworkRef("net", graph_digest(b"graph"))
    append_networks(path, [Measurement(run, Status.TIMEOUT, **WHERE)], {run.digest: b"graph"})
    store = opened(tmp_path)
    store.add_row(row(2, 2.0))
    store.compact()
    store.close(complete=True)
    dataset = read_dataset(path)
    assert [row.subject.key for row in dataset.measurements] == [
        run.key, row(1, 1.0).subject.key, row(2, 2.0).subject.key,
    ]  # fmt: skip
    assert dataset.graphs == {run.digest: b"graph"}


def test_rows_of_networks_that_come_while_a_campaign_runs_stay(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    layer = Dense(batch=1, features_in=8, features_out=8)
    store = opened(tmp_path)
    store.add_row(Measurement(layer, Status.CRASHED, started_at=1.0, **WHERE))
    store.compact()
    run = NetworkRef("net", graph_digest(b"graph"))
    append_networks(path, [Measurement(run, Status.TIMEOUT, **WHERE)], {run.digest: b"graph"})
    for _ in range(2):
        store.compact()
    store.close(complete=True)
    dataset = read_dataset(path)
    assert [row.subject.key for row in dataset.measurements] == [run.key, layer.key]
    assert dataset.graphs == {run.digest: b"graph"}
