"""A measuring process on a node of a cluster: an actor there owns it, and passes questions on."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from resperf._version import __version__
from resperf.backends.monitors import load_monitor
from resperf.campaign import on_ray
from resperf.campaign.networks import NetworkRun
from resperf.campaign.process import (
    START_TIMEOUT_S,
    Interrupted,
    MeasuringProcess,
    ProcessConditions,
    ProcessLost,
    Taken,
    WorkerProcess,
    WorkerSettings,
    oom_score_adj,
)
from resperf.campaign.runner import only_campaign_on
from resperf.errors import CampaignError
from resperf.layers import Layer
from resperf.network import graph_digest, weightless
from resperf.platform import Platform
from resperf.settings import Setting
from resperf.targets import Target, register, versions_of

LATE_S, LEAVE_S = 60.0, 10.0
"""How much later than the measuring process's own time-out an answer may come, and how long an
actor may take to leave."""


def versions_here(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions that all nodes must share: Python's, Ray's, resperf's and packages'."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"Python": python, "Ray": on_ray.version(), "resperf": __version__} | versions_of(
        packages
    )


class NodeActor:
    """Owns the measuring process on its node, whose main thread it is called in."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        # Else gloo takes that of the host's name, which is often the loopback.
        if interface := on_ray.own_interface():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        self._process: WorkerProcess | None = None
        self._conditions: ProcessConditions | None = None

    @on_ray.replying
    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Return this node's `versions_here`."""
        return versions_here(packages)

    @on_ray.replying
    def machine(self) -> str:
        """Return what tells this machine, as long as it runs, from others."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        return boot.read_text() if boot.exists() else socket.gethostname()

    @on_ray.replying
    def free_port(self) -> int:
        """Return a port on which nothing listens."""
        with socket.create_server(("", 0)) as listener:
            return int(listener.getsockname()[1])

    @on_ray.replying
    def reserve(self, target: Target, threads: str | None) -> list[str]:
        """Keep other campaigns off the device; return the names of the GPUs that are reserved.

        What Ray changes of its processes is changed back: what measures has the environment that it
        would have without Ray, `threads` being ``OMP_NUM_THREADS`` there.
        """
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        expected_adj = oom_score_adj(os.getppid())
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(expected_adj)
        nice = os.getpriority(os.PRIO_PROCESS, os.getppid())
        self._conditions = ProcessConditions(nice, threads, expected_adj)
        monitor = load_monitor(register(target), target.device_class)
        self._open.enter_context(only_campaign_on(monitor))
        return on_ray.reserved_gpus()

    @on_ray.replying
    def start(self, settings: WorkerSettings) -> tuple[Setting, Platform]:
        """Start a measuring process, in place of the last one."""
        self.close()
        self._process = WorkerProcess(replace(settings, conditions=self._conditions))
        return self._process.setting, self._process.platform

    @on_ray.replying
    def ask(self, question: str, arguments: Sequence[object], timeout_s: float) -> Any:
        """Pass a question on."""
        assert self._process is not None
        return self._process.ask(question, *arguments, timeout_s=timeout_s)

    @on_ray.replying
    def check(self) -> None:
        """Find out whether the device still answers."""
        if self._process is not None:
            self._process.check()

    @on_ray.replying
    def add_network(self, name: str, content: bytes) -> Path:
        """Write a network without weights, which are made up here; return its file."""
        path = self._folder / graph_digest(content) / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    @on_ray.replying
    def close(self) -> None:
        """End the measuring process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @on_ray.replying
    def leave(self) -> None:
        """End the measuring process, and leave nothing behind."""
        self.close()
        self._open.close()


class RemoteDevice:
    """A device of a node: its actor, and the networks that were sent there.

    Parameters
    ----------
    node : RayNode
    gpus : int
    graphs : dict
        Network file -> reference to its graph, for all devices of a campaign.

    Attributes
    ----------
    gpus : list of str
        Ray's names of those that were reserved.
    """

    def __init__(self, node: on_ray.RayNode, gpus: int, graphs: dict[Path, Any]) -> None:
        self.actor = on_ray.Actor(NodeActor, node, gpus)
        self.gpus: list[str] = []
        self._graphs = graphs
        self._there: dict[Path, Path] = {}

    def reserve(self, target: Target, versions: dict[str, str]) -> None:
        """Refuse a node with other versions; else keep other campaigns off the device.

        Parameters
        ----------
        target : Target
        versions : dict of str to str
            Those of all nodes; of what it lacks, the first node's are added.

        Raises
        ------
        CampaignError
            If versions differ, or another campaign is measuring on the device.
        """
        there: Mapping[str, str] = self.actor.call("versions", target.packages)
        for name, version in there.items():
            versions.setdefault(name, version)
        differ = [
            f"{name} {there.get(name, 'missing')} there, {version} here"
            for name, version in sorted(versions.items())
            if there.get(name) != version
        ]
        if differ:
            raise CampaignError(
                f"{self.actor.node.host} has other versions ({'; '.join(differ)}): install the "
                "same on every node"
            )
        self.gpus = self.actor.call("reserve", target, os.environ.get("OMP_NUM_THREADS"))

    def end(self) -> None:
        """Let its actor leave, if it is there."""
        self.actor.wants_stop = lambda: False
        with contextlib.suppress(ProcessLost):
            self.actor.call("leave", timeout_s=LEAVE_S)
        self.actor.end()

    def path_of(self, path: Path) -> Path:
        """Return where a network is on the node; send it if it is not yet there."""
        if path not in self._there:
            if path not in self._graphs:
                self._graphs[path] = on_ray.put(weightless(path))
            self._there[path] = self.actor.call("add_network", path.stem, self._graphs[path])
        return self._there[path]


class RemoteProcess(MeasuringProcess):
    """A measuring process on a node.

    Parameters
    ----------
    device : RemoteDevice
    settings : WorkerSettings
    wants_stop : callable
        As of `WorkerProcess`.

    Raises
    ------
    CampaignError, DeviceLostError
        As `WorkerProcess`.
    ProcessLost
        Now or later, if the node is gone.
    """

    def __init__(
        self, device: RemoteDevice, settings: WorkerSettings, wants_stop: Callable[[], bool]
    ) -> None:
        self._device, self._settings = device, settings
        device.actor.wants_stop = wants_stop
        self._start()

    def _start(self) -> None:
        self.setting, self.platform = self._device.actor.call("start", self._settings)

    def ask(self, question: str, *arguments: object, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Let the process call the method of that name of its `worker.Worker`."""
        return self._device.actor.call(
            "ask", question, arguments, timeout_s, timeout_s=timeout_s + LATE_S
        )

    def check(self) -> None:
        """Find out whether the device still answers."""
        self._device.actor.call("check")

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks, which are sent to the node."""
        return super().harvest([*map(self._device.path_of, paths)], batches)

    def measure_network(
        self, run: NetworkRun, repeat: int, seconds: float, timeout_s: float
    ) -> Taken:
        """Measure a whole network, which is sent to the node."""
        there = replace(run, path=self._device.path_of(run.path))
        return super().measure_network(there, repeat, seconds, timeout_s)

    def close(self) -> None:
        """End the process, if its node is there."""
        with contextlib.suppress(ProcessLost, Interrupted):
            self._device.actor.call("close")
