"""Two processes that answer questions, each replaced when it takes too long or ends."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fastapi import HTTPException

from resperf.backends.processes import RUN, environment
from resperf.serve.worker import MEMORY_BYTES, SECONDS

PROCESSES = 2
WAITING = 8
"""Questions that wait for a process; with more, the service answers that it is busy."""


class Pool:
    """Processes that answer questions.

    Attributes
    ----------
    folder : str
        That they run in, with clients' files.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="resperf-serve-")
        self.folder = self._folder.name
        self._turns = asyncio.Semaphore(PROCESSES + WAITING)
        self._processes: set[Process] = set()
        self._idle: asyncio.Queue[asyncio.Task[Process]] = asyncio.Queue()
        for _ in range(PROCESSES):
            self._idle.put_nowait(asyncio.create_task(self._started()))

    async def close(self) -> None:
        """End all processes."""
        while not self._idle.empty():
            self._idle.get_nowait().cancel()
        for process in [*self._processes]:
            self._kill(process)
            await process.wait()
        self._folder.cleanup()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold one of the turns, of which there are `PROCESSES` and `WAITING`; else 429."""
        if self._turns.locked():
            raise HTTPException(429, "too many questions are being answered; ask again in a second")
        async with self._turns:
            yield

    async def ask(self, words: Sequence[str]) -> tuple[int, bytes]:
        """Have a command run; call it within `turn`.

        Parameters
        ----------
        words : sequence of str
            Of the command line, behind ``resperf``.

        Returns
        -------
        status : int
            Of HTTP.
        text : bytes

        Raises
        ------
        HTTPException
            503 if no process is there, 422 if the one that answers takes too long or ends.
        """
        starting = process = answer = None
        try:
            starting = await asyncio.wait_for(self._idle.get(), SECONDS)
            process = await starting
            if process.returncode is not None:
                process, starting = None, asyncio.create_task(self._started())
                process = await starting
            answer = await asyncio.wait_for(_answer(process, words), SECONDS)
            return answer
        except (TimeoutError, EOFError, ConnectionError) as error:
            if process is None:
                raise HTTPException(503, "no process is free; ask again in a minute") from error
            why = f"given up: it needed {SECONDS} s or {MEMORY_BYTES >> 30} GiB, or it crashed"
            raise HTTPException(422, f"{why}; resperf predict has no such limits") from error
        finally:
            if starting is not None and answer is None:
                self._kill(process)
                starting = asyncio.create_task(self._started())
            if starting is not None:
                self._idle.put_nowait(starting)

    async def _started(self) -> Process:
        """Start a process, and return it when it is ready."""
        # Arenas reserve address space for each thread.
        env = environment(MALLOC_ARENA_MAX="2", OMP_NUM_THREADS="1")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", RUN, "resperf.serve.worker",
            stdin=PIPE, stdout=PIPE, cwd=self.folder, env=env,
        )  # fmt: skip
        self._processes.add(process)
        # Libraries load in two seconds, on a busy machine in many.
        await asyncio.wait_for(_answer(process), 60)
        return process

    def _kill(self, process: Process | None) -> None:
        if process is not None:
            self._processes.discard(process)
            with suppress(ProcessLookupError):
                process.kill()


async def _answer(process: Process, words: Sequence[str] | None = None) -> tuple[int, bytes]:
    """Ask a process, or wait until it is ready; return a status and a text."""
    assert process.stdin is not None
    assert process.stdout is not None
    if words is not None:
        process.stdin.write(f"{json.dumps(words)}\n".encode())
        await process.stdin.drain()
    status, size = map(int, (await process.stdout.readuntil()).split())
    return status, await process.stdout.readexactly(size)
