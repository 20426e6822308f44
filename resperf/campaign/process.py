"""The parent's side of a measuring process: start it, ask it, and notice how it died."""

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
"""How soon a request to stop is noticed while something is being measured."""
MEMORY_WORDS = (
    "bad_alloc",
    "memoryerror",
    "out of memory",
    "failed to allocate",
    "cannot allocate",
)


class WorkerDied(ResperfError):  # noqa: N818 -- it is an event, told as a row's status
    """The measuring process ended or was ended while it owed an answer."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Interrupted(ResperfError):  # noqa: N818 -- it is a request
    """The campaign is to stop now."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a measuring process is started with.

    Attributes
    ----------
    target : Target
        Its whole row is told: the process need not know the package that registered it.
    settings : mapping
        Keywords of the backend, as JSON values.
    protocol : SamplingProtocol
    reference_interval_s : float
    memory_bytes : int
        Memory that subjects may fill; 0 for no limit.
    usual : mapping of str to (float, int)
        What `Monitor.usual_times` found in earlier processes.
    networks : bool
        Whether it measures whole networks, and not layers.
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
    """A measuring process. Leave its ``with`` block to end it.

    Parameters
    ----------
    settings : WorkerSettings
    wants_stop : callable
        Asked every fifth of a second while waiting.

    Raises
    ------
    CampaignError
        If the process cannot start its backend.
    """

    def __init__(
        self, settings: WorkerSettings, *, wants_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._wants_stop = wants_stop
        # A file, not a pipe: a framework that writes much must not block on a reader.
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
                # Ctrl-C reaches the parent alone, which then decides.
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
        """Of the process."""
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
        """Say why each layer cannot be built; '' where it can."""
        question = {"ask": "probe", "layers": [plain(layer) for layer in layers]}
        reasons: list[str] = self._ask(question, START_TIMEOUT_S)["reasons"]
        return reasons

    def costs(self) -> dict[str, float]:
        """Return what a network pays besides its layers (ms), and facts of the device's speed."""
        costs: dict[str, float] = self._ask({"ask": "costs"}, START_TIMEOUT_S)["costs"]
        return costs

    def reading(self) -> Sequence[Any] | None:
        """Read the device now: a `Reading` as JSON values; None where there is nothing to read."""
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
            ``row`` and ``reading`` as JSON values, of which the latter may be None, and ``usual``:
            what `Monitor.usual_times` says where there is a reading.

        Raises
        ------
        WorkerDied
            If the process died of it, hung, or failed in an unforeseen way.
        Interrupted
            If the campaign is to stop.
        """
        return self._ask({"ask": "measure", "layer": plain(layer), "repeat": repeat}, timeout_s)

    def close(self) -> None:
        """End the process, kindly if it is not busy."""
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
        """End the process at once; `close` still has to follow."""
        self._process.kill()

    def _ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a question and wait for its answer."""
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
        """Wait for a line, watching the clock, the process and requests to stop."""
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
                        # What stopped this process may have stopped that one too.
                        raise Interrupted("interrupted")
                    raise self._death()
                self._received += block
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _death(self) -> WorkerDied:
        """Say how the process died."""
        code = self._process.wait()
        last_line = self._last_line()
        if code == -signal.SIGKILL:
            # Nobody but the kernel, short of memory, kills without a word.
            return WorkerDied(Status.OUT_OF_MEMORY, "killed by the system, probably out of memory")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerDied(_status_of(last_line), f"{cause}: {last_line}" if last_line else cause)

    def _last_line(self) -> str:
        """Return the last line that the process wrote to stderr, shortened."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 2000))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""


def _status_of(words: str) -> Status:
    """Tell from a message whether memory was what failed."""
    short = any(word in words.lower() for word in MEMORY_WORDS)
    return Status.OUT_OF_MEMORY if short else Status.CRASHED


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _python_path() -> str:
    """Return PYTHONPATH with the folder that holds this very package in front."""
    root = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return os.pathsep.join([root, rest] if rest else [root])
