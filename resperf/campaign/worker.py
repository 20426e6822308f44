"""The measuring process: owns the backend, and answers one question at a time.

Started as ``python -m resperf.campaign.worker READ WRITE`` with two pipe descriptors; both
directions carry JSON lines. The first line that it reads holds its settings, every other one
question; it writes one answer for each. It dies with its parent, and may die of a layer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resperf.backends import Backend, backend
from resperf.campaign.harvest import harvest
from resperf.campaign.measure import measure_layer, waits_for_memory
from resperf.campaign.messages import layer_of, plain
from resperf.campaign.watch import built_probes, built_reference
from resperf.errors import ResperfError, UnsupportedError
from resperf.measurement import Measurement, Status
from resperf.timing import Clock, LoadMeter, ReferenceMonitor, SamplingProtocol
from resperf.units import MS_PER_S, NS_PER_MS

SHORT_MS = 0.2
"""A layer that takes longer spends its time in its work, not in waiting for other cores."""


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, even while it hangs."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def limit_memory(limit_bytes: int) -> None:
    """Let allocations fail before the machine runs out of memory.

    The limit is on private data: frameworks reserve far more address space than they use.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        if limit_bytes > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


@dataclass
class Worker:
    """Answers questions with a backend that was started once."""

    backend: Backend
    protocol: SamplingProtocol
    load: LoadMeter | None
    reference: ReferenceMonitor | None
    clock: Clock
    now: Callable[[], float]
    kept: contextlib.ExitStack
    """Layers of the reference and the probes, which stay built as long as this is not freed."""

    def hello(self) -> dict[str, Any]:
        """Say which machine this is."""
        return {
            "setting": self.backend.setting().to_json(),
            "platform": self.backend.platform().to_json(),
        }

    def costs(self) -> dict[str, Any]:
        """Say what a network pays besides its layers, as it is now."""
        return {"costs": {**self.backend.costs(), **self.backend.handover()}}

    def lower(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Lower layers as drawn."""
        lowered = self.backend.lower([layer_of(layer) for layer in layers])
        return {"layers": [plain(layer) for layer in lowered]}

    def harvest(self, paths: Sequence[str], batches: Sequence[int]) -> dict[str, Any]:
        """Return the layers of networks."""
        target = (self.backend.setting(), self.backend.platform())
        found = harvest([Path(path) for path in paths], *target, batches)
        return {"layers": [plain(layer) for layer in found]}

    def probe(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Say for each layer whether the framework can build it: its reason if not, else ''."""
        reasons = []
        for layer in layers:
            try:
                with self.backend.layer(layer_of(layer), budget_ms=1.0):
                    reasons.append("")
            except UnsupportedError as error:
                reasons.append(str(error))
            except Exception:
                # It is not refused as such: the campaign will find out what is wrong with it.
                reasons.append("")
        return {"reasons": reasons}

    def reading(self) -> dict[str, Any]:
        """Time the reference now."""
        return {"reading": self.reference.check(force=True) if self.reference else None}

    def measure(self, layer: Mapping[str, Any], repeat: int) -> dict[str, Any]:
        """Measure a layer, after a reading of the reference where one is due.

        The row is flagged with each probe that is slow before or after it, where such a layer
        could have felt it.
        """
        reading = self.reference.check() if self.reference else None
        slow = self._slow_probes()
        row = measure_layer(
            self.backend,
            layer_of(layer),
            self.protocol,
            repeat=repeat,
            load=self.load,
            clock=self.clock,
            now=self.now,
        )
        if row.status is Status.OK:
            slow = (slow | self._slow_probes()) & _felt(row)
            row = replace(row, flags=(*row.flags, *sorted(slow)))
        probes = self.reference.usual_probes if self.reference and reading else {}
        return {"reading": reading, "usual_probes": probes, "row": row.to_json()}

    def _slow_probes(self) -> set[str]:
        return self.reference.slow_probes() if self.reference else set()


def _felt(row: Measurement) -> set[str]:
    """Return the probes whose slowness the layer's own time could show."""
    time_ms = row.samples["execution_ms"].value
    if waits_for_memory(row.layer, time_ms):
        return {"caches", "memory"}
    return {"caches"} if time_ms < SHORT_MS else set()


def start(settings: Mapping[str, Any]) -> Worker:
    """Start the backend and everything around it."""
    started = backend(settings["framework"], **settings["settings"])
    started.own_process()
    # A simulated device brings its own clock, and other load does not disturb it.
    own_clock: Clock | None = getattr(started, "clock", None)
    clock, now = own_clock or time.perf_counter_ns, time.time
    if own_clock is not None:
        now = _simulated_time(own_clock)
    kept = contextlib.ExitStack()
    monitor = None
    reference = None
    with contextlib.suppress(UnsupportedError):
        reference = kept.enter_context(built_reference(started))
    if reference is not None:
        monitor = ReferenceMonitor(
            reference.isolated,
            interval_s=settings["reference_interval_s"],
            clock=clock,
            now=now,
            probes=kept.enter_context(built_probes(started, clock, settings.get("probes"))),
        )
    return Worker(
        backend=started,
        protocol=SamplingProtocol.from_mapping(settings["protocol"]),
        load=None if own_clock else LoadMeter(),
        reference=monitor,
        clock=clock,
        now=now,
        kept=kept,
    )


def _simulated_time(clock: Clock) -> Callable[[], float]:
    """Return a calendar that a simulated device's own clock drives."""
    start = time.time()
    return lambda: start + clock() / NS_PER_MS / MS_PER_S


def answer(worker: Worker, question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question; an error that a user can mend becomes an answer too."""
    questions: Mapping[str, Callable[..., dict[str, Any]]] = {
        "costs": worker.costs,
        "harvest": worker.harvest,
        "lower": worker.lower,
        "measure": worker.measure,
        "probe": worker.probe,
        "reading": worker.reading,
    }
    arguments = dict(question)
    ask = arguments.pop("ask")
    try:
        return questions[ask](**arguments)
    except Exception as error:
        if isinstance(error, ResperfError) and ask != "measure":
            return {"error": str(error)}
        # Whatever a framework raises for a layer belongs to that layer's row.
        return {"failure": f"{type(error).__name__}: {error}"}


def main(read: int, write: int) -> None:
    """Answer questions until the pipe closes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(read, "rb") as questions, os.fdopen(write, "wb", buffering=0) as answers:

        def say(values: Mapping[str, Any]) -> None:
            answers.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")

        settings = json.loads(questions.readline())
        limit_memory(settings["memory_bytes"])
        try:
            worker = start(settings)
            say(worker.hello())
        except ResperfError as error:
            say({"error": str(error)})
            return
        # What was loaded so far stays: the collector need not look through it during a sample.
        gc.freeze()
        for line in questions:
            say(answer(worker, json.loads(line)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
