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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resperf.backends import Backend, backend
from resperf.backends.monitors import Monitor, Reading, load_monitor
from resperf.campaign.guarded import measure_network
from resperf.campaign.harvest import harvest
from resperf.campaign.measure import measure_layer
from resperf.campaign.messages import layer_of, plain
from resperf.errors import ResperfError, UnsupportedError
from resperf.measurement import NetworkRef, Status
from resperf.quantities import layer_quantity
from resperf.targets import Target, register
from resperf.timing import SamplingProtocol


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, even while it hangs."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@dataclass
class Worker:
    """Answers questions with a backend that was started once."""

    backend: Backend
    protocol: SamplingProtocol
    monitor: Monitor

    def hello(self) -> dict[str, Any]:
        """Say which machine this is."""
        return {
            "setting": self.backend.setting().to_json(),
            "platform": self.backend.platform().to_json(),
        }

    def costs(self) -> dict[str, Any]:
        """Say what a network pays besides its layers, and how fast the device is, now."""
        costs = {**self.backend.costs(), **self.backend.handover(), **self.monitor.costs()}
        return {"costs": costs}

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
        """Read the device now."""
        return {"reading": _plain_reading(self.monitor.reading(force=True))}

    def network(
        self,
        network: Mapping[str, str],
        path: str,
        batch: int | None,
        shapes: Mapping[str, Sequence[int]],
        seconds: float,
        repeat: int,
    ) -> dict[str, Any]:
        """Measure a whole network in rounds; the monitor judges each of them."""
        row = measure_network(
            self.backend, Path(path), NetworkRef(**network), batch=batch, shapes=shapes or None,
            seconds=seconds, monitor=self.monitor, repeat=repeat,
        )  # fmt: skip
        return {"reading": None, "usual": self.monitor.usual_times(), "row": row.to_json()}

    def measure(self, layer: Mapping[str, Any], repeat: int) -> dict[str, Any]:
        """Measure a layer between the monitor's `before` and `after`."""
        reading = self.monitor.before()
        row = measure_layer(
            self.backend, layer_of(layer), self.protocol, monitor=self.monitor, repeat=repeat
        )
        if row.status is Status.OK:
            flags = self.monitor.after(row.layer, row.value(layer_quantity(row.samples)))
            row = replace(row, flags=(*row.flags, *flags))
        usual = {} if reading is None else self.monitor.usual_times()
        return {"reading": _plain_reading(reading), "usual": usual, "row": row.to_json()}


def _plain_reading(reading: Reading | None) -> list[Any] | None:
    return None if reading is None else reading.to_json()


def start(target: Target, settings: Mapping[str, Any], monitor: Monitor) -> Worker:
    """Start the backend and what watches its device."""
    started = backend(target.framework, target.device_class, **settings["settings"])
    networks = settings.get("networks", False)
    if not networks:
        # A network has threads of its own, as where it is used.
        started.own_process()
    monitor.start(
        started,
        interval_s=settings["reference_interval_s"],
        usual=settings.get("usual"),
        networks=networks,
    )
    protocol = SamplingProtocol.from_mapping(settings["protocol"])
    return Worker(backend=started, protocol=protocol, monitor=monitor)


def answer(worker: Worker, question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question; an error that a user can mend becomes an answer too."""
    questions: Mapping[str, Callable[..., dict[str, Any]]] = {
        "costs": worker.costs,
        "harvest": worker.harvest,
        "lower": worker.lower,
        "measure": worker.measure,
        "network": worker.network,
        "probe": worker.probe,
        "reading": worker.reading,
    }
    arguments = dict(question)
    ask = arguments.pop("ask")
    try:
        return questions[ask](**arguments)
    except Exception as error:
        if isinstance(error, ResperfError) and ask not in ("measure", "network"):
            return {"error": str(error)}
        # Whatever a framework raises for a subject belongs to that subject's row.
        return {"failure": f"{type(error).__name__}: {error}"}


def main(read: int, write: int) -> None:
    """Answer questions until the pipe closes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(read, "rb") as questions, os.fdopen(write, "wb", buffering=0) as answers:

        def say(values: Mapping[str, Any]) -> None:
            answers.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")

        settings = json.loads(questions.readline())
        try:
            target = register(Target.from_json(settings["target"]))
            monitor = load_monitor(target)
            monitor.limit_memory(settings["memory_bytes"])
            worker = start(target, settings, monitor)
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
