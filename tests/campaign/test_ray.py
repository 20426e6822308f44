"""Campaigns on nodes of Ray: real ones of this machine, each with processes of its own.

With five kills of each kind, and of all nodes: ``RESPERF_KILLS=5 pytest tests/campaign``.
Times of real layers with Ray over those without, in turns on a quiet machine:
``RESPERF_RATIO=8 pytest -s tests/campaign/test_ray.py -k ratio``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="pip install 'resperf[ray]'")

from resperf.campaign import Bench, Campaign, fleet, on_ray, plan_campaign, run_campaign
from resperf.campaign.fleet import run_on_cluster, run_on_hosts
from resperf.campaign.journal import read_journal
from resperf.campaign.store import journal_path
from resperf.dataset import merge_datasets, read_dataset, read_info
from resperf.devices.cluster import read_cluster
from resperf.errors import ResperfError
from resperf.measurement import Measurement, Status
from resperf.targets import register, target
from resperf.workflows.cluster import fitted_link

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("RESPERF_KILLS", "1"))
CHILD = "import sys, test_ray; test_ray.measure(*sys.argv[1:])"
STORE_BYTES = 80_000_000
PATIENCE_S = 60.0


def made(samples: int = 12, **changes: Any) -> Campaign:
    run = {"reference_interval_s": 0.0, "retry_wait_s": 0.0, "compact_interval_s": 0.5}
    sizes = {"law": "uniform", "low": 1, "high": 2000}
    kinds = {"dense": {"batch": 1, "features_in": sizes, "features_out": sizes}}
    values = {"name": "test", "samples": samples, "seed": 1, "repeat_share": 0.2, "run": run}
    return Campaign.from_mapping({**values, "kinds": kinds, **changes})


def counted(**settings: Any) -> Bench:
    import counted_target

    return Bench(register(counted_target.TARGET), settings)


def measure(samples: str, folder: str, address: str, settings: str) -> None:
    """Run or resume a campaign; what is killed."""
    bench = counted(**json.loads(settings))
    run_on_cluster(made(int(samples)), Path(folder), bench, address)


class Nodes:
    """A cluster of Ray with a head that has no processors, and the nodes that a test adds."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.nodes: list[Any] = []

    def need(self, count: int) -> None:
        """Let there be so many nodes."""
        while len(self.nodes) < count:
            self.add()
        while len(self.nodes) > count:
            self.remove()
        # Ray notes late what was killed.
        self._cluster.wait_for_nodes()

    def add(self, **options: int) -> None:
        given = {"num_cpus": 1, "object_store_memory": STORE_BYTES, **options}
        self.nodes.append(self._cluster.add_node(**given))

    def remove(self) -> None:
        """Kill the processes of a node."""
        self._cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def all_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patched:
        # Of nodes, and so of what measures there.
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "campaign")])
        patched.setenv("PYTHONPATH", path)
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_AUTH_MODE", "disabled")
        patched.setenv("RAY_memory_monitor_refresh_ms", "0")
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        nodes = Nodes()
        yield nodes
        nodes.close()


@pytest.fixture
def nodes(all_nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.syspath_prepend(ROOT / "tests")
    monkeypatch.setattr("resperf.targets._table", dict(sys.modules["resperf.targets"]._table))
    return all_nodes


def rows_of(folder: Path) -> list[Measurement]:
    return [row for path in sorted(folder.glob("*.h5")) for row in read_dataset(path).measurements]


def identities(folder: Path) -> Counter[tuple[str, int]]:
    """Read what is on disk: every file must open, whatever happened."""
    found = {(row.layer.key, row.repeat): 1 for row in rows_of(folder)}
    on_disk = Counter(found)
    for path in folder.glob("*.jsonl"):
        for row in read_journal(path).rows:
            on_disk[row.layer.key, row.repeat] = 1
    return on_disk


def planned(campaign: Campaign) -> set[tuple[str, int]]:
    found, *_ = plan_campaign(campaign, Bench(target("synthetic")))
    return {(item.layer.key, item.repeat) for item in found.items}


def content(row: Measurement) -> Any:
    """All of a row but when it was measured."""
    return row.layer.key, row.repeat, row.status, row.samples, row.setting, row.platform, row.flags


def test_rows_are_those_of_a_run_without_ray(nodes: Nodes, tmp_path: Path) -> None:
    nodes.need(1)
    [result] = run_on_cluster(made(), tmp_path / "ray", counted(), nodes.address)
    assert (result.reason, result.path.parent) == ("complete", tmp_path / "ray")
    assert not journal_path(result.path).exists()
    run_campaign(made(), tmp_path / "alone.h5", counted())
    alone, there = read_dataset(tmp_path / "alone.h5"), read_dataset(result.path)
    # Also what the measuring process says of itself: niceness, threads, oom_score_adj.
    assert [*map(content, there.measurements)] == [*map(content, alone.measurements)]
    options = there.info.setting.options
    assert (options["nice"], options["omp"]) == (str(os.nice(0)), os.environ["OMP_NUM_THREADS"])
    assert there.info.machine_costs == alone.info.machine_costs


def test_what_ray_set_is_refused_inside_the_measuring_process(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.need(1)
    monkeypatch.setattr(on_ray, "NICENESS", "7")
    with pytest.raises(
        ResperfError, match=r"niceness and OMP_NUM_THREADS .* are \(7, .*, not \(0, "
    ):
        run_on_cluster(made(), tmp_path, counted(), nodes.address)


def test_alike_devices_share_the_plan_and_repeat_each_others_layers(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.need(2)
    results = run_on_cluster(made(30), tmp_path, counted(real_ms=20.0), nodes.address)
    paths = [result.path for result in results]
    assert len(paths) == 2
    by_path = {path: read_dataset(path).measurements for path in paths}
    found = Counter((row.layer.key, row.repeat) for rows in by_path.values() for row in rows)
    assert found == dict.fromkeys(planned(made(30)), 1)
    assert min(map(len, by_path.values())) > 5
    first, second = ({(row.layer.key, row.repeat) for row in rows} for rows in by_path.values())
    repeated = {key for key, repeat in found if repeat}
    assert repeated
    for key in repeated:
        assert ((key, 0) in first) == ((key, 1) in second)
    merged = merge_datasets(paths, tmp_path / "all.h5")
    assert len(merged.measurements) == found.total()


def test_a_late_node_works_and_one_of_another_version_is_refused(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.need(1)
    other = tmp_path / "other"
    (other / "resperf").mkdir(parents=True)
    for path in (ROOT / "resperf").iterdir():
        if path.name != "_version.py":
            (other / "resperf" / path.name).symlink_to(path)
    (other / "resperf" / "_version.py").write_text('__version__ = "9.9"\n')
    folder = tmp_path / "rows"
    process = started("400", folder, nodes, real_ms=50.0)
    try:
        wait_for(lambda: len(identities(folder)) > 0)
        nodes.add()
        began_s = time.monotonic()
        wait_for(lambda: len(list(folder.glob("*-1.journal.jsonl"))) > 0)
        late = next(folder.glob("*-1.journal.jsonl"))
        wait_for(lambda: len(read_journal(late).rows) > 0)
        late_s = time.monotonic() - began_s
        monkeypatch.setenv("PYTHONPATH", str(other), prepend=os.pathsep)
        nodes.add()
        wait_for(lambda: "resperf 9.9 there" in (tmp_path / "stderr").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        nodes.remove()
    assert "is left out: " in (tmp_path / "stderr").read_text()
    print(f"a late node had a row after {late_s:.1f} s")  # noqa: T201
    assert late_s < 15.0
    assert len(list(folder.glob("*.h5"))) == 2


def started(samples: str, folder: Path, nodes: Nodes, **settings: Any) -> subprocess.Popen[bytes]:
    words = [samples, str(folder), nodes.address, json.dumps(settings)]
    with (folder.parent / "stderr").open("ab") as stderr:
        # Where it runs, nodes look for modules first.
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, *words], stderr=stderr, cwd=folder.parent
        )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers() -> list[psutil.Process]:
    """Return the measuring processes of nodes."""
    found = []
    for process in psutil.process_iter():
        try:
            words, parent = process.cmdline(), process.parent()
            if "resperf.campaign.worker" in words and parent and "NodeActor" in parent.name():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sorted(found, key=lambda process: process.pid)


def has_grown(folder: Path, rows: int, driver: subprocess.Popen[bytes]) -> bool:
    return driver.poll() is not None or len(identities(folder)) > rows


def kill(what: str, driver: subprocess.Popen[bytes], nodes: Nodes, source: random.Random) -> None:
    if what == "driver":
        driver.kill()
        driver.wait()
    elif what == "node":
        nodes.remove()
        nodes.add()
    else:
        wait_for(lambda: bool(workers()))
        process = source.choice(workers())
        killed = process if what == "process" else process.parent()
        assert killed is not None
        killed.kill()


def test_kills_lose_at_most_the_row_in_flight_of_each_device(nodes: Nodes, tmp_path: Path) -> None:
    nodes.need(2)
    source = random.Random(3)
    kinds = ["process", "actor", "node", "driver"] * KILLS
    samples, folder, log = 60 * len(kinds), tmp_path / "rows", tmp_path / "log"
    keys = Counter(key for key, _ in planned(made(samples)))
    # A subject that kills its actor gets a row that says so, when it did so twice.
    fatal = min(key for key, count in keys.items() if count == 1)
    settings = {"real_ms": 20.0, "log": str(log), "fatal": fatal}
    folder.mkdir()
    driver, killed = started(str(samples), folder, nodes, **settings), Counter[str]()
    for what in kinds:
        wait_for(partial(has_grown, folder, len(identities(folder)), driver))
        time.sleep(source.random() * 0.3)
        if driver.poll() is not None:
            break
        rows = identities(folder)
        kill(what, driver, nodes, source)
        killed[what] += 1
        assert not rows - identities(folder)
        if what == "driver":
            driver = started(str(samples), folder, nodes, **settings)
    assert driver.wait(5 * PATIENCE_S) == 0
    assert killed == Counter(kinds)
    found = Counter((row.layer.key, row.repeat) for row in rows_of(folder))
    assert found == dict.fromkeys(planned(made(samples)), 1)
    assert not list(folder.glob("*.jsonl"))
    # So has the subject of a killed measuring process; all others are measured.
    failed = {row.layer.key: row for row in rows_of(folder) if row.status is not Status.OK}
    assert failed.pop(fatal).status is Status.CRASHED
    assert {row.status for row in failed.values()} <= {Status.OUT_OF_MEMORY}
    assert len(failed) <= KILLS
    # Each kill costs at most one measurement per device that it ends: two of the driver's. The
    # fatal one is tried once more after each driver's end too.
    again = len(log.read_text().splitlines()) - found.total()
    assert again <= killed["actor"] + killed["node"] + 3 * killed["driver"] + 1
    wait_for(lambda: not workers())


def of_networks(folder: Path) -> Campaign:
    values = {"files": ["*.onnx"], "batches": [2], "seconds": 0.2, "repeats": 0}
    return Campaign.from_mapping({"name": "nets", "networks": values}, folder=folder)


@pytest.mark.skipif(KILLS == 1, reason="with RESPERF_KILLS=5")
def test_without_a_node_the_campaign_ends_and_keeps_its_rows(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.need(1)
    monkeypatch.setattr(fleet, "GONE_S", 0.1)

    def kill_later() -> None:
        wait_for(lambda: len(identities(tmp_path)) > 3)
        nodes.remove()

    killer = threading.Thread(target=kill_later)
    killer.start()
    with pytest.raises(ResperfError, match=r"no node is left: \d+ measurements are not taken"):
        run_on_cluster(made(200), tmp_path, counted(real_ms=20.0), nodes.address)
    killer.join()
    assert len(rows_of(tmp_path)) > 3


def test_unlike_gpus_of_a_node_each_measure_the_whole_plan(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import synthetic_gpu

    nodes.need(0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nodes.add(num_gpus=2)
    bench = Bench(register(synthetic_gpu.TARGET))
    try:
        results = run_on_cluster(made(5), tmp_path, bench, nodes.address)
    finally:
        nodes.remove()
    names = [read_info(result.path).platform.accelerators[0].name for result in results]
    assert sorted(names) == sorted([synthetic_gpu.CARD.name, synthetic_gpu.OTHER.name])
    assert sorted(result.path.stem[-2:] for result in results) == ["-0", "-1"]
    assert {result.rows for result in results} == {len(planned(made(5)))}


@pytest.mark.skipif("RESPERF_RATIO" not in os.environ, reason="needs a quiet machine")
def test_ratio_of_real_layers_with_ray_to_those_without(nodes: Nodes, tmp_path: Path) -> None:
    nodes.need(1)
    ratios: dict[str, list[float]] = {}
    for turn in range(int(os.environ["RESPERF_RATIO"])):
        campaign, folder = made(40, repeat_share=0.0), tmp_path / str(turn)
        run_campaign(campaign, tmp_path / f"{turn}.h5", Bench())
        [result] = run_on_cluster(campaign, folder, Bench(), nodes.address)
        alone, there = ({row.layer.key: row.value("execution_ms") for row in
                         read_dataset(path).measurements} for path in
                        (tmp_path / f"{turn}.h5", result.path))  # fmt: skip
        for key, time_ms in alone.items():
            ratios.setdefault(key, []).append(there[key] / time_ms)
    ratio = median(map(median, ratios.values()))
    print(f"with Ray / without: {ratio:.4f}, {len(ratios)} layers")  # noqa: T201
    assert 0.98 <= ratio <= 1.02


def test_hosts_share_training_steps(
    nodes: Nodes, tmp_path: Path, perceptron: Callable[..., Path]
) -> None:
    pytest.importorskip("torch")
    nodes.need(2)
    perceptron("a.onnx", 64, 32, 10)
    bench = Bench(target("torch", "cpu"), {"optimizer": "sgd"})
    [result] = run_on_hosts(of_networks(tmp_path), tmp_path, bench, nodes.address, [2])
    assert result.path.name == "2-hosts.h5"
    [row] = read_dataset(result.path).measurements
    assert row.status is Status.OK
    # Both nodes are this machine: nothing says that there were two.
    assert (row.platform.devices, row.platform.interconnect[:14]) == (2, "gloo on 1 host")
    assert row.value("allreduce_ms") > 0
    with pytest.raises(ResperfError, match=r"3 hosts with .* are not there, of 2 in all"):
        run_on_hosts(of_networks(tmp_path), tmp_path, bench, nodes.address, [3])


def test_links_are_fitted_to_all_reduces() -> None:
    # By hand: 2 us and 1 GB/s over four devices: 2 log2(4) us and 3/2 ns per byte.
    link = fitted_link([4e-6 + 1.5e-3, 4e-6 + 1.5e-2], [1_000_000, 10_000_000], 4, "gloo")
    assert link.latency_s == pytest.approx(2e-6)
    assert link.bandwidth_bytes_per_s == pytest.approx(1e9)


def test_a_cluster_is_described_and_one_machine_is_no_network(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    nodes.need(2)
    path = tmp_path / "lab.toml"
    words: tuple[object, ...] = ("cluster", "--ray", nodes.address, "--exchange", "-o", path)
    error = cli.error(*words)
    assert "2 nodes on 1 machine: what is exchanged inside a machine crosses no network" in error
    assert not path.exists()
    # As on machines of their own.
    monkeypatch.setattr("resperf.workflows.cluster.machines_of", len)
    document = cli.json(*words)
    assert [node["cores"] for node in document["nodes"]] == [psutil.cpu_count()] * 2
    assert document["totals"]["ram_bytes"]["sum"] <= 2 * psutil.virtual_memory().total
    assert document["between"]["name"] == "gloo between 2 nodes"
    assert document["between"]["bandwidth_bytes_per_s"] > 1e7
    assert read_cluster(path).devices == 2
    monkeypatch.setattr("resperf.workflows.cluster.survey", lambda _: read_cluster(path))
    words = ("predict", "lenet5", "--device", "t4", "--train", "--batch", "32", "--devices")
    assert "an exchange over 2 nodes of ray" in cli.text(*words, "1", "2", "--cluster", "ray")


def test_a_cluster_that_is_not_there_is_one_line(cli: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for words in (("cluster",), ("bench", "quick", "-o", tmp_path / "rows")):
        assert f"no cluster of Ray at '{address}'" in cli.error(*words, "--ray", address)
    assert not (tmp_path / "rows").exists()
