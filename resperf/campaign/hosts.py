"""Training steps that hosts of a cluster share: a measuring process on each, of which one is asked.

Their processes join as those of one host do (`resperf.backends._torch_team`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from resperf.campaign import on_ray
from resperf.campaign.bench import Bench
from resperf.campaign.networks import NetworkRun
from resperf.campaign.process import (
    START_TIMEOUT_S,
    MeasuringProcess,
    ProcessLost,
    Taken,
    WorkerSettings,
)
from resperf.campaign.remote import RemoteDevice, RemoteProcess, versions_here
from resperf.campaign.runner import CampaignResult, run_campaign
from resperf.campaign.spec import Campaign
from resperf.errors import CampaignError


class HostsProcess(MeasuringProcess):
    """Measuring processes of several hosts, as one; parameters and errors as of `RemoteProcess`."""

    def __init__(
        self,
        devices: Sequence[RemoteDevice],
        settings: WorkerSettings,
        wants_stop: Callable[[], bool],
    ) -> None:
        self._devices, self._settings, self._wants_stop = devices, settings, wants_stop
        self._processes: list[RemoteProcess] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        port = self._devices[0].actor.call("free_port")
        shared = {
            "count": len(self._devices),
            "machines": len({device.actor.call("machine") for device in self._devices}),
            "address": f"{self._devices[0].actor.node.address}:{port}",
        }
        # The first one, which is asked, waits for the others.
        for rank, device in reversed([*enumerate(self._devices)]):
            given = {**self._settings.settings, "hosts": {**shared, "rank": rank}}
            own = replace(self._settings, settings=given)
            self._processes.append(RemoteProcess(device, own, self._wants_stop))
        self._first = self._processes[-1]
        self.setting, self.platform = self._first.setting, self._first.platform

    def ask(self, question: str, *arguments: object, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Let the first host's process call the method of that name of its `worker.Worker`."""
        return self._first.ask(question, *arguments, timeout_s=timeout_s)

    def check(self) -> None:
        """Find out whether all devices still answer."""
        for process in self._processes:
            process.check()

    def measure_network(
        self, run: NetworkRun, repeat: int, seconds: float, timeout_s: float
    ) -> Taken:
        """Measure a step of a network."""
        return self._first.measure_network(run, repeat, seconds, timeout_s)

    def close(self) -> None:
        """End the processes, if their nodes are there."""
        for process in self._processes:
            process.close()
        self._processes = []


def run_on_hosts(
    campaign: Campaign,
    folder: Path,
    bench: Bench,
    address: str,
    counts: Sequence[int],
    *,
    hours: float | None = None,
) -> list[CampaignResult]:
    """Run a campaign of training steps on numbers of hosts, one after the other.

    Parameters
    ----------
    campaign : Campaign
        Of networks alone.
    folder : Path
        Of the datasets, one for each number: N-hosts.h5.
    bench : Bench
    address : str
        Of the cluster (see `on_ray.connected`).
    counts : sequence of int
    hours : float, optional
        As in `run_campaign`, for each number.

    Raises
    ------
    CampaignError
        If there are fewer hosts, or one is gone; rows are kept.
    """
    graphs: dict[Path, Any] = {}
    results: list[CampaignResult] = []
    on_gpus = bench.target.device_class == "cuda"
    gpus = int(bench.settings.get("processes", 1)) * on_gpus
    with on_ray.connected(address):
        present = len(on_ray.nodes())
        if max(counts) > present:
            raise CampaignError(
                f"{max(counts)} hosts are more than the {present} that the cluster has; add nodes"
            )
        versions = versions_here(bench.target.packages)
        for count in counts:
            output = folder / f"{count}-hosts.h5"
            try:
                with on_ray.reserved(count, gpus) as nodes:
                    devices = [RemoteDevice(node, gpus, graphs) for node in nodes]
                    for device in devices:
                        device.reserve(bench.target, versions)
                    start = (partial(HostsProcess, devices) if count > 1
                             else partial(RemoteProcess, devices[0]))  # fmt: skip
                    there = replace(bench, start=start)
                    results.append(run_campaign(campaign, output, there, hours=hours))
            except ProcessLost as loss:
                raise CampaignError(
                    f"{loss}: all rows are kept in {folder}; the same command goes on from there"
                ) from loss
            if results[-1].reason == "interrupted":
                break
    return results
