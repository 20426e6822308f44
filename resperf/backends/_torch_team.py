"""The processes that share a training step: started by torchrun, asked through one of them.

The measuring process starts `torchrun` on its host; process 0 of what that starts connects to a
socket of the measuring process and passes each question on to all others
(`resperf.backends._torch_member`). On several hosts each has a measuring process that does so, and
that of the first is asked.

`main` is `torchrun`, except that it says in one line which process failed.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from resperf.backends._base import Built, Phase, Shapes
from resperf.backends.processes import RUN, end, started
from resperf.network import weightless

START_S = 120.0
"""How long the processes may take to import PyTorch and to meet."""
LOOK_S = 0.2
END_S = 40.0
"""How long torchrun may take to end what is left of a team: it waits 30 s before it kills."""


class TeamError(RuntimeError):
    """A process of a team ended; no error of resperf's, since a new team can go on."""


@dataclass(frozen=True)
class Hosts:
    """Hosts whose processes share a step.

    Attributes
    ----------
    count, rank : int
        How many there are, and the number of this one.
    machines : int
        Of how many machines they are.
    address : str
        ``HOST:PORT``, where all meet; on the first one.
    """

    count: int = 1
    rank: int = 0
    machines: int = 1
    address: str = ""

    @property
    def words(self) -> list[str]:
        """Arguments of torchrun."""
        if self.count == 1:
            return ["--standalone", "--nnodes=1"]
        host, _, port = self.address.rpartition(":")
        return [f"--nnodes={self.count}", f"--node-rank={self.rank}", f"--master-addr={host}",
                f"--master-port={port}"]  # fmt: skip


def _torchrun(
    processes: int, settings: Mapping[str, Any], address: str, logs: str, stderr: Any, hosts: Hosts
) -> subprocess.Popen[bytes]:
    """Start the processes; the first one connects to the address."""
    # Else torchrun leaves a folder behind wherever it is killed.
    words = [*hosts.words, f"--nproc-per-node={processes}", f"--log-dir={logs}"]
    member = ["-m", RUN, "resperf.backends._torch_member", json.dumps(dict(settings)), address]
    threads = {"OMP_NUM_THREADS": str(settings["threads"])}
    return started("resperf.backends._torch_team", *words, *member, stderr=stderr, env=threads)


ALONE = Hosts()


class RunningTeam:
    """Processes that were started; `network` lets them build one, and samples of it ask them all.

    Parameters
    ----------
    processes : int
        On this host.
    settings : mapping
        Keywords of each process's backend, as JSON values.
    hosts : Hosts
        Only that on the first one may be asked.

    Raises
    ------
    TeamError
        Now or later, if one of them ends.
    """

    def __init__(self, processes: int, settings: Mapping[str, Any], hosts: Hosts = ALONE) -> None:
        self._open, self._hosts = ExitStack(), hosts
        folder = self._open.enter_context(tempfile.TemporaryDirectory())
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the stack
        self._stderr = self._open.enter_context(stderr)
        address = str(Path(folder) / "team")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(LOOK_S)
            self._process = _torchrun(processes, settings, address, folder, self._stderr, hosts)
            if hosts.rank == 0:
                self._pipe = self._open.enter_context(self._connected(listener))

    def _connected(self, listener: socket.socket) -> Connection:
        """Wait for process 0."""
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            client.setblocking(True)
            return Connection(client.detach())
        raise self._end("the processes did not meet in time")

    def network(self, path: Path, batch: int | None, shapes: Shapes | None) -> Built:
        """Let every process build a network, for a training step that they share.

        Raises
        ------
        NetworkError, UnsupportedError, MemoryError
            If one of them cannot.
        """
        # Other hosts do not have the file. On this one, it may be given from where this process is.
        content = b"" if self._hosts == ALONE else weightless(path)
        units: dict[str, str] = self._ask("build", path.resolve(), batch, shapes, content)
        phases = {
            name: Phase(partial(self._ask, "sample", name), unit=unit)
            for name, unit in units.items()
        }
        return Built(phases, phases["step_ms"].sampler, self._free)

    def _free(self) -> None:
        if self._process.poll() is None:
            self._ask("free")

    def _ask(self, *question: object) -> Any:
        """Ask all processes; return what process 0 answers."""
        if self._pipe.closed:
            raise TeamError("the processes have ended; start others")
        try:
            self._pipe.send(question)
            error, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._end("the processes ended") from None
        if error is not None:
            raise error
        return answer

    def _end(self, otherwise: str) -> TeamError:
        """End what is left; return what torchrun said, or else what is given."""
        end(self._process, END_S)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._open.close()
        return TeamError(lines[-1].strip()[:300] if lines else otherwise)


def main(*words: str) -> None:
    """Run torchrun; end with the reason if a process fails."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        # Others fail because of one that was killed, and may write so before it is noticed.
        for other_rank, other in error.failures.items():
            if other.exitcode == -signal.SIGKILL:
                rank, failure = other_rank, other
        how = failure.message.splitlines()[0]
        if failure.exitcode == -signal.SIGKILL:
            how = "killed by the system, probably out of memory"
        sys.exit(f"process {rank}: {how}")
