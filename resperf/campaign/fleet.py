"""A campaign on all devices of a cluster: one dataset and journal for each, all written here.

Unlike devices each measure the whole plan; alike ones share it. A device gets its next measurement
when the row of the last one is in its journal on this machine: whatever is killed, at most one row
per device is lost, and it is measured again.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from resperf.campaign import on_ray
from resperf.campaign.bench import Bench, plan_campaign
from resperf.campaign.journal import row_identity
from resperf.campaign.plan import Plan
from resperf.campaign.process import Interrupted, ProcessLost
from resperf.campaign.remote import RemoteDevice, RemoteProcess, versions_here
from resperf.campaign.runner import CampaignResult, Run, hopeless, stop_signals
from resperf.campaign.spec import Campaign
from resperf.campaign.store import Store, written_rows
from resperf.campaign.work import MOST_LOSSES, Work
from resperf.errors import CampaignError, DeviceLostError, ResperfError
from resperf.heartbeat import Steps
from resperf.platform import Platform
from resperf.settings import Setting

POLL_S = 2.0
"""How often new nodes are looked for: they are to work within 15 s, and take some 5 to start."""
GONE_S = 600.0
"""How long a campaign waits for a node when none is left."""
LOST = "lost"
"""Reason of a device's end: it went, and did not come back."""


@dataclass
class _Group:
    """Alike devices, of which one is `platform`, and what they share."""

    setting: Setting
    platform: Platform
    plan: Plan
    work: Work

    def takes(self, setting: Setting, platform: Platform) -> bool:
        """Whether a device is one of them."""
        return setting == self.setting and not platform.kind.differences(self.platform)


@dataclass(frozen=True)
class _Slot:
    """A device of a node: one of its GPUs, or the node."""

    node: on_ray.RayNode
    number: int


@dataclass
class _Fleet:
    """The devices that measure, each in a thread of this process."""

    campaign: Campaign
    folder: Path
    bench: Bench
    hours: float | None
    stop: threading.Event
    steps: Steps
    versions: dict[str, str]
    results: dict[Path, CampaignResult] = field(default_factory=dict)
    failures: dict[_Slot, Exception] = field(default_factory=dict)
    groups: list[_Group] = field(default_factory=list)
    _graphs: dict[Path, Any] = field(default_factory=dict)
    _running: dict[_Slot, threading.Thread] = field(default_factory=dict)
    _done: set[_Slot] = field(default_factory=set)
    _losses: Counter[_Slot] = field(default_factory=Counter)
    _outputs: dict[_Slot, Path] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: queue.SimpleQueue[_Slot] = field(default_factory=queue.SimpleQueue)

    def measure_all(self) -> None:
        """Measure on every device that is there or comes, until all work is done."""
        gone_at = math.inf
        try:
            while not self.stop.is_set():
                for slot in [*self._free_slots()]:
                    self._running[slot] = threading.Thread(target=self._serve, args=[slot])
                    self._running[slot].start()
                if self._running:
                    gone_at = math.inf
                elif self._is_done or time.monotonic() > gone_at:
                    return
                elif math.isinf(gone_at):
                    gone_at = time.monotonic() + GONE_S
                    self.steps.say(f"no node can measure now; waiting {GONE_S:g} s for one")
                self._wait(POLL_S)
                self._show()
        finally:
            unforeseen = [e for e in self.failures.values() if not isinstance(e, ResperfError)]
            if unforeseen:
                self.stop.set()
            while self._running:
                self._wait(POLL_S)

    @property
    def _is_done(self) -> bool:
        """Whether all is measured, the time is up, or no device that is there can be used."""
        hours_up = any(result.reason == "hours" for result in self.results.values())
        left = any(len(group.work) for group in self.groups)
        return bool(self._done or self.failures) and (hours_up or not left)

    def _free_slots(self) -> Iterator[_Slot]:
        on_gpus = self.bench.target.device_class == "cuda"
        for node in on_ray.nodes():
            for number in range(node.gpus if on_gpus else 1):
                slot = _Slot(node, number)
                if slot not in self._running and slot not in self._done | self.failures.keys():
                    yield slot

    def _wait(self, seconds: float) -> None:
        """Wait for the end of a thread."""
        try:
            slot = self._ended.get(timeout=seconds)
        except queue.Empty:
            return
        self._running.pop(slot).join()

    def _serve(self, slot: _Slot) -> None:
        """Measure on a device until it or the work ends; what becomes of it is noted."""
        try:
            gpus = int(self.bench.target.device_class == "cuda")
            device = RemoteDevice(slot.node, gpus, self._graphs)
            device.actor.wants_stop = self.stop.is_set
            try:
                self._measure_on(device, slot)
                self._done.add(slot)
            finally:
                device.end()
        except Interrupted:
            pass
        except ProcessLost as loss:
            self._losses[slot] += 1
            if self._losses[slot] >= MOST_LOSSES:
                self._refuse(slot, CampaignError(f"lost {MOST_LOSSES} times in a row: {loss}"))
        except Exception as error:
            self._refuse(slot, error)
        finally:
            self._ended.put(slot)

    def _refuse(self, slot: _Slot, error: Exception) -> None:
        self.failures[slot] = error
        self.steps.say(f"{slot.node.host} is left out: {error}")

    def _measure_on(self, device: RemoteDevice, slot: _Slot) -> None:
        device.reserve(self.bench.target, self.versions)
        bench = replace(self.bench, start=partial(RemoteProcess, device))
        with self._lock:
            group = None if self.groups else self._planned(bench)
        if group is None:
            with bench.process(bench.worker_settings(self.campaign)) as process:
                setting, platform = process.setting, process.platform
            with self._lock:
                alike = (group for group in self.groups if group.takes(setting, platform))
                group = next(alike, None) or self._planned(bench)
        else:
            platform = group.platform
        with self._lock:
            output = self._output(slot, platform, device.gpus)
        self._run_on(group, bench, output, platform, slot)

    def _planned(self, bench: Bench) -> _Group:
        """Plan for a device of a new kind, and leave out what is measured on such ones."""
        plan, setting, platform = plan_campaign(self.campaign, bench)
        work = Work()
        for written in written_rows(self.folder, self.campaign, setting, platform.kind):
            again = set(map(row_identity, hopeless(written.rows)))
            rows = {*map(row_identity, (*written.settled, *written.rows))} - again
            work.note(rows, written.device)
        self.groups.append(_Group(setting, platform, plan, work))
        return self.groups[-1]

    def _output(self, slot: _Slot, platform: Platform, gpus: Sequence[str]) -> Path:
        """Name a device's dataset: by its GPU, or a number that no other node of the host has."""
        used = {*self._running, *self._done} - {slot}
        taken = {self._outputs.get(other) for other in used}
        for number in gpus or map(str, itertools.count()):
            path = self.folder / f"{platform.device}-{slot.node.host}-{number}.h5"
            if path not in taken:
                self._outputs[slot] = path
                return path
        raise AssertionError("Ray reserves a GPU once")

    def _run_on(
        self, group: _Group, bench: Bench, output: Path, platform: Platform, slot: _Slot
    ) -> None:
        plan, work = group.plan, group.work
        store = Store(
            output, self.campaign, setting=group.setting, platform=platform, monitor=plan.monitor,
            contents=plan.contents,
        )  # fmt: skip
        reason = LOST
        try:
            work.join(output.stem)
            run = Run(self.campaign, bench, plan, store, self.stop, self.hours, None, work,
                      output.stem, is_shown=False)  # fmt: skip
            try:
                reason = run.measure_all()
            except (ProcessLost, DeviceLostError):
                if run.taken:
                    self._losses[slot] = 0
                raise
            finally:
                store.compact()
                self.results[output] = run.result(output, reason)
        finally:
            work.leave(output.stem)
            store.close(complete=reason == "complete")

    def _show(self) -> None:
        total = sum(len(group.plan.items) for group in self.groups)
        left = sum(len(group.work) for group in self.groups)
        self.steps.show(total - left, total, f"{len(self._running)} devices")


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
        steps = Steps("rows", leave=True)
        versions = versions_here(bench.target.packages)
        fleet = _Fleet(campaign, folder, bench, hours, stop, steps, versions)
        try:
            fleet.measure_all()
        finally:
            steps.close()
    failures = fleet.failures.values()
    for error in failures:
        if not fleet.results or not isinstance(error, ResperfError):
            raise error
    if stop.is_set() and not fleet.results:
        raise KeyboardInterrupt
    left = sum(len(group.work) for group in fleet.groups)
    if not fleet.results or (
        left and all(result.reason in (LOST, "complete") for result in fleet.results.values())
    ):
        why = "; ".join(dict.fromkeys(map(str, failures))) or "no node is left"
        raise CampaignError(
            f"{why}: {left} measurements are not taken, all rows are kept in {folder}; the same "
            "command goes on from there"
        )
    return [fleet.results[path] for path in sorted(fleet.results)]
