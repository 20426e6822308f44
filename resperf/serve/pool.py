"""Two processes that answer questions, each replaced when it takes too long or ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from resperf.backends.processes import RUN
from resperf.serve.worker import MEMORY_BYTES, SECONDS, UPLOAD

PROCESSES = 2
WAITING = 8
"""Questions that wait for a process; with more, the service answers that it is busy."""
_START_S = 60.0
_LENGTH_BYTES = 8
_ENDED = (EOFError, ConnectionError)
"""What reading from, and writing to, a process that ended raises."""


class RefusedError(Exception):
    """A request that is answered by a status and a line.

    Attributes
    ----------
    status : int
        Of HTTP.
    """

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass
class _Worker:
    """A process, and the folder that it runs in."""

    process: asyncio.subprocess.Process
    folder: Path

    async def answer(self) -> tuple[int, bytes]:
        """Read a status and a text.

        Raises
        ------
        EOFError
            If the process ended.
        """
        out = self.process.stdout
        assert out is not None
        length = int.from_bytes(await out.readexactly(_LENGTH_BYTES), "big")
        content = await out.readexactly(length)
        return int(content[:3]), content[3:]

    async def ask(self, question: str) -> tuple[int, bytes]:
        """Write a question and read its answer; as `answer`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n".encode())
        await self.process.stdin.drain()
        return await self.answer()

    async def end(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Pool:
    """Processes that answer questions.

    Parameters
    ----------
    folder : Path
        For clients' files and the processes' own folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: dict[int, _Worker] = {}
        self.taken = 0

    def start(self) -> None:
        """Start the processes, without waiting until they are ready."""
        for number in range(PROCESSES):
            self._start(number)

    async def close(self) -> None:
        """End all processes."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers.values():
            await worker.end()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold one of the turns, of which there are `PROCESSES` and `WAITING`.

        Raises
        ------
        RefusedError
            If all are taken: 429.
        """
        if self.taken >= PROCESSES + WAITING:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self.taken} questions are being answered or wait; ask again in some seconds",
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def ask(
        self, words: Sequence[str], name: str = "", file: Path | None = None
    ) -> tuple[int, bytes]:
        """Have a command run; call it within `turn`.

        Parameters
        ----------
        words : sequence of str
            Of the command line, behind ``resperf``.
        name : str
            Of the client's network.
        file : Path, optional
            The client's file in the folder of the pool, which the command finds as `UPLOAD`.

        Returns
        -------
        status : int
        text : bytes

        Raises
        ------
        RefusedError
            If no process starts (503), or the one that answers takes too long or ends (422).
        """
        worker = await self._next()
        answered, why = False, ""
        try:
            if file is not None:
                os.replace(file, worker.folder / UPLOAD)
            question = json.dumps({"words": [*words], "name": name})
            answer = await asyncio.wait_for(worker.ask(question), SECONDS)
            answered = True
            return answer
        except TimeoutError:
            why = f"it took longer than {SECONDS} s"
        except _ENDED:
            why = f"it needed more than {MEMORY_BYTES >> 30} GiB or {SECONDS} s, or it crashed"
        finally:
            (worker.folder / UPLOAD).unlink(missing_ok=True)
            if answered:
                self._idle.put_nowait(worker)
            else:
                await worker.end()
                self._start(int(worker.folder.name))
        raise RefusedError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"this network was given up: {why}; resperf predict has no such limits",
        )

    async def _next(self) -> _Worker:
        """Wait for a process that is ready, and replace those that ended meanwhile."""
        try:
            async with asyncio.timeout(_START_S + WAITING * SECONDS):
                while (worker := await self._idle.get()).process.returncode is not None:
                    self._start(int(worker.folder.name))
        except TimeoutError as error:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "no process could be started; start resperf again"
            ) from error
        return worker

    def _start(self, number: int) -> None:
        task = asyncio.create_task(self._started(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _started(self, number: int) -> None:
        """Start a process, and offer it as soon as it is ready."""
        folder = self._folder / str(number)
        folder.mkdir(exist_ok=True)
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Arenas reserve address space for each thread.
        env = {**os.environ, "PYTHONPATH": path, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", RUN, "resperf.serve.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=folder, env=env,
        )  # fmt: skip
        worker = self._workers[number] = _Worker(process, folder)
        with suppress(TimeoutError, *_ENDED):
            await asyncio.wait_for(worker.answer(), _START_S)
            self._idle.put_nowait(worker)
