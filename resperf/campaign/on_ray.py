"""Ray: the nodes of a cluster, actors of ours on them, and the measuring processes of these.

Nothing else here imports Ray. `ray.nodes`, node affinity and ``RAY_worker_niceness`` are no stable
API: tried with Ray 2.60.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import ray
from ray import util
from ray.exceptions import RayError, RayTaskError
from ray.util import scheduling_strategies as strategies

from resperf._version import __version__
from resperf.backends.monitors import load_monitor
from resperf.campaign.networks import NetworkRun
from resperf.campaign.process import (
    LISTEN_S,
    START_TIMEOUT_S,
    Interrupted,
    ProcessLost,
    Taken,
    WorkerDied,
    WorkerProcess,
    WorkerSettings,
)  # fmt: skip
from resperf.campaign.runner import only_campaign_on
from resperf.errors import CampaignError, ResperfError, first_line, require
from resperf.layers import Layer
from resperf.network import graph_digest, weightless
from resperf.platform import Platform
from resperf.settings import Setting
from resperf.targets import Target, register, versions_of

NICENESS = "0"
"""Of actors beyond their node's; Ray's own is 15."""
CONNECT_S, FREE_S, LEAVE_S = 5.0, 60.0, 5.0
"""How long to wait for an answer, for what others have reserved, and for the end of an actor."""
OBJECTS_BYTES = 100_000_000
"""Of Ray's store, which holds graphs of networks only; by default it takes a third of memory."""


class RayNode(NamedTuple):
    """A node of Ray's that is there, and how actors get there."""

    node_id: str
    host: str
    gpus: int
    strategy: Any


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Join a cluster of Ray inside the ``with`` block.

    Parameters
    ----------
    address : str
        ``"HOST:PORT"``, ``"auto"`` (the one that runs on this machine) or ``"local"`` (one that is
        started here, and ends with the block).

    Raises
    ------
    ResperfError
        If there is no such cluster, or its Python or Ray is another.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == "local":
        # Else Ray ends what takes much memory, which is for the measuring process to say.
        options |= {"include_dashboard": False, "object_store_memory": OBJECTS_BYTES,
                    "_system_config": {"memory_monitor_refresh_ms": 0}}  # fmt: skip
    # Ray prints on stdout what becomes of nodes, which is for `--json`.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            if ":" in address:
                host, _, port = address.rpartition(":")
                # Ray would try for minutes, and then end this process.
                socket.create_connection((host, int(port)), CONNECT_S).close()
            context = ray.init(address=address, **options)
        except (RuntimeError, ValueError, OSError) as error:
            raise ResperfError(
                f"no cluster of Ray at {address!r} ({first_line(error)}); start one with "
                "`ray start --head`, or write --ray local or --ray HOST:PORT"
            ) from error
        with context:
            yield


def nodes() -> list[RayNode]:
    """Return the nodes that are there and have processors for work, in the order of their ids."""
    there = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    return [
        RayNode(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"].get("GPU", 0)),
                strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        for node in sorted(there, key=lambda node: str(node["NodeID"]))
    ]  # fmt: skip


@contextmanager
def reserved(count: int, gpus: int) -> Iterator[list[RayNode]]:
    """Reserve a processor and GPUs on each of so many nodes inside the ``with`` block.

    Raises
    ------
    ResperfError
        If so many nodes do not have them free.
    """
    needed = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
    group = util.placement_group([needed] * count, strategy="STRICT_SPREAD")
    try:
        by_id = {node.node_id: node for node in nodes()}
        if count > len(by_id) or not group.wait(FREE_S):
            raise ResperfError(
                f"{count} hosts with {needed} free are not there, of {len(by_id)} in all; add "
                "nodes, or wait for what runs on them"
            )
        ids = util.placement_group_table(group)["bundles_to_node_id"]
        in_group = strategies.PlacementGroupSchedulingStrategy
        yield [by_id[ids[index]]._replace(strategy=in_group(group, index))
               for index in range(count)]  # fmt: skip
    finally:
        util.remove_placement_group(group)


class Actor:
    """An object on a node, in a process of its own that ends with this one.

    Parameters
    ----------
    owner : class
        Of the object; importable on the node.
    node : RayNode
    gpus : int
        That are reserved for it; its process sees no others.
    wants_stop : callable
        Called every `LISTEN_S` while waiting for an answer.
    """

    def __init__(
        self, owner: type[Any], node: RayNode, gpus: int = 0,
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.node, self.wants_stop = node, wants_stop
        # Ray leaves alone what is set to nothing, and `owner` mends it.
        environment = {"RAY_worker_niceness": NICENESS, "OMP_NUM_THREADS": ""}
        remote = ray.remote(owner).options(
            num_cpus=0, num_gpus=gpus, scheduling_strategy=node.strategy,
            runtime_env={"env_vars": environment},
        )  # fmt: skip
        self._actor = remote.remote()

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Call a method; return what waits for its answer.

        Raises
        ------
        ProcessLost
            If the actor or its node is gone.
        Interrupted
            If asked to stop meanwhile.
        Exception
            What the method raises.
        """
        return partial(self._answer, getattr(self._actor, method).remote(*arguments))

    def _answer(self, asked: Any) -> Any:
        try:
            while not ray.wait([asked], timeout=LISTEN_S)[0]:
                if self.wants_stop():
                    raise Interrupted("interrupted")
            return ray.get(asked)
        except RayTaskError as error:
            raise error.cause from None
        except RayError as lost:
            # The last line of Ray's message says most.
            reason = str(lost).strip().splitlines()[-1].strip()
            raise ProcessLost(f"{self.node.host}: {reason}") from lost

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, and wait for its answer."""
        return self.ask(method, *arguments)()

    def end(self) -> None:
        """End its process, at once if it is busy, and with it what that started."""
        ray.wait([self._actor.__ray_terminate__.remote()], timeout=LEAVE_S)
        ray.kill(self._actor)


def call_all(actors: Sequence[Actor], method: str, *arguments: Sequence[Any]) -> list[Any]:
    """Call a method of several actors at once, each with its own arguments, or all without."""
    given = arguments or [()] * len(actors)
    asked = [actor.ask(method, *words) for actor, words in zip(actors, given, strict=True)]
    return [answer() for answer in asked]


class NodeActor:
    """Owns the measuring process on its node, whose main thread it is called in."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = TemporaryDirectory()
        self._process: WorkerProcess | None = None
        # Else gloo takes the interface of the host's name, which is often the loopback.
        for name, addresses in require("psutil", "bench").net_if_addrs().items():
            if util.get_node_ip_address() in {one.address for one in addresses}:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                os.environ.setdefault("NCCL_SOCKET_IFNAME", name)

    def reserve(
        self, target: Target, versions: Mapping[str, str], threads: str | None
    ) -> list[str]:
        """Keep other campaigns off the device; return Ray's names of the GPUs that are reserved.

        What Ray changes of its processes is changed back: what measures has the environment that it
        would have without Ray, `threads` being ``OMP_NUM_THREADS`` there.

        Raises
        ------
        CampaignError
            If `versions` are others here, or another campaign is measuring on the device.
        """
        here = versions_here(target)
        differ = [f"{name} {here.get(name, 'missing')} there, {version} here"
                  for name, version in versions.items() if here.get(name) != version]  # fmt: skip
        if differ:
            raise CampaignError(
                f"{socket.gethostname()} has other versions ({'; '.join(differ)}): install the "
                "same on every node"
            )
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update({} if threads is None else {"OMP_NUM_THREADS": threads})
        raylet = os.getppid()
        with contextlib.suppress(OSError):
            killed_early = Path(f"/proc/{raylet}/oom_score_adj").read_text()
            Path("/proc/self/oom_score_adj").write_text(killed_early)
        self._conditions = os.getpriority(os.PRIO_PROCESS, raylet), threads
        monitor = load_monitor(register(target), target.device_class)
        self._open.enter_context(only_campaign_on(monitor))
        return list(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))

    def start(self, settings: WorkerSettings) -> tuple[Setting, Platform]:
        """Start a measuring process, in place of the last one."""
        if self._process is not None:
            self._process.close()
        self._process = WorkerProcess(replace(settings, conditions=self._conditions))
        return self._process.setting, self._process.platform

    def ask(self, question: str, arguments: Sequence[object], timeout_s: float) -> Any:
        """Pass a question on."""
        assert self._process is not None
        return self._process.ask(question, *arguments, timeout_s=timeout_s)

    def add_network(self, name: str, content: bytes) -> Path:
        """Write a network without weights, which are made up here; return its file."""
        path = Path(self._folder.name) / graph_digest(content) / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def place(self) -> tuple[str, str]:
        """Return what tells this machine from others as long as it runs, and a free address."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        with socket.create_server(("", 0)) as listener:
            address = f"{util.get_node_ip_address()}:{listener.getsockname()[1]}"
        return boot.read_text() if boot.exists() else socket.gethostname(), address


def versions_here(target: Target) -> dict[str, str]:
    """Return the versions that all nodes must share; Ray sees to its own and Python's."""
    return {"resperf": __version__, **versions_of(target.packages)}


class RemoteProcess(WorkerProcess):
    """A measuring process on a node, or on several hosts that share training steps.

    It ends with its actor, or when the next one starts there.

    Parameters
    ----------
    actors : sequence of Actor
        Of `NodeActor`, after `reserve`; the first one's process is asked.
    settings, wants_stop
        As of `WorkerProcess`, and so are errors.

    Raises
    ------
    ProcessLost
        Now or later, if a node is gone.
    """

    def __init__(
        self, actors: Sequence[Actor], settings: WorkerSettings, *,
        wants_stop: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        self._actors, first = actors, actors[0]
        for actor in actors:
            actor.wants_stop = wants_stop or actor.wants_stop
        self._there = cache(lambda path: first.call("add_network", path.stem, weightless(path)))
        super().__init__(settings)

    def _start(self) -> None:
        hosts = {}
        if len(self._actors) > 1:
            machines, addresses = zip(*call_all(self._actors, "place"), strict=True)
            count = len(self._actors)
            hosts = {"count": count, "machines": len({*machines}), "address": addresses[0]}
        own = [{"hosts": {**hosts, "rank": rank}} if hosts else {}
               for rank in range(len(self._actors))]  # fmt: skip
        settings = ([replace(self._settings, settings={**self._settings.settings, **one})]
                    for one in own)  # fmt: skip
        (self.setting, self.platform), *_ = call_all(self._actors, "start", *settings)

    def ask(self, question: str, *arguments: object, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Let the process call the method of that name of its `worker.Worker`."""
        try:
            return self._actors[0].call("ask", question, arguments, timeout_s)
        except WorkerDied:
            # It also dies of a host that is gone.
            call_all(self._actors, "place")
            raise

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks, which are sent to the node."""
        return super().harvest([*map(self._there, paths)], batches)

    def measure_network(
        self, run: NetworkRun, repeat: int, seconds: float, timeout_s: float
    ) -> Taken:
        """Measure a whole network, which is sent to the node."""
        there = replace(run, path=self._there(run.path))
        return super().measure_network(there, repeat, seconds, timeout_s)

    def close(self) -> None:
        """Leave its end to its actor, which the next one needs."""


@contextmanager
def processes_on(
    nodes: Sequence[RayNode], target: Target, gpus: int,
    wants_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[partial[RemoteProcess], list[str]]]:  # fmt: skip
    """Return what starts measuring processes on nodes, and Ray's names of the first one's GPUs."""
    with ExitStack() as stack:
        actors = [Actor(NodeActor, node, gpus, wants_stop) for node in nodes]
        for actor in actors:
            stack.callback(actor.end)
        needed = target, versions_here(target), os.environ.get("OMP_NUM_THREADS")
        names = call_all(actors, "reserve", *[needed] * len(actors))
        yield partial(RemoteProcess, actors), names[0]
