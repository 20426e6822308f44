"""The runner: measures a plan in a child process, and loses at most the row in flight."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, Any

from resperf.backends.monitors import Monitor, Reading
from resperf.campaign.adaptive import Acquisition, Batches, first_batch
from resperf.campaign.bench import Bench, plan_campaign
from resperf.campaign.journal import is_noisy, row_identity, usual_states
from resperf.campaign.networks import NetworkRun
from resperf.campaign.plan import Plan, Planned
from resperf.campaign.process import (
    LISTEN_S,
    Interrupted,
    ProcessLost,
    Taken,
    WorkerDied,
    WorkerProcess,
)  # fmt: skip
from resperf.campaign.spec import Campaign
from resperf.campaign.work import Work
from resperf.disk_cache import folder_of
from resperf.errors import CampaignError, DeviceLostError
from resperf.files import lock
from resperf.heartbeat import Steps
from resperf.layers import Layer
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.units import format_duration

if TYPE_CHECKING:
    from resperf.campaign.store import Store


@contextmanager
def only_campaign_on(monitor: Monitor) -> Iterator[None]:
    """Keep other campaigns and measurements off the device inside the ``with`` block.

    The lock is a file in the cache folder; the system releases it however this process ends. Where
    there can be no such file, nothing is locked.

    Raises
    ------
    CampaignError
        If another one measures on it.
    ResperfError
        If the device is not there.
    """
    name = monitor.exclusive
    if not name:
        yield
        return
    with ExitStack() as stack:
        try:
            path = folder_of("locks") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield
            return
        stack.callback(os.close, file)
        if not lock(file):
            holder = os.read(file, 20).decode(errors="replace").strip()
            raise CampaignError(
                f"another resperf (process {holder}) is measuring on {monitor.device}; wait for "
                "it to end, or choose another device"
            )
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield


COSTS_INTERVAL_S = 100.0
"""Seconds after which the machine's costs are measured again, which takes about three."""
HOPELESS = 25
"""Subjects in a row that may end the measuring process before the campaign gives up."""


@dataclass(frozen=True)
class CampaignResult:
    """How a campaign's start ended.

    Attributes
    ----------
    path : Path
        The dataset.
    reason : str
        ``"complete"``, ``"hours"`` (time was up) or ``"interrupted"``.
    rows : int
        Rows in the dataset.
    networks : int
        Those of them that are of whole networks.
    statuses : mapping of str to int
        Rows per status.
    measured : int
        Measurements that this start took, those taken again included.
    again : int
        Those taken again because they were noisy.
    noisy : int
        Rows of the dataset that still are.
    elapsed_s : float
        Wall time of the measuring, plan excluded.
    overhead_s : float
        Median over layers of the wall time outside warm-up and samples, journal included.
    notes : tuple of str
        What the plan left out, and why.
    choosing_s : float
        Wall time that an adaptive campaign took to choose layers, of `elapsed_s`.
    failure : str
        First line of the most frequent message of failed rows; empty if none failed.
    """

    path: Path
    reason: str
    rows: int
    statuses: Mapping[str, int]
    measured: int
    again: int
    noisy: int
    elapsed_s: float
    overhead_s: float
    notes: tuple[str, ...] = ()
    choosing_s: float = 0.0
    networks: int = 0
    failure: str = ""


def run_campaign(
    campaign: Campaign,
    output: Path,
    bench: Bench,
    *,
    hours: float | None = None,
    acquisition: Acquisition | None = None,
    anew: bool = False,
    usual_ms: Mapping[str, float] | None = None,
) -> CampaignResult:
    """Run a campaign, or go on with it where an earlier start ended.

    Every row is in the journal beside `output` before the next measurement starts; the dataset is
    written every few minutes and at the end. Ctrl-C and SIGTERM end it cleanly.

    Parameters
    ----------
    campaign : Campaign
    output : Path
        The dataset (HDF5).
    bench : Bench
        What to measure with.
    hours : float, optional
        Time after which to stop, from the first measurement on; by default that of the campaign's
        file, if it has one.
    acquisition : callable, optional
        Lets the campaign choose layers by what is known so far (see `campaign.adaptive`); all are
        drawn plainly without it.
    anew : bool
        Measure networks again that an earlier, finished start measured, as repeats. The journal
        stays: as long as it is there, this call goes on or has nothing to do.
    usual_ms : mapping of str to float, optional
        Usual times of the monitor's checks (`Monitor.usual_costs`), where the dataset has none.

    Raises
    ------
    CampaignError
        If it cannot be planned or started, another one is measuring on the same GPU, or `output`
        holds rows of another machine or campaign.
    DeviceLostError
        If the device does not answer any more; all rows are kept.
    DatasetError
        If `output` is damaged.
    OutputError
        If it cannot be written.
    """
    # The measuring process imports this package too, and has no use for h5py.
    from resperf.campaign.store import Store

    hours = campaign.run.time_limit(hours)
    with only_campaign_on(bench.monitor()) if bench.start is None else nullcontext():
        planned, setting, platform = plan_campaign(campaign, bench)
        store = Store(
            output,
            campaign,
            setting=setting,
            platform=platform,
            monitor=planned.monitor,
            contents=planned.contents,
            usual_ms=usual_ms,
        )
        if anew:
            planned = _anew(planned, store.settled)
        complete = False
        try:
            with stop_signals() as stop:
                batches = acquisition and Batches(planned, acquisition, first_batch(planned, hours))
                run = Run(campaign, bench, planned, store, stop, hours, batches)
                reason = run.measure_all()
            store.compact()
        except DeviceLostError as error:
            store.compact()
            raise DeviceLostError(
                f"{error}. {len(store.rows) + len(store.settled)} rows are kept in {output}; the "
                "same command goes on from there"
            ) from error
        else:
            complete = reason == "complete" and not anew
        finally:
            store.close(complete=complete)
    return run.result(output, reason)


def _anew(planned: Plan, settled: Sequence[Measurement]) -> Plan:
    """Give measurements of networks numbers behind those of earlier, finished starts."""
    repeats: dict[tuple[Hashable, ...], int] = {}
    for row in settled:
        repeats[row.identity] = max(row.repeat + 1, repeats.get(row.identity, 0))
    items = (
        replace(item, repeat=item.repeat + repeats.get(item.identity[:-1], 0))
        for item in planned.items
    )
    return replace(planned, items=tuple(items))


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into a request to stop; a second one is not held back."""
    stop = threading.Event()
    previous: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def request(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, request)
    try:
        yield stop
    finally:
        restore()


@dataclass
class Run:
    """One start of a campaign on one device: what is left to do, and the process that does it.

    `work` may be shared with other devices; this one is called `device` there.
    """

    campaign: Campaign
    bench: Bench
    plan: Plan
    store: Store
    stop: threading.Event
    hours: float | None
    batches: Batches | None
    work: Work = field(default_factory=Work)
    device: str = ""

    def __post_init__(self) -> None:
        self._notes, self._deadline = self.plan.notes, math.inf
        self._worker: WorkerProcess | None = None
        self._measures: tuple[dict[str, Any], bool] = ({}, False)
        self._usual_under: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
        self._usual_under[json.dumps({})] = self.store.usual
        self._asked = 0
        self._costs_at = -math.inf
        self._crashes = 0
        self._taken = 0
        self._failed = 0
        self._gaps_s: list[float] = []
        self._choosing_s, self._chose_all = 0.0, False
        self._again = 0
        self._elapsed_s = 0.0
        self._total, self._spent_s = 0, 0.0
        self._queue_work()
        layers = self._known_layers()
        excluded = [key for key, layer in layers.items() if self.plan.stream.is_excluded(layer)]
        if excluded:
            self._notes += (
                f"{len(excluded)} layers of the excluded networks were measured by an earlier "
                "start and stay in the dataset; resperf train --exclude leaves them out of "
                "training",
            )
        # The devices of a cluster share one bar.
        shown = "" if self.device else "rows"
        self._steps = Steps(shown, total=self._total, done=self._done, leave=True)

    def _queue_work(self) -> None:
        """Leave out what is measured; noisy rows of the journal go to the end of the queue."""
        self._planned = {item.identity: item for item in self.plan.items}
        last = hopeless(self.store.rows)
        self._anew = frozenset(map(row_identity, last))
        rows = self.store.rows[: len(self.store.rows) - len(last)]
        self._attempts = Counter(map(row_identity, rows))
        self._retries_left = -sum(count - 1 for count in self._attempts.values())
        if self.batches is None:
            self._queue(self.plan.items)
        else:
            self._queue(self.batches.first_items())
            self._queue(self.batches.earlier_items(self._known_layers().values()))
            self._queue(self.plan.networks)
        self._done = self._total - len(self.work)
        self._waiting: deque[tuple[float, Planned]] = deque()
        journalled = {row_identity(row): row for row in self.store.rows}
        self._unsettled = list(journalled.values())
        self._settle()

    def _known_rows(self) -> list[Measurement]:
        return [*self.store.settled, *self.store.rows]

    def _known_layers(self) -> dict[str, Layer]:
        """Return the layers that have rows, by key."""
        subjects = [row.subject for row in self._known_rows()]
        return {subject.key: subject for subject in subjects if not isinstance(subject, NetworkRef)}

    def _end_reason(self) -> str:
        """Say why to stop, if there is a reason."""
        if time.monotonic() >= self._deadline:
            return "hours"
        return "interrupted" if self.stop.is_set() else ""

    def _queue(self, items: Sequence[Planned]) -> None:
        """Append measurements to those that are to be taken, but for those that are there."""
        done = {row_identity(row) for row in self._known_rows()} - self._anew
        self.work.add((item, self.plan.item_s(item)) for item in items if item.identity not in done)
        self._total += len(items)
        self._retries_left += round(self.campaign.run.retry_share * len(items))

    def _extend(self) -> None:
        """Queue the next batch of a campaign that chooses its layers by what it knows."""
        if self.batches is None or self._chose_all or self._end_reason():
            return
        start = time.monotonic()
        self.store.compact()
        measured = set(self._known_layers())
        try:
            items = self.batches.next_items(self._ready_worker(), self.store.output, measured)
        except WorkerDied as death:
            raise CampaignError(
                f"choosing layers ended the measuring process: {death.detail}; all rows are in the "
                "journal"
            ) from death
        self._queue(items)
        self._chose_all = not items
        self._choosing_s += time.monotonic() - start

    def measure_all(self) -> str:
        """Measure until the plan is done, the time is up or the campaign is to stop."""
        start = time.monotonic()
        compact_at = start + self.campaign.run.compact_interval_s
        with ExitStack() as stack:
            stack.callback(self._end_worker)
            stack.callback(self._steps.close)
            try:
                while (item := self._next()) is not None:
                    # The hours count from the first measurement on: planning may take long.
                    if self.hours is not None and math.isinf(self._deadline):
                        self._deadline = time.monotonic() + self.hours * 3600
                    if reason := self._end_reason():
                        return reason
                    self._measure(*item)
                    self._elapsed_s = time.monotonic() - start
                    self._show(start)
                    if time.monotonic() >= compact_at:
                        compact_at = self._compact()
            except Interrupted:
                return self._end_reason() or "interrupted"
        if not len(self.work) and (self.batches is None or self._chose_all):
            return "complete"
        return self._end_reason() or "complete"

    def _compact(self) -> float:
        """Write the dataset; return when to do so again, a twentieth of the time at most."""
        start = time.monotonic()
        self.store.compact()
        stop = time.monotonic()
        return stop + max(self.campaign.run.compact_interval_s, 20 * (stop - start))

    def _next(self) -> tuple[Planned, float, bool] | None:
        """Take what is to be measured next: its predicted time, and whether it is taken again."""
        while True:
            if self._waiting and self._waiting[0][0] <= time.monotonic():
                return self._waiting.popleft()[1], 0.0, True
            if not len(self.work):
                self._extend()
            if item := self.work.take(self.device):
                return *item, False
            if self._unsettled and self._worker is not None:
                self._read_reference()
            if self._waiting:
                return self._waiting.popleft()[1], 0.0, True
            if not len(self.work) or self._end_reason():
                return None
            # What others are measuring comes back if they are lost.
            time.sleep(LISTEN_S)

    def _ask(self, item: Planned) -> Taken:
        """Let the measuring process measure a layer or a network."""
        networks = self.campaign.networks
        if item.run is None or networks is None:
            return self._ready_worker().measure(
                item.layer, item.repeat, self.campaign.run.timeout_s
            )
        return self._ready_worker(item.run).measure_network(
            item.run, item.repeat, networks.seconds, networks.timeout_s
        )

    def _measure(self, item: Planned, cost_s: float, again: bool) -> None:
        """Measure one subject and write its row, whatever became of it."""
        start, asked_at = time.monotonic(), time.time()
        setting = self.store.setting if item.run is None else item.run.setting
        try:
            taken = self._ask(item)
            row = replace(
                taken.row, subject=item.subject, setting=setting, platform=self.store.platform
            )
            self._add_reading(taken.reading)
            self._usual.update(taken.usual)
            self._crashes = 0
        except (WorkerDied, ProcessLost) as death:
            if isinstance(death, ProcessLost) and not self.work.lose(item):
                raise
            row = Measurement(
                subject=item.subject,
                status=death.status,
                setting=setting,
                platform=self.store.platform,
                started_at=asked_at,
                duration_s=time.time() - asked_at,
                repeat=item.repeat,
                detail=str(death),
            )
            self._crashes += 1
            self._end_worker()
        self.store.add_row(row)
        self.work.finish(self.device)
        self._taken += 1
        self._failed += row.status is not Status.OK
        self._attempts[item.identity] += 1
        self._again += again
        self._done += not again
        self._spent_s += cost_s
        self._unsettled.append(row)
        if item.run is not None or not len(self.store.readings):
            self._settle()
        if row.status is Status.OK:
            self._gaps_s.append(time.monotonic() - start - (row.duration_s - row.overhead_s))
        if self._crashes >= HOPELESS:
            raise CampaignError(
                f"{HOPELESS} subjects in a row ended the measuring process; the last said: "
                f"{row.detail}; all rows are in the journal, mend the cause and start again"
            )

    def _add_reading(self, reading: Reading | None) -> None:
        """Add a reading of the device, which settles the rows before it."""
        if reading is not None:
            self.store.add_reading(reading)
            self._settle()

    def _read_reference(self) -> None:
        """Take a last reading, so that the last rows lie between two."""
        if self._worker is not None:
            try:
                self._add_reading(self._worker.reading())
            except WorkerDied:
                self._end_worker()
        self._settle()

    def _settle(self) -> None:
        """Queue the noisy ones among the rows that lie between two readings by now."""
        rows, self._unsettled = self._unsettled, []
        # Rows of an earlier, finished start have lost the flags that were usual then.
        usual = usual_states(self.store.rows, self.plan.monitor.device_states)
        for row in rows:
            identity = row_identity(row)
            item: Planned | None = Planned(row.subject, row.repeat)
            if isinstance(row.subject, NetworkRef):
                # A network that is not planned any more is not measured again.
                item = self._planned.get(identity)
            if (
                is_noisy(row, self.store.readings, usual)
                and self._attempts[identity] <= self.campaign.run.retries
                and self._retries_left > 0
                and item is not None
            ):
                self._retries_left -= 1
                self._waiting.append((time.monotonic() + self.campaign.run.retry_wait_s, item))

    @property
    def _usual(self) -> dict[str, tuple[float, int]]:
        """What the monitor knows of its usual times under the process's setting."""
        return self._usual_under[json.dumps(self._measures[0])]

    def _ready_worker(self, run: NetworkRun | None = None) -> WorkerProcess:
        """Return the measuring process: a fresh one after a death, or for other settings.

        It measures layers, or networks under one setting, and is replaced after many of them.
        """
        measures = (dict(run.options) if run is not None else {}, run is not None)
        if self._worker is not None and measures != self._measures:
            if self._unsettled:
                # The last layers lie between two readings by the same process.
                self._read_reference()
            self._end_worker()
        recycle = self.campaign.run.recycle_layers or self.bench.target.recycle_layers
        if self._worker is not None and self._asked >= recycle:
            self._end_worker()
        self._measures = measures
        if self._worker is None:
            settings = replace(
                self.bench.worker_settings(self.campaign, measures[0]),
                usual=self._usual,
                networks=measures[1],
            )
            start = self.bench.start or WorkerProcess
            self._worker = start(settings, wants_stop=self.stop.is_set)
            self._asked = 0
        if not measures[0] and time.monotonic() >= self._costs_at:
            self._costs_at = time.monotonic() + COSTS_INTERVAL_S
            try:
                self.store.add_costs(self._worker.costs())
            except WorkerDied:
                self._end_worker()
                return self._ready_worker(run)
        self._asked += 1
        return self._worker

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _show(self, start: float) -> None:
        """Say how far the campaign is; the time left is the plan's, corrected by how it went."""
        elapsed_s = time.monotonic() - start - self._choosing_s
        pace = elapsed_s / self._spent_s if self._spent_s > 0 else 1.0
        left_s = min(self.work.remaining_s * pace, self._deadline - time.monotonic())
        rate = self._taken / elapsed_s
        words = [f"{rate:.1f} rows/s", f"{format_duration(left_s)} remaining"]
        words += [f"{self._failed} failed"] if self._failed else []
        words += [f"{self._again} measured again"] if self._again else []
        self._steps.show(self._done, self._total, *words)

    def result(self, output: Path, reason: str) -> CampaignResult:
        """Sum up."""
        rows = self.store.best()
        usual = usual_states(self.store.rows, self.plan.monitor.device_states)
        states = tuple(
            f"the state {name!r} held for {share:.0%} of the rows: taken as the usual one of this "
            "machine"
            for name, share in usual.items()
        )
        return CampaignResult(
            path=output,
            reason=reason,
            rows=len(rows),
            statuses=Counter(str(row.status) for row in rows),
            measured=self._taken,
            again=self._again,
            noisy=sum(is_noisy(row, self.store.readings) for row in rows),
            elapsed_s=self._elapsed_s,
            overhead_s=median(self._gaps_s) if self._gaps_s else 0.0,
            choosing_s=self._choosing_s,
            notes=self._notes + states,
            networks=sum(isinstance(row.subject, NetworkRef) for row in rows),
            failure=_usual_failure(rows),
        )


def hopeless(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return the last rows if they ended an earlier start: the device failed, not the subjects."""
    died = (Status.CRASHED, Status.TIMEOUT)
    last = list(itertools.takewhile(lambda row: row.status in died, reversed(rows)))
    return last if len(last) >= HOPELESS else []


def _usual_failure(rows: Sequence[Measurement]) -> str:
    """Return the first line of the most frequent message of failed rows."""
    said = Counter(
        (row.detail or str(row.status)).splitlines()[0]
        for row in rows
        if row.status is not Status.OK
    )
    return said.most_common(1)[0][0] if said else ""
