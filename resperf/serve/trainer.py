"""The offline trainer: `resperf train` in a child process, one at a time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fastapi import HTTPException


class Trainer:
    """Trains on datasets of a folder, for clients.

    Parameters
    ----------
    folder : Path, optional
        Of datasets; without one, all is refused.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._states: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, dataset: str, method: str) -> dict[str, Any]:
        """Start a training, and return its state.

        Raises
        ------
        HTTPException
            404 if there is no such dataset, or training is not allowed; 429 while another runs.
        """
        if self._folder is None:
            raise HTTPException(404, "this service does not train; start it with --allow-training")
        if not (self._folder / dataset).is_file():
            names = ", ".join(sorted(path.name for path in self._folder.glob("*.h5"))) or "none"
            raise HTTPException(404, f"no dataset {dataset}; the service has {names}")
        number = len(self._states)
        if self._task is not None and not self._task.done():
            raise HTTPException(429, f"training {number} runs; ask again when it has ended")
        state = {"id": number + 1, "dataset": dataset, "method": method, "state": "running"}
        self._states.append(state)
        self._task = asyncio.create_task(self._train(self._folder / dataset, state))
        return state

    def state(self, number: int) -> dict[str, Any]:
        """Return the state of a training: 404 if there is none."""
        if not 1 <= number <= len(self._states):
            raise HTTPException(404, f"no training {number}; POST /v1/trainings starts one")
        return self._states[number - 1]

    async def _train(self, file: Path, state: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "resperf", "train", file, f"--method={state['method']}", "--json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, said = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode == 0:
            state |= {"state": "done", "bundle": json.loads(out)}
        else:
            line = said.decode(errors="replace").strip().rpartition("\n")[2]
            state |= {"state": "failed", "error": line.removeprefix("resperf: error: ")}
