"""The measuring process: owns the backend, and answers one question at a time.

Started by `resperf.backends.processes` with the descriptor of a pipe. The first message that it
reads holds its `WorkerSettings`, every other one question: the name of a method of `Worker`, and
its arguments. It writes one answer for each. It dies with its parent, and may die of a layer.
"""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from resperf.backends import Backend, backend
from resperf.backends.monitors import Monitor, Reading, load_monitor
from resperf.campaign.measure import failure, measure_layer, time_network
from resperf.campaign.networks import NetworkRun, harvest
from resperf.campaign.process import Taken, WorkerSettings, conditions_here
from resperf.errors import (
    CampaignError,
    DeviceLostError,
    MissingExtraError,
    ResperfError,
    UnsupportedError,
)
from resperf.layers import Layer
from resperf.measurement import Measurement, Status
from resperf.quantities import layer_quantity
from resperf.targets import register
from resperf.timing import SamplingProtocol
from resperf.units import NS_PER_S


@dataclass
class Worker:
    """Answers questions with a backend that was started once."""

    backend: Backend
    protocol: SamplingProtocol
    monitor: Monitor
    networks: bool = False

    def costs(self) -> dict[str, float]:
        """Say what a network pays besides its layers, and how fast the device is, now.

        A process that measures whole networks tells only the latter: what networks pay is part of
        their own times, and differs from what they pay for layers measured with other settings.
        """
        costs = dict(self.monitor.costs())
        if not self.networks:
            costs |= {**self.backend.costs(), **self.backend.overheads_between_layers()}
        return costs

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Lower layers as drawn."""
        return self.backend.lower(layers)

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the layers of networks."""
        return harvest(paths, self.backend.setting(), self.backend.platform(), batches)

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        """Say for each layer whether the framework can build it: its reason if not, else ''."""
        if why := self.backend.without_layers():
            return [why] * len(layers)
        reasons = []
        for layer in layers:
            try:
                with self.backend.layer(layer, budget_ms=1.0):
                    reasons.append("")
            except UnsupportedError as error:
                reasons.append(str(error))
            except Exception:
                # It is not refused as such: the campaign will find out what is wrong with it.
                reasons.append("")
        return reasons

    def reading(self) -> Reading | None:
        """Read the device now."""
        return self.monitor.reading(force=True)

    def measure_network(self, run: NetworkRun, repeat: int, seconds: float) -> Taken:
        """Measure a whole network in rounds; the monitor judges each of them."""
        started_at, start_ns = self.monitor.now(), self.monitor.clock()
        try:
            self.monitor.check_memory(run.least_bytes)
            _, row = time_network(
                self.backend, run.path, run.network, batch=run.setting.batch,
                shapes=run.setting.shapes or None, seconds=seconds, monitor=self.monitor,
            )  # fmt: skip
        except DeviceLostError:
            raise
        except (ResperfError, MemoryError) as error:
            status, detail = failure(error)
            row = Measurement(
                run.network,
                status,
                setting=self.backend.setting(),
                platform=self.backend.platform(),
                started_at=started_at,
                duration_s=(self.monitor.clock() - start_ns) / NS_PER_S,
                detail=detail,
            )
        return Taken(replace(row, repeat=repeat), usual=self.monitor.usual_times())

    def measure(self, layer: Layer, repeat: int) -> Taken:
        """Measure a layer between the monitor's `before` and `after`."""
        reading = self.monitor.before()
        row = measure_layer(self.backend, layer, self.protocol, monitor=self.monitor, repeat=repeat)
        if row.status is Status.OK:
            flags = self.monitor.after(row.layer, row.value(layer_quantity(row.samples)))
            row = replace(row, flags=(*row.flags, *flags))
        return Taken(row, reading, {} if reading is None else self.monitor.usual_times())


def start(settings: WorkerSettings) -> Worker:
    """Start the backend and what watches its device."""
    if settings.conditions not in (None, conditions_here()):
        raise CampaignError(
            f"niceness and OMP_NUM_THREADS of the measuring process are {conditions_here()}, not "
            f"{settings.conditions}: its times would be wrong"
        )
    target = register(settings.target)
    monitor = load_monitor(target, str(settings.settings.get("device", target.device_class)))
    if settings.memory_share:
        monitor.limit_memory(int(monitor.memory_bytes() * settings.memory_share))
    started = backend(target.framework, target.device_class, **settings.settings)
    if not settings.networks:
        # A network has threads of its own, as where it is used.
        started.own_process()
    if "hosts" in settings.settings and started.has_joined():
        return Worker(started, settings.protocol, monitor, settings.networks)
    monitor.start(
        started,
        interval_s=settings.reference_interval_s,
        usual=settings.usual,
        networks=settings.networks,
    )
    return Worker(started, settings.protocol, monitor, settings.networks)


def answer(
    worker: Worker, question: str, arguments: Sequence[Any]
) -> tuple[Any, ResperfError | str | None]:
    """Answer one question; the second value is an error that a user can mend, or a failure."""
    try:
        return getattr(worker, question)(*arguments), None
    except DeviceLostError as error:
        return None, error
    except Exception as error:
        if isinstance(error, ResperfError) and not question.startswith("measure"):
            return None, CampaignError(str(error))
        # Whatever a framework raises for a subject belongs to that subject's row.
        return None, f"{type(error).__name__}: {error}"


def main(descriptor: str) -> None:
    """Answer questions until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(int(descriptor)) as pipe, contextlib.suppress(EOFError):
        try:
            worker = start(pipe.recv())
        except ResperfError as error:
            told = isinstance(error, DeviceLostError | MissingExtraError)
            pipe.send((None, error if told else CampaignError(str(error))))
            return
        pipe.send(((worker.backend.setting(), worker.backend.platform()), None))
        # What was loaded so far stays: the collector need not look through it during a sample.
        gc.freeze()
        while True:
            pipe.send(answer(worker, *pipe.recv()))
