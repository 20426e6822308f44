"""A campaign on a cluster: one dataset and journal for each device, all written here.

Unlike devices each measure the whole plan; alike ones share it. A device gets its next measurement
when the row of the last one is in its journal on this machine: whatever is killed, at most one row
per device is lost, and it is measured again.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from resperf.campaign import on_ray
from resperf.campaign.bench import Bench, plan_campaign
from resperf.campaign.journal import row_identity
from resperf.campaign.plan import Plan
from resperf.campaign.process import Interrupted, ProcessLost, WorkerProcess
from resperf.campaign.runner import CampaignResult, Run, hopeless, run_campaign, stop_signals
from resperf.campaign.spec import Campaign
from resperf.campaign.store import Store, written_rows
from resperf.campaign.work import Work
from resperf.errors import CampaignError, ResperfError
from resperf.heartbeat import Steps
from resperf.platform import Platform
from resperf.settings import Setting

POLL_S = 2.0
"""How often new nodes are looked for: they are to work within 15 s, and take some 5 to start."""
GONE_S = 600.0
"""How long a campaign waits for a node when none is left."""
MOST_LOSSES = 3
"""Losses without a row between them after which a device is left out."""
MOST_DEVICES = 1024
"""At once, each with a thread here."""
_GOES_ON = "all rows are kept in {}; the same command goes on from there"


class _Group(NamedTuple):
    """Alike devices, of which one is `platform`, and what they share."""

    setting: Setting
    platform: Platform
    plan: Plan
    work: Work


_Slot = tuple[str, int]
"""A device: the id of its node, and which of its GPUs."""


@dataclass
class _Fleet:
    """The devices that measure, each in a thread of this process.

    `ended` has those that are done, and the errors of those that are left out.
    """

    campaign: Campaign
    folder: Path
    bench: Bench
    hours: float | None
    stop: threading.Event
    results: dict[Path, CampaignResult] = field(default_factory=dict)
    ended: dict[_Slot, BaseException | None] = field(default_factory=dict)
    _groups: list[_Group] = field(default_factory=list)
    _running: dict[_Slot, Future[None]] = field(default_factory=dict)
    _losses: Counter[_Slot] = field(default_factory=Counter)
    _outputs: set[Path] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left(self) -> int:
        """Measurements without a row."""
        return sum(len(group.work) for group in self._groups)

    def measure_all(self) -> None:
        """Measure on every device that is there or comes, until all work is done."""
        seen_at = time.monotonic()
        with closing(Steps("rows", leave=True)) as steps, ThreadPoolExecutor(MOST_DEVICES) as pool:
            try:
                while not self._is_over and time.monotonic() < seen_at + GONE_S:
                    self._start(pool)
                    if self._running:
                        seen_at = time.monotonic()
                        wait(self._running.values(), POLL_S, FIRST_COMPLETED)
                    else:
                        self.stop.wait(POLL_S)
                    for slot in [slot for slot, future in self._running.items() if future.done()]:
                        self._note_end(slot, self._running.pop(slot).exception())
                    total = sum(len(group.plan.items) for group in self._groups)
                    steps.show(total - self.left, total, f"{len(self._running)} devices")
            except BaseException:
                self.stop.set()
                raise

    @property
    def _is_over(self) -> bool:
        """Whether all is measured, the time is up, or no device that is there can be used."""
        is_up = any(result.reason == "hours" for result in self.results.values())
        is_done = bool(self.ended) and not self.left
        return not self._running and (self.stop.is_set() or is_up or is_done)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Measure on devices that are free."""
        on_gpus = self.bench.target.on_gpus
        for node in [] if self.stop.is_set() else on_ray.nodes():
            for number in range(node.gpus if on_gpus else 1):
                slot = node.node_id, number
                if slot not in {*self._running, *self.ended}:
                    self._running[slot] = pool.submit(self._measure_on, node, slot)

    def _note_end(self, slot: _Slot, error: BaseException | None) -> None:
        """Note what became of a device; one that was lost may be tried again."""
        self._losses[slot] += isinstance(error, ProcessLost)
        is_lost = isinstance(error, ProcessLost) and self._losses[slot] < MOST_LOSSES
        if not is_lost and not isinstance(error, Interrupted):
            self.ended[slot] = error
            if error is not None and not isinstance(error, ResperfError):
                raise error

    def _measure_on(self, node: on_ray.RayNode, slot: _Slot) -> None:
        """Measure on a device until it or the work ends."""
        gpus = int(self.bench.target.on_gpus)
        try:
            there = on_ray.processes_on([node], self.bench.target, gpus, self.stop.is_set)
            with there as (start, names):
                own = self.bench.worker_settings(self.campaign)
                process, bench = start(own), replace(self.bench, start=start)
                with self._lock:
                    # The plan needs the same process, and does not end it.
                    planning = replace(bench, start=lambda it: process if it == own else start(it))
                    group = self._group(planning, process)
                    # By its GPU, or a number that no other node of the host has.
                    stem = self.folder / f"{process.platform.device}-{node.host}"
                    paths = (Path(f"{stem}-{number}.h5") for number in names or itertools.count())
                    output = next(path for path in paths if path not in self._outputs)
                    self._outputs.add(output)
                self._run_on(group, bench, process.platform, output, slot)
        except ResperfError as error:
            if not isinstance(error, Interrupted | ProcessLost):
                sys.stderr.write(f"\nnote: {node.host} is left out: {error}\n")
            raise

    def _group(self, bench: Bench, process: WorkerProcess) -> _Group:
        """Return the alike devices; plan for them, and leave out what they measured before."""
        setting, platform = process.setting, process.platform
        for group in self._groups:
            if setting == group.setting and not platform.kind.differences(group.platform):
                return group
        work = Work()
        for device, rows in written_rows(self.folder, self.campaign, setting, platform):
            again = set(map(row_identity, hopeless(rows)))
            work.note(set(map(row_identity, rows)) - again, device)
        plan, *_ = plan_campaign(self.campaign, bench)
        self._groups.append(_Group(setting, platform, plan, work))
        return self._groups[-1]

    def _run_on(
        self, group: _Group, bench: Bench, platform: Platform, output: Path, slot: _Slot
    ) -> None:
        plan, reason = group.plan, "lost"
        store = Store(
            output, self.campaign, setting=group.setting, platform=platform, monitor=plan.monitor,
            contents=plan.contents,
        )  # fmt: skip
        try:
            group.work.join(output.stem)
            run = Run(self.campaign, bench, plan, store, self.stop, self.hours, None, group.work,
                      output.stem)  # fmt: skip
            try:
                reason = run.measure_all()
            finally:
                store.compact()
                result = self.results[output] = run.result(output, reason)
                self._losses[slot] *= not result.measured
        finally:
            group.work.leave(output.stem)
            store.close(complete=reason == "complete")
            if reason == "lost":
                self._outputs.discard(output)


def run_on_cluster(
    campaign: Campaign, folder: Path, bench: Bench, address: str, *, hours: float | None = None
) -> list[CampaignResult]:
    """Run a campaign on all devices of a cluster of Ray's, or go on with it.

    Parameters
    ----------
    campaign : Campaign
    folder : Path
        Of the datasets, one for each device: DEVICE-HOST-NUMBER.h5.
    bench : Bench
        What to measure with.
    address : str
        Of the cluster (see `on_ray.connected`).
    hours : float, optional
        As in `run_campaign`, for each device.

    Returns
    -------
    list of CampaignResult
        One for each dataset.

    Raises
    ------
    CampaignError
        If no device can measure, or none is left before all is measured; rows are kept.
    """
    hours = campaign.run.time_limit(hours)
    with on_ray.connected(address), stop_signals() as stop:
        fleet = _Fleet(campaign, folder, bench, hours, stop)
        fleet.measure_all()
    results = [fleet.results[path] for path in sorted(fleet.results)]
    errors = [error for error in fleet.ended.values() if error is not None]
    if not results and errors:
        raise errors[0]
    if not results and stop.is_set():
        raise KeyboardInterrupt
    if not fleet.left and results:
        return [replace(result, reason="complete") for result in results]
    if any(result.reason in ("hours", "interrupted") for result in results):
        return results
    why = "; ".join(dict.fromkeys(map(str, errors))) or "no node is left"
    raise CampaignError(
        f"{why}: {fleet.left} measurements are not taken, {_GOES_ON.format(folder)}"
    )


def run_on_hosts(
    campaign: Campaign, folder: Path, bench: Bench, address: str, counts: Sequence[int], *,
    hours: float | None = None,
) -> list[CampaignResult]:  # fmt: skip
    """Run a campaign of training steps on numbers of hosts, one after the other.

    Parameters
    ----------
    campaign : Campaign
        Of networks alone.
    folder : Path
        Of the datasets, one for each number: N-hosts.h5.
    bench, address, hours
        As of `run_on_cluster`, for each number.
    counts : sequence of int

    Raises
    ------
    CampaignError
        If there are fewer hosts, or one is gone; rows are kept.
    """
    results: list[CampaignResult] = []
    on_gpus = bench.target.on_gpus
    gpus = int(bench.settings.get("processes", 1)) * on_gpus
    with on_ray.connected(address):
        for count in counts:
            output = folder / f"{count}-hosts.h5"
            try:
                with (
                    on_ray.reserved(count, gpus) as nodes,
                    on_ray.processes_on(nodes, bench.target, gpus) as (start, _),
                ):
                    there = replace(bench, start=start)
                    results.append(run_campaign(campaign, output, there, hours=hours))
            except ProcessLost as loss:
                raise CampaignError(f"{loss}: {_GOES_ON.format(folder)}") from loss
            if results[-1].reason == "interrupted":
                break
    return results
