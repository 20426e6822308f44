"""The parent's side of a measuring process: start it, send it requests, detect how it died."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from resperf.backends._base import Closing
from resperf.backends.monitors import Reading, load_monitor
from resperf.backends.processes import end, started
from resperf.campaign.networks import NetworkRun
from resperf.errors import CampaignError, ResperfError, is_out_of_memory
from resperf.layers import Layer
from resperf.measurement import Measurement, Status
from resperf.targets import Target
from resperf.timing import SamplingProtocol

# Limit of every answer but a measurement: several times what a framework takes to load.
START_TIMEOUT_S = 300.0
WORKER = "resperf.campaign.worker"
LISTEN_S = 0.2
"""Interval for checking a request to stop while something is measured."""


class WorkerDied(ResperfError):  # noqa: N818 -- an event, reported as a row's status
    """The measuring process ended or was killed before it answered."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(status, detail)  # as pickle makes it again
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class ProcessLost(ResperfError):  # noqa: N818 -- an event: what was measured is measured again
    """The node that a measuring process ran on, or the way to it, is gone."""

    status = Status.CRASHED


class Interrupted(ResperfError):  # noqa: N818 -- a request, not an error
    """The campaign was asked to stop now."""


def conditions_here() -> tuple[int, str | None]:
    """Return what this process inherited that changes its times: niceness, OMP_NUM_THREADS."""
    return os.nice(0), os.environ.get("OMP_NUM_THREADS")


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a measuring process.

    Attributes
    ----------
    target : Target
        The complete row is sent: the process need not import the package that registered it.
    settings : mapping
        Keywords of the backend, as JSON values.
    protocol : SamplingProtocol
    reference_interval_s : float
    memory_share : float
        Share of the device's memory that subjects may use; 0 for no limit.
    usual : mapping of str to (float, int)
        `Monitor.usual_times` of earlier processes.
    networks : bool
        Whether it measures whole networks instead of layers.
    conditions : (int, str or None) or None
        `conditions_here` that it must find; None where they may be anything.
    """

    target: Target
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: SamplingProtocol = field(default_factory=SamplingProtocol)
    reference_interval_s: float = 3.0
    memory_share: float = 0.0
    usual: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    networks: bool = False
    conditions: tuple[int, str | None] | None = None


@dataclass(frozen=True)
class Taken:
    """A measurement as the measuring process took it.

    Attributes
    ----------
    row : Measurement
    reading : Reading or None
        Of the device, if one was due.
    usual : mapping of str to (float, int)
        `Monitor.usual_times`, where something is new.
    """

    row: Measurement
    reading: Reading | None = None
    usual: Mapping[str, tuple[float, int]] = field(default_factory=dict)


class WorkerProcess(Closing):
    """A measuring process, which ends with its ``with`` block.

    Parameters
    ----------
    settings : WorkerSettings
    wants_stop : callable
        Called every `LISTEN_S` while waiting.

    Raises
    ------
    CampaignError
        If the process cannot start its backend.
    DeviceLostError
        Now or later, if the device does not answer any more.
    """

    def __init__(
        self, settings: WorkerSettings, *, wants_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._settings = settings
        self._wants_stop = wants_stop
        self._start()

    def _start(self) -> None:
        # A file, not a pipe: a framework that writes a lot must not block.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in close()
        self._pipe, its_end = Pipe()
        with its_end:
            number = its_end.fileno()
            # In a session of its own, Ctrl-C reaches the parent only, which then decides.
            self._process = started(
                WORKER, str(number), stderr=self._stderr, pass_fds=[number], start_new_session=True
            )
        try:
            self.setting, self.platform = self._answer(self._settings, START_TIMEOUT_S)
        except WorkerDied as error:
            self.close()
            raise CampaignError(f"the measuring process did not start: {error.detail}") from error
        except BaseException:
            self.close()
            raise

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Lower layers as drawn (see `Backend.lower`)."""
        lowered: list[Layer] = self.ask("lower", layers)
        return lowered

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks (see `campaign.networks.harvest`).

        Raises
        ------
        CampaignError
            If a network cannot be read, or ends the process.
        """
        timeout_s = START_TIMEOUT_S * max(1, len(paths))
        try:
            layers: list[Layer] = self.ask("harvest", paths, batches, timeout_s=timeout_s)
        except WorkerDied as death:
            names = ", ".join(path.name for path in paths)
            raise CampaignError(f"reading the networks {names} failed: {death.detail}") from death
        return layers

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        """Return why each layer cannot be built; '' if it can."""
        try:
            reasons: list[str] = self.ask("build_errors", layers)
        except WorkerDied:
            # Not refused as such; if all its layers do that, the campaign will say so.
            self.close()
            self._start()
            return [""] * len(layers)
        return reasons

    def costs(self) -> dict[str, float]:
        """Return the costs of a network besides its layers (ms), and the device's speed."""
        costs: dict[str, float] = self.ask("costs")
        return costs

    def reading(self) -> Reading | None:
        """Read the device now; None if there is nothing to read."""
        reading: Reading | None = self.ask("reading")
        return reading

    def measure(self, layer: Layer, repeat: int, timeout_s: float) -> Taken:
        """Measure a layer.

        Raises
        ------
        WorkerDied
            If the process died, hung, or failed unexpectedly.
        Interrupted
            If the campaign is asked to stop.
        """
        taken: Taken = self.ask("measure", layer, repeat, timeout_s=timeout_s)
        return taken

    def measure_network(
        self, run: NetworkRun, repeat: int, seconds: float, timeout_s: float
    ) -> Taken:
        """Measure a whole network; errors as of `measure`."""
        taken: Taken = self.ask("measure_network", run, repeat, seconds, timeout_s=timeout_s)
        return taken

    def close(self) -> None:
        """End the process; kill it if it is busy."""
        self._pipe.close()
        end(self._process, 1.0)
        self._stderr.close()

    def ask(self, question: str, *arguments: object, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Let the process call the method of that name of its `worker.Worker`."""
        try:
            return self._answer((question, arguments), timeout_s)
        except WorkerDied:
            # That a lost device ended the process is not the subject's doing.
            settings, target = self._settings.settings, self._settings.target
            load_monitor(target, str(settings.get("device", target.device_class))).check()
            raise

    def _answer(self, message: object, timeout_s: float) -> Any:
        """Send a message, and wait for an answer, a timeout, a death or a request to stop."""
        deadline = time.monotonic() + timeout_s
        try:
            self._pipe.send(message)
            while not self._pipe.poll(min(LISTEN_S, max(0.0, deadline - time.monotonic()))):
                if self._wants_stop():
                    self._process.kill()
                    raise Interrupted("interrupted")
                if time.monotonic() >= deadline:
                    self._process.kill()
                    raise WorkerDied(Status.TIMEOUT, f"no answer within {timeout_s:g} s")
            answer, error = self._pipe.recv()
        except (EOFError, OSError):
            if self._wants_stop():
                # The signal that stopped this process may have stopped the other one too.
                raise Interrupted("interrupted") from None
            raise self._death() from None
        if isinstance(error, str):
            raise WorkerDied(_status_of(error), error)
        if error is not None:
            raise error
        return answer

    def _death(self) -> WorkerDied:
        """Return how the process died."""
        code = self._process.wait()
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 2000))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        last_line = lines[-1].strip()[:300] if lines else ""
        if code == -signal.SIGKILL:
            # Only the kernel, out of memory, kills without a message.
            return WorkerDied(Status.OUT_OF_MEMORY, "killed by the system, probably out of memory")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerDied(_status_of(last_line), f"{cause}: {last_line}" if last_line else cause)


def _status_of(message: str) -> Status:
    """Return whether a message reports a lack of memory or another crash."""
    return Status.OUT_OF_MEMORY if is_out_of_memory(message) else Status.CRASHED
