"""Training steps that hosts of a cluster share: a measuring process on each, of which one is asked.

Their processes join as those of one host do (`resperf.backends._torch_team`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from resperf.campaign import on_ray
from resperf.campaign.bench import Bench
from resperf.campaign.process import (
    ProcessLost,
    WorkerSettings,
)
from resperf.campaign.remote import RemoteDevice, RemoteProcess, versions_here
from resperf.campaign.runner import CampaignResult, run_campaign
from resperf.campaign.spec import Campaign
from resperf.errors import CampaignError


class HostsProcess(RemoteProcess):
    """The measuring process of the first of several hosts, and those of the others beside it.

    Parameters and errors are those of `RemoteProcess`, with a device of each host.
    """

    def __init__(
        self,
        devices: Sequence[RemoteDevice],
        settings: WorkerSettings,
        wants_stop: Callable[[], bool],
    ) -> None:
        first, *others = devices
        shared = {
            "count": len(devices),
            "machines": len({device.actor.call("machine") for device in devices}),
            "address": f"{first.actor.node.address}:{first.actor.call('free_port')}",
        }

        def of_host(rank: int) -> WorkerSettings:
            given = {**settings.settings, "hosts": {**shared, "rank": rank}}
            return replace(settings, settings=given)

        self._others: list[RemoteProcess] = []
        try:
            for rank, device in enumerate(others, 1):
                self._others.append(RemoteProcess(device, of_host(rank), wants_stop))
            # It waits for the others.
            super().__init__(first, of_host(0), wants_stop)
        except BaseException:
            self._close_others()
            raise

    def check(self) -> None:
        """Find out whether all devices still answer."""
        for process in self._others:
            process.check()
        super().check()

    def close(self) -> None:
        """End the processes, if their nodes are there."""
        super().close()
        self._close_others()

    def _close_others(self) -> None:
        for process in self._others:
            process.close()


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
                with on_ray.reserved(count, gpus) as nodes, ExitStack() as stack:
                    devices = [RemoteDevice(node, gpus, graphs) for node in nodes]
                    for device in devices:
                        stack.callback(device.end)
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
