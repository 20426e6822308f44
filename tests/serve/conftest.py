"""A service on loopback, with real processes, in a thread of this one."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MAX_BYTES = 8 << 20
"""Of a file: enough for all but large ones, and soon exceeded."""
NETWORKS = Path(__file__).parents[2] / "models" / "networks"


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        """The one line of a refusal."""
        assert [*self.document] == ["error"]
        line = self.document["error"]
        assert line
        assert "\n" not in line
        return line


class Client:
    """Asks a service."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        finally:
            connection.close()

    def predict(self, query: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", f"/v1/predictions?{query}", body, **headers)


@contextmanager
def started(
    token: str = "", host: str = "127.0.0.1", datasets: Path | None = None
) -> Iterator[Client]:
    import uvicorn

    from resperf.serve.app import create_app
    from resperf.serve.guard import Guard

    listening = socket.create_server(("127.0.0.1", 0))
    app = Guard(create_app(MAX_BYTES, datasets), host, token)
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield Client(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One service for all tests, whose processes have a home of their own."""
    pytest.importorskip("fastapi", reason="pip install 'resperf[serve]'")
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            patched.setenv(name, str(root))
        patched.setenv("OMP_NUM_THREADS", "1")
        with started() as client:
            yield client


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Start another service: ``with serving("token", "0.0.0.0") as client``."""
    return started


@pytest.fixture
def processes() -> Callable[[], list[int]]:
    """Return the ids of the processes that read clients' files."""

    def listed() -> list[int]:
        own = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if b"resperf.serve.worker" in words and int(parent) == os.getpid():
                own.append(int(folder.name))
        return own

    return listed
