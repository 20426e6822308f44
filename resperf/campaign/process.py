"""The parent's side of a measuring process: start it, send it requests, detect how it died."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from resperf.campaign.messages import layer_of, plain
from resperf.campaign.networks import NetworkRun
from resperf.errors import CampaignError, ResperfError
from resperf.layers import Layer
from resperf.measurement import Status
from resperf.platform import Platform
from resperf.settings import Setting
from resperf.targets import Target
from resperf.timing import SamplingProtocol

START_TIMEOUT_S = 300.0
LISTEN_S = 0.2
"""Interval for checking a request to stop while something is measured."""
MEMORY_WORDS = (
    "bad_alloc",
    "memoryerror",
    "out of memory",
    "failed to allocate",
    "cannot allocate",
)


class WorkerDied(ResperfError):  # noqa: N818 -- an event, reported as a row's status
    """The measuring process ended or was killed before it answered."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Interrupted(ResperfError):  # noqa: N818 -- a request, not an error
    """The campaign was asked to stop now."""


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
    memory_bytes : int
        Memory that subjects may use; 0 for no limit.
    usual : mapping of str to (float, int)
        `Monitor.usual_times` of earlier processes.
    networks : bool
        Whether it measures whole networks instead of layers.
    """

    target: Target
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: SamplingProtocol = field(default_factory=SamplingProtocol)
    reference_interval_s: float = 3.0
    memory_bytes: int = 0
    usual: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    networks: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "target": asdict(self.target),
            "settings": dict(self.settings),
            "protocol": self.protocol.to_json(),
            "reference_interval_s": self.reference_interval_s,
            "memory_bytes": self.memory_bytes,
            "usual": {name: list(each) for name, each in self.usual.items()},
            "networks": self.networks,
        }


class WorkerProcess:
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
    """

    def __init__(
        self, settings: WorkerSettings, *, wants_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._wants_stop = wants_stop
        # A file, not a pipe: a framework that writes a lot must not block.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in close()
        its_read, self._write = os.pipe()
        self._read, its_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "resperf.campaign.worker", str(its_read), str(its_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(its_read, its_write),
                env={**os.environ, "PYTHONPATH": _python_path()},
                # Ctrl-C reaches the parent only, which then decides.
                start_new_session=True,
            )
        finally:
            os.close(its_read)
            os.close(its_write)
        self._received = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        try:
            hello = self._ask(settings.to_json(), START_TIMEOUT_S)
        except WorkerDied as error:
            self.close()
            raise CampaignError(f"the measuring process did not start: {error.detail}") from error
        except BaseException:
            self.close()
            raise
        self.setting = Setting.from_json(hello["setting"])
        self.platform = Platform.from_json(hello["platform"])

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Lower layers as drawn (see `Backend.lower`)."""
        reply = self._ask(
            {"ask": "lower", "layers": [plain(layer) for layer in layers]}, START_TIMEOUT_S
        )
        return [layer_of(layer) for layer in reply["layers"]]

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks (see `campaign.harvest`)."""
        question = {"ask": "harvest", "paths": [str(p) for p in paths], "batches": list(batches)}
        reply = self._ask(question, START_TIMEOUT_S * max(1, len(paths)))
        return [layer_of(layer) for layer in reply["layers"]]

    def probe(self, layers: Sequence[Layer]) -> list[str]:
        """Return why each layer cannot be built; '' if it can."""
        question = {"ask": "probe", "layers": [plain(layer) for layer in layers]}
        reasons: list[str] = self._ask(question, START_TIMEOUT_S)["reasons"]
        return reasons

    def costs(self) -> dict[str, float]:
        """Return the costs of a network besides its layers (ms), and the device's speed."""
        costs: dict[str, float] = self._ask({"ask": "costs"}, START_TIMEOUT_S)["costs"]
        return costs

    def reading(self) -> Sequence[Any] | None:
        """Read the device now: a `Reading` as JSON values; None if there is nothing to read."""
        reading: Sequence[Any] | None = self._ask({"ask": "reading"}, START_TIMEOUT_S)["reading"]
        return reading

    def measure_network(
        self, run: NetworkRun, repeat: int, seconds: float, timeout_s: float
    ) -> dict[str, Any]:
        """Measure a whole network; answers and errors as of `measure`, without a reading."""
        question = {
            "ask": "network", "network": asdict(run.network), "path": str(run.path),
            "batch": run.setting.batch, "shapes": run.setting.shapes, "seconds": seconds,
            "repeat": repeat,
        }  # fmt: skip
        return self._ask(question, timeout_s)

    def measure(self, layer: Layer, repeat: int, timeout_s: float) -> dict[str, Any]:
        """Measure a layer.

        Returns
        -------
        dict
            ``row`` and ``reading`` as JSON values; ``reading`` may be None. With a reading also
            ``usual``: the `Monitor.usual_times`.

        Raises
        ------
        WorkerDied
            If the process died, hung, or failed unexpectedly.
        Interrupted
            If the campaign is asked to stop.
        """
        return self._ask({"ask": "measure", "layer": plain(layer), "repeat": repeat}, timeout_s)

    def close(self) -> None:
        """End the process; kill it if it is busy."""
        with contextlib.suppress(OSError):
            os.close(self._write)
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self._read)
        self._stderr.close()

    def kill(self) -> None:
        """Kill the process; `close` must still follow."""
        self._process.kill()

    def _ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for the reply."""
        try:
            _write_all(self._write, json.dumps(question, separators=(",", ":")).encode() + b"\n")
        except BrokenPipeError:
            raise self._death() from None
        reply: dict[str, Any] = json.loads(self._line(time.monotonic() + timeout_s, timeout_s))
        if "error" in reply:
            raise CampaignError(reply["error"])
        if "failure" in reply:
            raise WorkerDied(_status_of(reply["failure"]), reply["failure"])
        return reply

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        """Wait for a line, a timeout, the end of the process or a request to stop."""
        while (end := self._received.find(b"\n")) < 0:
            remaining_s = deadline - time.monotonic()
            if self._wants_stop():
                self.kill()
                raise Interrupted("interrupted")
            if remaining_s <= 0:
                self.kill()
                raise WorkerDied(Status.TIMEOUT, f"no answer within {timeout_s:g} s")
            if self._selector.select(min(LISTEN_S, remaining_s)):
                block = os.read(self._read, 1 << 20)
                if not block:
                    if self._wants_stop():
                        # The signal that stopped this process may have stopped the other one too.
                        raise Interrupted("interrupted")
                    raise self._death()
                self._received += block
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _death(self) -> WorkerDied:
        """Return how the process died."""
        code = self._process.wait()
        last_line = self._last_stderr_line()
        if code == -signal.SIGKILL:
            # Only the kernel, out of memory, kills without a message.
            return WorkerDied(Status.OUT_OF_MEMORY, "killed by the system, probably out of memory")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerDied(_status_of(last_line), f"{cause}: {last_line}" if last_line else cause)

    def _last_stderr_line(self) -> str:
        """Return the last line that the process wrote to stderr, shortened."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 2000))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""


def _status_of(message: str) -> Status:
    """Return whether a message reports a lack of memory or another crash."""
    no_memory = any(word in message.lower() for word in MEMORY_WORDS)
    return Status.OUT_OF_MEMORY if no_memory else Status.CRASHED


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _python_path() -> str:
    """Return PYTHONPATH with the folder of this package first."""
    root = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return os.pathsep.join([root, rest] if rest else [root])
